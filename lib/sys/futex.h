// SPDX-License-Identifier: Apache-2.0
// Sleeping on a word of memory that processes share, until its owner says that it has changed. Who sleeps needs to read it
// only: a read-only map of a sealed memfd will do.
// Thread: any.
#ifndef BALLAST_SYS_FUTEX_H
#define BALLAST_SYS_FUTEX_H

#include <stdbool.h>
#include <stdint.h>

// Sleeps while the word is `value`, until it is woken (perhaps for nothing). False: that took longer than timeout_ns.
bool bl_futex_wait(const void *word, uint32_t value, uint64_t timeout_ns);
// Wakes all who sleep on the word, after it was changed.
void bl_futex_wake(const void *word);

#endif
