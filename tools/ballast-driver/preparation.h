// SPDX-License-Identifier: Apache-2.0
// What must be known before a run can be driven: the meaning of the job, with an order that is searched if none was
// given; the claim of its checkpoint folder; and where to continue. A search takes seconds of a core, on a busy machine
// many. It runs on a separate thread, so that the driver can answer calls.
//
//   self->preparation = (bl_preparation_t){.job = &job, .order_paths = &paths, .resumes = true};
//   bl_preparation_init(&self->preparation, loop, prepared, self, err);
//   bl_preparation_start(&self->preparation);
//   ... prepared(): preparation.err has the result; training, claim and resume are ready for a driver ...
//   bl_preparation_cleanup(&self->preparation);         // waits for a running search, which cannot be cancelled
//
// Thread: the loop's.
#ifndef BALLAST_DRIVER_PREPARATION_H
#define BALLAST_DRIVER_PREPARATION_H

#include "config/job.h"
#include "job/checkpoint_claim.h"
#include "job/resume.h"
#include "job/training.h"
#include "loop/worker.h"

typedef struct bl_preparation {
  // Set by the caller; borrowed.
  bl_job_t *job;                     // with `resumes`, model.init may be replaced (job/resume.h)
  const bl_text_list_t *order_paths; // files of the job's order, and of that for policies of the other kind
  bool resumes;                      // look for a checkpoint to continue from, if the job has a folder for them

  // Valid when `done` was called with err.status BL_OK.
  bl_training_t training;
  bl_checkpoint_claim_t claim;
  bl_resume_t resume;
  char given_init[PATH_MAX]; // if model.init was replaced, what it named; else ""
  // BL_INVALID, BL_UNIMPLEMENTED: the job cannot run; BL_PRECONDITION: another run holds the folder; ...
  bl_error_t err;

  // Private.
  bl_task_t task;
  bl_loop_t *loop;
  bl_worker_t *worker;
  void (*done)(void *context);
  void *context;
  bool running, ended;
} bl_preparation_t;

// Creates the thread. BL_EXHAUSTED: no memory or thread.
BL_MUST_USE bl_status_t bl_preparation_init(bl_preparation_t *preparation, bl_loop_t *loop, void (*done)(void *context),
                                            void *context, bl_error_t *err);
// `done` fires once, unless cleanup is called first.
void bl_preparation_start(bl_preparation_t *preparation);
// Returns whether it was started and `done` has not fired yet.
static inline bool bl_preparation_is_running(const bl_preparation_t *preparation) {
  return preparation->running;
}
void bl_preparation_cleanup(bl_preparation_t *preparation); // a zeroed one is fine

#endif
