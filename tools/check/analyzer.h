// SPDX-License-Identifier: Apache-2.0
// Included before every file that clang-tidy looks at: what its analyzer cannot see across files. A status that is set
// together with a message is an error, so whoever returned it did not set its outputs.
#ifndef BALLAST_CHECK_ANALYZER_H
#define BALLAST_CHECK_ANALYZER_H

#include "base/error.h"
#include "config/job.h"

#include <stddef.h>

static inline bl_status_t bl__a_failure(const bl_error_t *err, bl_status_t status) {
  if (status == BL_OK || (err != NULL && err->status == BL_OK)) {
    __builtin_unreachable();
  }
  return status;
}

#define bl_error_set(err_, ...)    bl__a_failure(err_, (bl_error_set)(err_, __VA_ARGS__))
#define bl_error_prefix(err_, ...) bl__a_failure(err_, (bl_error_prefix)(err_, __VA_ARGS__))
#define bl_job_fail(...)           bl__a_failure(NULL, (bl_job_fail)(__VA_ARGS__))
#define bl_status_from_errno(code) bl__a_failure(NULL, (bl_status_from_errno)(code))

#endif
