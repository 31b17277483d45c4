// SPDX-License-Identifier: Apache-2.0
// Verifies byte accounting: the plan is a budget, peaks stay, refusals name tag and numbers, concurrent use adds up.
#include "device/account.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void counts_and_refuses(void **state) {
  (void)state;
  bl_memory_account_t account = {0};
  bl_error_t err = {0};
  bl_memory_plan(&account, BL_MEMORY_SLOTS, 1000);
  bl_memory_plan(&account, BL_MEMORY_SLOTS, 500);
  assert_int_equal(bl_memory_acquire(&account, BL_MEMORY_SLOTS, 900, &err), BL_OK);
  assert_int_equal(bl_memory_acquire(&account, BL_MEMORY_SLOTS, 601, &err), BL_EXHAUSTED);
  assert_non_null(strstr(err.text, "slots"));
  assert_non_null(strstr(err.text, "601"));
  assert_non_null(strstr(err.text, "1500"));
  assert_int_equal(bl_memory_acquire(&account, BL_MEMORY_SLOTS, 600, &err), BL_OK);
  bl_memory_release(&account, BL_MEMORY_SLOTS, 900);
  bl_memory_usage_t usage = bl_memory_usage(&account, BL_MEMORY_SLOTS);
  assert_int_equal(usage.planned_bytes, 1500);
  assert_int_equal(usage.current_bytes, 600);
  assert_int_equal(usage.peak_bytes, 1500);
  assert_int_equal(bl_memory_acquire(&account, BL_MEMORY_EDGES, 1, &err), BL_EXHAUSTED);
  assert_int_equal(bl_memory_acquire(&account, BL_MEMORY_SLOTS, UINT64_MAX, &err), BL_EXHAUSTED);
  assert_int_equal(bl_memory_usage_total(&account).current_bytes, 600);
}

static void *take_and_give(void *argument) {
  bl_memory_account_t *account = argument;
  for (int i = 0; i < 10000; i++) {
    if (bl_memory_acquire(account, BL_MEMORY_DATA, 3, NULL) == BL_OK) {
      bl_memory_release(account, BL_MEMORY_DATA, 3);
    }
  }
  return NULL;
}

static void threads_add_up(void **state) {
  (void)state;
  bl_memory_account_t account = {0};
  bl_memory_plan(&account, BL_MEMORY_DATA, 6);
  pthread_t threads[4];
  for (int i = 0; i < 4; i++) {
    assert_int_equal(pthread_create(&threads[i], NULL, take_and_give, &account), 0);
  }
  for (int i = 0; i < 4; i++) {
    pthread_join(threads[i], NULL);
  }
  assert_int_equal(bl_memory_usage(&account, BL_MEMORY_DATA).current_bytes, 0);
  assert_in_range(bl_memory_usage(&account, BL_MEMORY_DATA).peak_bytes, 3, 6);
}

static void names_are_the_documented_ones(void **state) {
  (void)state;
  const char *const names[] = {"weights",   "gradients", "optimizer",  "slots",   "kv-cache", "edges",
                               "workspace", "data",      "checkpoint", "staging", "shadow",   "optimizer-host"};
  for (int tag = 0; tag < BL_MEMORY_TAGS; tag++) {
    assert_string_equal(bl_memory_tag_name((bl_memory_tag_t)tag), names[tag]);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(counts_and_refuses),
      cmocka_unit_test(threads_add_up),
      cmocka_unit_test(names_are_the_documented_ones),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
