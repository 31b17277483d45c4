// SPDX-License-Identifier: Apache-2.0
// How a driver takes a checkpoint. All stages copy their share while training stops, then write it while the next steps
// run. When all have written, a separate thread seals the folder and renames it into place.
//
// Rules:
//   1. One checkpoint at a time. If the next is due before the last is on disk, training waits for the disk and logs a
//      warning: no requested checkpoint is left out.
//   2. A checkpoint that fails (a full disk, a lost network share) changes nothing: the checkpoints before it stay,
//      training continues, the failure is reported as soon as no stage writes any more, and the next one is tried when
//      it is due.
//   3. The last one, after the last step, must succeed. Otherwise the run ends with that error.
//   4. A checkpoint replaces others only if training can go on from it: it is committed when the loss of the next step
//      or of held-out data is finite, or when neither comes. If that loss is not finite, or a number of the checkpoint,
//      the run ends and the checkpoints before stay.
//   5. What was not committed is removed, even if the run ends in the middle of it.
//   6. The folder is this run's alone for as long as its driver lives (job/checkpoint_claim.h).
//
// Thread: the loop's, except for what runs on the worker.
#ifndef BALLAST_DRIVER_CHECKPOINT_H
#define BALLAST_DRIVER_CHECKPOINT_H

#include "driver.h"
#include "job/companions.h"
#include "loop/worker.h"
#include "run_journal.h"

typedef enum {
  BL__SAVE_IDLE,
  BL__SAVE_COPYING,    // every stage is to copy; no other call is made to them
  BL__SAVE_WRITING,    // every stage writes
  BL__SAVE_WRITTEN,    // files are complete and wait to be committed (rule 4)
  BL__SAVE_COMMITTING, // on the worker; this includes the removal of a failed one
} bl__save_phase_t;

// The call to one stage.
typedef struct bl__save_part {
  bl_driver_t *driver;
  size_t stage;
  bool asked, answered;
  uint64_t again_ms; // not before
} bl__save_part_t;

typedef struct bl__save_wait {
  struct bl__save_wait *next;
  bool begun; // the checkpoint that it waits for
  bl_driver_saved_fn done;
  void *context;
} bl__save_wait_t;

typedef struct bl__save {
  bl__save_phase_t phase;
  uint64_t step;      // of the current checkpoint
  uint64_t number;    // distinguishes its answers from those to earlier ones
  uint64_t tried;     // step of the last one that ended, or from which the run began, or that was there already
  bl_error_t err;     // of that one
  bl_error_t failure; // of the current one: the first stage that failed
  char partial[PATH_MAX], path[PATH_MAX];
  char aside[PATH_MAX];         // where checkpoints of an earlier run are now; "": there were none
  bl__save_part_t *parts;       // [stage_count]
  bl_checkpoint_file_t *shards; // [2 stage_count], owned copies
  size_t shard_count;
  bl_companions_t companions; // of the model that the run began with
  uint64_t began_ns, stopped_ns, waiting_since_ns, written_ns;
  bl_worker_t *worker;
  bl_task_t commit;
  bl_error_t commit_err, prune_err;
  bl__save_wait_t *waits;
} bl__save_t;

BL_MUST_USE bl_status_t bl__save_prepare(bl_driver_t *driver, bl_error_t *err);
void bl__save_cleanup(bl_driver_t *driver);
// Called before the first step. Checks that the folder can be written, and removes unfinished checkpoints. If the run
// starts from the first step, moves the checkpoints of an earlier run to another folder.
BL_MUST_USE bl_status_t bl__save_enter(bl_driver_t *driver, bl_error_t *err);
// Called at a boundary. True: nothing else may begin, because stages are copying or the checkpoint before must end
// first.
bool bl__save_boundary(bl_driver_t *driver);
// Returns whether a checkpoint is in progress. A run does not end before it has ended.
bool bl__save_is_busy(const bl_driver_t *driver);
void bl__save_tick(bl_driver_t *driver);
// Called at a boundary before everything else: commits what is written if it can be decided now (rule 4).
void bl__save_release(bl_driver_t *driver);
// The loss with the weights of the last step is not finite: if these are being saved, they are discarded because of
// `err`, whether all of them is written or not.
void bl__save_reject(bl_driver_t *driver, const bl_error_t *err);
// The run ends with an error that says nothing against what is written: commits it.
void bl__save_keep(bl_driver_t *driver);
// The run ends: notifies the callers that wait for a checkpoint.
void bl__save_end_waits(bl_driver_t *driver, const bl_error_t *err);

#endif
