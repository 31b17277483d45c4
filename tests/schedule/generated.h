// SPDX-License-Identifier: Apache-2.0
// Schedules by their names, and their rows as text. A failure ends the test with the cause.
#ifndef BALLAST_TESTS_SCHEDULE_GENERATED_H
#define BALLAST_TESTS_SCHEDULE_GENERATED_H

#include "schedule/generate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#define SEARCH_EFFORT 0.02 // of the searched names: quick, and far from their best

static inline bl_schedule_t *generate_request(const bl_schedule_request_t *request) {
  bl_schedule_t *schedule = NULL;
  bl_error_t err = {0};
  if (bl_schedule_generate(request, &schedule, &err) != BL_OK) {
    fail_msg("%s, p = %u, m = %u: %s", request->name, request->stages, request->micro_batches, err.text);
  }
  return schedule;
}

static inline bl_schedule_t *generate(const char *name, uint32_t p, uint32_t m) {
  return generate_request(
      &(bl_schedule_request_t){.name = name, .stages = p, .micro_batches = m, .effort = SEARCH_EFFORT});
}

// The operations of a stage, "0F0 0F1 0B0 0B1".
static inline void expect_row(const bl_schedule_t *schedule, uint32_t stage, const char *expected) {
  char row[4096] = "", cell[BL_OP_TEXT];
  size_t used = 0;
  for (size_t i = 0; i < schedule->lists[stage].count && used < sizeof row; i++) {
    used += (size_t)snprintf(row + used, sizeof row - used, "%s%s", i > 0 ? " " : "",
                             bl_op_format(schedule->lists[stage].ops[i], cell));
  }
  assert_string_equal(row, expected);
}

#endif
