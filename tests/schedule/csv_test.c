// SPDX-License-Identifier: Apache-2.0
// Verifies the CSV exchange: round trips, PyTorch's two kinds of files.
#include "schedule/csv/csv.h"
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

static void assert_writes_comms(const bl_schedule_t *schedule, bool waits, const char *expected) {
  char *text;
  size_t size;
  assert_int_equal(bl_csv_write_comms(schedule, waits, &text, &size), BL_OK);
  assert_int_equal(size, strlen(text));
  assert_string_equal(text, expected);
  free(text);
}

static void compute_comms_files_are_written(void **state) {
  (void)state;
  bl_schedule_t *schedule = parse("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  assert_writes_comms(schedule, false,
                      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
                      "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n");
  bl_schedule_destroy(schedule);
  schedule = parse("0F0,0F1,0I0,0W0,0B1\n1F0,1B0,1F1,1B1\n2F0,2B0,2F1,2B1\n");
  assert_writes_comms(schedule, true, // the last row has a send that nothing local shows to have arrived
                      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0I0,0WAIT_SEND_F0,0W0,0RECV_B1,0B1,0WAIT_SEND_F1\n"
                      "1RECV_F0,1F0,1SEND_F0,1RECV_F1,1RECV_B0,1B0,1WAIT_SEND_F0,1SEND_B0,1F1,1SEND_F1,1RECV_B1,1B1,"
                      "1WAIT_SEND_F1,1SEND_B1,1WAIT_SEND_B0,1WAIT_SEND_B1\n"
                      "2RECV_F0,2F0,2B0,2SEND_B0,2RECV_F1,2F1,2B1,2SEND_B1,2WAIT_SEND_B0,2WAIT_SEND_B1\n");
  bl_schedule_destroy(schedule);
  // The tip of a V inside a stage sends nothing; W's neither; our own cells stay where they are.
  schedule = parse("# transfers: overlap\n0F0,0E0@1,3F0,3R0,3I0,0L0@1,3W0,0B0\n1F0,2F0,2B0,1I0,1W0\n");
  assert_writes_comms(schedule, false,
                      "# transfers: overlap\n"
                      "0F0,0SEND_F0,0E0@1,3RECV_F0,3F0,3R0,3I0,3SEND_B0,0L0@1,0RECV_B0,3W0,0B0\n"
                      "1RECV_F0,1F0,2F0,2SEND_F0,2RECV_B0,2B0,1I0,1SEND_B0,1W0\n");
  bl_schedule_destroy(schedule);
}

static void hosts_are_written_where_blocks_go_there(void **state) {
  (void)state;
  bl_schedule_t *schedule = parse("# transfers: overlap\n# host stores: 3\n0F0,0E0@1,0L0@1,0B0\n1F0,1B0\n");
  assert_int_equal(schedule->hosts, 3);
  assert_writes(schedule, "# transfers: overlap\n0F0,0E0@1,0L0@1,0B0\n1F0,1B0\n"); // as one without hosts
  bl_schedule_destroy(schedule);
  const char *text = "# transfers: overlap\n# host stores: 2\n0F0,0E0@3,0L0@3,0B0\n1F0,1B0\n";
  schedule = parse(text);
  assert_int_equal(schedule->hosts, 2);
  assert_writes(schedule, text);
  assert_writes_comms(schedule, false,
                      "# transfers: overlap\n# host stores: 2\n0F0,0SEND_F0,0E0@3,0RECV_B0,0L0@3,0B0\n"
                      "1RECV_F0,1F0,1B0,1SEND_B0\n");
  bl_schedule_destroy(schedule);
}

// Every name: with and without messages it is the same schedule, and each message is there once at both ends.
static void messages_come_back(void **state) {
  (void)state;
  size_t count;
  const bl_schedule_info_t *infos = bl_schedule_infos(&count);
  for (size_t n = 0; n < count; n++) {
    bl_schedule_request_t request = {.name = infos[n].name, .stages = 4, .micro_batches = 8, .effort = 0.001};
    bl_schedule_t *schedule, *back;
    char *text, *comms;
    size_t size;
    assert_int_equal(bl_schedule_generate(&request, &schedule, NULL), BL_OK);
    assert_int_equal(bl_csv_write(schedule, &text, &size), BL_OK);
    assert_int_equal(bl_csv_write_comms(schedule, n % 2 == 0, &comms, &size), BL_OK);
    assert_int_equal(size, strlen(comms));
    back = parse(comms);
    assert_writes(back, text);
    bl_schedule_destroy(back);
    bl_schedule_destroy(schedule);
    free(comms);
    free(text);
  }
}

// A file of tests/golden/pipelining, which PyTorch made or checked.
static char *golden(const char *name, const char *form) {
  char path[512];
  snprintf(path, sizeof path, BALLAST_SOURCE_DIR "/tests/golden/pipelining/%s.%s.csv", name, form);
  FILE *file = fopen(path, "r");
  char *text = calloc(1, 1 << 16);
  if (file == NULL || text == NULL) {
    fail_msg("%s cannot be read", path);
  }
  assert_in_range(fread(text, 1, (1 << 16) - 1, file), 100, (1 << 16) - 2);
  fclose(file);
  return text;
}

// The messages that PyTorch itself adds to orders of ours, byte for byte; it has loaded both files.
static void messages_are_those_that_pytorch_adds(void **state) {
  (void)state;
  size_t count, compared = 0;
  const bl_schedule_info_t *infos = bl_schedule_infos(&count);
  for (size_t n = 0; n < count; n++) {
    if (infos[n].placement == BL_PLACEMENT_BIDIRECTIONAL || strcmp(infos[n].name, "seq1f1b") == 0) {
      continue; // PyTorch has neither slices nor two pipes
    }
    char *only = golden(infos[n].name, "compute_only"), *comms = golden(infos[n].name, "compute_comms");
    bl_schedule_t *schedule = parse(only), *back = parse(comms);
    assert_writes_comms(schedule, true, comms);
    assert_writes(back, only);
    assert_int_equal(schedule->placement, infos[n].placement);
    bl_schedule_destroy(back);
    bl_schedule_destroy(schedule);
    free(comms);
    free(only);
    compared++;
  }
  assert_int_equal(compared, 14);
}

// PyTorch's own schedules, sharding and overlapped pairs included, as it dumps them.
static void files_of_pytorch_are_read(void **state) {
  (void)state;
  static const struct {
    const char *name;
    bl_placement_t placement;
  } files[] = {{"torch-interleaved", BL_PLACEMENT_LOOPED},
               {"torch-looped-bfs", BL_PLACEMENT_LOOPED},
               {"torch-interleaved-zb", BL_PLACEMENT_LOOPED},
               {"torch-zbv", BL_PLACEMENT_V},
               {"torch-dualpipe-v", BL_PLACEMENT_V}};
  for (size_t n = 0; n < sizeof files / sizeof files[0]; n++) {
    char *only = golden(files[n].name, "compute_only"), *comms = golden(files[n].name, "compute_comms"), *text;
    size_t size;
    bl_schedule_t *schedule = parse(only), *back = parse(comms);
    assert_int_equal(schedule->stages, 4);
    assert_int_equal(schedule->chunks, 2);
    assert_int_equal(schedule->micro_batches, 8);
    assert_int_equal(schedule->placement, files[n].placement);
    assert_int_equal(bl_csv_write(schedule, &text, &size), BL_OK);
    assert_writes(back, text);
    free(text);
    bl_schedule_destroy(back);
    bl_schedule_destroy(schedule);
    free(comms);
    free(only);
  }
}

static void our_types_and_their_mode_come_back(void **state) {
  (void)state;
  const char *const text = "# transfers: overlap\n0F0,0E0@1,0F1,0B1,0L0@1,0B0\n1F0,1F1,1B1,1B0\n";
  bl_schedule_t *schedule = parse(text);
  assert_int_equal(schedule->transfers, BL_TRANSFER_OVERLAP);
  assert_int_equal(schedule->lists[0].ops[1].store, 1);
  assert_writes(schedule, text);
  bl_schedule_destroy(schedule);
  // Where nothing moves the mode says nothing, and PyTorch, which reads no comment, takes the file.
  schedule = parse("# transfers: overlap\n0F0,0R0,0B0\n1F0,1B0\n");
  assert_writes(schedule, "0F0,0R0,0B0\n1F0,1B0\n");
  assert_writes_comms(schedule, false, "0F0,0SEND_F0,0R0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n");
  bl_schedule_destroy(schedule);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(schedules_come_back),
      cmocka_unit_test(compute_only_files_are_read),
      cmocka_unit_test(compute_comms_files_are_read),
      cmocka_unit_test(compute_comms_files_are_written),
      cmocka_unit_test(hosts_are_written_where_blocks_go_there),
      cmocka_unit_test(messages_come_back),
      cmocka_unit_test(messages_are_those_that_pytorch_adds),
      cmocka_unit_test(files_of_pytorch_are_read),
      cmocka_unit_test(our_types_and_their_mode_come_back),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
