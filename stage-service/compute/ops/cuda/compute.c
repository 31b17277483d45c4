// SPDX-License-Identifier: Apache-2.0
#include "compute/ops/cuda/compute.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void bl__cuda_want(bl_compute_t *compute, size_t bytes) {
  const size_t wanted = bl_align_up(bytes, BL_CACHE_LINE_BYTES) + BL__WORKSPACE_ALIGNMENT;
  if (bytes > 0 && wanted > compute->workspace_wanted) {
    compute->workspace_wanted = wanted;
  }
}

void *bl__cuda_workspace(bl_compute_t *compute, size_t bytes, const char *operation) {
  if (bytes > compute->workspace_bytes) {
    bl__cuda_fail(compute, "%s: needs %zu bytes of workspace, has %zu; call use_workspace after planning", operation,
                  bytes, compute->workspace_bytes);
    return NULL;
  }
  return compute->workspace;
}

void bl__cuda_fail(bl_compute_t *compute, const char *format, ...) {
  if (compute->error.status != BL_OK) {
    return;
  }
  char text[256];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  bl_error_set(&compute->error, BL_INTERNAL, "%s", text);
}

void bl__cuda_launched(bl_compute_t *compute, int error, const char *operation) {
  if (error != 0) {
    bl__cuda_fail(compute, "%s: %s (%d)", operation, bl__gpu_error_text(error), error);
  }
}

void bl__cuda_note(bl_compute_t *compute, const char *format, ...) {
  const size_t used = strlen(compute->description);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(compute->description + used, sizeof compute->description - used, format, arguments);
  va_end(arguments);
}
