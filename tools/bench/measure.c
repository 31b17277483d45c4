// SPDX-License-Identifier: Apache-2.0
#include "measure.h"

#include "sys/clock.h"

#include <sched.h>
#include <time.h>

static uint64_t process_cpu_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return (uint64_t)now.tv_sec * BL_NS_PER_S + (uint64_t)now.tv_nsec;
}

void bl_sample_start(bl_sample_t *sample) {
  sample->cpu_ns = process_cpu_ns();
  sample->wall_ns = bl_clock_now_ns();
}

void bl_sample_stop(bl_sample_t *sample, unsigned threads) {
  sample->wall_ns = bl_clock_now_ns() - sample->wall_ns;
  sample->cpu_ns = (process_cpu_ns() - sample->cpu_ns) / threads;
}

bool bl_sample_undisturbed(const bl_sample_t *sample) {
  return (double)sample->cpu_ns >= BL_MEASURE_CPU_SHARE_MIN * (double)sample->wall_ns;
}

bool bl_measure_pin(int processor) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(processor, &set);
  return sched_setaffinity(0, sizeof set, &set) == 0;
}
