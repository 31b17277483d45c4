// SPDX-License-Identifier: Apache-2.0
#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void copy_cut(char *text, const char *from, size_t length) {
  if (length >= BL_ERROR_TEXT_BYTES) {
    memcpy(text, from, BL_ERROR_TEXT_BYTES - 4);
    memcpy(text + BL_ERROR_TEXT_BYTES - 4, "...", 4);
    return;
  }
  memcpy(text, from, length + 1);
}

void bl_error_clear(bl_error_t *err) {
  if (err != NULL) {
    err->status = BL_OK;
    err->text[0] = '\0';
  }
}

bl_status_t bl_error_set(bl_error_t *err, bl_status_t status, const char *format, ...) {
  if (err == NULL) {
    return status;
  }
  char text[BL_ERROR_TEXT_BYTES * 2]; // a buffer of its own, because arguments may point into err->text
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  err->status = status;
  copy_cut(err->text, text, strlen(text));
  return status;
}

bl_status_t bl_error_prefix(bl_error_t *err, const char *format, ...) {
  if (err == NULL) {
    return BL_INTERNAL;
  }
  char text[BL_ERROR_TEXT_BYTES * 2];
  va_list args;
  va_start(args, format);
  vsnprintf(text, BL_ERROR_TEXT_BYTES, format, args);
  va_end(args);
  size_t used = strlen(text);
  snprintf(text + used, sizeof text - used, ": %s", err->text);
  copy_cut(err->text, text, strlen(text));
  return err->status;
}
