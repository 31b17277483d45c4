// SPDX-License-Identifier: Apache-2.0
// The data and model files of a job, as its pods find them: by name alone in one folder. Those below /usr are in the image
// and stay where they are.
#ifndef BALLAST_BALLASTCTL_POD_FILES_H
#define BALLAST_BALLASTCTL_POD_FILES_H

#include "config/job.h"

#include <limits.h>

// BL_INVALID: a path does not end with a name, or two files would have one path in `folder`; `err` names them.
BL_MUST_USE bl_status_t bl_ctl_pod_files_check(const bl_job_t *job, const char *folder, bl_error_t *err);
// Returns whether the job has files that are in no image, or writes checkpoints.
bool bl_ctl_pod_files_need_volumes(const bl_job_t *job);
// Sets where pods find the file. BL_EXHAUSTED: the path is too long.
BL_MUST_USE bl_status_t bl_ctl_pod_file_place(const char *path, const char *folder, char target[PATH_MAX]);

#endif
