// SPDX-License-Identifier: Apache-2.0
// What there is to say of a prediction beside it: one line for people on standard error, and the same text in the list
// `warnings` of what is printed as JSON.
#ifndef BALLAST_BALLASTCTL_DOUBT_H
#define BALLAST_BALLASTCTL_DOUBT_H

#include "plan/profile/profile_use.h"

#include <jansson.h>

#define BL_CTL_DOUBT (BL_PROFILE_DOUBT + 256)

// bl_profile_doubt behind the profile's name.
void bl_ctl_doubt_find(const bl_profile_t *profile, const bl_profile_use_t *use, const char *name,
                       char doubt[BL_CTL_DOUBT]);
// Tells of a doubt on standard error; of "" nothing.
void bl_ctl_doubt_tell(const char *doubt);
// A list with it as a text, or an empty one; for JSON.
json_t *bl_ctl_doubt_json(const char *doubt);
// Another one behind it; of "" nothing.
void bl_ctl_doubt_append(json_t *warnings, const char *doubt);

#endif
