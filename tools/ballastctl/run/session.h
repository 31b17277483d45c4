// SPDX-License-Identifier: Apache-2.0
// One run from its start to its end. Starts the processes that are needed, follows the driver, writes the report, shows
// progress, and leaves nothing behind, however it ends.
#ifndef BALLAST_BALLASTCTL_SESSION_H
#define BALLAST_BALLASTCTL_SESSION_H

#include "config/job.h"
#include "job/resume.h"
#include "job/training.h"

typedef struct bl_ctl_session_options {
  bl_job_t *job;    // checked; services.stages is filled in if stages are started here
  char *given_init; // what model.init named before it was replaced (job/resume.h); "": it was not
  // The resolved job; empty with a running driver, which has its own, if nothing is predicted
  const bl_training_t *training;
  bool local;                // start the stages
  const bl_resume_t *resume; // for --resume; path "": the driver decides; NULL: start from scratch
  bool nccl_shared_gpu;      // processes that share a GPU use NCCL
  bool verbose;              // processes print to standard error
  bool summary;              // print a table of stages on standard output at the end
  const char *report;        // NULL: none
  const char *timeline;      // path for a picture of the last step; NULL: none
  const char *profile;       // path for a recorded profile of the run; NULL: none
  const char *predict;       // profile to predict from; NULL: none
  uint32_t sample;           // tokens of text to sample at the end, to standard output
} bl_ctl_session_options_t;

// Runs the job to its end. Prints messages on standard error. Returns the exit code of the program.
int bl_ctl_session_run(const bl_ctl_session_options_t *options);

#endif
