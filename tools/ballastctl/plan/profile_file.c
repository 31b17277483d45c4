// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/plan/profile_file.h"

#include "ballastctl/input_file.h"

#include "sys/file.h"

#include <stdlib.h>
#include <string.h>

#define PROFILE_FILE_BYTES (256u << 20)

bl_status_t bl_ctl_profile_read(const char *flag, const char *path, bl_profile_t *profile, bl_error_t *err) {
  char *bytes;
  size_t size_bytes;
  bl_status_t status = bl_ctl_input_file_read(flag, path, PROFILE_FILE_BYTES, &bytes, &size_bytes, err);
  if (status != BL_OK) {
    return status;
  }
  status = bl_profile_read(profile, bytes, size_bytes, path, err);
  free(bytes);
  return status == BL_OK ? BL_OK : bl_error_prefix(err, "%s", flag);
}

bl_status_t bl_ctl_profile_write(const char *path, const bl_profile_t *profile, bl_error_t *err) {
  char *text;
  if (bl_profile_write(profile, &text) != BL_OK) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for the profile");
  }
  bl_status_t status = bl_file_replace(path, text, strlen(text), err);
  free(text);
  return status;
}
