// SPDX-License-Identifier: Apache-2.0
// Verifies that each fault of a holder or of a transfer moves its counters in the store's metrics, by one, and no
// other: expiry, checksums, fencing, refusals, revocation, repetition.
#include "lease/holder.h"
#include "meter.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>

#define SECOND   UINT64_C(1000000000)
#define EXPECTED 4
#define SLOTS    4

typedef struct world {
  bl_lease_table_t *table;
  bl_registry_t *registry;
  holder_t holder;
  bl_lease_token_t slots[SLOTS];
} world_t;

static void set_up(world_t *world) {
  bl_lease_config_t config = {.incarnation = id128_of(99),
                              .capacity_bytes = 64 * GRANULE,
                              .max_jobs = 4,
                              .max_sessions = 4,
                              .max_leases = 64,
                              .window = 4,
                              .session_flow_bytes = 2 * GRANULE};
  bl_error_t err = {0};
  *world = (world_t){.table = NULL};
  assert_int_equal(bl_lease_table_create(&config, 0, &world->table, &err), BL_OK);
  assert_int_equal(bl_registry_create(bl_meter_rows, bl_meter_row_count, &world->registry, &err), BL_OK);
  assert_int_equal(holder_open(&world->holder, world->table, "job", 0, 1, 32 * GRANULE), BL_LEASE_GRANTED);
  assert_int_equal(holder_reserve(&world->holder, 1, GRANULE, SLOTS), BL_LEASE_GRANTED);
  assert_int_equal(holder_slots(&world->holder, world->slots, SLOTS), SLOTS);
  assert_int_equal(holder_store(&world->holder, &world->slots[0], 100, 5), BL_LEASE_GRANTED); // one sealed block
  drain_actions(world->table);
}

// ---- faults

static void evict(world_t *world, bl_lease_token_t token, uint64_t bytes) {
  bl_lease_reason_t reason;
  holder_evict(&world->holder, &token, bytes, 5, &reason);
}

// A block comes whose transfer ends like this.
static void transfer(world_t *world, bool moved, uint64_t checksum) {
  const bl_lease_token_t *slot = &world->slots[1];
  evict(world, *slot, 100);
  bl_lease_table_transfer_ended(world->table, slot->id, slot->generation, moved, checksum, 0);
}

static void not_renewed(world_t *world) {
  bl_lease_table_advance(world->table, 11 * SECOND);
}

static void expired(world_t *world) {
  bl_lease_table_advance(world->table, 30 * SECOND);
}

static void suspect_evicts(world_t *world) {
  world->holder.now_ns = 11 * SECOND;
  evict(world, world->slots[1], 100);
}

static void replaced(world_t *world) {
  holder_t other = {0};
  assert_int_equal(holder_open(&other, world->table, "job", 0, 2, 0), BL_LEASE_GRANTED);
}

static void old_holder_speaks(world_t *world) {
  replaced(world);
  evict(world, world->slots[1], 100);
}

static void old_token(world_t *world) {
  bl_lease_token_t token = world->slots[1];
  assert_int_equal(holder_store(&world->holder, &world->slots[1], 100, 5), BL_LEASE_GRANTED);
  assert_int_equal(holder_release(&world->holder, &world->slots[1], NULL), BL_LEASE_GRANTED);
  evict(world, token, 100);
}

static void token_of_another_store(world_t *world) {
  bl_lease_token_t token = world->slots[1];
  token.incarnation.bytes[0] ^= 1;
  evict(world, token, 100);
}

static void unknown_lease(world_t *world) {
  evict(world, (bl_lease_token_t){world->slots[1].incarnation, 60, 1}, 100);
}

static void unknown_session(world_t *world) {
  world->holder.session += UINT64_C(1) << 40;
  evict(world, world->slots[1], 100);
}

static void wrong_key(world_t *world) {
  world->holder.key.bytes[2] ^= 1;
  evict(world, world->slots[1], 100);
}

static void anothers_lease(world_t *world) {
  holder_t other = {0};
  bl_lease_reason_t reason;
  assert_int_equal(holder_open(&other, world->table, "job", 1, 2, 0), BL_LEASE_GRANTED);
  holder_evict(&other, &world->slots[1], 100, 5, &reason);
}

static void wrong_bytes_come(world_t *world) {
  transfer(world, true, 6);
}

static void wrong_bytes_arrive(world_t *world) {
  bl_lease_answer_t answer;
  assert_int_equal(holder_load(&world->holder, &world->slots[0], &answer), BL_LEASE_GRANTED);
  uint64_t found = 6;
  assert_int_equal(holder_release(&world->holder, &world->slots[0], &found), BL_LEASE_CHECKSUM);
}

static void transfer_fails(world_t *world) {
  transfer(world, false, 0);
}

static void stale_end(world_t *world) {
  bl_lease_table_transfer_ended(world->table, world->slots[1].id, 1, true, 5, 0);
}

static void too_large(world_t *world) {
  evict(world, world->slots[1], GRANULE + 1);
}

static void load_before_seal(world_t *world) {
  bl_lease_answer_t answer;
  holder_load(&world->holder, &world->slots[1], &answer);
}

static void too_much_in_flight(world_t *world) {
  for (int i = 1; i < SLOTS; i++) {
    evict(world, world->slots[i], GRANULE);
  }
}

static void no_space(world_t *world) {
  holder_t other = {0};
  assert_int_equal(holder_open(&other, world->table, "job", 1, 2, 0), BL_LEASE_GRANTED);
  assert_int_equal(holder_reserve(&other, 1, 30 * GRANULE, 1), BL_LEASE_SPACE);
}

static void above_the_quota(world_t *world) {
  bl_error_t err;
  assert_int_equal(bl_lease_table_set_quota(world->table, "job", NULL, 5 * GRANULE, &err), BL_OK);
  holder_reserve(&world->holder, 2, GRANULE, 6);
}

static void above_the_stages_quota(world_t *world) {
  bl_error_t err;
  uint32_t stage = 0;
  assert_int_equal(bl_lease_table_set_quota(world->table, "job", &stage, 5 * GRANULE, &err), BL_OK);
  holder_reserve(&world->holder, 2, GRANULE, 6);
}

static void another_job_too_many(world_t *world) {
  holder_t other = {0};
  holder_open(&other, world->table, "other", 0, 2, 33 * GRANULE);
}

static void draining(world_t *world) {
  bl_lease_table_drain(world->table, true);
  holder_reserve(&world->holder, 2, GRANULE, 1);
}

static void revoked(world_t *world) {
  bl_error_t err;
  assert_int_equal(bl_lease_table_revoke(world->table, world->slots[0].id, 0, 0, &err), BL_OK);
}

static void revoked_block_is_asked_for(world_t *world) {
  bl_lease_answer_t answer;
  revoked(world);
  holder_load(&world->holder, &world->slots[0], &answer);
}

static void session_revoked(world_t *world) {
  bl_error_t err;
  assert_int_equal(bl_lease_table_revoke_session(world->table, world->holder.session, 0, &err), BL_OK);
}

static void asked_twice(world_t *world) {
  load_before_seal(world);
  world->holder.sequence--;
  load_before_seal(world);
}

static void cancelled(world_t *world) {
  evict(world, world->slots[1], 100);
  bl_lease_request_t release = holder_next(&world->holder);
  bl_lease_answer_t answer;
  release.acknowledged--; // the eviction still waits for its answer
  (void)bl_lease_table_release(world->table, &release, &world->slots[1], NULL, &answer);
  bl_lease_table_transfer_ended(world->table, world->slots[1].id, world->slots[1].generation, false, 0, 0);
}

typedef struct fault {
  const char *name;
  void (*happens)(world_t *world);
  const char *moves[EXPECTED]; // of the counters that stand for faults; each by one
} fault_t;

#define REFUSED(reason) "ballast_store_refusals_total{reason=\"" reason "\"}"
#define ENDED(cause)    "ballast_store_session_ends_total{cause=\"" cause "\"}"
#define FENCED          "ballast_store_fenced_total"
#define CHECKSUMS       "ballast_store_checksum_failures_total"
#define SUSPECTED       "ballast_store_suspected_total"
#define REVOKED         "ballast_store_revocations_total"

static const fault_t faults[] = {
    {"a session is not renewed", not_renewed, {SUSPECTED}},
    {"a session expires", expired, {SUSPECTED, ENDED("expired")}},
    {"a suspect session evicts", suspect_evicts, {SUSPECTED, REFUSED("suspect")}},
    {"a newer holder", replaced, {ENDED("replaced")}},
    {"an old holder speaks", old_holder_speaks, {ENDED("replaced"), REFUSED("session_over"), FENCED}},
    {"an old token", old_token, {REFUSED("generation"), FENCED}},
    {"a token of another store", token_of_another_store, {REFUSED("incarnation"), FENCED}},
    {"an unknown lease", unknown_lease, {REFUSED("no_lease")}},
    {"an unknown session", unknown_session, {REFUSED("no_session")}},
    {"a wrong key", wrong_key, {REFUSED("key")}},
    {"another's lease", anothers_lease, {REFUSED("not_yours")}},
    {"wrong bytes come", wrong_bytes_come, {REFUSED("checksum"), CHECKSUMS}},
    {"wrong bytes arrive", wrong_bytes_arrive, {REFUSED("checksum"), CHECKSUMS}},
    {"a transfer fails", transfer_fails, {REFUSED("transfer")}},
    {"an end of no transfer", stale_end, {"ballast_store_stale_events_total"}},
    {"a block beyond its slot", too_large, {REFUSED("bytes")}},
    {"a load before the seal", load_before_seal, {REFUSED("state")}},
    {"too much in flight", too_much_in_flight, {REFUSED("credit")}},
    {"no space", no_space, {REFUSED("space")}},
    {"a job's quota", above_the_quota, {REFUSED("job_quota")}},
    {"a stage's quota", above_the_stages_quota, {REFUSED("stage_quota")}},
    {"a job too many", another_job_too_many, {REFUSED("capacity")}},
    {"a store that drains", draining, {REFUSED("draining")}},
    {"a lease is revoked", revoked, {REVOKED}},
    {"a revoked block is asked for", revoked_block_is_asked_for, {REVOKED, REFUSED("lost")}},
    {"a session is revoked", session_revoked, {ENDED("revoked")}},
    {"a request comes twice", asked_twice, {REFUSED("state"), "ballast_store_repeated_requests_total"}},
    {"an eviction is given up", cancelled, {REFUSED("cancelled")}},
};

// ---- comparing

// What counts work, not faults.
static bool is_work(const char *line) {
  static const char *const work[] = {"ballast_store_revisions_total", "ballast_store_reserved_total",
                                     "ballast_store_evictions_total", "ballast_store_evicted_bytes_total",
                                     "ballast_store_loads_total",     "ballast_store_loaded_bytes_total",
                                     "ballast_store_releases_total"};
  bool found = false;
  for (size_t i = 0; i < sizeof work / sizeof work[0]; i++) {
    found = found || strncmp(line, work[i], strlen(work[i])) == 0;
  }
  return found;
}

static char *metrics_of(const world_t *world) {
  static const bl_connections_counters_t none = {0};
  char *text = NULL;
  size_t bytes;
  FILE *stream = open_memstream(&text, &bytes);
  assert_non_null(stream);
  bl_meter_collect(world->registry, world->table, &none);
  assert_int_equal(bl_registry_write(world->registry, stream), BL_OK);
  assert_int_equal(fclose(stream), 0);
  return text;
}

static bool is_expected(const fault_t *fault, const char *series, size_t length, unsigned *seen) {
  for (unsigned i = 0; i < EXPECTED && fault->moves[i] != NULL; i++) {
    if (strlen(fault->moves[i]) == length && strncmp(series, fault->moves[i], length) == 0) {
      *seen |= 1u << i;
      return true;
    }
  }
  return false;
}

// The series come in the same order both times.
static void compare(const fault_t *fault, char *before, char *after) {
  unsigned seen = 0;
  char *before_at, *after_at;
  char *was = strtok_r(before, "\n", &before_at), *is = strtok_r(after, "\n", &after_at);
  for (; was != NULL && is != NULL; was = strtok_r(NULL, "\n", &before_at), is = strtok_r(NULL, "\n", &after_at)) {
    size_t length = strcspn(is, " ");
    assert_int_equal(strncmp(was, is, length + 1), 0);
    if (is[0] == '#' || strstr(is, "_total") == NULL || is_work(is)) {
      continue;
    }
    double moved = strtod(is + length, NULL) - strtod(was + length, NULL);
    double wanted = is_expected(fault, is, length, &seen) ? 1 : 0;
    if (moved != wanted) {
      fail_msg("%s: %.*s moved by %g, not %g", fault->name, (int)length, is, moved, wanted);
    }
  }
  assert_true(was == NULL && is == NULL);
  for (unsigned i = 0; i < EXPECTED && fault->moves[i] != NULL; i++) {
    if ((seen & 1u << i) == 0) {
      fail_msg("%s: there is no %s", fault->name, fault->moves[i]);
    }
  }
}

static void test_each_fault_moves_its_counters(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
    world_t world;
    set_up(&world);
    char *before = metrics_of(&world);
    faults[i].happens(&world);
    drain_actions(world.table);
    char *after = metrics_of(&world);
    compare(&faults[i], before, after);
    free(before);
    free(after);
    bl_registry_destroy(world.registry);
    bl_lease_table_destroy(world.table);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_each_fault_moves_its_counters)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
