// SPDX-License-Identifier: Apache-2.0
// Verifies the CSV exchange: round trips, PyTorch's two kinds of files, and that every fault names row, column, cell.
#include "schedule/csv.h"
#include "schedule/generate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static bl_schedule_t *parse(const char *text) {
  bl_schedule_t *schedule = NULL;
  bl_error_t err;
  if (bl_csv_read(text, strlen(text), "test.csv", &schedule, &err) != BL_OK) {
    fail_msg("%s", err.text);
  }
  return schedule;
}

static void assert_writes(const bl_schedule_t *schedule, const char *expected) {
  char *text;
  size_t size;
  assert_int_equal(bl_csv_write(schedule, &text, &size), BL_OK);
  assert_int_equal(size, strlen(text));
  assert_string_equal(text, expected);
  free(text);
}

static void schedules_come_back(void **state) {
  (void)state;
  size_t count;
  const bl_schedule_info_t *infos = bl_schedule_infos(&count);
  for (size_t n = 0; n < count; n++) {
    bl_schedule_request_t request = {.name = infos[n].name, .stages = 4, .micro_batches = 8, .effort = 0.02};
    bl_schedule_t *schedule, *back;
    assert_int_equal(bl_schedule_generate(&request, &schedule, NULL), BL_OK);
    char *text;
    size_t size;
    assert_int_equal(bl_csv_write(schedule, &text, &size), BL_OK);
    back = parse(text);
    assert_writes(back, text);
    assert_int_equal(back->placement, schedule->placement);
    assert_int_equal(back->chunks, schedule->chunks);
    assert_int_equal(back->pipes, schedule->pipes);
    assert_int_equal(back->slices, schedule->slices);
    assert_memory_equal(back->stage_of, schedule->stage_of, schedule->virtual_stages * sizeof(uint16_t));
    free(text);
    bl_schedule_destroy(back);
    bl_schedule_destroy(schedule);
  }
}

static void compute_only_files_are_read(void **state) {
  (void)state;
  bl_schedule_t *schedule = parse("0F0,0F1,, , 0I0 ,0W0,0B1\r\n,1F0,1B0,1F1,1B1\r\n");
  assert_writes(schedule, "0F0,0F1,0I0,0W0,0B1\n1F0,1B0,1F1,1B1\n");
  assert_int_equal(schedule->placement, BL_PLACEMENT_LOOPED);
  bl_schedule_destroy(schedule);
}

static void compute_comms_files_are_read(void **state) {
  (void)state;
  bl_schedule_t *schedule = parse("0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD,0RESHARD\n"
                                  "1UNSHARD,1RECV_F0,1F0,1B0,1SEND_B0,1RESHARD\n");
  assert_writes(schedule, "0F0,0B0\n1F0,1B0\n");
  bl_schedule_destroy(schedule);
  schedule = parse("0F0,1F0,1I0,1W0,(0F1;0B0)OVERLAP_F_B,1F1,1B1,0B1\n");
  assert_writes(schedule, "0F0,1F0,1I0,1W0,0F1,0B0,1F1,1B1,0B1\n");
  assert_int_equal(schedule->chunks, 2);
  bl_schedule_destroy(schedule);
}

static void our_verbs_and_their_mode_come_back(void **state) {
  (void)state;
  const char *const text = "# transfers: overlap\n0F0,0E0@3,0F1,0B1,0L0@3,0B0\n";
  bl_schedule_t *schedule = parse(text);
  assert_int_equal(schedule->transfers, BL_TRANSFER_OVERLAP);
  assert_int_equal(schedule->lists[0].ops[1].store, 3);
  assert_writes(schedule, text);
  bl_schedule_destroy(schedule);
}

static void refuse(const char *text, const char *message) {
  bl_schedule_t *schedule = NULL;
  bl_error_t err;
  assert_int_equal(bl_csv_read(text, strlen(text), "test.csv", &schedule, &err), BL_INVALID);
  assert_null(schedule);
  if (strstr(err.text, message) == NULL) {
    fail_msg("\"%s\" does not say \"%s\"", err.text, message);
  }
}

static void faults_name_row_column_and_cell(void **state) {
  (void)state;
  refuse("0F0,0B0\n1F0,1Q0\n", "test.csv: row 2, column 2, cell \"1Q0\": no operation");
  refuse("0F0,0B0\n1F0,,1F0,1B0\n", "test.csv: row 2, column 3: 1F0: a second forward");
  refuse("0F0,0B0\n1F0,0B0\n", "row 2, column 2, cell \"0B0\": virtual stage 0 is already on row 1");
  refuse("0F0,0B0\n2F0,2B0\n", "virtual stage 1 is on no row");
  refuse("0F0,0B0\n1F0\n", "test.csv: stage 1: virtual stage 1, micro-batch 0: its backward is missing");
  refuse("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n", "test.csv: the lists cannot run, a cycle: ");
  refuse("0F0,(0B0;)x\n", "row 1, column 2, cell \"(0B0;)x\": starts like an overlapped pair");
  refuse("0F1000000\n", "too few for 1 virtual stages and 1000001 micro-batches");
  refuse("0F99999999999999\n", "row 1, column 1");
  refuse("\n\n", "has no operation");
  refuse("0F0x,0B0\n", "row 1, column 1, cell \"0F0x\"");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(schedules_come_back),
      cmocka_unit_test(compute_only_files_are_read),
      cmocka_unit_test(compute_comms_files_are_read),
      cmocka_unit_test(our_verbs_and_their_mode_come_back),
      cmocka_unit_test(faults_name_row_column_and_cell),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
