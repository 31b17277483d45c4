// SPDX-License-Identifier: Apache-2.0
#include "sys/condition.h"

#include "sys/clock.h"

#include <time.h>

void bl_condition_init(pthread_cond_t *condition) {
  pthread_condattr_t monotonic;
  pthread_condattr_init(&monotonic); // these calls do not fail: glibc allocates nothing for them
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(condition, &monotonic);
  pthread_condattr_destroy(&monotonic);
}

bool bl_condition_wait(pthread_cond_t *condition, pthread_mutex_t *mutex, uint64_t deadline_ns) {
  if (deadline_ns == UINT64_MAX) {
    return pthread_cond_wait(condition, mutex) == 0;
  }
  const struct timespec at = {.tv_sec = (time_t)(deadline_ns / BL_NS_PER_S),
                              .tv_nsec = (long)(deadline_ns % BL_NS_PER_S)};
  return pthread_cond_timedwait(condition, mutex, &at) == 0;
}
