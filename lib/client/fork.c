// SPDX-License-Identifier: Apache-2.0
#include "client/fork.h"

#include <pthread.h>
#include <stdatomic.h>

static atomic_uint forks;

static void in_child(void) {
  atomic_fetch_add(&forks, 1);
}

static void watch(void) {
  (void)pthread_atfork(NULL, NULL, in_child); // if that fails for lack of memory, forks are not detected
}

unsigned bl__forks(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, watch);
  return atomic_load_explicit(&forks, memory_order_relaxed);
}
