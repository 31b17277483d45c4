// SPDX-License-Identifier: Apache-2.0
// What tests of blocks on a fake GPU (tests/fake_gpu) start from: a store of one as a process, another one in this
// process with slots.
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
  bl_arena_t buffers;
  bl_client_region_t source; // which they are
  uint8_t *staged;           // ordinary memory
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
  must(
      bl_arena_create(fixture->device, NULL, BL_MEMORY_SLOTS, BL_ARENA_SHAREABLE, ARENA_BYTES, &fixture->buffers, &err),
      &err);
  fixture->source = bl_client_region_of(&fixture->buffers);
  fixture->staged = malloc(ARENA_BYTES);
}

static inline void stop(gpu_fixture_t *fixture) {
  store_cleanup(&fixture->store);
  bl_arena_destroy(&fixture->buffers);
  bl_device_close(fixture->device);
  free(fixture->staged);
}

static inline bl_client_options_t gpu_options(const gpu_fixture_t *fixture) {
  return (bl_client_options_t){.size = sizeof(bl_client_options_t),
                               .store = fixture->store.address,
                               .job = "job",
                               .arena_bytes = 8 * BLOCK_BYTES,
                               .unit_bytes = BLOCK_BYTES,
                               .regions = &fixture->source,
                               .region_count = 1,
                               .device = fixture->device};
}

static inline void write_slot(const gpu_fixture_t *fixture, uint64_t number, uint64_t seed) {
  bl_error_t err = {0};
  fill(fixture->staged, BLOCK_BYTES, seed);
  must(bl_device_copy(fixture->device, NULL, fixture->buffers.base + number * BLOCK_BYTES, fixture->staged, BLOCK_BYTES,
                      &err),
       &err);
}

static inline void check_slot(const gpu_fixture_t *fixture, uint64_t number, uint64_t seed) {
  bl_error_t err = {0};
  uint8_t *found = fixture->staged + BLOCK_BYTES;
  fill(fixture->staged, BLOCK_BYTES, seed);
  must(bl_device_copy(fixture->device, NULL, found, fixture->buffers.base + number * BLOCK_BYTES, BLOCK_BYTES, &err),
       &err);
  assert_memory_equal(found, fixture->staged, BLOCK_BYTES);
}

// A store that died is there again: the client begins anew and block `seed` of slot 0, which is still at its source,
// goes there and comes back.
static inline void begin_anew(gpu_fixture_t *fixture, bl_client_t *client, uint64_t seed) {
  uint64_t slots[2];
  bl_error_t err = {0};
  check_slot(fixture, 0, seed);
  store_start(&fixture->store, "64 MiB", store_ttl, store_grace);
  must(bl_client_reopen(client, &err), &err);
  reserve(client, BLOCK_BYTES, 2, slots);
  must(bl_client_evict(client, slots[0], fixture->buffers.base, BLOCK_BYTES, NULL, &err), &err);
  must(bl_client_load(client, slots[0], fixture->buffers.base + BLOCK_BYTES, BLOCK_BYTES, &err), &err);
  check_slot(fixture, 1, seed);
}

// Eight blocks leave, the slots are written over, and they come back to other slots; three times.
static inline void exchange_blocks(const gpu_fixture_t *fixture, bl_client_t *client) {
  uint64_t slots[8];
  bl_client_ticket_t tickets[8];
  bl_error_t err = {0};
  reserve(client, BLOCK_BYTES, 8, slots);
  for (int round = 0; round < 3; round++) {
    for (uint64_t i = 0; i < 8; i++) {
      write_slot(fixture, i, 100 + i);
      must(bl_client_evict_start_known(client, slots[i], fixture->buffers.base + i * BLOCK_BYTES, BLOCK_BYTES, 4711 + i,
                                       NULL, &tickets[i], &err),
           &err);
    }
    for (uint64_t i = 0; i < 8; i++) {
      must(bl_client_wait(client, tickets[i], UINT64_MAX, &err), &err);
    }
    must(bl_device_fill(fixture->device, NULL, fixture->buffers.base, 0xee, ARENA_BYTES, &err), &err);
    for (uint64_t i = 0; i < 8; i++) {
      must(bl_client_load(client, slots[i], fixture->buffers.base + (7 - i) * BLOCK_BYTES, BLOCK_BYTES, &err), &err);
    }
    for (uint64_t i = 0; i < 8; i++) {
      check_slot(fixture, 7 - i, 100 + i);
    }
  }
  assert_int_equal(bl_client_counters(client).loaded, 24);
}

// ---- this program as "holder ADDRESS ..." (start_self): a process that holds slots and then does nothing

static inline bl_status_t holder_start(gpu_fixture_t *fixture, const char *address, bl_error_t *err) {
  snprintf(fixture->store.address, sizeof fixture->store.address, "%s", address);
  bl_status_t status = bl_device_open(BL_DEVICE_CUDA, 1, &fixture->device, err);
  if (status == BL_OK) {
    status = bl_arena_create(fixture->device, NULL, BL_MEMORY_SLOTS, BL_ARENA_SHAREABLE, BLOCK_BYTES, &fixture->buffers,
                             err);
    fixture->source = bl_client_region_of(&fixture->buffers);
  }
  return status;
}

// All the slot that the store of "64 MiB" has for a client: `slots` [8].
static inline bl_status_t holder_take_all(const bl_client_options_t *options, bl_client_t **client, uint64_t *slots,
                                          bl_error_t *err) {
  const bl_client_demand_t all = {.bytes = BLOCK_BYTES, .count = 8};
  bl_status_t status = bl_client_open(options, client, err);
  if (status == BL_OK) {
    status = bl_client_reserve(*client, 1, &all, 1, err);
  }
  return status == BL_OK && bl_client_slots(*client, slots, 8) != 8 ? BL_INTERNAL : status;
}

// Says whether all went well, and waits to be killed.
static inline int holder_stay(bl_status_t status, const bl_error_t *err) {
  char byte = status == BL_OK ? 'y' : 'n';
  if (status != BL_OK) {
    fprintf(stderr, "holder: %s: %s\n", bl_status_name(status), err->text);
  }
  return write(STDOUT_FILENO, &byte, 1) == 1 && read(STDIN_FILENO, &byte, 1) == 1 ? 0 : 1;
}

#endif
