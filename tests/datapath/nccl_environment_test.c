// SPDX-License-Identifier: Apache-2.0
// Verifies what the NCCL path sets in the environment: a host id of this process's own where ranks share a GPU, also where an
// ancestor had set its own; what the user has set stays; nothing of this where no GPU is shared.
#include "datapath/nccl/environment.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>

static int forget(void **state) {
  (void)state;
  unsetenv("NCCL_HOSTID");
  unsetenv("NCCL_NET");
  unsetenv("NCCL_LAUNCH_ORDER_IMPLICIT");
  return 0;
}

static void what_the_user_set_stays(void **state) {
  (void)state;
  setenv("NCCL_HOSTID", "ballast-7-41", 1); // a host may be called so
  setenv("NCCL_NET", "IB", 1);
  bl_nccl_set_environment(true);
  assert_string_equal(getenv("NCCL_HOSTID"), "ballast-7-41");
  assert_string_equal(getenv("NCCL_NET"), "IB");
}

static void what_an_ancestor_set_is_replaced(void **state) {
  (void)state;
  char parent[256];
  bl_nccl_set_environment(true);
  snprintf(parent, sizeof parent, "%s", getenv("NCCL_HOSTID"));
  assert_string_equal(getenv("NCCL_NET"), "Socket");
  bl_nccl_set_environment(true);
  assert_string_equal(getenv("NCCL_HOSTID"), parent); // it is this process's own
  pid_t pid = fork();
  if (pid == 0) {
    bl_nccl_set_environment(true);
    _exit(strcmp(getenv("NCCL_HOSTID"), parent) == 0);
  }
  int status = -1;
  assert_int_equal(waitpid(pid, &status, 0), pid);
  assert_int_equal(status, 0);
}

static void where_no_gpu_is_shared_it_is_untouched(void **state) {
  (void)state;
  char parent[256];
  bl_nccl_set_environment(false);
  assert_null(getenv("NCCL_HOSTID"));
  assert_null(getenv("NCCL_NET"));
  setenv("NCCL_HOSTID", "mine", 1);
  bl_nccl_set_environment(false);
  assert_string_equal(getenv("NCCL_HOSTID"), "mine");
  unsetenv("NCCL_HOSTID");
  bl_nccl_set_environment(true);
  snprintf(parent, sizeof parent, "%s", getenv("NCCL_HOSTID"));
  bl_nccl_set_environment(false);
  assert_string_equal(getenv("NCCL_HOSTID"), parent);
}

static void launches_have_no_order_of_the_process(void **state) {
  (void)state;
  setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 1);
  bl_nccl_set_environment(false);
  assert_string_equal(getenv("NCCL_LAUNCH_ORDER_IMPLICIT"), "0");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(what_the_user_set_stays, forget),
      cmocka_unit_test_setup(what_an_ancestor_set_is_replaced, forget),
      cmocka_unit_test_setup(where_no_gpu_is_shared_it_is_untouched, forget),
      cmocka_unit_test_setup(launches_have_no_order_of_the_process, forget),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
