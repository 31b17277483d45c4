// SPDX-License-Identifier: Apache-2.0
// For LD_PRELOAD: a wall clock that is stepped by an hour, forward or back, ten times a second. Clocks that cannot be
// stepped go as they go. What depends on the wall clock for a deadline does not live long under it.
#include <dlfcn.h>
#include <stddef.h>
#include <sys/time.h>
#include <time.h>

#define STEP_SECONDS 3600

static int (*real_clock(void))(clockid_t, struct timespec *) {
  static int (*found)(clockid_t, struct timespec *);
  if (found == NULL) {
    void *symbol = dlsym(RTLD_NEXT, "clock_gettime");
    __builtin_memcpy(&found, &symbol, sizeof found);
  }
  return found;
}

static time_t step(const struct timespec *now) {
  return now->tv_nsec / 100000000 % 2 == 0 ? STEP_SECONDS : -STEP_SECONDS;
}

int clock_gettime(clockid_t id, struct timespec *now) {
  int failed = real_clock()(id, now);
  if (failed == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
    now->tv_sec += step(now);
  }
  return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  (void)zone;
  struct timespec precise;
  int failed = clock_gettime(CLOCK_REALTIME, &precise);
  *now = (struct timeval){.tv_sec = precise.tv_sec, .tv_usec = precise.tv_nsec / 1000};
  return failed;
}

time_t time(time_t *out) {
  struct timespec precise;
  (void)clock_gettime(CLOCK_REALTIME, &precise);
  if (out != NULL) {
    *out = precise.tv_sec;
  }
  return precise.tv_sec;
}
