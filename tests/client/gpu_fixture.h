// SPDX-License-Identifier: Apache-2.0
// What tests of blocks on a fake GPU (tests/fake_gpu) start from: a store of one as a process, another one in this process
// with slots.
#ifndef TESTS_CLIENT_GPU_FIXTURE_H
#define TESTS_CLIENT_GPU_FIXTURE_H

#include "client/fixture.h"

#include "base/bytes.h"
#include "device/open.h"

#include <inttypes.h>

#define BLOCK_BYTES (UINT64_C(3) << 20)
#define ARENA_BYTES (8 * BLOCK_BYTES)

typedef struct {
  store_process_t store;
  bl_device_t *device;
  bl_arena_t slots;
  uint8_t *staged; // ordinary memory
} gpu_fixture_t;

static inline bl_device_t *open_device(uint32_t ordinal) {
  bl_device_t *device = NULL;
  bl_error_t err = {0};
  must(bl_device_open(BL_DEVICE_CUDA, ordinal, &device, &err), &err);
  return device;
}

static inline void start(gpu_fixture_t *fixture, const char *device, const char *capacity, const char *spill) {
  bl_error_t err = {0};
  *fixture = (gpu_fixture_t){.store = {.device = device, .spill = spill}};
  store_start(&fixture->store, capacity, store_ttl, store_grace);
  fixture->device = open_device(1);
  must(bl_arena_create(fixture->device, NULL, BL_MEMORY_SLOTS, BL_ARENA_SHAREABLE, ARENA_BYTES, &fixture->slots, &err),
       &err);
  fixture->staged = malloc(ARENA_BYTES);
}

static inline void stop(gpu_fixture_t *fixture) {
  store_cleanup(&fixture->store);
  bl_arena_destroy(&fixture->slots);
  bl_device_close(fixture->device);
  free(fixture->staged);
}

static inline bl_client_options_t gpu_options(const gpu_fixture_t *fixture) {
  return (bl_client_options_t){.store = fixture->store.address,
                               .job = "job",
                               .arena_bytes = 8 * BLOCK_BYTES,
                               .unit_bytes = BLOCK_BYTES,
                               .sources = &fixture->slots,
                               .source_count = 1,
                               .device = fixture->device};
}

static inline void write_slot(const gpu_fixture_t *fixture, uint64_t number, uint64_t seed) {
  bl_error_t err = {0};
  fill(fixture->staged, BLOCK_BYTES, seed);
  must(bl_device_copy(fixture->device, NULL, fixture->slots.base + number * BLOCK_BYTES, fixture->staged, BLOCK_BYTES,
                      &err),
       &err);
}

static inline void check_slot(const gpu_fixture_t *fixture, uint64_t number, uint64_t seed) {
  bl_error_t err = {0};
  uint8_t *found = fixture->staged + BLOCK_BYTES;
  fill(fixture->staged, BLOCK_BYTES, seed);
  must(bl_device_copy(fixture->device, NULL, found, fixture->slots.base + number * BLOCK_BYTES, BLOCK_BYTES, &err),
       &err);
  assert_memory_equal(found, fixture->staged, BLOCK_BYTES);
}

// Eight blocks leave, the slots are written over, and they come back to other slots; three times.
static inline void exchange_blocks(const gpu_fixture_t *fixture, bl_client_t *client) {
  uint64_t rooms[8];
  bl_client_ticket_t tickets[8];
  bl_error_t err = {0};
  reserve(client, BLOCK_BYTES, 8, rooms);
  for (int round = 0; round < 3; round++) {
    for (uint64_t i = 0; i < 8; i++) {
      write_slot(fixture, i, 100 + i);
      must(bl_client_evict_start_known(client, rooms[i], fixture->slots.base + i * BLOCK_BYTES, BLOCK_BYTES, 4711 + i,
                                       NULL, &tickets[i], &err),
           &err);
    }
    for (uint64_t i = 0; i < 8; i++) {
      must(bl_client_wait(client, tickets[i], UINT64_MAX, &err), &err);
    }
    must(bl_device_fill(fixture->device, NULL, fixture->slots.base, 0xee, ARENA_BYTES, &err), &err);
    for (uint64_t i = 0; i < 8; i++) {
      must(bl_client_load(client, rooms[i], fixture->slots.base + (7 - i) * BLOCK_BYTES, BLOCK_BYTES, &err), &err);
    }
    for (uint64_t i = 0; i < 8; i++) {
      check_slot(fixture, 7 - i, 100 + i);
    }
  }
  assert_int_equal(bl_client_counters(client).loaded, 24);
}

#endif
