// SPDX-License-Identifier: Apache-2.0
// A store on this machine, used through libballast-client: lease operations per second and their latency with small
// blocks, and the bandwidth of evictions and loads of large blocks (store_bandwidth.c).
#include "bench.h"

#include "base/sort.h"
#include "client/arena_region.h"
#include "lease/granule.h"
#include "measure.h"
#include "program.h"
#include "store_bandwidth.h"
#include "store_child.h"
#include "sys/clock.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CLIENTS     2u
#define THREADS     UINT64_C(32) // per client, each with one call in flight
#define SMALL_BYTES 64
#define SAMPLES     7

typedef struct {
  int64_t uses, block_bytes, pairs;
} settings_t;

static const bl_option_t rows[] = {
    BL_BENCH_INT(settings_t, uses, "uses", "200", 10, 1000000,
                 "Uses of a slot (evict and release) per thread and sample."),
    BL_BENCH_BYTES(settings_t, block_bytes, "block", "16 MiB", 65536, 1 << 30, "Size of the large blocks."),
    BL_BENCH_PAIRS(settings_t, pairs, "9", BL_STORE_BANDWIDTH_PAIRS, "store and reference"),
};

static const bl_flags_t flags = {.program = "ballast-bench store",
                                 .usage = "[options]",
                                 .about = "A store as a process beside this one, through libballast-client.",
                                 .table = {rows, sizeof rows / sizeof rows[0], "command line"}};

// ---- small blocks: operations ---------------------------------------------------------------------------------------

typedef struct user {
  pthread_t thread;
  bl_client_t *client;
  uint64_t slot;
  const uint8_t *source;
  uint64_t uses;
  uint64_t *latencies; // ns of each evict
  bl_error_t err;
} user_t;

static void *use_slot(void *argument) {
  user_t *user = argument;
  for (uint64_t i = 0; i < user->uses && user->err.status == BL_OK; i++) {
    uint64_t start_ns = bl_clock_now_ns();
    if (bl_client_evict(user->client, user->slot, user->source, SMALL_BYTES, NULL, &user->err) == BL_OK) {
      user->latencies[i] = bl_clock_now_ns() - start_ns;
      user->err.status = bl_client_release(user->client, user->slot, &user->err);
    }
  }
  return NULL;
}

static bl_status_t measure_users(user_t *users, unsigned count, double *seconds, bl_error_t *err) {
  uint64_t start_ns = bl_clock_now_ns();
  unsigned started = 0;
  while (started < count && pthread_create(&users[started].thread, NULL, use_slot, &users[started]) == 0) {
    started++;
  }
  bl_status_t status = started == count ? BL_OK : bl_error_set(err, BL_EXHAUSTED, "no more threads");
  for (unsigned i = 0; i < started; i++) {
    pthread_join(users[i].thread, NULL);
    if (status == BL_OK && users[i].err.status != BL_OK) {
      *err = users[i].err;
      status = err->status;
    }
  }
  *seconds = (double)(bl_clock_now_ns() - start_ns) / BL_NS_PER_S;
  return status;
}

static bl_status_t measure_operations(bl_client_t *clients[CLIENTS], const bl_arena_t *source, uint64_t uses,
                                      bl_error_t *err) {
  static user_t users[CLIENTS * THREADS];
  uint64_t slots[THREADS];
  uint64_t *latencies = malloc(CLIENTS * THREADS * uses * sizeof *latencies);
  bl_status_t status = latencies != NULL ? BL_OK : bl_error_set(err, BL_EXHAUSTED, "no memory for latencies");
  for (unsigned i = 0; i < CLIENTS && status == BL_OK; i++) {
    bl_client_demand_t demand = {.bytes = SMALL_BYTES, .count = THREADS};
    status = bl_client_reserve(clients[i], 1, &demand, 1, err);
    if (status == BL_OK && bl_client_slots(clients[i], slots, THREADS) != THREADS) {
      status = bl_error_set(err, BL_INTERNAL, "the store gave another number of slots");
    }
    for (unsigned j = 0; j < THREADS && status == BL_OK; j++) {
      uint64_t k = i * THREADS + j;
      users[k] = (user_t){.client = clients[i],
                          .slot = slots[j],
                          .source = source->base + (size_t)k * SMALL_BYTES,
                          .uses = uses,
                          .latencies = latencies + k * uses};
    }
  }
  for (unsigned in_flight = 1; in_flight <= CLIENTS * THREADS && status == BL_OK; in_flight *= 8) {
    double seconds[SAMPLES];
    for (unsigned i = 0; i < SAMPLES && status == BL_OK; i++) {
      status = measure_users(users, in_flight, &seconds[i], err);
    }
    if (status == BL_OK) {
      uint64_t count = in_flight * uses, p50 = count / 2, p99 = count * 99 / 100;
      bl_sort_u64(latencies, count);
      printf("store in_flight=%u ops_per_second=%.0f evict_p50_us=%.0f evict_p99_us=%.0f\n", in_flight,
             (double)(2 * count) / bl_median(seconds, SAMPLES), (double)latencies[p50] / 1e3,
             (double)latencies[p99] / 1e3);
    }
  }
  for (unsigned i = 0; i < CLIENTS && status == BL_OK; i++) {
    status = bl_client_unreserve(clients[i], 1, err);
  }
  free(latencies);
  return status;
}

// ---- grants at a pace -----------------------------------------------------------------------------------------------

#define PACE_NS (UINT64_C(1000000)) // 1,000 per second
#define PACED   3000u

static void wait_until(uint64_t at_ns) {
  uint64_t now_ns = bl_clock_now_ns();
  if (now_ns < at_ns) {
    struct timespec pause = {.tv_nsec = (long)(at_ns - now_ns)};
    nanosleep(&pause, NULL);
  }
}

static void print_paced(const char *what, uint64_t *latencies) {
  bl_sort_u64(latencies, PACED);
  const size_t half = PACED / 2, slowest = PACED * 99 / 100;
  printf("store grants=%s per_second=1000 p50_us=%.0f p99_us=%.0f\n", what, (double)latencies[half] / 1e3,
         (double)latencies[slowest] / 1e3);
}

// Measures leases granted over the data connection (evict) and slots granted over RPC (reserve), one per millisecond.
static bl_status_t measure_paced(bl_client_t *client, const bl_arena_t *source, bl_error_t *err) {
  static uint64_t evicts[PACED], reserves[PACED];
  bl_client_demand_t demand = {.bytes = SMALL_BYTES, .count = 1}, more = {.bytes = SMALL_BYTES, .count = 2};
  uint64_t slot, start_ns;
  bl_status_t status = bl_client_reserve(client, 1, &demand, 1, err);
  if (status != BL_OK || bl_client_slots(client, &slot, 1) != 1) {
    return status != BL_OK ? status : bl_error_set(err, BL_INTERNAL, "the store gave another number of slots");
  }
  uint64_t next_ns = bl_clock_now_ns();
  for (unsigned i = 0; i < PACED && status == BL_OK; i++, next_ns += PACE_NS) {
    wait_until(next_ns);
    start_ns = bl_clock_now_ns();
    status = bl_client_evict(client, slot, source->base, SMALL_BYTES, NULL, err);
    evicts[i] = bl_clock_now_ns() - start_ns;
    status = status == BL_OK ? bl_client_release(client, slot, err) : status;
  }
  next_ns = bl_clock_now_ns();
  for (unsigned i = 0; i < PACED && status == BL_OK; i++, next_ns += PACE_NS) {
    wait_until(next_ns);
    start_ns = bl_clock_now_ns();
    status = bl_client_reserve(client, 2, &more, 1, err);
    reserves[i] = bl_clock_now_ns() - start_ns;
    status = status == BL_OK ? bl_client_unreserve(client, 2, err) : status;
  }
  if (status == BL_OK) {
    print_paced("evict", evicts);
    print_paced("reserve", reserves);
    status = bl_client_unreserve(client, 1, err);
  }
  return status;
}

static bl_status_t run(const void *values, bl_error_t *err) {
  const settings_t *settings = values;
  uint64_t bytes = (uint64_t)settings->block_bytes;
  bl_store_child_t store = {.loop = NULL};
  bl_arena_t source = {.fd = -1};
  bl_client_t *clients[CLIENTS] = {NULL};
  uint64_t arena_bytes =
      BL_STORE_BANDWIDTH_BLOCKS * (bytes + BL_LEASE_GRANULE_BYTES) + CLIENTS * THREADS * BL_LEASE_GRANULE_BYTES;
  bl_status_t status = bl_store_child_start(&store, &(bl_store_child_options_t){.capacity_bytes = arena_bytes}, err);
  if (status == BL_OK) {
    status = bl_arena_create(bl_device_host(), NULL, BL_MEMORY_SLOTS, BL_ARENA_SHAREABLE,
                             CLIENTS * THREADS * SMALL_BYTES, &source, err);
  }
  for (uint32_t i = 0; i < CLIENTS && status == BL_OK; i++) {
    const bl_client_region_t shown = bl_client_region_of(&source);
    bl_client_options_t options = {.size = sizeof options,
                                   .store = store.address,
                                   .job = "bench",
                                   .stage = i,
                                   .arena_bytes = arena_bytes,
                                   .regions = &shown,
                                   .region_count = 1};
    status = bl_client_open(&options, &clients[i], err);
  }
  if (status == BL_OK) {
    status = measure_operations(clients, &source, (uint64_t)settings->uses, err);
  }
  if (status == BL_OK) {
    status = measure_paced(clients[0], &source, err);
  }
  for (unsigned i = 0; i < CLIENTS; i++) {
    bl_client_close(clients[i]);
  }
  for (int i = 0; i < 4 && status == BL_OK; i++) {
    bl_store_bandwidth_options_t options = {.address = store.address,
                                            .bytes = bytes,
                                            .pairs = (unsigned)settings->pairs,
                                            .path = i >= 2 ? BL_CLIENT_PATH_TCP : BL_CLIENT_PATH_SHM,
                                            .verified = i % 2 == 1};
    status = bl_store_bandwidth(&options, err);
  }
  bl_arena_destroy(&source);
  bl_store_child_stop(&store);
  return status;
}

int bl_bench_store(int argc, char **argv) {
  settings_t settings;
  return bl_bench_program(&flags, &settings, run, argc, argv);
}
