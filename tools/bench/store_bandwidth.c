// SPDX-License-Identifier: Apache-2.0
#include "store_bandwidth.h"

#include "bare_socket.h"
#include "base/sort.h"
#include "client/arena_region.h"
#include "datapath/mover.h"
#include "datapath/path.h"
#include "lease/granule.h"
#include "measure.h"
#include "sys/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define BLOCKS    BL_STORE_BANDWIDTH_BLOCKS
#define IN_FLIGHT 2u
#define ROUNDS    20u // rounds of products

typedef struct bench {
  const bl_store_bandwidth_options_t *options;
  bl_client_t *client;
  bl_bare_socket_t bare;
  bl_arena_t source, destination; // BLOCKS each: memory of the blocks
  bl_arena_t twin;                // host mirror of these, if blocks of a device pass through host memory
  bl_mover_t *mover;              // NULL: the CPU copies
  uint64_t bytes, slots[BLOCKS];
} bench_t;

static bool is_staged(const bench_t *bench) {
  return bench->twin.base != NULL;
}

static bl_status_t begin_block(bench_t *bench, bool evict, unsigned block, bl_client_ticket_t *ticket,
                               bl_error_t *err) {
  uint64_t at = block * bench->bytes;
  const uint8_t *from = (is_staged(bench) ? bench->twin.base : bench->source.base) + at;
  uint8_t *to = (is_staged(bench) ? bench->twin.base : bench->destination.base) + at;
  if (!evict) {
    return bl_client_load_start(bench->client, bench->slots[block], to, bench->bytes, ticket, err);
  }
  if (is_staged(bench)) {
    bl_status_t status = bl_mover_copy(bench->mover, bench->twin.base + at, bench->source.base + at, bench->bytes, err);
    if (status != BL_OK) {
      return status;
    }
  }
  return bl_client_evict_start(bench->client, bench->slots[block], from, bench->bytes, NULL, ticket, err);
}

static bl_status_t end_block(bench_t *bench, bool evict, unsigned block, bl_client_ticket_t ticket, bl_error_t *err) {
  uint64_t at = block * bench->bytes;
  bl_status_t status = bl_client_wait(bench->client, ticket, UINT64_MAX, err);
  return status == BL_OK && !evict && is_staged(bench)
             ? bl_mover_copy(bench->mover, bench->destination.base + at, bench->twin.base + at, bench->bytes, err)
             : status;
}

static bl_status_t run_store(bench_t *bench, bool evict, double *seconds, bl_error_t *err) {
  bl_client_ticket_t tickets[BLOCKS];
  bl_status_t status = BL_OK;
  uint64_t start_ns = bl_clock_now_ns();
  for (unsigned i = 0; i < BLOCKS + IN_FLIGHT && status == BL_OK; i++) {
    if (i >= IN_FLIGHT) {
      status = end_block(bench, evict, i - IN_FLIGHT, tickets[i - IN_FLIGHT], err);
    }
    if (status == BL_OK && i < BLOCKS) {
      status = begin_block(bench, evict, i, &tickets[i], err);
    }
  }
  *seconds = (double)(bl_clock_now_ns() - start_ns) * 1e-9;
  return status;
}

static bool is_beside_socket(const bench_t *bench) {
  return bench->mover == NULL && bench->options->path == BL_CLIENT_PATH_TCP;
}

static bl_status_t run_reference(bench_t *bench, double *seconds, bl_error_t *err) {
  if (is_beside_socket(bench)) {
    bl_bare_run_t run = {.from = bench->source.base,
                         .to = bench->destination.base,
                         .bytes = bench->bytes,
                         .count = BLOCKS,
                         .places = BLOCKS};
    return bl_bare_socket_run(&bench->bare, &run, seconds, err);
  }
  bl_status_t status = BL_OK;
  uint64_t start_ns = bl_clock_now_ns();
  for (unsigned i = 0; i < BLOCKS && status == BL_OK; i++) {
    uint8_t *to = bench->destination.base + i * bench->bytes;
    const uint8_t *from = bench->source.base + i * bench->bytes;
    if (bench->mover != NULL) {
      status = bl_mover_copy(bench->mover, to, from, bench->bytes, err);
    } else {
      memcpy(to, from, bench->bytes);
      __asm__ volatile("" : : "r"(bench->destination.base) : "memory"); // the compiler must keep every copy
    }
  }
  *seconds = (double)(bl_clock_now_ns() - start_ns) * 1e-9;
  return status;
}

static bl_status_t make_memory(bench_t *bench, bool staged, bl_error_t *err) {
  bl_device_t *host = bl_device_host(), *device = bench->options->device != NULL ? bench->options->device : host;
  uint64_t bytes = BLOCKS * bench->bytes;
  bl_status_t status = bl_arena_create(device, NULL, BL_MEMORY_SLOTS, BL_ARENA_SHAREABLE, bytes, &bench->source, err);
  if (status == BL_OK) {
    status = bl_arena_create(device, NULL, BL_MEMORY_SLOTS, BL_ARENA_SHAREABLE, bytes, &bench->destination, err);
  }
  if (status == BL_OK && staged) {
    status = bl_arena_create(device, NULL, BL_MEMORY_STAGING, BL_ARENA_STAGING_SHAREABLE, bytes, &bench->twin, err);
  }
  if (status == BL_OK && device != host) {
    status = bl_mover_create(device, &bench->mover, err);
  }
  return status == BL_OK ? bl_device_fill(device, NULL, bench->source.base, 0x5a, bytes, err) : status;
}

static bl_status_t open_bench(bench_t *bench, bl_error_t *err) {
  const bl_store_bandwidth_options_t *asked = bench->options;
  const bool staged = asked->device != NULL && (asked->path == BL_CLIENT_PATH_SHM || asked->path == BL_CLIENT_PATH_TCP);
  bl_client_region_t source;
  bl_client_options_t options = {.size = sizeof options,
                                 .store = asked->address,
                                 .job = asked->device != NULL ? bl_path_name((bl_path_t)asked->path)
                                                              : "bench", // one job per path: a tier each
                                 .stage = 100,
                                 .path = asked->path,
                                 .unverified = !asked->verified,
                                 .arena_bytes = BLOCKS * (bench->bytes + BL_LEASE_GRANULE_BYTES),
                                 .unit_bytes = bench->bytes,
                                 .regions = &source,
                                 .region_count = 1,
                                 .device = staged ? NULL : asked->device,
                                 .nccl = asked->nccl,
                                 .nccl_shared_gpu = asked->nccl_shared_gpu,
                                 .deadline_ms = 60000};
  bl_status_t status = make_memory(bench, staged, err);
  if (status == BL_OK) {
    status = bl_bare_socket_open(&bench->bare, true, err);
  }
  if (status == BL_OK) {
    source = bl_client_region_of(staged ? &bench->twin : &bench->source);
    status = bl_client_open(&options, &bench->client, err);
  }
  if (status == BL_OK) {
    bl_client_demand_t demand = {.bytes = bench->bytes, .count = BLOCKS};
    status = bl_client_reserve(bench->client, 1, &demand, 1, err);
  }
  if (status == BL_OK && bl_client_slots(bench->client, bench->slots, BLOCKS) != BLOCKS) {
    status = bl_error_set(err, BL_INTERNAL, "the store gave another number of slots");
  }
  return status;
}

static void close_bench(bench_t *bench) {
  bl_client_close(bench->client);
  bl_bare_socket_close(&bench->bare);
  bl_mover_destroy(bench->mover);
  bl_arena_destroy(&bench->source);
  bl_arena_destroy(&bench->destination);
  bl_arena_destroy(&bench->twin);
}

static void print(const bench_t *bench, const char *what, double *seconds, double *ratios) {
  const bl_store_bandwidth_options_t *options = bench->options;
  const char *reference = is_beside_socket(bench) ? "bare_socket" : bench->mover != NULL ? "bare_copy" : "memcpy";
  printf("store %s %s block_bytes=%" PRIu64 " checksums=%s gb_s=%.2f share_of_%s=%.3f pairs=%u\n",
         bl_path_name((bl_path_t)options->path), what, bench->bytes, options->verified ? "yes" : "no",
         (double)(BLOCKS * bench->bytes) * 1e-9 / bl_median(seconds, options->pairs), reference,
         bl_median(ratios, options->pairs), options->pairs);
  fflush(stdout);
}

static bl_status_t compare(bench_t *bench, bl_error_t *err) {
  double evicts[BL_STORE_BANDWIDTH_PAIRS] = {0}, loads[BL_STORE_BANDWIDTH_PAIRS] = {0};
  double evict_ratios[BL_STORE_BANDWIDTH_PAIRS], load_ratios[BL_STORE_BANDWIDTH_PAIRS];
  bl_status_t status = BL_OK;
  for (unsigned i = 0; i <= bench->options->pairs && status == BL_OK; i++) { // the first pair warms up
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
    print(bench, "evict", evicts, evict_ratios);
    print(bench, "load", loads, load_ratios);
  }
  return status;
}

// ---- transfers during products

// Evicts one block and loads it.
static bl_status_t move_block(void *context, bl_error_t *err) {
  bench_t *bench = context;
  bl_client_ticket_t ticket;
  bl_status_t status = BL_OK;
  for (int way = 0; way < 2 && status == BL_OK; way++) {
    status = begin_block(bench, way == 0, 0, &ticket, err);
    status = status == BL_OK ? end_block(bench, way == 0, 0, ticket, err) : status;
  }
  return status;
}

static bl_status_t measure_overlap(bench_t *bench, double flops_per_byte, bl_error_t *err) {
  const bl_store_bandwidth_options_t *options = bench->options;
  const double wanted = flops_per_byte * 2 * (double)bench->bytes / bl_products_flops(options->products);
  const bl_overlap_t overlap = {.products = options->products,
                                .each = wanted > 1 ? (unsigned)(wanted + 0.5) : 1,
                                .rounds = ROUNDS,
                                .pairs = options->pairs,
                                .paced = flops_per_byte > 0,
                                .move = move_block,
                                .context = bench};
  bl_overlap_result_t result;
  bl_status_t status = bl_overlap_measure(&overlap, &result, err);
  if (status == BL_OK) {
    printf("store %s overlap block_bytes=%" PRIu64
           " flop_per_byte=%.0f moved=%.0f rounds=%u products_tflop_s=%.1f slowdown=%.4f pairs=%u\n",
           bl_path_name((bl_path_t)options->path), bench->bytes, flops_per_byte, result.moves, overlap.rounds,
           result.flops_per_second * 1e-12, result.slowdown, options->pairs);
    fflush(stdout);
  }
  return status;
}

bl_status_t bl_store_bandwidth(const bl_store_bandwidth_options_t *options, bl_error_t *err) {
  bench_t bench = {.options = options,
                   .bytes = options->bytes,
                   .bare.fds = {-1, -1},
                   .source.fd = -1,
                   .destination.fd = -1,
                   .twin.fd = -1};
  bl_status_t status = open_bench(&bench, err);
  if (status == BL_OK) {
    status = compare(&bench, err);
  }
  if (status == BL_OK && options->products != NULL) {
    status = measure_overlap(&bench, options->flops_per_byte, err);
    status = status == BL_OK ? measure_overlap(&bench, 0, err) : status;
  }
  close_bench(&bench);
  return status;
}
