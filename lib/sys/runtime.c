// SPDX-License-Identifier: Apache-2.0
#include "sys/runtime.h"

#include "sys/file.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static bool fits(int length, size_t path_bytes) {
  return length >= 0 && (size_t)length < path_bytes;
}

bl_status_t bl_runtime_path(char *path, size_t path_bytes, bl_error_t *err) {
  const char *runtime = getenv("XDG_RUNTIME_DIR"); // belongs to another user after su, and is unset in containers
  if (runtime != NULL && runtime[0] == '/' && access(runtime, W_OK) == 0 &&
      fits(snprintf(path, path_bytes, "%s/ballast", runtime), path_bytes)) {
    return BL_OK;
  }
  const char *temporary = getenv("TMPDIR");
  const char *const places[] = {temporary != NULL && temporary[0] == '/' ? temporary : "/tmp", "/tmp"};
  for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
    if (fits(snprintf(path, path_bytes, "%s/ballast-%lu", places[i], (unsigned long)geteuid()), path_bytes)) {
      return BL_OK;
    }
  }
  return bl_error_set(err, BL_INVALID, "no place for sockets has a short enough path; set TMPDIR to one");
}

bl_status_t bl_runtime_folder(char *path, size_t path_bytes, bl_error_t *err) {
  bl_status_t status = bl_runtime_path(path, path_bytes, err);
  if (status != BL_OK) {
    return status;
  }
  status = bl_folder_create(path, 0700, err);
  if (status != BL_OK) {
    return status;
  }
  struct stat info;
  if (lstat(path, &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != geteuid() || (info.st_mode & 077) != 0) {
    return bl_error_set(err, BL_DENIED, "%s: must be a folder of this user that nobody else can enter (mode 0700)",
                        path);
  }
  return BL_OK;
}
