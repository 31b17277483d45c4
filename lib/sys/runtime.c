// SPDX-License-Identifier: Apache-2.0
#include "sys/runtime.h"

#include "sys/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

bl_status_t bl_runtime_folder(char *path, size_t path_bytes, bl_error_t *err) {
  const char *runtime = getenv("XDG_RUNTIME_DIR");
  const char *temporary = getenv("TMPDIR");
  int length;
  if (runtime != NULL && runtime[0] == '/') {
    length = snprintf(path, path_bytes, "%s/ballast", runtime);
  } else {
    length = snprintf(path, path_bytes, "%s/ballast-%lu", temporary != NULL && temporary[0] == '/' ? temporary : "/tmp",
                      (unsigned long)geteuid());
  }
  if (length < 0 || (size_t)length >= path_bytes) {
    return bl_error_set(err, BL_INVALID, "the path of the run-time folder is too long");
  }
  bl_status_t status = bl_folder_create(path, 0700, err);
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
