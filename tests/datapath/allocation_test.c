// SPDX-License-Identifier: Apache-2.0
// Verifies that the message path allocates nothing: once two transports are connected, every malloc of the process is
// counted while thousands of tensors move and attempts come and go. Sanitizers replace malloc, so they skip this.
#include "pair.h"

#include <dlfcn.h>
#include <stdatomic.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
int main(void) {
  printf("skipped: the sanitizer owns malloc\n");
  return 77;
}
#else

static _Atomic bool armed;
static _Atomic uint64_t allocations;

// In place of the C library's: this program is linked before it.
void *malloc(size_t size_bytes) {
  static void *(*_Atomic real)(size_t);
  if (real == NULL) {
    real = (void *(*)(size_t))dlsym(RTLD_NEXT, "malloc");
  }
  if (armed) {
    allocations++;
  }
  return real(size_bytes);
}

static bl_tensor_key_t key_of(uint32_t micro_batch) {
  return (bl_tensor_key_t){.boundary = 1, .direction = BL_FORWARD, .micro_batch = micro_batch};
}

static void move(pair_t *pair, uint64_t attempt, uint8_t *to) {
  bl_error_t err;
  const uint64_t bytes = 100000;
  pair_begin(pair, attempt);
  for (uint32_t i = 0; i < 32; i++) {
    CHECK_OK(bl_transport_post_receive(pair->transport[1], 0, key_of(i), to + i * bytes, bytes, &err), err);
    CHECK_OK(bl_transport_post_send(pair->transport[0], 1, key_of(i), pair->arena[0].base + i * bytes, bytes, &err),
             err);
  }
  for (uint32_t i = 0; i < 32; i++) {
    CHECK_OK(bl_transport_wait_received(pair->transport[1], 0, key_of(i), soon(), &err), err);
    CHECK_OK(bl_transport_wait_sent(pair->transport[0], 1, key_of(i), soon(), &err), err);
  }
}

static void moving_tensors_allocates_nothing(void **state) {
  (void)state;
  armed = true;
  uint8_t *to = malloc(32ul * 100000);
  armed = false;
  assert_int_equal(allocations, 1); // the counter itself works
  for (bl_path_t path = BL_PATH_SHM; path <= BL_PATH_TCP; path++) {
    pair_t pair;
    pair_open(&pair, path);
    move(&pair, 1, to);
    allocations = 0;
    armed = true;
    for (uint64_t attempt = 2; attempt <= 60; attempt++) {
      move(&pair, attempt, to);
    }
    armed = false;
    assert_int_equal(allocations, 0);
    pair_close(&pair);
  }
  free(to);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(moving_tensors_allocates_nothing)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
#endif
