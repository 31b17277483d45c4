// SPDX-License-Identifier: Apache-2.0
// How much memory a process may still take without the kernel killing something for it: asked before a large
// allocation, because shared memory is granted without a check and paid for by the out-of-memory killer.
// Thread: any.
#ifndef BALLAST_SYS_MEMORY_H
#define BALLAST_SYS_MEMORY_H

#include <stdint.h>

// The least of what the machine has available, what the limits of this process's control group (v1 or v2) leave, and what
// its limit of address space (RLIMIT_AS) does.
// UINT64_MAX where none of these can be read.
uint64_t bl_memory_available_bytes(void);

#endif
