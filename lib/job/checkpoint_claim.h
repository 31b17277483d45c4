// SPDX-License-Identifier: Apache-2.0
// The right to write to a checkpoint folder. One run at a time has it, as two would delete and set aside each other's
// checkpoints. The driver of a run claims `checkpoint.folder` before anything else and for as long as it lives, by a
// lock on `.run.lock` there. The text of that file identifies the driver. The kernel frees the lock when the driver
// ends, however it ends.
//
// The driver's successor in the same run (one over the same stages, which follow the newer of two drivers) need not
// wait for an older driver that is stalled: bl_checkpoint_claim_take succeeds without the lock. Call it again later.
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
  char note[512];      // for people: why the folder may be used although the lock is not held; "": it is held
} bl_checkpoint_claim_t;

// Creates the job's checkpoint.folder if it does not exist, and claims it. BL_PRECONDITION: another run holds it; names
// run and folder. BL_DENIED, BL_IO, ...: the lock file cannot be created or locked. Does nothing if the claim is
// already held, or the job has no folder.
BL_MUST_USE bl_status_t bl_checkpoint_claim_take(bl_checkpoint_claim_t *claim, const bl_job_t *job, bl_error_t *err);
void bl_checkpoint_claim_release(bl_checkpoint_claim_t *claim);

#endif
