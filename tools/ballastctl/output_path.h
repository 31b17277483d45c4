// SPDX-License-Identifier: Apache-2.0
// Files that a verb is to write, looked at before it works: nothing is lost to a folder that is not there.
#ifndef BALLAST_BALLASTCTL_OUTPUT_PATH_H
#define BALLAST_BALLASTCTL_OUTPUT_PATH_H

#include "base/error.h"
#include "base/library.h"

// `flag` without its dashes; a path of NULL is fine. Nothing is created or changed. Errors name the flag, the path and what is
// in the way: BL_NOT_FOUND, BL_DENIED, BL_INVALID, BL_IO.
BL_MUST_USE bl_status_t bl_ctl_output_path_check(const char *flag, const char *path, bl_error_t *err);
// That, of a picture: the name must end in .svg or .png, too.
BL_MUST_USE bl_status_t bl_ctl_picture_path_check(const char *flag, const char *path, bl_error_t *err);

#endif
