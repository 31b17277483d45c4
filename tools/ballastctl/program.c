// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/program.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

const char *bl_ctl_program_path(const char *name, char path[PATH_MAX]) {
  ssize_t length = readlink("/proc/self/exe", path, PATH_MAX - 1);
  if (length > 0) {
    path[length] = '\0';
    char *slash = strrchr(path, '/');
    size_t room = PATH_MAX - (size_t)(slash + 1 - path);
    if ((size_t)snprintf(slash + 1, room, "%s", name) < room && access(path, X_OK) == 0) {
      return path;
    }
  }
  return name;
}
