// SPDX-License-Identifier: Apache-2.0
// Settings of the calling thread: its name, the processors it may use, denormal numbers, and a hint that it spins.
// Thread: each call applies to the calling thread.
#ifndef BALLAST_SYS_THREAD_H
#define BALLAST_SYS_THREAD_H

#include "base/status.h"

// Sets the name that ps -L and gdb show. Truncated at 15 bytes.
void bl_thread_set_name(const char *name);

// Returns the number of processors that this thread may run on (at least 1).
int bl_thread_processors(void);
// Restricts the thread to `count` of the processors that it may use now, from number `first` in ascending order,
// wrapping around. Stage s with n threads uses (s * n, n). BL_INVALID: count < 1 or first < 0.
BL_MUST_USE bl_status_t bl_thread_pin(int first, int count);

// Undoes the restriction inherited from a pinned thread: this thread may run wherever the main thread of the process
// may.
void bl_thread_unpin(void);

// Makes denormal numbers zero in this thread's arithmetic (x86-64: FTZ and DAZ; AArch64: FZ). Without it, a loop like
// AdamW's was measured to be 2x slower once second moments decay.
void bl_thread_flush_denormals(void);

// Call between two reads of memory that another thread is about to write.
static inline void bl_thread_relax(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

#endif
