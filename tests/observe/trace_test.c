// SPDX-License-Identifier: Apache-2.0
// Verifies the ring of trace events: order, overwriting, transfers, cutting of names.
#include "observe/trace.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void add(bl_trace_t *trace, uint64_t i) {
  char name[16];
  snprintf(name, sizeof name, "0F%u", (unsigned)i);
  bl_trace_add(trace, name, i % 2 == 1, (int32_t)i, (uint32_t)(10 + i), 100 * i, 100 * i + 50);
}

static void check(const bl_trace_event_t *event, uint64_t i) {
  char name[16];
  snprintf(name, sizeof name, "0F%u", (unsigned)i);
  assert_string_equal(event->name, name);
  assert_int_equal(event->wait, i % 2 == 1);
  assert_int_equal(event->micro_batch, i);
  assert_int_equal(event->slots_in_use, 10 + i);
  assert_int_equal(event->start_ns, 100 * i);
  assert_int_equal(event->end_ns, 100 * i + 50);
}

static void the_last_events_are_kept_in_order(void **state) {
  (void)state;
  bl_trace_t *trace;
  assert_int_equal(bl_trace_create(5, &trace), BL_OK);
  assert_int_equal(bl_trace_count(trace), 0);
  for (uint64_t total = 1; total <= 13; total++) {
    add(trace, total - 1);
    uint64_t held = total < 5 ? total : 5;
    assert_int_equal(bl_trace_count(trace), held);
    for (uint64_t i = 0; i < held; i++) {
      check(bl_trace_get(trace, i), total - held + i);
    }
  }
  bl_trace_clear(trace);
  assert_int_equal(bl_trace_count(trace), 0);
  add(trace, 3);
  check(bl_trace_get(trace, 0), 3);
  bl_trace_destroy(trace);
}

static void transfers_have_bytes(void **state) {
  (void)state;
  bl_trace_t *trace;
  assert_int_equal(bl_trace_create(2, &trace), BL_OK);
  add(trace, 2);
  bl_trace_add_transfer(trace, "0E3@4", 3, 4096, 100, 700);
  assert_int_equal(bl_trace_get(trace, 0)->moved_bytes, 0);
  const bl_trace_event_t *event = bl_trace_get(trace, 1);
  assert_string_equal(event->name, "0E3@4");
  assert_true(event->moved_bytes == 4096 && event->micro_batch == 3 && event->start_ns == 100 && event->end_ns == 700);
  assert_true(!event->wait && event->slots_in_use == 0);
  add(trace, 4);
  add(trace, 5);
  check(bl_trace_get(trace, 1), 5);
  assert_int_equal(bl_trace_get(trace, 1)->moved_bytes, 0);
  bl_trace_destroy(trace);
}

static void long_names_are_cut(void **state) {
  (void)state;
  bl_trace_t *trace;
  char name[100];
  memset(name, 'n', sizeof name - 1);
  name[sizeof name - 1] = '\0';
  assert_int_equal(bl_trace_create(1, &trace), BL_OK);
  bl_trace_add(trace, name, true, -1, 0, 1, 2);
  assert_int_equal(strlen(bl_trace_get(trace, 0)->name), BL_TRACE_NAME_BYTES - 1);
  bl_trace_destroy(trace);
  assert_int_equal(bl_trace_create(SIZE_MAX / 8, &trace), BL_EXHAUSTED);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_last_events_are_kept_in_order),
      cmocka_unit_test(transfers_have_bytes),
      cmocka_unit_test(long_names_are_cut),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
