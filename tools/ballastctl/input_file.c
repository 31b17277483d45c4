// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/input_file.h"

#include "sys/file.h"

bl_status_t bl_ctl_input_file_read(const char *flag, const char *path, size_t limit_bytes, char **bytes,
                                   size_t *size_bytes, bl_error_t *err) {
  bl_error_t fault;
  bl_status_t status = bl_file_read(path, limit_bytes, bytes, size_bytes, &fault);
  if (status == BL_OK) {
    return BL_OK;
  }
  const bool failed = status == BL_IO; // another file could not fail like this
  return bl_error_set(err, failed ? status : BL_INVALID, "%s%s%s", flag != NULL ? flag : "", flag != NULL ? " " : "",
                      fault.text);
}
