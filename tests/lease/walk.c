// SPDX-License-Identifier: Apache-2.0
#include "lease/walk_core.h"

#include "base/random.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *const walk_jobs[MODEL_JOBS] = {"alpha", "beta", "alpha"};
const uint64_t walk_plans[MODEL_JOBS] = {0, 0, 7};

uint64_t walk_draw(walk_t *walk, uint64_t bound) {
  return bl_random_below(walk->key, walk->draws++, bound);
}

bool walk_chance(walk_t *walk, unsigned percent) {
  return walk_draw(walk, 100) < percent;
}

void walk_say(walk_t *walk, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(walk->recall[walk->calls % WALK_RECALL], sizeof walk->recall[0], format, arguments);
  va_end(arguments);
}

void walk_expect(walk_t *walk, bool holds, const char *format, ...) {
  if (!holds && walk->failure[0] == '\0') {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(walk->failure, sizeof walk->failure, format, arguments);
    va_end(arguments);
  }
}

void walk_expect_reason(walk_t *walk, bl_lease_reason_t got, bl_lease_reason_t wanted) {
  walk_expect(walk, got == wanted, "the answer is '%s', the model says '%s'", bl_lease_reason_name(got),
              bl_lease_reason_name(wanted));
}

bl_id128_t walk_id128(uint64_t value) {
  bl_id128_t id = {{0}};
  memcpy(id.bytes, &value, sizeof value);
  return id;
}

static void step(walk_t *walk) {
  walk_say(walk, "nothing");
  uint64_t pause_ns = 1 + (walk_chance(walk, 8) ? walk_draw(walk, 3000000000) : walk_draw(walk, 1000000));
  model_set_time(&walk->model, walk->model.now_ns + pause_ns);
  bl_lease_table_advance(walk->table, walk->model.now_ns);
  walk_take_actions(walk);
  uint64_t drawn = walk_draw(walk, 100);
  if (drawn < 6) {
    walk_open(walk);
  } else if (drawn < 18) {
    walk_use_session(walk);
  } else if (drawn < 70) {
    walk_request(walk);
  } else if (drawn < 96) {
    walk_end_transfer(walk);
  } else {
    walk_operate(walk);
  }
  walk_take_actions(walk);
  walk_compare(walk);
  walk->calls++;
}

static void print_failure(const walk_t *walk, uint64_t seed) {
  fprintf(stderr, "seed %" PRIu64 ", call %" PRIu64 ": %s\n", seed, walk->calls - 1, walk->failure);
  for (uint64_t i = walk->calls > WALK_RECALL ? walk->calls - WALK_RECALL : 0; i < walk->calls; i++) {
    fprintf(stderr, "  %" PRIu64 ": %s\n", i, walk->recall[i % WALK_RECALL]);
  }
}

bool walk_run(uint64_t seed, uint64_t calls, walk_result_t *result) {
  walk_t walk = {.key = bl_random_key(seed, "lease walk")};
  bl_lease_config_t config = {.incarnation = walk_id128(seed + 1),
                              .capacity_bytes = UINT64_C(60) * BL_LEASE_GRANULE_BYTES,
                              .max_jobs = MODEL_JOBS,
                              .max_sessions = MODEL_SESSIONS,
                              .max_leases = MODEL_LEASES,
                              .window = MODEL_WINDOW,
                              .history = 64,
                              .session_flow_bytes = UINT64_C(8) * BL_LEASE_GRANULE_BYTES};
  bl_error_t err = {0};
  if (bl_lease_table_create(&config, 1, &walk.table, &err) != BL_OK) {
    fprintf(stderr, "%s\n", err.text);
    return false;
  }
  model_init(&walk.model, bl_lease_table_config(walk.table), 1);
  while (walk.calls < calls && walk.failure[0] == '\0') {
    step(&walk);
  }
  if (walk.failure[0] != '\0') {
    print_failure(&walk, seed);
  }
  bl_lease_stats_t stats;
  bl_lease_table_stats(walk.table, &stats);
  result->calls += walk.calls;
  result->granted += stats.reserved;
  result->sealed += stats.evicted;
  result->loaded += stats.loaded;
  result->repeated += stats.repeated;
  for (int i = 0; i < BL_SESSION_ENDS; i++) {
    result->ended += stats.ended[i];
  }
  result->suspects_preempted += stats.ended[BL_SESSION_PREEMPTED];
  uint64_t reasons = 0;
  for (int i = 0; i < BL_LEASE_REASONS; i++) {
    reasons += stats.refused[i] != 0 ? 1 : 0;
  }
  result->refused_reasons = reasons > result->refused_reasons ? reasons : result->refused_reasons;
  bl_lease_table_destroy(walk.table);
  return walk.failure[0] == '\0';
}
