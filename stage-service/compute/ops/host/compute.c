// SPDX-License-Identifier: Apache-2.0
#include "compute/ops/host/compute.h"

#include <stdarg.h>
#include <stdio.h>

void bl__compute_want(bl_compute_t *compute, size_t bytes) {
  if (bytes > compute->workspace_wanted) {
    compute->workspace_wanted = bl_align_up(bytes, BL_CACHE_LINE_BYTES);
  }
}

void *bl__compute_workspace(bl_compute_t *compute, size_t bytes, const char *operation) {
  if (bytes > compute->workspace_bytes) {
    bl__compute_fail(compute, BL_INTERNAL,
                     "%s: needs %zu bytes of workspace, has %zu; call use_workspace after planning", operation, bytes,
                     compute->workspace_bytes);
    return NULL;
  }
  return compute->workspace;
}

void bl__compute_fail(bl_compute_t *compute, bl_status_t status, const char *format, ...) {
  if (compute->error.status != BL_OK) {
    return;
  }
  char text[256];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  bl_error_set(&compute->error, status, "%s", text);
}
