// SPDX-License-Identifier: Apache-2.0
// What a thread says and asks about itself: its name, the processors it may use, denormal numbers,
// that it spins.
// Thread: each call is about the calling thread.
#ifndef BALLAST_SYS_THREAD_H
#define BALLAST_SYS_THREAD_H

#include "base/status.h"

// The name seen in ps -L and gdb; cut at 15 bytes.
void bl_thread_set_name(const char *name);

// Processors this thread may run on (at least 1).
int bl_thread_processors(void);
// Restricts the thread to `count` processors of those it may use now, starting at the `first` in ascending order and
// wrapping around: stage s with n threads asks for (s * n, n). BL_INVALID when count < 1 or first < 0.
BL_MUST_USE bl_status_t bl_thread_pin(int first, int count);

// Undoes what a thread inherited from a pinned one: it may run wherever the main thread of the process may.
void bl_thread_unpin(void);

// Denormal numbers become zero in this thread's arithmetic (x86-64: FTZ and DAZ; AArch64: FZ). Without it an
// AdamW-like loop was measured 2x slower once second moments decay.
void bl_thread_flush_denormals(void);

// Between two looks at memory that another thread is about to write.
static inline void bl_thread_relax(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

#endif
