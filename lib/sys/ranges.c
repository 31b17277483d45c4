// SPDX-License-Identifier: Apache-2.0
#include "sys/ranges.h"

#include "sys/thread.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>

typedef struct {
  bl_range_fn work;
  void *context;
  uint64_t first, count;
  pthread_t thread;
  bool made;
} range_t;

static void *run(void *argument) {
  const range_t *range = argument;
  bl_thread_set_name("range");
  range->work(range->context, range->first, range->count);
  return NULL;
}

// Returns the number of ranges.
static uint32_t ranges_of(uint64_t count, uint64_t least, uint32_t threads) {
  const uint64_t most = least > 1 ? count / least : count;
  uint32_t ranges = threads < BL_RANGES_MOST ? threads : BL_RANGES_MOST;
  ranges = most < ranges ? (uint32_t)most : ranges;
  return ranges > 0 ? ranges : 1;
}

void bl_ranges_run(uint64_t count, uint64_t least, uint32_t threads, bl_range_fn work, void *context) {
  range_t ranges[BL_RANGES_MOST];
  const uint32_t parts = ranges_of(count, least, threads);
  const uint64_t each = count / parts, more = count % parts; // the first `more` have one element more
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  for (uint32_t i = 1; i < parts; i++) {
    range_t *range = &ranges[i];
    *range = (range_t){.work = work,
                       .context = context,
                       .first = i * each + (i < more ? i : more),
                       .count = each + (i < more ? 1 : 0)};
    range->made = pthread_create(&range->thread, NULL, run, range) == 0;
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (count > 0) {
    work(context, 0, each + (more > 0 ? 1 : 0));
  }
  for (uint32_t i = 1; i < parts; i++) {
    if (ranges[i].made) {
      pthread_join(ranges[i].thread, NULL);
    } else {
      work(context, ranges[i].first, ranges[i].count);
    }
  }
}
