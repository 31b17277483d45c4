// SPDX-License-Identifier: Apache-2.0
#include "sys/memory.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

// Reads the number that follows `label` at the start of a line ("" reads the file's first word).
static bool read_number(const char *path, const char *label, uint64_t *value) {
  FILE *file = fopen(path, "re");
  if (file == NULL) {
    return false;
  }
  bool found = false;
  char line[256];
  size_t length = strlen(label);
  while (!found && fgets(line, sizeof line, file) != NULL) {
    found = strncmp(line, label, length) == 0 && sscanf(line + length, "%" SCNu64, value) == 1;
  }
  fclose(file);
  return found;
}

typedef struct {
  const char *mount, *limit, *usage, *cache_label;
} group_files_t;

static const group_files_t group_v2 = {"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file "};
static const group_files_t group_v1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                                       "total_inactive_file "};

// Returns what one control group leaves: its limit minus its usage. Page cache that can be dropped does not count as
// used.
static uint64_t group_leaves(const group_files_t *files, const char *group) {
  char path[512];
  uint64_t limit, used, cache = 0;
  snprintf(path, sizeof path, "%s%s/%s", files->mount, group, files->limit);
  if (!read_number(path, "", &limit)) { // absent, or "max"
    return UINT64_MAX;
  }
  snprintf(path, sizeof path, "%s%s/%s", files->mount, group, files->usage);
  if (!read_number(path, "", &used)) {
    return UINT64_MAX;
  }
  snprintf(path, sizeof path, "%s%s/memory.stat", files->mount, group);
  if (!read_number(path, files->cache_label, &cache) || cache > used) {
    cache = 0;
  }
  used -= cache;
  return limit > used ? limit - used : 0;
}

// Returns the minimum over a group and all its ancestors.
static uint64_t group_chain_leaves(const group_files_t *files, char *group) {
  uint64_t least = group_leaves(files, ""); // in a container, the mount itself is the container's group
  for (char *slash = group; slash != NULL && slash[0] != '\0' && slash[1] != '\0'; slash = strrchr(group, '/')) {
    uint64_t leaves = group_leaves(files, group);
    least = leaves < least ? leaves : least;
    *strrchr(group, '/') = '\0';
  }
  return least;
}

// Returns what the process may still map under its address space limit (ulimit -v).
static uint64_t address_space_left(void) {
  struct rlimit limit;
  uint64_t pages;
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
      !read_number("/proc/self/statm", "", &pages)) {
    return UINT64_MAX;
  }
  const uint64_t used = pages * (uint64_t)sysconf(_SC_PAGESIZE);
  return limit.rlim_cur > used ? limit.rlim_cur - used : 0;
}

uint64_t bl_memory_available_bytes(void) {
  uint64_t least = address_space_left(), kib;
  if (read_number("/proc/meminfo", "MemAvailable:", &kib) && kib << 10 < least) {
    least = kib << 10;
  }
  FILE *file = fopen("/proc/self/cgroup", "re");
  if (file == NULL) {
    return least;
  }
  char line[320]; // "0::/path" (v2), "4:memory:/path" (v1)
  while (fgets(line, sizeof line, file) != NULL) {
    line[strcspn(line, "\n")] = '\0';
    char *names = strchr(line, ':');
    char *group = names != NULL ? strchr(names + 1, ':') : NULL;
    if (group == NULL) {
      continue;
    }
    *group++ = '\0';
    bool v2 = names[1] == '\0';
    if (v2 || strcmp(names + 1, "memory") == 0) {
      uint64_t leaves = group_chain_leaves(v2 ? &group_v2 : &group_v1, group);
      least = leaves < least ? leaves : least;
    }
  }
  fclose(file);
  return least;
}
