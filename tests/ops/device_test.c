// SPDX-License-Identifier: Apache-2.0
// Verifies every operation of a device's back end against the fp64 reference, as ops_test.c does for the host. The device
// is the one of the modules in BALLAST_MODULES, else that of this build; skipped, with the reason, where there is none.
//
//   test_compute_device                          the CUDA back end, where there is a GPU
//   BALLAST_MODULES=build/tests/late ...         the device that is not there (tests/late)
#include "compute/ops/select.h"
#include "ops/cases/op_case.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static op_host_t opened;

static void open_device(void) {
  bl_error_t err = {0};
  bl_status_t status = bl_ops_select(BL_DEVICE_CUDA, &opened.ops, &err);
  if (status == BL_OK) {
    status = bl_device_open(BL_DEVICE_CUDA, 0, &opened.device, &err);
  }
  if (status == BL_OK) {
    const bl_compute_options_t options = {.threads = 1, .device = opened.device};
    status = opened.ops->create(&options, &opened.compute, &err);
  }
  if (status != BL_OK) {
    printf("SKIPPED: %s\n", err.text);
    exit(77);
  }
  opened.ops->attach(opened.compute);
  printf("%s; %s\n", bl_device_describe(opened.device), opened.ops->describe(opened.compute));
}

static void close_device(void) {
  opened.ops->destroy(opened.compute);
  op_release(&opened);
  bl_device_close(opened.device);
}

static void all_cases_agree(void **state) {
  (void)state;
  size_t failed = 0;
  op_errors_t worst = {0};
  for (size_t i = 0; i < op_cases_count; i++) {
    failed += !op_case_within(&opened, &op_cases[i], &worst);
  }
  printf("%zu of %zu cases agree; largest normalised mean square error %.2g in fp32, %.2g in bf16\n",
         op_cases_count - failed, op_cases_count, worst.fp32, worst.bf16);
  assert_int_equal(failed, 0);
}

// Every tensor of the step is given back by the device as it was put there, by either way, in and out of streams.
static void memory_keeps_what_it_is_given(void **state) {
  (void)state;
  bl_device_t *device = opened.device;
  bl_error_t err = {0};
  bl_device_stream_t *stream = NULL;
  bl_device_event_t *event = NULL;
  enum { BYTES = 3 << 20 };
  uint8_t *there = op_block(&opened, BL_ARENA_PRIVATE, BYTES), *shared = op_block(&opened, BL_ARENA_SHAREABLE, BYTES);
  uint8_t *staging = op_block(&opened, BL_ARENA_STAGING, BYTES);
  uint8_t *here = malloc(BYTES);
  assert_int_equal(bl_device_stream_create(device, BL_STREAM_COPY, &stream, &err), BL_OK);
  assert_int_equal(bl_device_event_create(device, false, &event, &err), BL_OK);
  for (size_t i = 0; i < BYTES; i++) {
    assert_int_equal(staging[i], 0);
    staging[i] = (uint8_t)(i * 31 >> 8);
  }
  assert_int_equal(bl_device_copy(device, stream, there, staging, BYTES, &err), BL_OK);
  assert_int_equal(bl_device_copy(device, stream, shared, there, BYTES, &err), BL_OK);
  assert_int_equal(bl_device_fill(device, stream, there, 7, 1, &err), BL_OK);
  assert_int_equal(bl_device_event_record(device, event, stream, &err), BL_OK);
  assert_int_equal(bl_device_event_wait(device, event, UINT64_MAX, &err), BL_OK);
  assert_int_equal(bl_device_copy(device, NULL, here, shared, BYTES, &err), BL_OK);
  assert_memory_equal(here, staging, BYTES);
  assert_int_equal(bl_device_copy(device, NULL, here, there, BYTES, &err), BL_OK);
  assert_int_equal(here[0], 7);
  assert_memory_equal(here + 1, staging + 1, BYTES - 1);
  bl_device_event_destroy(device, event);
  bl_device_stream_destroy(device, stream);
  free(here);
  op_release(&opened);
}

int main(void) {
  open_device();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(memory_keeps_what_it_is_given),
      cmocka_unit_test(all_cases_agree),
  };
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  close_device();
  return failed;
}
