// SPDX-License-Identifier: Apache-2.0
// Verifies what doctor concludes from a driver's status: the end of a chain of waits, silent stages, circles.
#include "ballastctl/inspect/diagnosis.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

// Stage i waits for peers[i], or computes where that is -1; `silent` is the stage that does not answer, or -1.
static json_t *status_of(const int *peers, int count, int silent) {
  json_t *stages = json_array();
  for (int i = 0; i < count; i++) {
    json_t *waits = json_array();
    if (peers[i] >= 0) {
      json_array_append_new(waits, json_pack("{s:s, s:f, s:i, s:i}", "what", "activation 3 of boundary 1", "seconds",
                                             1.5, "peer", peers[i], "micro_batch", 3));
    }
    json_array_append_new(stages, json_pack("{s:i, s:s, s:b, s:s, s:s, s:i, s:o}", "stage", i, "address", "unix:/s",
                                            "reachable", i != silent, "phase", "running", "operation", "1F3", "pid",
                                            100 + i, "waits", waits));
  }
  return json_pack("{s:s, s:s, s:f, s:o}", "phase", "running", "waiting_for", "votes of step 2", "waiting_seconds", 2.0,
                   "stages", stages);
}

static void expect(const int *peers, int count, int silent, int cause, const char *words) {
  char verdict[BL_CTL_VERDICT_BYTES], who[32];
  size_t silent_count, i;
  json_t *status = status_of(peers, count, silent), *row;
  json_t *rows = bl_ctl_diagnose(status, verdict, &silent_count);
  assert_int_equal(silent_count, silent >= 0);
  assert_int_equal(json_array_size(rows), count + 1);
  assert_string_equal(json_string_value(json_object_get(json_array_get(rows, 0), "waits_for")), "votes of step 2");
  if (strstr(verdict, words) == NULL) {
    fail_msg("'%s' lacks '%s'", verdict, words);
  }
  snprintf(who, sizeof who, "stage %d", cause);
  json_array_foreach(rows, i, row) {
    const char *name = json_string_value(json_object_get(row, "who"));
    assert_int_equal(json_is_true(json_object_get(row, "cause")), strcmp(name, who) == 0);
    const int stage = (int)i - 1;
    if (i > 0 && peers[stage] >= 0 && stage != silent) {
      assert_int_equal(json_integer_value(json_object_get(row, "peer")), peers[stage]);
      assert_int_equal(json_integer_value(json_object_get(row, "micro_batch")), 3);
    } else if (i > 0) {
      assert_null(json_object_get(row, "waits_for"));
    }
  }
  json_decref(rows);
  json_decref(status);
}

static void the_end_of_a_chain_is_the_cause(void **state) {
  (void)state;
  expect((int[]){-1, 0, 1, 2}, 4, -1, 0, "stage 0 (unix:/s, pid 100) computes 1F3; others wait for it");
  expect((int[]){1, 2, -1, 2}, 4, -1, 2, "stage 2");
}

static void a_silent_stage_is_the_cause_whatever_it_said_last(void **state) {
  (void)state;
  expect((int[]){1, 0, 1}, 3, 1, 1, "stage 1 (unix:/s, pid 101) does not answer; it was last seen at 1F3; others wait");
  expect((int[]){-1, -1}, 2, 1, -1, "stage 1 (unix:/s, pid 101) does not answer; it was last seen at 1F3");
}

static void a_stage_that_was_never_met_has_no_pid(void **state) {
  (void)state;
  char verdict[BL_CTL_VERDICT_BYTES];
  size_t silent;
  json_t *status = status_of((int[]){-1, -1}, 2, -1);
  json_array_set_new(json_object_get(status, "stages"), 1,
                     json_pack("{s:i, s:s, s:b}", "stage", 1, "address", "unix:/s", "reachable", 0));
  json_decref(bl_ctl_diagnose(status, verdict, &silent));
  assert_string_equal(verdict, "stage 1 (unix:/s) does not answer");
  json_decref(status);
}

static void nobody_and_everybody_waiting_are_told_apart(void **state) {
  (void)state;
  expect((int[]){-1, -1, -1}, 3, -1, -1, "no stage waits");
  expect((int[]){1, 2, 0}, 3, -1, -1, "in a circle for 1.5 s, stage 0 in it");
}

static void a_young_circle_is_a_tensor_on_its_way(void **state) {
  (void)state;
  char verdict[BL_CTL_VERDICT_BYTES];
  size_t silent;
  json_t *status = status_of((int[]){1, 0, 1}, 3, -1);
  json_t *wait = json_array_get(json_object_get(json_array_get(json_object_get(status, "stages"), 1), "waits"), 0);
  json_object_set_new(wait, "seconds", json_real(0.0002));
  json_t *rows = bl_ctl_diagnose(status, verdict, &silent);
  assert_string_equal(verdict, "stages pass tensors to each other; none is stuck");
  json_decref(rows);
  json_object_set_new(wait, "seconds", json_real(1.5));
  rows = bl_ctl_diagnose(status, verdict, &silent);
  assert_non_null(strstr(verdict, "in a circle for 1.5 s, stage 1 in it"));
  json_decref(rows);
  json_decref(status);
}

static void a_wait_for_a_core_is_no_computation(void **state) {
  (void)state;
  char verdict[BL_CTL_VERDICT_BYTES];
  size_t silent;
  json_t *status = status_of((int[]){-1, 0}, 2, -1);
  json_t *stage = json_array_get(json_object_get(status, "stages"), 0);
  json_object_set_new(stage, "waits",
                      json_pack("[{s:s, s:f, s:i}]", "what", "a core", "seconds", 0.5, "micro_batch", 2));
  json_decref(bl_ctl_diagnose(status, verdict, &silent));
  assert_non_null(strstr(verdict, "stage 0 (unix:/s, pid 100) waits for a core; others wait for it"));
  json_decref(status);
}

static void a_wait_of_the_driver_is_named_once_it_is_old(void **state) {
  (void)state;
  char verdict[BL_CTL_VERDICT_BYTES];
  size_t silent;
  json_t *status = status_of((int[]){-1, -1}, 2, -1);
  json_object_set_new(status, "waiting_for", json_string("a watcher"));
  json_decref(bl_ctl_diagnose(status, verdict, &silent));
  assert_string_equal(verdict, "no stage waits for another; for 2.0 s the driver has waited for a watcher");
  json_object_set_new(status, "waiting_seconds", json_real(0.1));
  json_decref(bl_ctl_diagnose(status, verdict, &silent));
  assert_string_equal(verdict, "no stage waits for another");
  json_decref(status);
}

static void stores_are_named(void **state) {
  (void)state;
  char verdict[BL_CTL_VERDICT_BYTES];
  size_t silent;
  json_t *status = status_of((int[]){-1, 0}, 2, -1);
  json_t *wait = json_pack("{s:s, s:f, s:i, s:i, s:s, s:i}", "what", "load from store 1", "seconds", 0.5, "micro_batch",
                           2, "store", 1, "lease", "1/17", "chunk", 0);
  json_t *stage = json_array_get(json_object_get(status, "stages"), 0);
  json_object_set_new(stage, "waits", json_pack("[o]", wait));
  json_object_set_new(status, "stores",
                      json_pack("[{s:i, s:s, s:b}, {s:i, s:s, s:b}]", "store", 0, "address", "unix:/a", "reachable", 1,
                                "store", 1, "address", "unix:/b", "reachable", 1));
  json_t *rows = bl_ctl_diagnose(status, verdict, &silent);
  assert_int_equal(silent, 0);
  assert_int_equal(json_array_size(rows), 3);
  assert_int_equal(json_integer_value(json_object_get(json_array_get(rows, 1), "store")), 1);
  assert_string_equal(json_string_value(json_object_get(json_array_get(rows, 1), "lease")), "1/17");
  assert_null(json_object_get(json_array_get(rows, 2), "lease"));
  assert_non_null(strstr(verdict, "stage 0 (unix:/s, pid 100) waits for its load from store 1; others wait for it"));
  json_decref(rows);
  json_object_set_new(json_array_get(json_object_get(status, "stores"), 1), "reachable", json_false());
  rows = bl_ctl_diagnose(status, verdict, &silent);
  assert_int_equal(silent, 1);
  assert_int_equal(json_array_size(rows), 4);
  assert_string_equal(json_string_value(json_object_get(json_array_get(rows, 3), "who")), "store 1");
  assert_non_null(strstr(verdict, "store 1 (unix:/b) does not answer"));
  json_decref(rows);
  json_object_set_new(json_array_get(json_object_get(status, "stores"), 1), "of", json_string("host 0"));
  rows = bl_ctl_diagnose(status, verdict, &silent);
  assert_string_equal(json_string_value(json_object_get(json_array_get(rows, 3), "who")), "host store 0");
  assert_non_null(strstr(verdict, "host store 0 (unix:/b) does not answer"));
  json_decref(rows);
  json_decref(status);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_end_of_a_chain_is_the_cause),
      cmocka_unit_test(a_silent_stage_is_the_cause_whatever_it_said_last),
      cmocka_unit_test(a_stage_that_was_never_met_has_no_pid),
      cmocka_unit_test(nobody_and_everybody_waiting_are_told_apart),
      cmocka_unit_test(a_young_circle_is_a_tensor_on_its_way),
      cmocka_unit_test(a_wait_for_a_core_is_no_computation),
      cmocka_unit_test(a_wait_of_the_driver_is_named_once_it_is_old),
      cmocka_unit_test(stores_are_named),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
