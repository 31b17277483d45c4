// SPDX-License-Identifier: Apache-2.0
// An error message for people, in addition to the status that code acts on. Its size is fixed: reporting never
// allocates.
//
//   bl_status_t job_check(const job_t *job, bl_error_t *err) {
//     if (job->heads == 0)
//       return bl_error_set(err, BL_INVALID, "model.heads: must be at least 1, is 0");
//     return BL_OK;
//   }
//
// A message names the object, the cause and, if there is one, the remedy. `err` may be NULL in every call.
// Thread: a bl_error_t belongs to one caller.
#ifndef BALLAST_BASE_ERROR_H
#define BALLAST_BASE_ERROR_H

#include "base/status.h"

#define BL_ERROR_TEXT_BYTES 1024

typedef struct bl_error {
  bl_status_t status;
  char text[BL_ERROR_TEXT_BYTES]; // always terminated; truncated with "..." when too long
} bl_error_t;

void bl_error_clear(bl_error_t *err);
// Sets status and text. Returns `status`, so that it can end a function. Arguments may point into err->text.
bl_status_t bl_error_set(bl_error_t *err, bl_status_t status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
// Puts "context: " before the present text. A caller adds context that its callee does not know. Returns err->status
// (BL_INTERNAL if `err` is NULL).
bl_status_t bl_error_prefix(bl_error_t *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
