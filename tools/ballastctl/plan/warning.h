// SPDX-License-Identifier: Apache-2.0
// Warnings about a prediction: one line for people on standard error, and the same text in the list `warnings` of JSON
// output.
#ifndef BALLAST_BALLASTCTL_WARNING_H
#define BALLAST_BALLASTCTL_WARNING_H

#include "plan/profile/profile_use.h"

#include <jansson.h>

#define BL_CTL_WARNING (BL_PROFILE_WARNING + 256)

// Writes bl_profile_warning after the profile's name.
void bl_ctl_warning_find(const bl_profile_t *profile, const bl_profile_use_t *use, const char *name,
                         char warning[BL_CTL_WARNING]);
// Prints the warning on standard error; nothing for "".
void bl_ctl_warning_tell(const char *warning);
// Returns a JSON list with the warning, or an empty one for "".
json_t *bl_ctl_warning_json(const char *warning);
// Appends another warning; nothing for "".
void bl_ctl_warning_append(json_t *warnings, const char *warning);

#endif
