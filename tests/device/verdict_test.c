// SPDX-License-Identifier: Apache-2.0
// Verifies what the CUDA back end says about a machine, for every way in which one can be wrong.
#include "device/cuda/verdict.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void machines_are_judged(void **state) {
  (void)state;
  const struct {
    bl_cuda_findings_t findings;
    bl_status_t status;
    const char *text;
  } cases[] = {
      {{13000, 13000, 0, "no error", 2}, BL_OK, ""},
      {{13000, 13010, 0, "no error", 1}, BL_OK, ""}, // a driver may be newer
      {{13000, 0, 35, "insufficient", 0}, BL_UNIMPLEMENTED, "no NVIDIA driver: libcuda.so.1 is not on this machine"},
      {{13000, 12040, 35, "insufficient", 0}, BL_UNIMPLEMENTED, "it serves CUDA 12.4, this build needs 13.0"},
      {{13020, 13000, 35, "insufficient", 0}, BL_UNIMPLEMENTED, "it serves CUDA 13.0, this build needs 13.2"},
      {{13000, 13000, 100, "no device", 0}, BL_NOT_FOUND, "CUDA_VISIBLE_DEVICES"},
      {{13000, 13000, 0, "no error", 0}, BL_NOT_FOUND, "no NVIDIA device"},
      {{13000, 13000, 802, "system not yet initialized", 0}, BL_UNAVAILABLE, "system not yet initialized (802)"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    bl_error_t err = {0};
    bl_status_t status = bl_cuda_verdict(&cases[i].findings, &err);
    if (status != cases[i].status || strstr(err.text, cases[i].text) == NULL) {
      fail_msg("case %zu: %s '%s'", i, bl_status_name(status), err.text);
    }
  }
}

static void devices_are_numbered(void **state) {
  (void)state;
  bl_error_t err = {0};
  const bl_cuda_findings_t one = {13000, 13000, 0, "", 1};
  assert_int_equal(bl_cuda_verdict_ordinal(&one, 0, &err), BL_OK);
  assert_int_equal(bl_cuda_verdict_ordinal(&one, 1, &err), BL_NOT_FOUND);
  assert_non_null(strstr(err.text, "device 1: this process sees 1 NVIDIA device, numbered from 0"));
}

static void old_devices_are_refused(void **state) {
  (void)state;
  bl_error_t err = {0};
  assert_int_equal(bl_cuda_verdict_capability("NVIDIA H200", 9, 0, &err), BL_OK);
  assert_int_equal(bl_cuda_verdict_capability("NVIDIA A100", 8, 0, &err), BL_OK);
  assert_int_equal(bl_cuda_verdict_capability("Tesla V100", 7, 0, &err), BL_UNIMPLEMENTED);
  assert_non_null(strstr(err.text, "Tesla V100 has compute capability 7.0: 8.0 or later is needed"));
}

static void libraries_must_fit(void **state) {
  (void)state;
  bl_error_t err = {0};
  assert_int_equal(bl_cuda_verdict_library("cuDNN", 9, 19, 9, 19, &err), BL_OK);
  assert_int_equal(bl_cuda_verdict_library("cuDNN", 9, 19, 9, 21, &err), BL_OK);
  assert_int_equal(bl_cuda_verdict_library("cuDNN", 9, 19, 9, 10, &err), BL_UNIMPLEMENTED);
  assert_int_equal(bl_cuda_verdict_library("cuDNN", 9, 19, 10, 0, &err), BL_UNIMPLEMENTED);
  assert_non_null(strstr(err.text, "cuDNN 10.0 is loaded, Ballast was built with 9.19"));
}

static void missing_memory_has_numbers(void **state) {
  (void)state;
  bl_error_t err = {0};
  assert_int_equal(bl_cuda_verdict_memory("NVIDIA H200", 3ull << 30, 1ull << 30, 140ull << 30, &err), BL_EXHAUSTED);
  assert_non_null(strstr(err.text, "3.00 GiB (3221225472 bytes) wanted, 1.00 GiB (1073741824 bytes) available"));
  assert_non_null(strstr(err.text, "140 GiB of NVIDIA H200"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(machines_are_judged),        cmocka_unit_test(devices_are_numbered),
      cmocka_unit_test(old_devices_are_refused),    cmocka_unit_test(libraries_must_fit),
      cmocka_unit_test(missing_memory_has_numbers),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
