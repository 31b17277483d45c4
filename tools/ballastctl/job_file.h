// SPDX-License-Identifier: Apache-2.0
// The job file and the overrides of a command line, for every command that takes them.
#ifndef BALLAST_BALLASTCTL_JOB_FILE_H
#define BALLAST_BALLASTCTL_JOB_FILE_H

#include "config/job.h"
#include "job/training.h"

// The row of a flag table for "--set"; `member` is a bl_text_list_t.
#define BL_CTL_SET_FLAG(type_, member)                                                                                 \
  {                                                                                                                    \
    .name = "set", .type = BL_OPTION_TEXT_LIST, .offset = offsetof(type_, member), .argument = "KEY=VALUE",            \
    .help = "Override a key of the job; may be repeated. ballastctl configuration lists the keys."                     \
  }

// Reads the job. `last` ("train.steps=9") is set after `sets`; NULL: nothing. BL_INVALID: any error, a missing file
// included, so that a wrong job is exit code 2. On success the caller cleans the job up.
BL_MUST_USE bl_status_t bl_ctl_job_read(const char *path, const bl_text_list_t *sets, const char *last, bl_job_t *job,
                                        bl_error_t *err);
// bl_training_init with the same rule for statuses. The second function is for a run, whose policy may change.
BL_MUST_USE bl_status_t bl_ctl_job_resolve(const bl_job_t *job, bl_training_t *training, bl_error_t *err);
BL_MUST_USE bl_status_t bl_ctl_job_resolve_run(const bl_job_t *job, bl_training_t *training, bl_error_t *err);

#endif
