// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/cluster/checklist.h"

static void add(bl_ctl_checklist_t *list, const char *what, const char *subject, const char *state, const char *says) {
  json_array_append_new(
      list->rows, json_pack("{s:s, s:s, s:s, s:s}", "check", what, "subject", subject, "state", state, "says", says));
}

void bl_ctl_checklist_note(bl_ctl_checklist_t *list, const char *what, const char *subject, const bl_error_t *err,
                           const char *says) {
  bool well = err == NULL || err->status == BL_OK;
  add(list, what, subject, well ? "ok" : "failed", well ? says : err->text);
  list->failed += !well;
}

void bl_ctl_checklist_skip(bl_ctl_checklist_t *list, const char *what, const char *subject, const char *says) {
  add(list, what, subject, "not asked", says);
}

void bl_ctl_checklist_warn(bl_ctl_checklist_t *list, const char *what, const char *subject, const char *says) {
  add(list, what, subject, "warning", says);
}
