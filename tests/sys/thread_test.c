// SPDX-License-Identifier: Apache-2.0
// Verifies that threads can be pinned within what they may use, and that flushing denormals takes effect.
#include "sys/thread.h"

#include <float.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

typedef struct {
  int first, count;
  bl_status_t status;
  int processors;
} pin_t;

static void *pin(void *argument) {
  pin_t *request = argument;
  request->status = bl_thread_pin(request->first, request->count);
  request->processors = bl_thread_processors();
  return NULL;
}

static void *pin_and_unpin(void *argument) {
  pin(argument);
  bl_thread_unpin();
  ((pin_t *)argument)->processors = bl_thread_processors();
  return NULL;
}

static pin_t pin_in_thread(int first, int count) {
  pin_t request = {.first = first, .count = count};
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, pin, &request), 0);
  pthread_join(thread, NULL);
  return request;
}

static void pins(void **state) {
  (void)state;
  int available = bl_thread_processors();
  assert_true(available >= 1);
  pin_t one = pin_in_thread(available + 1, 1); // wraps around
  assert_int_equal(one.status, BL_OK);
  assert_int_equal(one.processors, 1);
  assert_int_equal(pin_in_thread(0, available + 5).processors, available);
  assert_int_equal(pin_in_thread(0, 0).status, BL_INVALID);
  assert_int_equal(pin_in_thread(-1, 1).status, BL_INVALID);
  pin_t back = {.first = 0, .count = 1};
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, pin_and_unpin, &back), 0);
  pthread_join(thread, NULL);
  assert_int_equal(back.status, BL_OK);
  assert_int_equal(back.processors, available);
  assert_int_equal(bl_thread_processors(), available); // the caller itself was never pinned
}

static void *halve_the_smallest(void *argument) {
  volatile float value = FLT_MIN;
  bl_thread_flush_denormals();
  value = value * 0.5f;
  *(float *)argument = value;
  return NULL;
}

static void denormals_become_zero(void **state) {
  (void)state;
#if defined(__x86_64__) || defined(__aarch64__)
  float flushed = 1;
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, halve_the_smallest, &flushed), 0);
  pthread_join(thread, NULL);
  assert_true(flushed == 0);
  volatile float here = FLT_MIN;
  here = here * 0.5f;
  assert_true(here > 0); // other threads keep gradual underflow
#else
  skip();
#endif
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(pins),
      cmocka_unit_test(denormals_become_zero),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
