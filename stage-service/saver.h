// SPDX-License-Identifier: Apache-2.0
// Saves a stage's part of a checkpoint: a copy on the compute thread, between two steps, then files from the copy on a
// thread of its own while the next steps run. One copy exists at a time.
//
//   bl_saver_create(loop, compute, &observer, &saver, err);
//   bl_saver_copy(saver, engine->snapshot, step, err);       // the caller knows that nothing else runs
//   bl_saver_write(saver, &request, err);
//   bl_saver_forget(saver);                                   // before the engine is destroyed
//
// step/stage_step.h defines the decisions. Thread: the loop's.
#ifndef BALLAST_STAGE_SERVICE_SAVER_H
#define BALLAST_STAGE_SERVICE_SAVER_H

#include "checkpoint/snapshot.h"
#include "loop/worker.h"
#include "step/stage_step.h"

#include <limits.h>

typedef struct bl_saver bl_saver_t;

typedef struct bl_saver_observer {
  void *context;
  void (*copied)(void *context);
  void (*written)(void *context, const bl_error_t *err); // BL_OK: bl_saver_file returns the files
} bl_saver_observer_t;

// `compute` is borrowed and outlives the saver's copies.
BL_MUST_USE bl_status_t bl_saver_create(bl_loop_t *loop, bl_worker_t *compute, const bl_saver_observer_t *observer,
                                        bl_saver_t **saver, bl_error_t *err);
// Waits for the file being written. No observer function is called any more. `compute` has ended. NULL is fine.
void bl_saver_destroy(bl_saver_t *saver);

// True while a copy is being made or written: its source and the copy must not be freed.
bool bl_saver_is_busy(const bl_saver_t *saver);
// Drops copy and results. Not while busy.
void bl_saver_forget(bl_saver_t *saver);

// ANSWER: the copy of this step exists; the next bl_saver_write writes it once more. REFUSE with BL_EXHAUSTED: another
// one is still being written.
bl_stage_decision_t bl_saver_copy(bl_saver_t *saver, bl_snapshot_t *snapshot, uint64_t step, bl_error_t *err);

typedef struct bl_saver_request {
  uint64_t step;
  const char *folder;
  const char *names[2]; // by bl_checkpoint_shard_kind_t
} bl_saver_request_t;
// Strings are copied. ANSWER: it is on disk. REFUSE with BL_PRECONDITION: there is no copy of this step; with
// BL_UNAVAILABLE: the copy is still being written to another folder, for a driver that has gone: ask again
// (BL_EXHAUSTED is what a full disk gives); with BL_INVALID: a name is not a plain file name.
bl_stage_decision_t bl_saver_write(bl_saver_t *saver, const bl_saver_request_t *request, bl_error_t *err);

typedef struct bl_saver_file {
  const char *name;
  const bl_shard_image_t *image;
  const bl_shard_checksums_t *checksums;
} bl_saver_file_t;
// Returns the file of this kind that was written last, once it is complete.
bl_saver_file_t bl_saver_file(const bl_saver_t *saver, bl_checkpoint_shard_kind_t kind);

#endif
