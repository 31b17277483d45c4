// SPDX-License-Identifier: Apache-2.0
// What lies in a folder, for tests that something leaves nothing behind.
#ifndef BALLAST_TESTS_FOLDER_H
#define BALLAST_TESTS_FOLDER_H

#include "stop.h"

#include <dirent.h>
#include <sys/types.h>

static inline unsigned count_entries(const char *path) {
  unsigned count = 0;
  DIR *folder = opendir(path);
  MUST(folder != NULL);
  while (readdir(folder) != NULL) {
    count++;
  }
  closedir(folder);
  return count;
}

// Open descriptors of a process; 0: of this one.
static inline unsigned count_descriptors(pid_t pid) {
  char path[64] = "/proc/self/fd";
  if (pid != 0) {
    snprintf(path, sizeof path, "/proc/%ld/fd", (long)pid);
  }
  return count_entries(path);
}

#endif
