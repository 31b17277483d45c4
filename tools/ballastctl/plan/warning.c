// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/plan/warning.h"

#include <stdio.h>

void bl_ctl_warning_find(const bl_profile_t *profile, const bl_profile_use_t *use, const char *name,
                         char warning[BL_CTL_WARNING]) {
  char reasons[BL_PROFILE_WARNING];
  bool doubted = bl_profile_warning(profile, use, reasons);
  snprintf(warning, BL_CTL_WARNING, doubted ? "profile %.200s: %s" : "", name, reasons);
}

void bl_ctl_warning_tell(const char *warning) {
  if (warning[0] != '\0') {
    fprintf(stderr, "warning: %s\n", warning);
  }
}

json_t *bl_ctl_warning_json(const char *warning) {
  json_t *warnings = json_array();
  bl_ctl_warning_append(warnings, warning);
  return warnings;
}

void bl_ctl_warning_append(json_t *warnings, const char *warning) {
  if (warnings != NULL && warning[0] != '\0') {
    json_array_append_new(warnings, json_string(warning));
  }
}
