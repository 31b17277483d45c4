// SPDX-License-Identifier: Apache-2.0
// Verifies the real CUDA modules' object code on a CUDA that is none and strict (fake_cuda.h): what a device does with arenas,
// places, streams, events and memory of peers breaks no rule of the driver and leaves nothing; what the modules set in the
// environment is there before the driver reads it; and that the rules are rules, by breaking each.
#include "fake_cuda/fake_cuda.h"

#include "compute/ops/select.h"
#include "datapath/device_path.h"
#include "device/open.h"
#include "device/segments.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#define MIB (UINT64_C(1) << 20)

static bl_device_t *device;
static void *cuda; // libfake-cuda.so
static fake_cuda_figures_fn ask;
static fake_cuda_expect_fn expect;

static void must(bl_status_t status, const bl_error_t *err) {
  if (status != BL_OK) {
    fail_msg("%s", err->text);
  }
}

static fake_cuda_figures_t figures(void) {
  fake_cuda_figures_t f;
  ask(&f);
  return f;
}

static int open_device(void **state) {
  (void)state;
  bl_error_t err = {0};
  must(bl_device_open(BL_DEVICE_CUDA, 0, &device, &err), &err);
  cuda = dlopen("libfake-cuda.so", RTLD_NOW | RTLD_NOLOAD);
  assert_non_null(cuda);
  void *a = dlsym(cuda, "fake_cuda_figures"), *b = dlsym(cuda, "fake_cuda_expect");
  memcpy(&ask, &a, sizeof a);
  memcpy(&expect, &b, sizeof b);
  return 0;
}

static int close_device(void **state) {
  (void)state;
  bl_device_close(device);
  const fake_cuda_figures_t f = figures();
  assert_int_equal(f.broken, 0);
  assert_int_equal(f.live_handles + f.live_reservations + f.live_mappings + f.live_allocations, 0);
  assert_int_equal(f.live_streams + f.live_events + f.live_pinned, 0);
  return 0;
}

static bl_arena_t new_arena(bl_arena_kind_t kind, uint64_t bytes) {
  bl_arena_t arena;
  bl_error_t err = {0};
  must(bl_arena_create(device, NULL, BL_MEMORY_SLOTS, kind, bytes, &arena, &err), &err);
  return arena;
}

static void read_back(void *to, const void *from, uint64_t bytes) {
  bl_error_t err = {0};
  must(bl_device_copy(device, NULL, to, from, bytes, &err), &err);
}

// Streams of a pipeline are more than the 8 queues that a driver makes unless it is asked for more: work of one stream would
// wait behind work of another that waits for a peer.
static void the_driver_is_asked_for_queues_and_kernels(void **state) {
  (void)state;
  assert_int_equal(figures().connections, 32);
  assert_int_equal(figures().loads_early, 1);
}

static void arenas(void **state) {
  (void)state;
  for (int kind = BL_ARENA_PRIVATE; kind <= BL_ARENA_STAGING_SHAREABLE; kind++) {
    bl_arena_t arena = new_arena((bl_arena_kind_t)kind, 3 * MIB + 5);
    uint8_t bytes[4096];
    memset(bytes, 1, sizeof bytes);
    read_back(bytes, arena.base + arena.bytes - sizeof bytes, sizeof bytes);
    for (size_t i = 0; i < sizeof bytes; i++) {
      assert_int_equal(bytes[i], 0);
    }
    bl_arena_destroy(&arena);
  }
}

static void places(void **state) {
  (void)state;
  bl_segments_t slots;
  bl_error_t err = {0};
  must(bl_segments_init(&slots, device, NULL, BL_MEMORY_SLOTS, BL_ARENA_SHAREABLE, 5, 5 * MIB, &err), &err);
  for (uint32_t count = 5; count > 0; count--) {
    must(bl_segments_resize(&slots, count, &err), &err);
    must(bl_segments_resize(&slots, 5, &err), &err);
  }
  bl_segments_cleanup(&slots);
}

static void what_is_not_waited_for_has_not_happened(void **state) {
  (void)state;
  bl_error_t err = {0};
  bl_arena_t block = new_arena(BL_ARENA_PRIVATE, MIB), seen = new_arena(BL_ARENA_STAGING, 2 * MIB);
  bl_device_stream_t *first, *second;
  bl_device_event_t *event;
  must(bl_device_stream_create(device, BL_STREAM_COMPUTE, &first, &err), &err);
  must(bl_device_stream_create(device, BL_STREAM_COPY, &second, &err), &err);
  must(bl_device_event_create(device, false, &event, &err), &err);
  must(bl_device_fill(device, first, block.base, 7, MIB, &err), &err);
  must(bl_device_event_record(device, event, first, &err), &err);
  must(bl_device_copy(device, second, seen.base, block.base, 16, &err), &err); // waits for no process
  must(bl_device_event_record(device, event, second, &err), &err);
  must(bl_device_event_wait(device, event, UINT64_MAX, &err), &err);
  // The record of `first` had to be found first, as its event was recorded again in another stream.
  must(bl_device_fill(device, first, block.base, 8, MIB, &err), &err);
  must(bl_device_copy(device, second, seen.base + MIB, block.base, 16, &err), &err);
  must(bl_device_event_record(device, event, second, &err), &err);
  must(bl_device_event_wait(device, event, UINT64_MAX, &err), &err);
  assert_int_equal(seen.base[MIB], 7); // not 8: no wait, no order
  must(bl_device_event_record(device, event, first, &err), &err);
  must(bl_device_stream_wait_event(device, second, event, &err), &err);
  must(bl_device_copy(device, second, seen.base + MIB, block.base, 16, &err), &err);
  must(bl_device_event_record(device, event, second, &err), &err);
  must(bl_device_event_wait(device, event, UINT64_MAX, &err), &err);
  assert_int_equal(seen.base[MIB], 8);
  bl_device_event_destroy(device, event);
  bl_device_stream_destroy(device, first);
  bl_device_stream_destroy(device, second);
  bl_arena_destroy(&block);
  bl_arena_destroy(&seen);
}

static void memory_of_a_peer(void **state) {
  (void)state;
  bl_error_t err = {0};
  const bl_device_path_t *path = bl_device_path_of(device, &err);
  bl_arena_t block = new_arena(BL_ARENA_SHAREABLE, 3 * MIB), own = new_arena(BL_ARENA_PRIVATE, MIB);
  bl_device_memory_t imported;
  assert_non_null(path);
  must(bl_device_fill(device, NULL, block.base + 2 * MIB, 9, MIB, &err), &err);
  must(path->import(device, block.fd, 3 * MIB, &imported, &err), &err);
  assert_false(imported.writable);
  must(bl_device_copy(device, NULL, own.base, imported.base + 2 * MIB, MIB, &err), &err);
  uint8_t byte = 0;
  read_back(&byte, own.base + MIB - 1, 1);
  assert_int_equal(byte, 9);
  uint64_t broken = 0;
  expect(&broken);
  assert_int_not_equal(bl_device_fill(device, NULL, (uint8_t *)(uintptr_t)imported.base, 1, 16, &err), BL_OK);
  expect(NULL);
  assert_int_equal(broken, 1); // it is for reading
  bl_device_memory_t none;
  const int fd = memfd_create("other", 0);
  assert_int_not_equal(path->import(device, fd, MIB, &none, &err), BL_OK);
  close(fd);
  path->release(device, &imported);
  bl_arena_destroy(&block);
  bl_arena_destroy(&own);
}

// Each rule, broken.
static void rules(void **state) {
  (void)state;
  bl_error_t err = {0};
  uint64_t broken = 0;
  bl_device_stream_t *stream;
  must(bl_device_stream_create(device, BL_STREAM_COMPUTE, &stream, &err), &err);
  bl_arena_t block = new_arena(BL_ARENA_PRIVATE, 2 * MIB), seen = new_arena(BL_ARENA_STAGING, 4096);
  expect(&broken);
  // Behind the end.
  assert_int_not_equal(bl_device_fill(device, stream, block.base + MIB, 1, 2 * MIB, &err), BL_OK);
  assert_int_equal(broken, 1);
  // While queued work needs it.
  must(bl_device_copy(device, stream, seen.base, block.base, 16, &err), &err);
  const uint8_t *gone = block.base;
  bl_arena_destroy(&block);
  assert_int_equal(broken, 2);
  // After it is gone; and what was queued finds nothing, either.
  assert_int_not_equal(bl_device_fill(device, NULL, (uint8_t *)(uintptr_t)gone, 1, 16, &err), BL_OK);
  assert_int_equal(broken, 3);
  bl_device_event_t *event;
  must(bl_device_event_create(device, false, &event, &err), &err);
  must(bl_device_event_record(device, event, stream, &err), &err);
  must(bl_device_event_wait(device, event, UINT64_MAX, &err), &err);
  assert_int_equal(broken, 4);
  bl_device_event_destroy(device, event);
  bl_device_stream_destroy(device, stream);
  expect(NULL);
  bl_arena_destroy(&seen);
}

static void kernels_and_products(void **state) {
  (void)state;
  bl_error_t err = {0};
  const bl_ops_t *ops;
  must(bl_ops_select(BL_DEVICE_CUDA, &ops, &err), &err);
  bl_compute_t *compute;
  must(ops->create(&(bl_compute_options_t){.device = device, .threads = 1}, &compute, &err), &err);
  bl_linear_op_t *linear;
  const bl_linear_shape_t shape = {.rows = 64,
                                   .in = 48,
                                   .out = 32,
                                   .order = BL_WEIGHT_IN_OUT,
                                   .bias = true,
                                   .dtype = BL_COMPUTE_FP32,
                                   .uses = BL_LINEAR_FORWARD};
  must(ops->linear_plan(compute, &shape, &linear, &err), &err);
  bl_arena_t workspace = new_arena(BL_ARENA_PRIVATE, ops->workspace_bytes(compute)),
             all = new_arena(BL_ARENA_PRIVATE, MIB);
  ops->use_workspace(compute, workspace.base, workspace.bytes);
  float *x = (float *)(void *)all.base, *w = x + 64 * 48, *bias = w + 48 * 32, *y = bias + 32;
  fake_cuda_figures_t before = figures();
  ops->linear_forward(linear, x, w, NULL, bias, NULL, y);
  ops->fill(compute, 64 * 32, 1.0f, y);
  must(ops->status(compute, &err), &err);
  assert_int_equal(figures().launches - before.launches, 2);
  assert_int_equal(figures().products - before.products, 1);
  uint64_t broken = 0;
  expect(&broken);
  float *end = (float *)(void *)(all.base + all.mapped_bytes) - 64 * 32 + 16; // y reaches behind the end
  ops->linear_forward(linear, x, w, NULL, bias, NULL, end);
  assert_int_equal(broken, 1);
  float pageable[16];
  ops->fill(compute, 16, 1.0f, pageable);
  assert_int_equal(broken, 2);
  expect(NULL);
  assert_int_not_equal(ops->status(compute, &err), BL_OK); // and it is kept
  ops->destroy(compute);
  bl_arena_destroy(&workspace);
  bl_arena_destroy(&all);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_driver_is_asked_for_queues_and_kernels),
      cmocka_unit_test(arenas),
      cmocka_unit_test(places),
      cmocka_unit_test(what_is_not_waited_for_has_not_happened),
      cmocka_unit_test(memory_of_a_peer),
      cmocka_unit_test(rules),
      cmocka_unit_test(kernels_and_products),
  };
  return cmocka_run_group_tests(tests, open_device, close_device);
}
