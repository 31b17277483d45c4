// SPDX-License-Identifier: Apache-2.0
#include "followed.h"

#include "sys/clock.h"

#include <stdio.h>

void bl_followed_take(bl_followed_t *followed, const char *run, const char *address) {
  snprintf(followed->run, sizeof followed->run, "%s", run);
  snprintf(followed->address, sizeof followed->address, "%s", address);
}

void bl_followed_hear(bl_followed_t *followed) {
  followed->heard_ns = bl_clock_now_ns();
}

uint64_t bl_followed_silent_ms(const bl_followed_t *followed) {
  return followed->heard_ns == 0 ? 0 : (bl_clock_now_ns() - followed->heard_ns) / BL_NS_PER_MS + 1;
}
