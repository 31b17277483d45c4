// SPDX-License-Identifier: Apache-2.0
// An error message for a person, beside the status that code acts on. Fixed size: reporting never allocates.
//
//   bl_status_t job_check(const job_t *job, bl_error_t *err) {
//     if (job->heads == 0)
//       return bl_error_set(err, BL_INVALID, "model.heads: must be at least 1, is 0");
//     return BL_OK;
//   }
//
// A message names the thing, the cause and, where one exists, what to do next. `err` may be NULL everywhere.
// Thread: a bl_error_t belongs to one caller.
#ifndef BALLAST_BASE_ERROR_H
#define BALLAST_BASE_ERROR_H

#include "base/status.h"

#define BL_ERROR_TEXT_BYTES 1024

typedef struct bl_error {
  bl_status_t status;
  char text[BL_ERROR_TEXT_BYTES]; // always terminated; cut with "..." when too long
} bl_error_t;

void bl_error_clear(bl_error_t *err);
// Sets status and text; returns `status` so that it can end a function. Arguments may point into err->text.
bl_status_t bl_error_set(bl_error_t *err, bl_status_t status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
// Puts "context: " before the present text, at a boundary where the callee could not know it. Returns err->status.
bl_status_t bl_error_prefix(bl_error_t *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
