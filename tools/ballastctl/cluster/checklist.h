// SPDX-License-Identifier: Apache-2.0
// Rows of checks that passed, failed or were skipped, as ballastctl preflight prints them.
//
//   bl_ctl_checklist_t list = {.rows = json_array()};
//   bl_ctl_checklist_note(&list, "name", "stage 0", &err, "localhost is 127.0.0.1");
//   ... list.failed of json_array_size(list.rows) ...
#ifndef BALLAST_BALLASTCTL_CHECKLIST_H
#define BALLAST_BALLASTCTL_CHECKLIST_H

#include "base/error.h"

#include <jansson.h>
#include <stddef.h>

typedef struct bl_ctl_checklist {
  json_t *rows;
  size_t failed;
} bl_ctl_checklist_t;

// Adds the result of check `what` on `subject`. If err is NULL or BL_OK, the check passed and `says` is shown; else
// err's text.
void bl_ctl_checklist_note(bl_ctl_checklist_t *list, const char *what, const char *subject, const bl_error_t *err,
                           const char *says);
// Adds a check that passed although something else would be better; `says` why. State "warning", which fails nothing.
void bl_ctl_checklist_warn(bl_ctl_checklist_t *list, const char *what, const char *subject, const char *says);
// Adds a check that this job does not need; `says` why.
void bl_ctl_checklist_skip(bl_ctl_checklist_t *list, const char *what, const char *subject, const char *says);

#endif
