// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/plan/doubt.h"

#include <stdio.h>

void bl_ctl_doubt_find(const bl_profile_t *profile, const bl_profile_use_t *use, const char *name,
                       char doubt[BL_CTL_DOUBT]) {
  char reasons[BL_PROFILE_DOUBT];
  bool doubted = bl_profile_doubt(profile, use, reasons);
  snprintf(doubt, BL_CTL_DOUBT, doubted ? "profile %.200s: %s" : "", name, reasons);
}

void bl_ctl_doubt_tell(const char *doubt) {
  if (doubt[0] != '\0') {
    fprintf(stderr, "warning: %s\n", doubt);
  }
}

json_t *bl_ctl_doubt_json(const char *doubt) {
  json_t *warnings = json_array();
  bl_ctl_doubt_append(warnings, doubt);
  return warnings;
}

void bl_ctl_doubt_append(json_t *warnings, const char *doubt) {
  if (warnings != NULL && doubt[0] != '\0') {
    json_array_append_new(warnings, json_string(doubt));
  }
}
