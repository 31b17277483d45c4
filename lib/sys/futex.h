// SPDX-License-Identifier: Apache-2.0
// Waiting for a change of a 32-bit word in memory that processes share. The waiter needs read access only: a read-only
// map of a sealed memfd will do.
// Thread: any.
#ifndef BALLAST_SYS_FUTEX_H
#define BALLAST_SYS_FUTEX_H

#include <stdbool.h>
#include <stdint.h>

// Sleeps while the word is `value`, until bl_futex_wake. May wake spuriously. Returns false after timeout_ns.
bool bl_futex_wait(const void *word, uint32_t value, uint64_t timeout_ns);
// Wakes all threads that sleep on the word. Call it after the word was changed.
void bl_futex_wake(const void *word);

#endif
