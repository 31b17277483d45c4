// SPDX-License-Identifier: Apache-2.0
// Checks of output files before a command starts to work, so that no work is lost to a missing folder.
#ifndef BALLAST_BALLASTCTL_OUTPUT_PATH_H
#define BALLAST_BALLASTCTL_OUTPUT_PATH_H

#include "base/error.h"
#include "base/library.h"

#include <stdbool.h>

// Checks that `path` can be written. `flag` is given without its dashes; a NULL path is fine. Creates and changes
// nothing. BL_NOT_FOUND, BL_DENIED, BL_INVALID, BL_IO: the message names the flag, the path and the obstacle.
BL_MUST_USE bl_status_t bl_ctl_output_path_check(const char *flag, const char *path, bl_error_t *err);
// The same for a picture, whose name must end in .svg or .png.
BL_MUST_USE bl_status_t bl_ctl_picture_path_check(const char *flag, const char *path, bl_error_t *err);
// Returns whether both paths name the same file, which need not exist yet. A device or a pipe may have several uses; a
// NULL path names nothing.
bool bl_ctl_output_path_same(const char *a, const char *b);

#endif
