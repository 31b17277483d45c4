// SPDX-License-Identifier: Apache-2.0
// The lease table alone: complete uses of a slot (evict, seal, load, release) per second, the latency of one, and bytes
// per lease, with a growing number of other live leases.
#include "bench.h"

#include "base/random.h"
#include "base/sort.h"
#include "lease/table.h"
#include "measure.h"
#include "program.h"
#include "sys/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define USED_SLOTS   1000 // the working set of a store; the other slots are only held
#define OPS_PER_USE  4
#define SAMPLES      7
#define ARENA_MARGIN 16

typedef struct {
  int64_t leases, uses;
} settings_t;

static const bl_option_t rows[] = {
    BL_BENCH_INT(settings_t, leases, "leases", "1000000", 10 * USED_SLOTS, 100000000, "Most live leases."),
    BL_BENCH_INT(settings_t, uses, "uses", "100000", 1000, 100000000, "Uses of a slot per sample."),
};

static const bl_flags_t flags = {.program = "ballast-bench lease",
                                 .usage = "[options]",
                                 .about = "The lease table alone: operations per second, latency, bytes per lease.",
                                 .table = {rows, sizeof rows / sizeof rows[0], "command line"}};

typedef struct holder {
  uint64_t session, sequence;
  bl_id128_t key;
} holder_t;

typedef struct bench {
  bl_lease_table_t *table;
  holder_t user, filler;
  bl_lease_token_t slots[USED_SLOTS];
  uint64_t *latencies; // ns, of every use of a sample
} bench_t;

static bl_lease_request_t next_request(holder_t *holder) {
  holder->sequence++;
  return (bl_lease_request_t){.session = holder->session,
                              .key = holder->key,
                              .sequence = holder->sequence,
                              .acknowledged = holder->sequence - 1,
                              .now_ns = 1};
}

static bool open_session(bench_t *bench, uint32_t stage, uint64_t arena_bytes, holder_t *holder) {
  bl_lease_open_t open = {.job = "bench", .stage = stage, .arena_bytes = arena_bytes};
  open.holder.bytes[0] = open.key.bytes[0] = (uint8_t)(stage + 1);
  bl_lease_opened_t opened;
  bl_lease_answer_t answer;
  (void)bl_lease_table_open(bench->table, &open, 1, &opened, &answer);
  if (answer.reason != BL_LEASE_GRANTED) {
    return false;
  }
  if (opened.arena_needed) {
    bl_lease_table_arena_made(bench->table, opened.job, true);
  }
  *holder = (holder_t){.session = opened.session, .key = opened.key};
  return true;
}

static bool reserve(bench_t *bench, holder_t *holder, uint64_t plan, uint64_t count) {
  bl_lease_request_t request = next_request(holder);
  bl_lease_demand_t demand = {.bytes = BL_LEASE_GRANULE_BYTES, .count = (uint32_t)count};
  bl_lease_answer_t answer;
  (void)bl_lease_table_reserve(bench->table, &request, plan, &demand, 1, &answer);
  return answer.reason == BL_LEASE_GRANTED;
}

static bool use_slot(bench_t *bench, bl_lease_token_t *slot) {
  bl_lease_answer_t answer;
  bl_lease_request_t request = next_request(&bench->user);
  bl_lease_evict_t evict = {.token = *slot, .bytes = 1000, .checksum = 5};
  if (bl_lease_table_evict(bench->table, &request, &evict, &answer) != BL_LEASE_BEGIN) {
    return false;
  }
  bl_lease_table_transfer_ended(bench->table, slot->id, slot->generation, true, 5, 1);
  request = next_request(&bench->user);
  (void)bl_lease_table_load(bench->table, &request, slot, false, &answer);
  request = next_request(&bench->user);
  (void)bl_lease_table_release(bench->table, &request, slot, &evict.checksum, &answer);
  slot->generation = answer.generation;
  return answer.reason == BL_LEASE_GRANTED;
}

static bool measure(bench_t *bench, uint64_t live, uint64_t uses) {
  double seconds[SAMPLES];
  for (unsigned i = 0; i < SAMPLES; i++) {
    uint64_t start_ns = bl_clock_now_ns(), before_ns = start_ns;
    for (uint64_t j = 0; j < uses; j++) {
      if (!use_slot(bench, &bench->slots[bl_random_below(1, j, USED_SLOTS)])) {
        return false;
      }
      uint64_t now_ns = bl_clock_now_ns();
      bench->latencies[j] = now_ns - before_ns;
      before_ns = now_ns;
    }
    seconds[i] = (double)(before_ns - start_ns) / BL_NS_PER_S;
  }
  bl_sort_u64(bench->latencies, uses);
  printf("lease live=%" PRIu64 " ops_per_second=%.0f use_p50_ns=%" PRIu64 " use_p99_ns=%" PRIu64 "\n", live,
         (double)(OPS_PER_USE * uses) / bl_median(seconds, SAMPLES), bench->latencies[uses / 2],
         bench->latencies[uses * 99 / 100]);
  return true;
}

static bool prepare(bench_t *bench, uint64_t leases) {
  uint64_t arena_bytes = (leases + ARENA_MARGIN) * BL_LEASE_GRANULE_BYTES;
  if (!open_session(bench, 0, arena_bytes, &bench->user) || !open_session(bench, 1, 0, &bench->filler) ||
      !reserve(bench, &bench->user, 1, USED_SLOTS)) {
    return false;
  }
  uint64_t cursor = 0;
  bl_lease_view_t view;
  for (uint32_t i = 0; i < USED_SLOTS && bl_lease_table_slots(bench->table, bench->user.session, &cursor, &view); i++) {
    bench->slots[i] = (bl_lease_token_t){.id = view.id, .generation = view.generation};
  }
  return true;
}

static bl_status_t run(const void *values, bl_error_t *err) {
  const settings_t *settings = values;
  static bench_t bench;
  uint64_t leases = (uint64_t)settings->leases, uses = (uint64_t)settings->uses;
  bl_lease_config_t config = {.capacity_bytes = (leases + ARENA_MARGIN) * BL_LEASE_GRANULE_BYTES,
                              .max_jobs = 1,
                              .max_sessions = 2,
                              .max_leases = (uint32_t)leases};
  bl_status_t status = bl_lease_table_create(&config, 1, &bench.table, err);
  if (status != BL_OK) {
    return status;
  }
  bench.latencies = malloc(uses * sizeof *bench.latencies);
  bool well = bench.latencies != NULL && prepare(&bench, leases) && measure(&bench, USED_SLOTS, uses);
  uint64_t plan = 1;
  for (uint64_t live = UINT64_C(10) * USED_SLOTS; well && live <= leases; live *= 10) {
    well = reserve(&bench, &bench.filler, plan, live - USED_SLOTS) && measure(&bench, live, uses);
    if (plan > 1) { // the larger plan includes the slots of the smaller one
      bl_lease_request_t request = next_request(&bench.filler);
      bl_lease_answer_t answer;
      (void)bl_lease_table_unreserve(bench.table, &request, plan - 1, &answer);
    }
    plan++;
  }
  printf("lease bytes_per_lease=%.1f\n", (double)bl_lease_table_bytes(bench.table) / (double)leases);
  free(bench.latencies);
  bl_lease_table_destroy(bench.table);
  return well ? BL_OK : bl_error_set(err, BL_INTERNAL, "the table refused what it has room for");
}

int bl_bench_lease(int argc, char **argv) {
  settings_t settings;
  return bl_bench_program(&flags, &settings, run, argc, argv);
}
