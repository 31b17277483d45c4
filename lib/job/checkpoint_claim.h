// SPDX-License-Identifier: Apache-2.0
// Who writes to a checkpoint folder: one run at a time, as two would delete and set aside each other's checkpoints. The
// driver of a run claims `checkpoint.folder` before anything else and for as long as it lives, by a lock on
// `.run.lock` there, which says in words who it is. The kernel frees the lock when the driver ends, however it ends.
//
// The driver's successor in the same run (one over the same stages, which follow the newer of two drivers) need not wait
// for an older one that stands still: bl_checkpoint_claim_take succeeds without the lock, and is to be called again later.
//
// Thread: belongs to its caller.
#ifndef BALLAST_JOB_CHECKPOINT_CLAIM_H
#define BALLAST_JOB_CHECKPOINT_CLAIM_H

#include "config/job.h"

#include <limits.h>

typedef struct bl_checkpoint_claim { // all zero: nothing is held
  bool held;
  int fd;
  char path[PATH_MAX]; // of the lock
  char note[512];      // why it is not held although the folder may be used, for people; "": it is held
} bl_checkpoint_claim_t;

// Makes the job's checkpoint.folder when absent and claims it. BL_PRECONDITION: another run holds it, named with the folder;
// BL_DENIED, BL_IO, ...: no lock can be made there. Nothing happens where it is held already, or the job has no folder.
BL_MUST_USE bl_status_t bl_checkpoint_claim_take(bl_checkpoint_claim_t *claim, const bl_job_t *job, bl_error_t *err);
void bl_checkpoint_claim_release(bl_checkpoint_claim_t *claim);

#endif
