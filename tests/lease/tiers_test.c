// SPDX-License-Identifier: Apache-2.0
// Verifies the two tiers of a store's memory (slots on the device first, then in the host's; none across; an arena that
// is asked for as the sum of its slots holds them all, wherever it is cut; both budgets are kept) and mapped sessions
// (what their holders' engines may still read is in quarantine until the process is gone, and nobody gets it before).
#include "lease/holder.h"

#include "base/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <inttypes.h>

#define SECOND UINT64_C(1000000000)

static bl_lease_table_t *table_of(uint64_t device_granules, uint64_t host_granules) {
  bl_lease_config_t config = {.incarnation = id128_of(3),
                              .capacity_bytes = device_granules * GRANULE,
                              .spill_bytes = host_granules * GRANULE,
                              .max_jobs = 4,
                              .max_sessions = 8,
                              .max_leases = 256,
                              .history = 16};
  bl_lease_table_t *table = NULL;
  bl_error_t err = {0};
  assert_int_equal(bl_lease_table_create(&config, 1, &table, &err), BL_OK);
  return table;
}

static void audit(const bl_lease_table_t *table) {
  bl_error_t err = {0};
  if (bl_lease_table_audit(table, &err) != BL_OK) {
    fail_msg("%s", err.text);
  }
}

static bl_lease_reason_t open_with_unit(holder_t *holder, bl_lease_table_t *table, const char *job,
                                        uint64_t arena_bytes, uint64_t unit_bytes, bl_lease_opened_t *opened) {
  bl_lease_open_t open = {
      .job = job, .holder = id128_of(9), .key = id128_of(10), .arena_bytes = arena_bytes, .unit_bytes = unit_bytes};
  bl_lease_answer_t answer;
  (void)bl_lease_table_open(table, &open, 1, opened, &answer);
  if (answer.reason == BL_LEASE_GRANTED) {
    *holder = (holder_t){.table = table,
                         .session = opened->session,
                         .key = opened->key,
                         .store = bl_lease_table_config(table)->incarnation,
                         .now_ns = 1};
    bl_lease_table_arena_made(table, opened->job, true);
  }
  return answer.reason;
}

static void slots_are_on_the_device_first(void **state) {
  (void)state;
  bl_lease_table_t *table = table_of(8, 16);
  holder_t holder;
  bl_lease_opened_t opened;
  assert_int_equal(open_with_unit(&holder, table, "job", 12 * GRANULE, 3 * GRANULE, &opened), BL_LEASE_GRANTED);
  assert_int_equal(opened.tier_bytes[0], 6 * GRANULE);
  assert_int_equal(opened.tier_bytes[1], 8 * GRANULE);
  assert_int_equal(opened.arena_bytes, 14 * GRANULE);
  assert_int_equal(holder_reserve(&holder, 1, 3 * GRANULE, 4), BL_LEASE_GRANTED);
  uint64_t cursor = 0, count[BL_LEASE_TIERS] = {0};
  bl_lease_view_t view;
  while (bl_lease_table_list(table, &cursor, &view)) {
    count[view.tier]++;
    assert_true(view.tier == 0 ? view.offset_bytes + view.slot_bytes <= opened.tier_bytes[0]
                               : view.offset_bytes >= opened.tier_bytes[0]);
  }
  assert_int_equal(count[0], 2);
  assert_int_equal(count[1], 2);
  bl_lease_stats_t stats;
  bl_lease_table_stats(table, &stats);
  assert_int_equal(stats.tier_held_bytes[0], 6 * GRANULE);
  assert_int_equal(stats.tier_held_bytes[1], 6 * GRANULE);
  assert_int_equal(stats.tier_arena_bytes[1], 8 * GRANULE);

  // What is left: 2 granules on the device, 8 in the host's memory.
  holder_t other;
  bl_lease_opened_t second;
  assert_int_equal(open_with_unit(&other, table, "large", 11 * GRANULE, GRANULE, &second), BL_LEASE_CAPACITY);
  assert_int_equal(open_with_unit(&other, table, "fits", 10 * GRANULE, GRANULE, &second), BL_LEASE_GRANTED);
  assert_int_equal(second.tier_bytes[0], 2 * GRANULE);
  assert_int_equal(holder_reserve(&other, 1, 9 * GRANULE, 1), BL_LEASE_BEYOND); // no tier is that large
  assert_int_equal(holder_reserve(&other, 1, 8 * GRANULE, 1), BL_LEASE_GRANTED);
  audit(table);
  bl_lease_table_destroy(table);
}

// The arena is the sum of the slots: they all fit, whatever part of it the device has.
static void the_sum_of_the_slots_is_enough(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= 400; seed++) {
    uint64_t draws = 0, wanted = 0;
    uint32_t sizes[4], counts[4], most = 0;
    uint32_t kinds = 1 + (uint32_t)bl_random_below(seed, draws++, 4);
    for (uint32_t i = 0; i < kinds; i++) {
      sizes[i] = 1 + (uint32_t)bl_random_below(seed, draws++, 12);
      counts[i] = 1 + (uint32_t)bl_random_below(seed, draws++, 9);
      wanted += (uint64_t)sizes[i] * counts[i];
      most = sizes[i] > most ? sizes[i] : most;
    }
    uint64_t device = 1 + bl_random_below(seed, draws++, wanted + 4);
    bl_lease_table_t *table = table_of(device, wanted + most);
    holder_t holder;
    bl_lease_opened_t opened;
    assert_int_equal(open_with_unit(&holder, table, "job", wanted * GRANULE, most * GRANULE, &opened),
                     BL_LEASE_GRANTED);
    for (uint32_t i = 0; i < kinds; i++) { // plans follow each other: the last has them all
      bl_lease_demand_t demands[4];
      for (uint32_t j = 0; j <= i; j++) {
        demands[j] = (bl_lease_demand_t){.bytes = sizes[j] * GRANULE, .count = counts[j]};
      }
      bl_lease_request_t request = holder_next(&holder);
      bl_lease_answer_t answer;
      (void)bl_lease_table_reserve(table, &request, i + 1, demands, i + 1, &answer);
      if (answer.reason != BL_LEASE_GRANTED) {
        fail_msg("seed %" PRIu64 ": %d of sizes up to %u do not fit %" PRIu64 " granules of the device", seed, (int)i,
                 most, device);
      }
    }
    audit(table);
    bl_lease_answer_t answer;
    (void)bl_lease_table_close(table, holder.session, &holder.key, 2, &answer);
    drain_actions(table);
    bl_lease_stats_t stats;
    bl_lease_table_stats(table, &stats);
    assert_int_equal(stats.arena_bytes, 0);
    assert_int_equal(stats.tier_held_bytes[1], 0);
    audit(table);
    bl_lease_table_destroy(table);
  }
}

typedef enum { EDGE_RESERVED, EDGE_WRITING, EDGE_SEALED, EDGE_LOADING, EDGES } edge_t;

static void go_to(holder_t *holder, const bl_lease_token_t *slot, edge_t edge) {
  bl_lease_reason_t reason;
  bl_lease_answer_t answer;
  if (edge == EDGE_RESERVED) {
    return;
  }
  assert_int_equal(holder_evict(holder, slot, 100, 5, &reason), BL_LEASE_BEGIN);
  if (edge != EDGE_WRITING) {
    bl_lease_table_transfer_ended(holder->table, slot->id, slot->generation, true, 5, holder->now_ns);
  }
  if (edge == EDGE_LOADING) {
    assert_int_equal(holder_load(holder, slot, &answer), BL_LEASE_GRANTED);
  }
}

static uint64_t quarantined(const bl_lease_table_t *table) {
  bl_lease_stats_t stats;
  bl_lease_table_stats(table, &stats);
  return stats.leases[BL_LEASE_QUARANTINED];
}

static void slots_wait_for_the_end_of_the_process(void **state) {
  (void)state;
  for (int edge = 0; edge < EDGES; edge++) {
    for (int way = 0; way < 4; way++) {
      bl_lease_table_t *table = table_of(4, 0);
      holder_t holder = {.now_ns = 1}, next = {.now_ns = 1};
      bl_lease_token_t slots[4];
      bl_lease_answer_t answer;
      bl_error_t err = {0};
      assert_int_equal(holder_open(&holder, table, "job", 0, 1, 4 * GRANULE), BL_LEASE_GRANTED);
      bl_lease_table_set_mapped(table, holder.session);
      assert_int_equal(holder_reserve(&holder, 1, GRANULE, 4), BL_LEASE_GRANTED);
      assert_int_equal(holder_slots(&holder, slots, 4), 4);
      go_to(&holder, &slots[0], (edge_t)edge);
      bool closed = way == 3;
      if (way == 0) { // it is not renewed
        bl_lease_table_advance(table, 60 * SECOND);
      } else if (way == 1) { // replaced
        assert_int_equal(holder_open(&next, table, "job", 0, 2, 4 * GRANULE), BL_LEASE_GRANTED);
      } else if (way == 2) { // by an operator
        assert_int_equal(bl_lease_table_revoke_session(table, holder.session, 2, &err), BL_OK);
      } else {
        (void)bl_lease_table_close(table, holder.session, &holder.key, 2, &answer);
      }
      audit(table);
      assert_int_equal(quarantined(table), closed ? (edge == EDGE_WRITING ? 1 : 0) : 4);
      uint64_t old = holder.session;
      next.now_ns = 60 * SECOND;
      assert_int_equal(holder_open(&next, table, "job", 0, 2, 4 * GRANULE), BL_LEASE_GRANTED);
      assert_int_equal(holder_reserve(&next, 1, GRANULE, 4),
                       closed && edge != EDGE_WRITING ? BL_LEASE_GRANTED : BL_LEASE_SPACE);
      // The process ends first, or the store's own transfer; the slot of that transfer needs both.
      bool moves_first = (edge + way) % 2 == 0;
      if (edge == EDGE_WRITING && moves_first) {
        bl_lease_table_transfer_ended(table, slots[0].id, slots[0].generation, false, 0, 60 * SECOND);
        assert_int_equal(quarantined(table), closed ? 0 : 4);
      }
      bl_lease_table_holder_gone(table, old + 1, 60 * SECOND); // another one
      bl_lease_table_holder_gone(table, 0, 60 * SECOND);
      assert_int_equal(quarantined(table), closed ? (edge == EDGE_WRITING && !moves_first ? 1 : 0) : 4);
      bl_lease_table_holder_gone(table, old, 60 * SECOND);
      audit(table);
      if (edge == EDGE_WRITING && !moves_first) {
        assert_int_equal(quarantined(table), 1);
        bl_lease_table_transfer_ended(table, slots[0].id, slots[0].generation, false, 0, 60 * SECOND);
      }
      assert_int_equal(quarantined(table), 0);
      assert_int_equal(holder_reserve(&next, 2, GRANULE, 4), BL_LEASE_GRANTED);
      drain_actions(table);
      audit(table);
      bl_lease_table_destroy(table);
    }
  }
}

// The arena of the job stays while somebody may read it.
static void an_arena_in_quarantine_is_not_closed(void **state) {
  (void)state;
  bl_lease_table_t *table = table_of(4, 4);
  holder_t holder = {.now_ns = 1};
  assert_int_equal(holder_open(&holder, table, "job", 0, 1, 8 * GRANULE), BL_LEASE_GRANTED);
  bl_lease_table_set_mapped(table, holder.session);
  assert_int_equal(holder_reserve(&holder, 1, GRANULE, 6), BL_LEASE_GRANTED);
  bl_lease_table_advance(table, 60 * SECOND);
  bl_lease_action_t action;
  while (bl_lease_table_next_action(table, &action)) {
    assert_int_not_equal(action.kind, BL_LEASE_CLOSE_ARENA);
  }
  bl_lease_table_holder_gone(table, holder.session, 61 * SECOND);
  bool closed = false;
  while (bl_lease_table_next_action(table, &action)) {
    closed = closed || action.kind == BL_LEASE_CLOSE_ARENA;
  }
  assert_true(closed);
  audit(table);
  bl_lease_table_destroy(table);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(slots_are_on_the_device_first),
      cmocka_unit_test(the_sum_of_the_slots_is_enough),
      cmocka_unit_test(slots_wait_for_the_end_of_the_process),
      cmocka_unit_test(an_arena_in_quarantine_is_not_closed),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
