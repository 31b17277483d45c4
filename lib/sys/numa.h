// SPDX-License-Identifier: Apache-2.0
// NUMA nodes: which one a PCI device is at, and on which one a process takes its memory.
// `root` is where sysfs is mounted, "/sys"; tests pass a folder of their own.
#ifndef BALLAST_SYS_NUMA_H
#define BALLAST_SYS_NUMA_H

#include "base/error.h"

#include <stdint.h>

#define BL_NUMA_ROOT  "/sys"
#define BL_NUMA_NODES 1024

// Returns the node of the PCI device at an address ("0000:18:00.0", in letters of either case), -1: not known, as on
// machines with one node. Thread: any.
int32_t bl_numa_node_of_pci(const char *root, const char *address);

// Makes the calling thread, and those that it creates from now on, take memory on that node while it has any, on others
// then. Memory that exists stays where it is. BL_NOT_FOUND: the machine has no such node; names those that it has.
// BL_DENIED, BL_IO: the kernel refuses. Thread: before others are created.
BL_MUST_USE bl_status_t bl_numa_prefer(const char *root, uint32_t node, bl_error_t *err);

#endif
