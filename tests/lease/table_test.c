// SPDX-License-Identifier: Apache-2.0
// Verifies single rules of the lease table that people rely on by name: bad requests and their status, quotas at the
// boundary, drain, revocation, time, history.
#include "lease/holder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>

#define SECOND UINT64_C(1000000000)

static bl_lease_table_t *make_table(uint32_t granules) {
  bl_lease_config_t config = {.incarnation = id128_of(99),
                              .capacity_bytes = granules * GRANULE,
                              .max_jobs = 4,
                              .max_sessions = 8,
                              .max_leases = 64,
                              .history = 256};
  bl_lease_table_t *table = NULL;
  bl_error_t err = {0};
  assert_int_equal(bl_lease_table_create(&config, 0, &table, &err), BL_OK);
  return table;
}

static void check(bl_lease_table_t *table) {
  bl_error_t err = {0};
  if (bl_lease_table_audit(table, &err) != BL_OK) {
    fail_msg("%s", err.text);
  }
}

static void test_bad_requests(void **state) {
  (void)state;
  bl_lease_table_t *table = make_table(64);
  holder_t a = {0}, b = {0}, other = {0};
  assert_int_equal(holder_open(&a, table, "job", 0, 1, 32 * GRANULE), BL_LEASE_GRANTED);
  assert_int_equal(holder_open(&b, table, "job", 1, 2, 0), BL_LEASE_GRANTED);
  assert_int_equal(holder_open(&other, table, "other", 0, 3, 16 * GRANULE), BL_LEASE_GRANTED);
  assert_int_equal(holder_open(&other, table, "third", 0, 4, 17 * GRANULE), BL_LEASE_CAPACITY);
  assert_int_equal(holder_open(&other, table, "", 0, 4, GRANULE), BL_LEASE_BAD_REQUEST);
  assert_int_equal(holder_open(&other, table, "third", 0, 4, 0), BL_LEASE_NO_SIZE);
  assert_int_equal(holder_open(&other, table, "third", 0, 4, UINT64_MAX), BL_LEASE_CAPACITY);
  assert_int_equal(holder_open(&b, table, "job", 2, 5, 33 * GRANULE), BL_LEASE_ARENA);
  assert_int_equal(holder_open(&b, table, "job", 2, 5, UINT64_MAX), BL_LEASE_ARENA);
  assert_int_equal(holder_reserve(&a, 1, 0, 1), BL_LEASE_BAD_BYTES);
  assert_int_equal(holder_reserve(&a, 1, 33 * GRANULE, 1), BL_LEASE_BEYOND);
  assert_int_equal(holder_reserve(&a, 1, 8 * GRANULE, 5), BL_LEASE_BEYOND); // beyond the arena for ever
  assert_int_equal(holder_reserve(&a, 0, GRANULE, 1), BL_LEASE_BAD_REQUEST);
  assert_int_equal(holder_reserve(&a, 1, UINT64_MAX, 1), BL_LEASE_BEYOND);
  assert_int_equal(holder_reserve(&a, 1, GRANULE, UINT32_MAX), BL_LEASE_BEYOND);
  assert_int_equal(holder_reserve(&a, 1, GRANULE, 0), BL_LEASE_BAD_BYTES);
  assert_int_equal(holder_reserve(&a, 1, 2 * GRANULE, 2), BL_LEASE_GRANTED);
  assert_int_equal(holder_reserve(&a, 1, 2 * GRANULE, 3), BL_LEASE_PLAN);
  assert_int_equal(holder_unreserve(&a, 2), BL_LEASE_PLAN);

  bl_lease_token_t slots[2] = {{.id = 0}}, stale;
  bl_lease_answer_t answer;
  bl_lease_reason_t reason;
  assert_int_equal(holder_slots(&a, slots, 2), 2);
  assert_int_equal(holder_load(&a, &slots[0], &answer), BL_LEASE_STATE); // load before seal
  holder_evict(&a, &slots[0], 0, 5, &reason);
  assert_int_equal(reason, BL_LEASE_BAD_BYTES);
  holder_evict(&a, &slots[0], 2 * GRANULE + 1, 5, &reason);
  assert_int_equal(reason, BL_LEASE_BAD_BYTES);
  holder_evict(&b, &slots[0], 1, 5, &reason);
  assert_int_equal(reason, BL_LEASE_NOT_YOURS);
  holder_evict(&other, &slots[0], 1, 5, &reason); // of another job
  assert_int_equal(reason, BL_LEASE_NOT_YOURS);
  assert_int_equal(holder_release(&other, &slots[0], NULL), BL_LEASE_NOT_YOURS);
  stale = slots[0];
  stale.incarnation.bytes[3] ^= 1;
  holder_evict(&a, &stale, 1, 5, &reason);
  assert_int_equal(reason, BL_LEASE_INCARNATION);
  stale = (bl_lease_token_t){a.store, 65, 1};
  holder_evict(&a, &stale, 1, 5, &reason);
  assert_int_equal(reason, BL_LEASE_NO_LEASE);
  assert_int_equal(holder_evict(&a, &slots[0], 1000, 5, &reason), BL_LEASE_BEGIN);
  assert_int_equal(holder_evict(&a, &slots[0], 1000, 5, &reason), BL_LEASE_DONE); // a second evict
  assert_int_equal(reason, BL_LEASE_STATE);
  bl_lease_table_transfer_ended(table, slots[0].id, slots[0].generation + 1, true, 5, 0); // of another transfer
  bl_lease_table_transfer_ended(table, slots[0].id, slots[0].generation, true, 5, 0);
  bl_lease_table_transfer_ended(table, slots[0].id, slots[0].generation, true, 5, 0); // a second seal
  bl_lease_stats_t stats;
  bl_lease_table_stats(table, &stats);
  assert_int_equal(stats.stale_events, 2);
  assert_int_equal(holder_load(&a, &slots[0], &answer), BL_LEASE_GRANTED);
  assert_int_equal(answer.bytes, 1000);
  assert_int_equal(answer.checksum, 5);
  uint64_t wrong = 6;
  stale = slots[0];
  assert_int_equal(holder_release(&a, &slots[0], &wrong), BL_LEASE_CHECKSUM);
  assert_int_equal(holder_load(&a, &stale, &answer), BL_LEASE_GENERATION);
  assert_int_equal(bl_lease_reason_status(BL_LEASE_GENERATION), BL_FENCED);

  bl_error_t err = {0};
  answer = (bl_lease_answer_t){
      .reason = BL_LEASE_SPACE, .free_bytes = 3 * GRANULE, .largest_free_bytes = GRANULE, .retry_after_ms = 7};
  assert_int_equal(bl_lease_answer_to_error(&answer, "reserve", &err), BL_EXHAUSTED);
  assert_string_equal(err.text,
                      "cannot reserve: no contiguous slot of this size is free; free 192 KiB, largest run 64.0 "
                      "KiB; try again in 7 ms");
  answer = (bl_lease_answer_t){.reason = BL_LEASE_ARENA, .bytes = 3 * GRANULE, .arena_bytes = 2 * GRANULE};
  assert_int_equal(bl_lease_answer_to_error(&answer, "open a session", &err), BL_INVALID);
  assert_non_null(strstr(err.text, "; it has 128 KiB, and 192 KiB were asked for"));
  answer.reason = BL_LEASE_BEYOND;
  assert_int_equal(bl_lease_answer_to_error(&answer, "reserve", &err), BL_INVALID);
  assert_non_null(strstr(err.text, "(arena_bytes); it has 128 KiB"));
  assert_non_null(strstr(bl_session_end_text(BL_SESSION_REPLACED), "need different pairs of job and stage"));
  check(table);
  bl_lease_table_destroy(table);
}

static void refused_by_quota(holder_t *holder, uint64_t bytes, uint32_t count, const char *message) {
  const bl_lease_request_t request = holder_next(holder);
  const bl_lease_demand_t demand = {.bytes = bytes, .count = count};
  bl_lease_answer_t answer;
  bl_error_t err;
  (void)bl_lease_table_reserve(holder->table, &request, 1, &demand, 1, &answer);
  assert_int_equal(bl_lease_answer_to_error(&answer, "reserve", &err), BL_EXHAUSTED);
  assert_string_equal(err.text, message);
}

static void test_quotas_at_the_boundary(void **state) {
  (void)state;
  bl_lease_table_t *table = make_table(64);
  bl_error_t err;
  holder_t holders[3] = {{0}};
  assert_int_equal(bl_lease_table_set_quota(table, "job", NULL, 10 * GRANULE, &err), BL_OK); // before it is known
  for (uint32_t i = 0; i < 3; i++) {
    assert_int_equal(holder_open(&holders[i], table, "job", i, i + 1, i == 0 ? 64 * GRANULE : 0), BL_LEASE_GRANTED);
  }
  uint32_t stage = 1;
  assert_int_equal(bl_lease_table_set_quota(table, "job", &stage, 3 * GRANULE, &err), BL_OK);
  refused_by_quota(&holders[1], GRANULE, 4,
                   "cannot reserve: the quota of the stage at this store does not allow it: raise it with ballastctl "
                   "quota --stage; the quota is 192 KiB, 256 KiB are needed; try again in 1000 ms");
  assert_int_equal(holder_reserve(&holders[1], 1, GRANULE, 3), BL_LEASE_GRANTED);
  refused_by_quota(&holders[0], GRANULE, 8,
                   "cannot reserve: the quota of the job at this store does not allow it: raise it with ballastctl "
                   "quota; the quota is 640 KiB, 704 KiB are needed; try again in 1000 ms");
  assert_int_equal(holder_reserve(&holders[0], 1, GRANULE, 7), BL_LEASE_GRANTED); // just full
  assert_int_equal(holder_reserve(&holders[2], 1, 1, 1), BL_LEASE_JOB_QUOTA);
  // Lowered below what is held: nobody loses anything, nothing new.
  assert_int_equal(bl_lease_table_set_quota(table, "job", NULL, GRANULE, &err), BL_OK);
  bl_lease_stats_t stats;
  bl_lease_table_stats(table, &stats);
  assert_int_equal(stats.held_bytes, 10 * GRANULE);
  assert_int_equal(holder_reserve(&holders[0], 2, GRANULE, 7), BL_LEASE_GRANTED); // a plan within the slots it has
  assert_int_equal(holder_reserve(&holders[0], 3, GRANULE, 8), BL_LEASE_JOB_QUOTA);
  assert_int_equal(bl_lease_table_set_quota(table, "job", NULL, BL_LEASE_NO_QUOTA, &err), BL_OK);
  assert_int_equal(holder_reserve(&holders[0], 3, GRANULE, 8), BL_LEASE_GRANTED);
  check(table);
  bl_lease_table_destroy(table);
}

static void test_plans_share_slots(void **state) {
  (void)state;
  bl_lease_table_t *table = make_table(16);
  holder_t a = {0};
  assert_int_equal(holder_open(&a, table, "job", 0, 1, 16 * GRANULE), BL_LEASE_GRANTED);
  assert_int_equal(holder_reserve(&a, 1, 4 * GRANULE, 3), BL_LEASE_GRANTED);
  assert_int_equal(holder_reserve(&a, 2, 4 * GRANULE, 4), BL_LEASE_GRANTED); // 3 + 4 would not fit
  bl_lease_token_t slots[5] = {{.id = 0}};
  assert_int_equal(holder_slots(&a, slots, 5), 4);
  for (int i = 0; i < 4; i++) {
    assert_int_equal(holder_store(&a, &slots[i], 100, 1), BL_LEASE_GRANTED);
  }
  assert_int_equal(holder_unreserve(&a, 2), BL_LEASE_GRANTED); // all in use: the fourth goes when it is over
  assert_int_equal(holder_slots(&a, slots, 5), 4);
  bl_lease_token_t last = slots[0];
  assert_int_equal(holder_release(&a, &slots[0], NULL), BL_LEASE_GRANTED);
  assert_int_equal(slots[0].generation, 0);
  bl_lease_answer_t answer;
  assert_int_equal(holder_load(&a, &last, &answer), BL_LEASE_GENERATION);
  assert_int_equal(holder_slots(&a, slots, 5), 3);
  assert_int_equal(holder_release(&a, &slots[0], NULL), BL_LEASE_GRANTED);
  assert_true(slots[0].generation > 0);
  check(table);
  bl_lease_table_destroy(table);
}

static uint64_t arena_granules(const bl_lease_table_t *table) {
  bl_lease_stats_t stats;
  bl_lease_table_stats(table, &stats);
  return stats.arena_bytes / GRANULE;
}

// A store with just the slot of a job takes its next plan, whoever parks what in it: the plans are not in use together.
static void test_a_plan_follows_another_in_the_same_room(void **state) {
  (void)state;
  bl_lease_table_t *table = make_table(8);
  bl_error_t err;
  holder_t one[2] = {{0}}, two[2] = {{0}}, third = {0}, other = {0};
  assert_int_equal(bl_lease_table_set_quota(table, "job", NULL, 8 * GRANULE, &err), BL_OK);
  uint32_t stage = 1;
  assert_int_equal(bl_lease_table_set_quota(table, "job", &stage, 5 * GRANULE, &err), BL_OK);
  assert_int_equal(holder_open_plan(&one[0], table, "job", 1, 0, 70, 1, 8 * GRANULE), BL_LEASE_GRANTED);
  assert_int_equal(holder_open_plan(&one[1], table, "job", 1, 1, 71, 2, 8 * GRANULE), BL_LEASE_GRANTED);
  assert_int_equal(holder_reserve(&one[0], 1, 2 * GRANULE, 3), BL_LEASE_GRANTED);
  assert_int_equal(holder_reserve(&one[1], 1, 2 * GRANULE, 1), BL_LEASE_GRANTED);
  assert_int_equal(holder_open(&other, table, "other", 0, 9, GRANULE), BL_LEASE_CAPACITY);
  // Another split of the same slot, while the first plan holds all of it.
  assert_int_equal(holder_open_plan(&two[0], table, "job", 2, 0, 70, 3, 8 * GRANULE), BL_LEASE_GRANTED);
  assert_int_equal(holder_open_plan(&two[1], table, "job", 2, 1, 71, 4, 8 * GRANULE), BL_LEASE_GRANTED);
  assert_int_equal(holder_reserve(&two[0], 2, 2 * GRANULE, 1), BL_LEASE_GRANTED);
  assert_int_equal(holder_reserve(&two[1], 2, 2 * GRANULE, 4), BL_LEASE_JOB_QUOTA); // of the name
  assert_int_equal(holder_reserve(&two[1], 2, 2 * GRANULE, 3), BL_LEASE_STAGE_QUOTA);
  assert_int_equal(holder_reserve(&two[1], 2, 2 * GRANULE, 2), BL_LEASE_GRANTED);
  assert_int_equal(holder_open_plan(&third, table, "job", 3, 0, 70, 5, 9 * GRANULE), BL_LEASE_CAPACITY);
  assert_int_equal(arena_granules(table), 8);
  check(table);
  // The plans have memory of their own: a lease of one is none of the other's.
  bl_lease_token_t slot = {.id = 0};
  bl_lease_answer_t answer;
  assert_int_equal(holder_slots(&one[1], &slot, 1), 1);
  assert_int_equal(holder_store(&one[1], &slot, 100, 5), BL_LEASE_GRANTED);
  assert_int_equal(holder_load(&two[1], &slot, &answer), BL_LEASE_NOT_YOURS);
  assert_int_equal(holder_load(&one[1], &slot, &answer), BL_LEASE_GRANTED);
  // Until the last session of the first has gone, the second follows it.
  bl_lease_opened_t opened;
  assert_true(bl_lease_table_opened(table, two[0].session, &opened));
  assert_true(bl_lease_table_arena_follows(table, opened.job));
  for (int i = 0; i < 2; i++) {
    (void)bl_lease_table_close(table, one[i].session, &one[i].key, 0, &answer);
    assert_int_equal(answer.reason, BL_LEASE_GRANTED);
    drain_actions(table);
    assert_int_equal(bl_lease_table_arena_follows(table, opened.job), i == 0);
  }
  assert_int_equal(arena_granules(table), 8);
  check(table);
  // A new process of stage 0 ends what the one before had, whatever plan that was for.
  assert_int_equal(holder_open_plan(&third, table, "job", 4, 0, 72, 6, 4 * GRANULE), BL_LEASE_GRANTED);
  assert_int_equal(holder_reserve(&two[0], 9, GRANULE, 1), BL_LEASE_SESSION_OVER);
  assert_int_equal(holder_reserve(&two[1], 9, GRANULE, 1), BL_LEASE_GRANTED); // not another stage's
  (void)bl_lease_table_close(table, two[1].session, &two[1].key, 0, &answer);
  drain_actions(table);
  assert_int_equal(arena_granules(table), 4);
  assert_int_equal(holder_open(&other, table, "other", 0, 9, 4 * GRANULE), BL_LEASE_GRANTED);
  check(table);
  bl_lease_table_destroy(table);
}

// Where memory is taken at once, as on a GPU, both plans count.
static void test_plans_that_add(void **state) {
  (void)state;
  bl_lease_config_t config = {.incarnation = id128_of(99),
                              .capacity_bytes = 8 * GRANULE,
                              .plans_add = true,
                              .max_jobs = 4,
                              .max_sessions = 8,
                              .max_leases = 64};
  bl_lease_table_t *table = NULL;
  bl_error_t err = {0};
  assert_int_equal(bl_lease_table_create(&config, 0, &table, &err), BL_OK);
  holder_t one = {0}, two = {0};
  bl_lease_answer_t answer;
  assert_int_equal(holder_open_plan(&one, table, "job", 1, 0, 70, 1, 5 * GRANULE), BL_LEASE_GRANTED);
  assert_int_equal(holder_open_plan(&two, table, "job", 2, 0, 70, 2, 4 * GRANULE), BL_LEASE_CAPACITY);
  assert_int_equal(holder_open_plan(&two, table, "job", 2, 0, 70, 2, 3 * GRANULE), BL_LEASE_GRANTED);
  assert_int_equal(arena_granules(table), 8);
  check(table);
  (void)bl_lease_table_close(table, one.session, &one.key, 0, &answer);
  drain_actions(table);
  assert_int_equal(arena_granules(table), 3);
  check(table);
  bl_lease_table_destroy(table);
}

static void test_time(void **state) {
  (void)state;
  bl_lease_table_t *table = make_table(16);
  holder_t a = {0}, b = {0};
  assert_int_equal(holder_open(&a, table, "job", 0, 1, 16 * GRANULE), BL_LEASE_GRANTED);
  assert_int_equal(holder_open(&b, table, "job", 1, 2, 0), BL_LEASE_GRANTED);
  assert_int_equal(holder_reserve(&a, 1, GRANULE, 12), BL_LEASE_GRANTED);
  bl_lease_token_t slot = {.id = 0};
  holder_slots(&a, &slot, 1);
  assert_int_equal(holder_store(&a, &slot, 100, 1), BL_LEASE_GRANTED);
  bl_lease_answer_t answer;
  bl_lease_reason_t reason;
  for (uint64_t now = SECOND; now <= 100 * SECOND; now += 9 * SECOND) { // renewed, it lives on
    a.now_ns = b.now_ns = now;
    (void)bl_lease_table_keep_alive(table, a.session, &a.key, now, &answer);
    assert_int_equal(answer.reason, BL_LEASE_GRANTED);
    (void)bl_lease_table_keep_alive(table, b.session, &b.key, now, &answer);
  }
  uint64_t renewed = a.now_ns;
  a.now_ns = renewed + 10 * SECOND - 1; // not early
  assert_int_equal(holder_load(&a, &slot, &answer), BL_LEASE_GRANTED);
  assert_int_equal(holder_release(&a, &slot, NULL), BL_LEASE_GRANTED);
  assert_int_equal(holder_store(&a, &slot, 100, 1), BL_LEASE_GRANTED);
  a.now_ns = b.now_ns = renewed + 10 * SECOND + 2000000; // not late: SUSPECT
  (void)bl_lease_table_keep_alive(table, b.session, &b.key, b.now_ns, &answer);
  holder_evict(&a, &slot, 100, 1, &reason);
  assert_int_equal(reason, BL_LEASE_STATE);
  assert_int_equal(holder_reserve(&a, 2, GRANULE, 1), BL_LEASE_SUSPECT);
  const bl_lease_request_t late = holder_next(&a);
  (void)bl_lease_table_reserve(table, &late, 3, &(bl_lease_demand_t){.bytes = GRANULE, .count = 1}, 1, &answer);
  assert_int_equal(answer.reason, BL_LEASE_SUSPECT);
  assert_true(answer.retry_after_ms > 0);                              // once it is renewed
  assert_int_equal(holder_load(&a, &slot, &answer), BL_LEASE_GRANTED); // what it has is kept
  (void)bl_lease_table_keep_alive(table, a.session, &a.key, a.now_ns, &answer);
  assert_int_equal(holder_reserve(&a, 2, GRANULE, 1), BL_LEASE_GRANTED); // and back
  // SUSPECT again, and the slot is needed.
  b.now_ns = a.now_ns = a.now_ns + 11 * SECOND;
  (void)bl_lease_table_keep_alive(table, b.session, &b.key, b.now_ns, &answer);
  assert_int_equal(holder_reserve(&b, 1, GRANULE, 4), BL_LEASE_GRANTED); // fits beside it
  assert_int_equal(holder_reserve(&b, 2, GRANULE, 5), BL_LEASE_GRANTED); // does not
  assert_int_equal(holder_load(&a, &slot, &answer), BL_LEASE_SESSION_OVER);
  // Grace over.
  bl_lease_table_advance(table, b.now_ns + 21 * SECOND);
  bl_lease_stats_t stats;
  bl_lease_table_stats(table, &stats);
  assert_int_equal(stats.held_bytes, 0);
  assert_int_equal(stats.ended[BL_SESSION_PREEMPTED], 1);
  assert_int_equal(stats.ended[BL_SESSION_EXPIRED], 1);
  assert_int_equal(bl_lease_table_next_deadline_ns(table), UINT64_MAX);
  check(table);
  bl_lease_table_destroy(table);
}

// A dead holder must not keep its memory for as long as it once asked for.
static void test_times_that_holders_request(void **state) {
  (void)state;
  static const struct {
    uint64_t asked_ns, given_ns;
  } cases[] = {{0, 10 * SECOND},
               {1, 2 * SECOND},
               {60 * SECOND, 60 * SECOND},
               {3601 * SECOND, 3600 * SECOND},
               {UINT64_MAX, 3600 * SECOND}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    bl_lease_table_t *table = make_table(16);
    const bl_lease_open_t open = {.job = "job",
                                  .process = 1,
                                  .holder = id128_of(1),
                                  .key = id128_of(2),
                                  .arena_bytes = GRANULE,
                                  .ttl_ns = cases[i].asked_ns};
    bl_lease_opened_t opened = {0};
    bl_lease_answer_t answer;
    (void)bl_lease_table_open(table, &open, SECOND, &opened, &answer);
    assert_int_equal(answer.reason, BL_LEASE_GRANTED);
    assert_int_equal(opened.ttl_ns, cases[i].given_ns);
    bl_lease_table_advance(table, SECOND + cases[i].given_ns + 21 * SECOND);
    bl_lease_stats_t stats;
    bl_lease_table_stats(table, &stats);
    assert_int_equal(stats.ended[BL_SESSION_EXPIRED], 1);
    bl_lease_table_destroy(table);
  }
}

static void test_drain_and_revoke(void **state) {
  (void)state;
  bl_lease_table_t *table = make_table(16);
  holder_t a = {0}, b = {0};
  bl_error_t err;
  assert_int_equal(holder_open(&a, table, "job", 0, 1, 16 * GRANULE), BL_LEASE_GRANTED);
  assert_int_equal(holder_reserve(&a, 1, GRANULE, 2), BL_LEASE_GRANTED);
  bl_lease_token_t slots[2] = {{.id = 0}};
  holder_slots(&a, slots, 2);
  bl_lease_table_drain(table, true);
  assert_int_equal(holder_open(&b, table, "job", 1, 2, 0), BL_LEASE_DRAINING);
  assert_int_equal(holder_reserve(&a, 2, GRANULE, 1), BL_LEASE_DRAINING);
  assert_int_equal(holder_store(&a, &slots[0], 10, 1), BL_LEASE_GRANTED); // inside its reservation
  assert_false(bl_lease_table_is_drained(table));
  bl_lease_answer_t answer;
  assert_int_equal(bl_lease_table_revoke(table, slots[0].id, slots[0].generation + 1, 0, &err), BL_FENCED);
  assert_int_equal(bl_lease_table_revoke(table, 50, 0, 0, &err), BL_NOT_FOUND);
  assert_int_equal(bl_lease_table_revoke(table, slots[0].id, slots[0].generation, 0, &err), BL_OK);
  assert_int_equal(bl_lease_table_revoke(table, slots[0].id, 0, 0, &err), BL_PRECONDITION);
  assert_int_equal(holder_load(&a, &slots[0], &answer), BL_LEASE_GONE); // told, not silently
  assert_int_equal(holder_release(&a, &slots[0], NULL), BL_LEASE_GRANTED);
  assert_int_equal(slots[0].generation, 0);
  assert_int_equal(holder_unreserve(&a, 1), BL_LEASE_GRANTED);
  assert_true(bl_lease_table_is_drained(table));
  bl_lease_table_drain(table, false);
  assert_int_equal(holder_open(&b, table, "job", 1, 2, 0), BL_LEASE_GRANTED);
  check(table);
  bl_lease_table_destroy(table);
}

static void test_history_tells_every_state(void **state) {
  (void)state;
  bl_lease_table_t *table = make_table(16);
  holder_t a = {0};
  assert_int_equal(holder_open(&a, table, "job", 3, 1, 16 * GRANULE), BL_LEASE_GRANTED);
  assert_int_equal(holder_reserve(&a, 1, GRANULE, 1), BL_LEASE_GRANTED);
  bl_lease_token_t slot = {.id = 0};
  bl_lease_answer_t answer;
  holder_slots(&a, &slot, 1);
  assert_int_equal(holder_store(&a, &slot, 10, 1), BL_LEASE_GRANTED);
  assert_int_equal(holder_load(&a, &slot, &answer), BL_LEASE_GRANTED);
  assert_int_equal(holder_release(&a, &slot, NULL), BL_LEASE_GRANTED);
  static const uint8_t expected[] = {BL_LEASE_RESERVED, BL_LEASE_WRITING, BL_LEASE_SEALED, BL_LEASE_LOADING,
                                     BL_LEASE_RESERVED};
  const bl_journal_t *journal = bl_lease_table_journal(table);
  unsigned seen = 0;
  for (uint64_t i = bl_journal_oldest(journal); i <= journal->revision; i++) {
    const bl_journal_event_t *event = bl_journal_at(journal, i);
    assert_int_equal(event->revision, i);
    if (event->kind == BL_JOURNAL_LEASE) {
      assert_int_equal(event->id, slot.id);
      assert_int_equal(event->stage, 3);
      assert_int_equal(event->to, expected[seen]);
      assert_int_equal(event->generation, seen < 4 ? slot.generation - 1 : slot.generation);
      seen++;
    }
  }
  assert_int_equal(seen, 5);
  bl_lease_table_destroy(table);
}

// A size whose last lease ended after its plan makes room for another one.
static void test_sizes_are_forgotten(void **state) {
  (void)state;
  bl_lease_table_t *table = make_table(64);
  holder_t holder = {0};
  bl_lease_demand_t demands[BL_LEASE_SIZES];
  bl_lease_token_t slots[BL_LEASE_SIZES] = {{.id = 0}};
  bl_lease_answer_t answer;
  for (uint32_t i = 0; i < BL_LEASE_SIZES; i++) {
    demands[i] = (bl_lease_demand_t){.bytes = (i + 1) * GRANULE, .count = 1};
  }
  assert_int_equal(holder_open(&holder, table, "job", 0, 1, 64 * GRANULE), BL_LEASE_GRANTED);
  const bl_lease_request_t request = holder_next(&holder);
  (void)bl_lease_table_reserve(table, &request, 1, demands, BL_LEASE_SIZES, &answer);
  assert_int_equal(answer.reason, BL_LEASE_GRANTED);
  assert_int_equal(holder_slots(&holder, slots, BL_LEASE_SIZES), BL_LEASE_SIZES);
  for (uint32_t i = 0; i < BL_LEASE_SIZES; i++) {
    assert_int_equal(holder_store(&holder, &slots[i], GRANULE, 5), BL_LEASE_GRANTED);
  }
  assert_int_equal(holder_unreserve(&holder, 1), BL_LEASE_GRANTED);
  assert_int_equal(holder_reserve(&holder, 2, 9 * GRANULE, 1), BL_LEASE_LIMITS);
  assert_int_equal(holder_release(&holder, &slots[3], NULL), BL_LEASE_GRANTED);
  assert_int_equal(holder_reserve(&holder, 2, 9 * GRANULE, 1), BL_LEASE_GRANTED);
  check(table);
  bl_lease_table_destroy(table);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_bad_requests),
      cmocka_unit_test(test_quotas_at_the_boundary),
      cmocka_unit_test(test_plans_share_slots),
      cmocka_unit_test(test_a_plan_follows_another_in_the_same_room),
      cmocka_unit_test(test_plans_that_add),
      cmocka_unit_test(test_time),
      cmocka_unit_test(test_times_that_holders_request),
      cmocka_unit_test(test_drain_and_revoke),
      cmocka_unit_test(test_history_tells_every_state),
      cmocka_unit_test(test_sizes_are_forgotten),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
