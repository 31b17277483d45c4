// SPDX-License-Identifier: Apache-2.0
// Verifies that the summary of a run is of all its steps, also if the plan comes again, as it does from a driver that
// is started again.
#include "ballastctl/run/summary.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const bl_ctl_stage_plan_t stages[] = {{.stage = 0, .own_slots = 4, .slot_bytes = 1 << 20, .data_path = "shm"},
                                             {.stage = 1, .own_slots = 2, .slot_bytes = 1 << 20, .data_path = "shm"}};
static const bl_ctl_plan_t plan = {
    .schedule = "1f1b", .tensor_ranks = 1, .replicas = 1, .stages = stages, .stage_count = 2};

// A step of 10 s.
static void take_step(bl_ctl_summary_t *summary, uint64_t number, uint64_t busy_s, uint32_t peak_slots) {
  const bl_ctl_stage_step_t used[] = {
      {.counters = {.own_slots = 4, .peak_slots = peak_slots, .busy_ns = busy_s * 1000000000u}},
      {.stage = 1, .counters = {.own_slots = 2, .peak_slots = 1, .stall_ns = busy_s * 1000000000u}}};
  const bl_ctl_step_t step = {
      .step = number, .loss = 2.5, .tokens = 1000, .seconds = 10, .stages = used, .stage_count = 2};
  bl_ctl_summary_step(summary, &step);
}

static void of_all_steps(void **state) {
  (void)state;
  bl_ctl_summary_t *summary;
  assert_int_equal(bl_ctl_summary_create(&summary), BL_OK);
  assert_int_equal(bl_ctl_summary_plan(summary, &plan), BL_OK);
  take_step(summary, 1, 8, 4);
  assert_int_equal(bl_ctl_summary_plan(summary, &plan), BL_OK);
  take_step(summary, 2, 4, 3);
  char *text;
  size_t bytes;
  FILE *stream = open_memstream(&text, &bytes);
  assert_non_null(stream);
  bl_ctl_summary_print_line(summary, stream);
  bl_ctl_summary_print_stages(summary, stream);
  assert_int_equal(fclose(stream), 0);
  assert_non_null(strstr(text, "2 steps, 2.00 k tokens in 20.0 s (100 tokens/s); loss 2.5000\n"));
  if (strstr(text, "4/4  1.00 MiB  60 %    0 %") == NULL || strstr(text, "1/2  1.00 MiB   0 %   60 %") == NULL) {
    fail_msg("of a plan that came twice:\n%s", text);
  }
  free(text);
  bl_ctl_summary_destroy(summary);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(of_all_steps)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
