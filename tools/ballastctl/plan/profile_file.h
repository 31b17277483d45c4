// SPDX-License-Identifier: Apache-2.0
// Profiles as files.
#ifndef BALLAST_BALLASTCTL_PROFILE_FILE_H
#define BALLAST_BALLASTCTL_PROFILE_FILE_H

#include "plan/profile/profile.h"

// BL_INVALID: a file that is missing, not readable for us (names `flag`, as input_file.h) or not a profile; names it.
// BL_IO.
BL_MUST_USE bl_status_t bl_ctl_profile_read(const char *flag, const char *path, bl_profile_t *profile, bl_error_t *err);
BL_MUST_USE bl_status_t bl_ctl_profile_write(const char *path, const bl_profile_t *profile, bl_error_t *err);

#endif
