// SPDX-License-Identifier: Apache-2.0
// One run from its start to its end: starts what has to be started, follows the driver, writes the report, shows
// progress, and leaves nothing behind, however it ends.
#ifndef BALLAST_BALLASTCTL_SESSION_H
#define BALLAST_BALLASTCTL_SESSION_H

#include "config/job.h"
#include "job/resume.h"
#include "job/training.h"

typedef struct bl_ctl_session_options {
  bl_job_t *job;                 // checked; services.stages is filled in when stages are started here
  const bl_training_t *training; // what it means; empty where a driver runs that knows it, and nothing is predicted
  bool local;                    // start the stages
  const bl_resume_t *resume;     // of --resume; path "": the driver knows; NULL: begin anew
  bool nccl_shared_gpu;          // processes that share a GPU use NCCL
  bool verbose;                  // processes print to standard error
  bool summary;                  // a table of stages on standard output at the end
  const char *report;            // NULL: none
  const char *timeline;          // picture of the last step; NULL: none
  const char *profile;           // where to record a profile of the run; NULL: nowhere
  const char *predict;           // profile to predict from; NULL: none
  uint32_t sample;               // tokens of text to draw at the end, to standard output
} bl_ctl_session_options_t;

// Runs it to its end. Messages go to standard error. Returns the exit code of the program.
int bl_ctl_session_run(const bl_ctl_session_options_t *options);

#endif
