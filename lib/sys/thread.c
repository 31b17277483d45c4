// SPDX-License-Identifier: Apache-2.0
#include "sys/thread.h"

#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

void bl_thread_set_name(const char *name) {
  char cut[16];
  snprintf(cut, sizeof cut, "%s", name);
  pthread_setname_np(pthread_self(), cut);
}

int bl_thread_processors(void) {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) {
    return 1;
  }
  int count = CPU_COUNT(&set);
  return count > 0 ? count : 1;
}

bl_status_t bl_thread_pin(int first, int count) {
  cpu_set_t allowed;
  if (first < 0 || count < 1 || sched_getaffinity(0, sizeof allowed, &allowed) != 0) {
    return BL_INVALID;
  }
  int available = CPU_COUNT(&allowed);
  if (available == 0) {
    return BL_INVALID;
  }
  cpu_set_t chosen;
  CPU_ZERO(&chosen);
  int position = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
    if (!CPU_ISSET(cpu, &allowed)) {
      continue;
    }
    // Distance from `first` around the circle of allowed processors.
    int distance = (position - first % available + available) % available;
    if (distance < count) {
      CPU_SET(cpu, &chosen);
    }
    position++;
  }
  return pthread_setaffinity_np(pthread_self(), sizeof chosen, &chosen) == 0 ? BL_OK : BL_INVALID;
}

void bl_thread_unpin(void) {
  cpu_set_t process;
  if (sched_getaffinity(getpid(), sizeof process, &process) == 0) {
    pthread_setaffinity_np(pthread_self(), sizeof process, &process);
  }
}

void bl_thread_flush_denormals(void) {
#if defined(__x86_64__)
  _mm_setcsr(_mm_getcsr() | 0x8040); // FTZ (results) and DAZ (operands)
#elif defined(__aarch64__)
  uint64_t fpcr;
  __asm__ volatile("mrs %0, fpcr" : "=r"(fpcr));
  __asm__ volatile("msr fpcr, %0" : : "r"(fpcr | (1ull << 24)));
#endif
}
