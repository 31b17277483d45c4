// SPDX-License-Identifier: Apache-2.0
#include "sys/futex.h"

#include "sys/clock.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

bool bl_futex_wait(const void *word, uint32_t value, uint64_t timeout_ns) {
  const struct timespec timeout = {.tv_sec = (time_t)(timeout_ns / BL_NS_PER_S),
                                   .tv_nsec = (long)(timeout_ns % BL_NS_PER_S)};
  return syscall(SYS_futex, word, FUTEX_WAIT, value, &timeout, NULL, 0) == 0 || errno != ETIMEDOUT;
}

void bl_futex_wake(const void *word) {
  (void)syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}
