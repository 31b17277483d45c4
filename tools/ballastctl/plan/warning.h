// SPDX-License-Identifier: Apache-2.0
// What there is to say of a prediction beside it: one line for people on standard error, and the same text in the list
// `warnings` of what is printed as JSON.
#ifndef BALLAST_BALLASTCTL_WARNING_H
#define BALLAST_BALLASTCTL_WARNING_H

#include "plan/profile/profile_use.h"

#include <jansson.h>

#define BL_CTL_WARNING (BL_PROFILE_WARNING + 256)

// bl_profile_warning behind the profile's name.
void bl_ctl_warning_find(const bl_profile_t *profile, const bl_profile_use_t *use, const char *name,
                         char warning[BL_CTL_WARNING]);
// Tells of a doubt on standard error; of "" nothing.
void bl_ctl_warning_tell(const char *warning);
// A list with it as a text, or an empty one; for JSON.
json_t *bl_ctl_warning_json(const char *warning);
// Another one behind it; of "" nothing.
void bl_ctl_warning_append(json_t *warnings, const char *warning);

#endif
