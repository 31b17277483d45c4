// SPDX-License-Identifier: Apache-2.0
// How a driver takes a checkpoint: all stages copy their part (training stands still), then write it while the next steps
// run; when all have written, the folder is sealed and renamed into place on a thread of its own.
//
// Rules:
//   1. One checkpoint at a time. When the next is due before the last is on disk, training waits for the disk and says
//      so: no checkpoint that was asked for is left out.
//   2. One that fails (a full disk, a lost share) changes nothing: the checkpoints before it stay, training goes on, the
//      failure is told as soon as no stage writes any more, and the next one is tried when it is due.
//   3. The last one, after the last step, must succeed: else the run ends with that error.
//   4. What was not committed is removed, also when the run ends in the middle of it.
//   5. The folder is this run's alone for as long as its driver lives (job/checkpoint_claim.h).
//
// Thread: the loop's, but for what runs on the worker.
#ifndef BALLAST_DRIVER_CHECKPOINT_H
#define BALLAST_DRIVER_CHECKPOINT_H

#include "driver.h"
#include "job/companions.h"
#include "journal.h"
#include "loop/worker.h"

typedef enum {
  BL__SAVE_IDLE,
  BL__SAVE_COPYING,    // every stage is asked to copy; nothing else is asked of them
  BL__SAVE_WRITING,    // every stage writes
  BL__SAVE_COMMITTING, // on the worker; or removing what failed
} bl__save_phase_t;

// What is asked of one stage.
typedef struct bl__save_part {
  bl_driver_t *driver;
  size_t stage;
  bool asked, answered;
  uint64_t again_ms; // not before
} bl__save_part_t;

typedef struct bl__save_wait {
  struct bl__save_wait *next;
  bl_driver_saved_fn done;
  void *context;
} bl__save_wait_t;

typedef struct bl__save {
  bl__save_phase_t phase;
  uint64_t step;      // of the one under way
  uint64_t number;    // tells its answers from those to earlier ones
  uint64_t tried;     // step of the last one that ended, or that the run began from
  bl_error_t err;     // of that one
  bl_error_t failure; // of the one under way: the first stage that could not do its part
  char partial[PATH_MAX], path[PATH_MAX];
  bl__save_part_t *parts;       // [stage_count]
  bl_checkpoint_file_t *shards; // [2 stage_count], owned copies
  size_t shard_count;
  bl_companions_t companions; // of the model that the run began with
  uint64_t began_ns, stopped_ns, waiting_since_ns;
  bl_worker_t *worker;
  bl_task_t commit;
  bl_error_t commit_err, prune_err;
  bl__save_wait_t *waits;
} bl__save_t;

BL_MUST_USE bl_status_t bl__save_prepare(bl_driver_t *driver, bl_error_t *err);
void bl__save_cleanup(bl_driver_t *driver);
// Driving begins: tidies the folder; a run that begins anew sets the checkpoints of an earlier one aside.
BL_MUST_USE bl_status_t bl__save_enter(bl_driver_t *driver, bl_error_t *err);
// At a boundary. True: stages are being asked to copy, or the checkpoint before must end first: nothing else may begin.
bool bl__save_boundary(bl_driver_t *driver);
// Whether one is under way: a run does not end before it has ended.
bool bl__save_is_busy(const bl_driver_t *driver);
void bl__save_tick(bl_driver_t *driver);
// The run ends: those who wait for a checkpoint are told.
void bl__save_end_waits(bl_driver_t *driver, const bl_error_t *err);

#endif
