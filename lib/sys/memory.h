// SPDX-License-Identifier: Apache-2.0
// How much memory a process may still take before the kernel kills a process for lack of it. Checked before a large
// allocation, because the kernel grants shared memory without a check, and its out-of-memory killer strikes later.
// Thread: any.
#ifndef BALLAST_SYS_MEMORY_H
#define BALLAST_SYS_MEMORY_H

#include <stdint.h>

// Returns the minimum of what the machine has available, what the limits of this process's control group (v1 or v2)
// leave and what its address space limit (RLIMIT_AS) leaves. UINT64_MAX: none of these can be read.
uint64_t bl_memory_available_bytes(void);

#endif
