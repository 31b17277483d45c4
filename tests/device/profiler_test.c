// SPDX-License-Identifier: Apache-2.0
// Verifies that kernels are summed by name and the longest come first, that records of CUPTI are read (of a library that
// is none, where the toolkit's headers are), and what is said where there is no CUPTI, or one that does not fit.
#include "device/profiler.h"

#include "device/cuda/profiler.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static void sums_are_sorted_and_cut(void **state) {
  (void)state;
  bl_error_t err = {0};
  bl_kernel_sums_t sums = {.count = 0};
  bl_device_kernel_t top[10];
  size_t count;
  uint64_t total_ns;
  for (unsigned i = 0; i < 300; i++) {
    char name[300];
    memset(name, 'k', sizeof name);
    snprintf(name, sizeof name, "kernel %u", i % 100);
    bl_kernel_sums_add(&sums, name, i % 100, 2);
  }
  assert_int_equal(bl_kernel_sums_take(&sums, top, 10, &count, &total_ns, &err), BL_OK);
  assert_int_equal(count, 10);
  assert_int_equal(total_ns, 3 * 4950);
  assert_string_equal(top[0].name, "kernel 99");
  assert_int_equal(top[0].ns, 297);
  assert_int_equal(top[0].calls, 6);
  assert_string_equal(top[9].name, "kernel 90");
  assert_int_equal(bl_kernel_sums_take(&sums, top, 10, &count, &total_ns, &err), BL_OK); // it is empty again
  assert_int_equal(count, 0);
  assert_int_equal(total_ns, 0);
}

static void names_are_cut_and_stay_one(void **state) {
  (void)state;
  bl_error_t err = {0};
  bl_kernel_sums_t sums = {.count = 0};
  bl_device_kernel_t top[2];
  size_t count;
  uint64_t total_ns;
  char name[2 * BL_KERNEL_NAME_BYTES];
  memset(name, 'x', sizeof name);
  name[sizeof name - 1] = '\0';
  bl_kernel_sums_add(&sums, name, 5, 1);
  bl_kernel_sums_add(&sums, name, 6, 1);
  assert_int_equal(bl_kernel_sums_take(&sums, top, 2, &count, &total_ns, &err), BL_OK);
  assert_int_equal(count, 1);
  assert_int_equal(top[0].ns, 11);
  assert_int_equal(strlen(top[0].name), BL_KERNEL_NAME_BYTES - 1);
}

static void the_host_has_none(void **state) {
  (void)state;
  bl_error_t err = {0};
  assert_null(bl_device_profiler_of(bl_device_host(), &err));
  assert_int_equal(err.status, BL_UNIMPLEMENTED);
}

#ifdef FAKE_CUPTI
static void records_are_read(void **state) {
  (void)state;
  bl_error_t err = {0};
  bl_device_kernel_t top[3];
  size_t count;
  uint64_t total_ns;
  setenv("BALLAST_CUPTI", FAKE_CUPTI, 1);
  assert_memory_equal(bl__cuda_describe_profiler(), "CUPTI 13.", 9);
  for (int round = 0; round < 2; round++) {
    if (bl__cuda_profiler.start(NULL, &err) != BL_OK ||
        bl__cuda_profiler.stop(top, 3, &count, &total_ns, &err) != BL_OK) {
      fail_msg("%s", err.text);
    }
    assert_int_equal(count, 3);
    assert_string_equal(top[0].name, "long");
    assert_int_equal(top[0].ns, 1000);
    assert_int_equal(top[0].calls, 2);
    assert_string_equal(top[1].name, "copy device to device"); // as long as the two short ones, first by its name
    assert_string_equal(top[2].name, "short");
    assert_int_equal(total_ns, 1000 + 100 + 100 + 7);
  }
}

// The library is loaded once in a process: each trouble is another one, started by the test below.
static int trouble(const char *words) {
  bl_error_t err = {0};
  const bool said = bl__cuda_profiler.start(NULL, &err) != BL_OK && strstr(err.text, words) != NULL;
  if (!said) {
    fprintf(stderr, "expected '%s', got '%s'\n", words, err.text);
  }
  return !said;
}

static void troubles_are_said(void **state) {
  (void)state;
  const struct {
    const char *variable, *value, *words;
  } cases[] = {{"BALLAST_CUPTI", "/nonexistent/libcupti.so", "install CUPTI of the CUDA toolkit 13"},
               {"FAKE_CUPTI_VERSION", "120008", "CUPTI 12.0 is loaded, 13 is needed"},
               {"FAKE_CUPTI_DENIED", "1", "cuptiActivityEnable: no permission"}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    setenv("BALLAST_CUPTI", FAKE_CUPTI, 1);
    setenv(cases[i].variable, cases[i].value, 1);
    pid_t pid = fork();
    if (pid == 0) {
      execl("/proc/self/exe", "profiler_test", cases[i].words, (char *)NULL);
      _exit(127);
    }
    int result = -1;
    assert_int_equal(waitpid(pid, &result, 0), pid);
    assert_int_equal(result, 0);
    unsetenv(cases[i].variable);
  }
}
#endif

int main(int argc, char **argv) {
#ifdef FAKE_CUPTI
  if (argc > 1) {
    return trouble(argv[1]);
  }
#endif
  (void)argc;
  (void)argv;
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(sums_are_sorted_and_cut), cmocka_unit_test(names_are_cut_and_stay_one),
      cmocka_unit_test(the_host_has_none),
#ifdef FAKE_CUPTI
      cmocka_unit_test(records_are_read),        cmocka_unit_test(troubles_are_said),
#endif
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
