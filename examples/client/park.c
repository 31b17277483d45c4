// SPDX-License-Identifier: Apache-2.0
// Parks blocks of memory in an activation-store and takes them back, without any stage or driver:
//
//   activation-store --listen unix:/tmp/store --capacity "1 GiB" &
//   ballast-park unix:/tmp/store 64            64 blocks of 1 MiB through 4 buffers of own memory
//
// It works like a stage that has slots for 4 blocks and needs 64: every block is made in a buffer, evicted to make room
// for the next, and loaded back, last one first, as a backward pass would.
#include <ballast/client.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BUFFERS     4
#define BLOCK_BYTES (1u << 20)
#define BLOCKS_MAX  4096

static void fill(uint8_t *buffer, unsigned block) {
  for (uint32_t i = 0; i < BLOCK_BYTES; i++) {
    buffer[i] = (uint8_t)((i >> 3) * 31 + block * 7 + (i & 7));
  }
}

static bool is_block(const uint8_t *buffer, unsigned block) {
  for (uint32_t i = 0; i < BLOCK_BYTES; i++) {
    if (buffer[i] != (uint8_t)((i >> 3) * 31 + block * 7 + (i & 7))) {
      return false;
    }
  }
  return true;
}

// Evictions run while the next block is made; a buffer is filled again only when its own eviction has ended.
static bl_status_t park(bl_client_t *client, uint8_t *buffers, const uint64_t *slots, unsigned blocks,
                        bl_error_t *err) {
  bl_client_ticket_t tickets[BUFFERS];
  bl_status_t status = BL_OK;
  unsigned started = 0, ended = 0;
  for (unsigned block = 0; block < blocks && status == BL_OK; block++) {
    uint8_t *buffer = buffers + (size_t)(block % BUFFERS) * BLOCK_BYTES;
    if (block >= BUFFERS) {
      status = bl_client_wait(client, tickets[ended++ % BUFFERS], UINT64_MAX, err);
    }
    if (status == BL_OK) {
      fill(buffer, block);
      bl_client_label_t label = {.step = 1, .micro_batch = block};
      status = bl_client_evict_start(client, slots[block], buffer, BLOCK_BYTES, &label, &tickets[block % BUFFERS], err);
      started += status == BL_OK ? 1 : 0;
    }
  }
  while (ended < started) {
    bl_error_t late = {0};
    bl_status_t one = bl_client_wait(client, tickets[ended++ % BUFFERS], UINT64_MAX, &late);
    if (status == BL_OK && one != BL_OK) {
      status = one;
      *err = late;
    }
  }
  return status;
}

static bl_status_t take_back(bl_client_t *client, uint8_t *buffers, const uint64_t *slots, unsigned blocks,
                             bl_error_t *err) {
  for (unsigned block = blocks; block-- > 0;) {
    uint8_t *buffer = buffers + (size_t)(block % BUFFERS) * BLOCK_BYTES;
    bl_status_t status = bl_client_load(client, slots[block], buffer, BLOCK_BYTES, err);
    if (status != BL_OK) {
      return status;
    }
    if (!is_block(buffer, block)) {
      return bl_error_set(err, BL_DATA_LOSS, "block %u came back changed", block);
    }
  }
  return BL_OK;
}

int main(int argc, char **argv) {
  unsigned blocks = argc >= 3 ? (unsigned)strtoul(argv[2], NULL, 10) : 0;
  bool plaintext = false, tcp = false, known = true;
  for (int i = 3; i < argc && known; i++) {
    plaintext = plaintext || strcmp(argv[i], "--plaintext") == 0;
    tcp = tcp || strcmp(argv[i], "--tcp") == 0;
    known = strcmp(argv[i], "--plaintext") == 0 || strcmp(argv[i], "--tcp") == 0;
  }
  if (!known || blocks == 0 || blocks > BLOCKS_MAX) {
    fprintf(stderr, "usage: ballast-park STORE BLOCKS [--plaintext] [--tcp] (1 to %d blocks)\n", BLOCKS_MAX);
    return bl_status_exit_code(BL_INVALID);
  }
  bl_error_t err = {0};
  bl_client_region_t buffers;
  bl_client_t *client = NULL;
  static uint64_t slots[BLOCKS_MAX];
  bl_status_t status = bl_client_region_create((uint64_t)BUFFERS * BLOCK_BYTES, &buffers, &err);
  if (status != BL_OK) {
    goto report;
  }
  bl_client_options_t options = {
      .size = sizeof options,
      .store = argv[1],
      .job = "park",
      .arena_bytes = (uint64_t)blocks * BLOCK_BYTES,
      .regions = &buffers,
      .region_count = 1,
      .plaintext = plaintext, // allow connections without TLS also beyond the loopback interface (else: .tls_ca ...)
      .path = tcp ? BL_CLIENT_PATH_TCP : BL_CLIENT_PATH_AUTO, // auto: on one machine through shared memory
      .deadline_ms = 60000};
  status = bl_client_open(&options, &client, &err);
  if (status == BL_OK) {
    status = bl_client_reserve(client, 1, &(bl_client_demand_t){.bytes = BLOCK_BYTES, .count = blocks}, 1, &err);
  }
  if (status == BL_OK) {
    bl_client_slots(client, slots, blocks);
    status = park(client, buffers.base, slots, blocks, &err);
  }
  if (status == BL_OK) {
    status = take_back(client, buffers.base, slots, blocks, &err);
  }
  if (status == BL_OK) {
    char path[BL_CLIENT_PATH_BYTES];
    (void)bl_client_path(client, path);
    printf("%u %s of 1 MiB went through %d buffers and came back as they were (%s)\n", blocks,
           blocks == 1 ? "block" : "blocks", BUFFERS, path);
  }
  bl_client_close(client);
  bl_client_region_destroy(&buffers);
report:
  if (status != BL_OK) {
    fprintf(stderr, "ballast-park: %s\n", err.text);
  }
  return bl_status_exit_code(status);
}
