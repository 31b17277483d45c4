// SPDX-License-Identifier: Apache-2.0
#include "sys/numa.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <linux/mempolicy.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define WORD_BITS (8 * sizeof(unsigned long))
#define LIST      128

// Reads the first line of a file of sysfs. Returns false if there is none.
static bool read_line(const char *path, char *line, size_t size) {
  FILE *file = fopen(path, "re");
  if (file == NULL) {
    return false;
  }
  const bool read = fgets(line, (int)size, file) != NULL;
  (void)fclose(file);
  if (read) {
    line[strcspn(line, "\n")] = '\0';
  }
  return read;
}

int32_t bl_numa_node_of_pci(const char *root, const char *address) {
  char path[PATH_MAX], lower[32], line[16];
  size_t length = 0;
  int node;
  for (; address[length] != '\0' && length + 1 < sizeof lower; length++) { // sysfs has small letters
    lower[length] = (char)tolower((unsigned char)address[length]);
  }
  lower[length] = '\0';
  (void)snprintf(path, sizeof path, "%s/bus/pci/devices/%s/numa_node", root, lower);
  return read_line(path, line, sizeof line) && sscanf(line, "%d", &node) == 1 && node >= 0 ? node : -1;
}

bl_status_t bl_numa_prefer(const char *root, uint32_t node, bl_error_t *err) {
  unsigned long mask[BL_NUMA_NODES / WORD_BITS] = {0};
  char path[PATH_MAX], online[LIST];
  (void)snprintf(path, sizeof path, "%s/devices/system/node/node%u", root, node);
  if (node >= BL_NUMA_NODES || access(path, F_OK) != 0) {
    (void)snprintf(path, sizeof path, "%s/devices/system/node/online", root);
    return bl_error_set(err, BL_NOT_FOUND, "this machine has no NUMA node %u; its nodes are %s", node,
                        read_line(path, online, sizeof online) ? online : "not known");
  }
  mask[node / WORD_BITS] |= 1UL << node % WORD_BITS;
  if (syscall(SYS_set_mempolicy, MPOL_PREFERRED, mask, (unsigned long)BL_NUMA_NODES + 1) != 0) {
    return bl_error_set(err, errno == EPERM ? BL_DENIED : BL_IO, "memory cannot be taken on NUMA node %u: %s", node,
                        strerror(errno));
  }
  return BL_OK;
}
