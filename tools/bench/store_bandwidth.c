// SPDX-License-Identifier: Apache-2.0
#include "store_bandwidth.h"

#include "bare_socket.h"
#include "client/client.h"
#include "measure.h"
#include "sys/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define BLOCKS    BL_STORE_BANDWIDTH_BLOCKS
#define IN_FLIGHT 2u

typedef struct bench {
  bl_client_t *client;
  bl_bare_socket_t bare;
  bl_arena_t source, destination; // BLOCKS each
  uint64_t bytes, rooms[BLOCKS];
  bool tcp;
} bench_t;

static bl_status_t start_block(bench_t *bench, bool evict, unsigned block, bl_client_ticket_t *ticket,
                               bl_error_t *err) {
  uint64_t at = block * bench->bytes;
  return evict ? bl_client_evict_start(bench->client, bench->rooms[block], bench->source.base + at, bench->bytes, NULL,
                                       ticket, err)
               : bl_client_load_start(bench->client, bench->rooms[block], bench->destination.base + at, bench->bytes,
                                      ticket, err);
}

static bl_status_t run_store(bench_t *bench, bool evict, double *seconds, bl_error_t *err) {
  bl_client_ticket_t tickets[BLOCKS];
  bl_status_t status = BL_OK;
  uint64_t start_ns = bl_clock_now_ns();
  for (unsigned i = 0; i < BLOCKS + IN_FLIGHT && status == BL_OK; i++) {
    if (i >= IN_FLIGHT) {
      status = bl_client_wait(bench->client, tickets[i - IN_FLIGHT], UINT64_MAX, err);
    }
    if (status == BL_OK && i < BLOCKS) {
      status = start_block(bench, evict, i, &tickets[i], err);
    }
  }
  *seconds = (double)(bl_clock_now_ns() - start_ns) * 1e-9;
  return status;
}

static bl_status_t run_reference(bench_t *bench, double *seconds, bl_error_t *err) {
  if (bench->tcp) {
    bl_bare_run_t run = {.from = bench->source.base,
                         .to = bench->destination.base,
                         .bytes = bench->bytes,
                         .count = BLOCKS,
                         .places = BLOCKS};
    return bl_bare_socket_run(&bench->bare, &run, seconds, err);
  }
  uint64_t start_ns = bl_clock_now_ns();
  for (unsigned i = 0; i < BLOCKS; i++) {
    memcpy(bench->destination.base + i * bench->bytes, bench->source.base + i * bench->bytes, bench->bytes);
    __asm__ volatile("" : : "r"(bench->destination.base) : "memory"); // every copy is wanted
  }
  *seconds = (double)(bl_clock_now_ns() - start_ns) * 1e-9;
  return BL_OK;
}

static bl_status_t open_bench(bench_t *bench, const char *address, bool verified, bl_error_t *err) {
  bl_client_options_t options = {.store = address,
                                 .job = "bench",
                                 .stage = 100,
                                 .path = bench->tcp ? BL_CLIENT_PATH_TCP : BL_CLIENT_PATH_SHM,
                                 .unverified = !verified,
                                 .arena_bytes = BLOCKS * (bench->bytes + 65536),
                                 .sources = &bench->source,
                                 .source_count = 1,
                                 .deadline_ms = 60000};
  bl_device_t *host = bl_device_host();
  uint64_t bytes = BLOCKS * bench->bytes;
  bl_status_t status = bl_arena_create(host, NULL, BL_MEMORY_SLOTS, BL_ARENA_SHAREABLE, bytes, &bench->source, err);
  if (status == BL_OK) {
    status = bl_arena_create(host, NULL, BL_MEMORY_SLOTS, BL_ARENA_SHAREABLE, bytes, &bench->destination, err);
  }
  if (status == BL_OK) {
    memset(bench->source.base, 0x5a, bytes);
    status = bl_bare_socket_open(&bench->bare, true, err);
  }
  if (status == BL_OK) {
    status = bl_client_open(&options, &bench->client, err);
  }
  if (status == BL_OK) {
    bl_client_demand_t demand = {.bytes = bench->bytes, .count = BLOCKS};
    status = bl_client_reserve(bench->client, 1, &demand, 1, err);
  }
  if (status == BL_OK && bl_client_rooms(bench->client, bench->rooms, BLOCKS) != BLOCKS) {
    status = bl_error_set(err, BL_INTERNAL, "the store gave another number of rooms");
  }
  return status;
}

static void close_bench(bench_t *bench) {
  bl_client_close(bench->client);
  bl_bare_socket_close(&bench->bare);
  bl_arena_destroy(&bench->source);
  bl_arena_destroy(&bench->destination);
}

static void print(const bench_t *bench, const char *what, bool verified, double *seconds, double *ratios,
                  unsigned pairs) {
  printf("store %s %s block_bytes=%" PRIu64 " checksums=%s gb_s=%.2f share_of_%s=%.3f pairs=%u\n",
         bench->tcp ? "tcp" : "shm", what, bench->bytes, verified ? "yes" : "no",
         (double)(BLOCKS * bench->bytes) * 1e-9 / bl_median(seconds, pairs), bench->tcp ? "bare_socket" : "memcpy",
         bl_median(ratios, pairs), pairs);
  fflush(stdout);
}

static bl_status_t compare(bench_t *bench, bool verified, unsigned pairs, bl_error_t *err) {
  double evicts[BL_STORE_BANDWIDTH_PAIRS], loads[BL_STORE_BANDWIDTH_PAIRS];
  double evict_ratios[BL_STORE_BANDWIDTH_PAIRS], load_ratios[BL_STORE_BANDWIDTH_PAIRS];
  bl_status_t status = BL_OK;
  for (unsigned i = 0; i <= pairs && status == BL_OK; i++) { // the first warms up
    unsigned at = i == 0 ? 0 : i - 1;
    double reference[2] = {0};
    status = run_reference(bench, &reference[0], err);
    status = status == BL_OK ? run_store(bench, true, &evicts[at], err) : status;
    status = status == BL_OK ? run_reference(bench, &reference[1], err) : status;
    status = status == BL_OK ? run_store(bench, false, &loads[at], err) : status;
    evict_ratios[at] = reference[0] / evicts[at];
    load_ratios[at] = reference[1] / loads[at];
  }
  if (status == BL_OK) {
    print(bench, "evict", verified, evicts, evict_ratios, pairs);
    print(bench, "load", verified, loads, load_ratios, pairs);
  }
  return status;
}

bl_status_t bl_store_bandwidth(const char *address, uint64_t bytes, unsigned pairs, bl_error_t *err) {
  bl_status_t status = BL_OK;
  for (int i = 0; i < 4 && status == BL_OK; i++) {
    bool verified = i % 2 == 1;
    bench_t bench = {.bytes = bytes, .tcp = i >= 2, .bare.fds = {-1, -1}, .source.fd = -1, .destination.fd = -1};
    status = open_bench(&bench, address, verified, err);
    if (status == BL_OK) {
      status = compare(&bench, verified, pairs, err);
    }
    close_bench(&bench);
  }
  return status;
}
