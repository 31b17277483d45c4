// SPDX-License-Identifier: Apache-2.0
// Verifies fencing: a holder that was paused for longer than its session lives, at any point of any use of its slots,
// changes nothing when it wakes up, whoever uses the slot by then (10,000 interleavings); and that a holder or store
// that dies at any edge of the state machine leaves nothing behind (every edge, 1,000 seeds). BALLAST_SEED=n repeats
// one.
#include "lease/holder.h"

#include "base/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define SECOND UINT64_C(1000000000)
#define SLOTS  3

// Edges at which a holder stops: after its request, or after the transfer that it began.
typedef enum edge {
  EDGE_RESERVED,
  EDGE_WRITING,
  EDGE_SEALED,
  EDGE_LOADING,
  EDGE_STORE_SENDS,
  EDGE_RELEASED,
  EDGES
} edge_t;
static const char *const edge_names[EDGES] = {"reserved", "writing", "sealed", "loading", "store sends", "released"};

typedef struct world {
  uint64_t key, draws, seed;
  bl_lease_table_t *table;
  uint64_t now_ns;
} world_t;

static uint64_t draw(world_t *world, uint64_t bound) {
  return bl_random_below(world->key, world->draws++, bound);
}

static void world_init(world_t *world, const char *purpose, uint64_t seed) {
  *world = (world_t){.key = bl_random_key(seed, purpose), .seed = seed, .now_ns = 1};
  bl_lease_config_t config = {.incarnation = id128_of(seed * 2 + 1),
                              .capacity_bytes = 16 * GRANULE,
                              .max_jobs = 1,
                              .max_sessions = 3,
                              .max_leases = 8,
                              .history = 16};
  bl_error_t err = {0};
  assert_int_equal(bl_lease_table_create(&config, 1, &world->table, &err), BL_OK);
}

static void require(const world_t *world, bool holds, const char *what) {
  if (!holds) {
    fail_msg("seed %" PRIu64 ": %s", world->seed, what);
  }
}

static void check(const world_t *world) {
  bl_error_t err = {0};
  if (bl_lease_table_audit(world->table, &err) != BL_OK) {
    fail_msg("seed %" PRIu64 ": %s", world->seed, err.text);
  }
}

// Brings one slot of the holder to an edge. True: a transfer is under way.
static bool go_to_edge(holder_t *holder, bl_lease_token_t *slot, edge_t edge, uint64_t checksum) {
  bl_lease_answer_t answer;
  bl_lease_reason_t reason;
  if (edge == EDGE_RESERVED) {
    return false;
  }
  holder_evict(holder, slot, 1000, checksum, &reason);
  if (edge == EDGE_WRITING) {
    return true;
  }
  bl_lease_table_transfer_ended(holder->table, slot->id, slot->generation, true, checksum, holder->now_ns);
  if (edge == EDGE_LOADING || edge == EDGE_RELEASED) {
    (void)holder_load(holder, slot, &answer);
  }
  if (edge == EDGE_RELEASED) {
    (void)holder_release(holder, slot, &checksum);
  }
  if (edge == EDGE_STORE_SENDS) {
    bl_lease_request_t request = holder_next(holder);
    return bl_lease_table_load(holder->table, &request, slot, true, &answer) == BL_LEASE_BEGIN;
  }
  return false;
}

// The session of the holder ends in one of the ways in which that happens behind its back.
static void end_behind_its_back(world_t *world, holder_t *successor) {
  bl_lease_reason_t reason = BL_LEASE_GRANTED;
  if (draw(world, 2) == 0) { // TTL and grace
    world->now_ns += 20 * SECOND + 10000000;
    bl_lease_table_advance(world->table, world->now_ns);
  }
  successor->now_ns = world->now_ns; // a new incarnation of the same stage
  reason = holder_open(successor, world->table, "job", 0, 1000 + world->seed, 16 * GRANULE);
  require(world, reason == BL_LEASE_GRANTED, "the successor gets no session");
}

// Whatever a paused holder does now is refused, and says that it is fenced.
static void wake_up(world_t *world, holder_t *holder, const bl_lease_token_t slots[SLOTS]) {
  bl_lease_answer_t answer;
  bl_lease_reason_t reason;
  uint64_t checksum = 1;
  holder->now_ns = world->now_ns;
  for (int i = 0; i < 4; i++) {
    bl_lease_token_t slot = slots[draw(world, SLOTS)];
    switch (draw(world, 5)) {
    case 0:
      holder_evict(holder, &slot, 1000, 1, &reason);
      break;
    case 1:
      reason = holder_load(holder, &slot, &answer);
      break;
    case 2:
      reason = holder_release(holder, &slot, draw(world, 2) == 0 ? NULL : &checksum);
      break;
    case 3:
      reason = holder_reserve(holder, 5, GRANULE, 1);
      break;
    default:
      (void)bl_lease_table_keep_alive(world->table, holder->session, &holder->key, world->now_ns, &answer);
      reason = answer.reason;
      break;
    }
    require(world, reason == BL_LEASE_SESSION_OVER, "a paused holder was listened to");
    require(world, bl_lease_reason_status(reason) == BL_FENCED, "fenced is not the status");
  }
}

// The successor's blocks are exactly what it evicted.
static void check_blocks(world_t *world, const holder_t *successor, uint64_t checksum, uint32_t sealed) {
  uint64_t cursor = 0;
  bl_lease_view_t view;
  uint32_t count = 0;
  while (bl_lease_table_slots(world->table, successor->session, &cursor, &view)) {
    if (view.state == BL_LEASE_SEALED) {
      require(world, view.checksum == checksum && view.block_bytes == 500, "a block of the successor was changed");
      count++;
    }
  }
  require(world, count == sealed, "a block of the successor is missing");
}

static void pause_once(uint64_t seed) {
  world_t world;
  world_init(&world, "paused", seed);
  holder_t holder = {.now_ns = 1}, successor = {0};
  require(&world, holder_open(&holder, world.table, "job", 0, seed, 16 * GRANULE) == BL_LEASE_GRANTED, "open");
  require(&world, holder_reserve(&holder, 1, 4 * GRANULE, SLOTS) == BL_LEASE_GRANTED, "reserve");
  bl_lease_token_t slots[SLOTS] = {{.id = 0}}, tokens[SLOTS], theirs[SLOTS] = {{.id = 0}};
  bool moving[SLOTS];
  holder_slots(&holder, slots, SLOTS);
  for (int i = 0; i < SLOTS; i++) {
    for (uint64_t uses = draw(&world, 3); uses > 0; uses--) {
      (void)go_to_edge(&holder, &slots[i], EDGE_RELEASED, 7);
    }
    tokens[i] = slots[i]; // what the transfer, and the holder, will go on with
    moving[i] = go_to_edge(&holder, &tokens[i], (edge_t)draw(&world, EDGES), 7);
    slots[i] = draw(&world, 2) == 0 ? slots[i] : tokens[i];
  }
  // The holder is paused. Its transfers may end before the successor comes, meanwhile, or after.
  uint64_t late = draw(&world, 3);
  bl_lease_stats_t stats;
  for (int i = 0; i < SLOTS && late == 0; i++) {
    if (moving[i]) {
      bl_lease_table_transfer_ended(world.table, tokens[i].id, tokens[i].generation, true, 7, world.now_ns);
    }
  }
  end_behind_its_back(&world, &successor);
  drain_actions(world.table);
  bl_lease_table_stats(world.table, &stats);
  uint32_t fit = (uint32_t)((16 * GRANULE - stats.held_bytes) / (4 * GRANULE));
  fit = fit < SLOTS ? fit : SLOTS;
  bl_lease_reason_t reason = fit == 0 ? BL_LEASE_GRANTED : holder_reserve(&successor, 1, 4 * GRANULE, fit);
  require(&world, reason == BL_LEASE_GRANTED || reason == BL_LEASE_SPACE, "the successor's reservation");
  uint32_t sealed = reason == BL_LEASE_GRANTED ? holder_slots(&successor, theirs, SLOTS) : 0;
  for (uint32_t i = 0; i < sealed; i++) {
    for (int j = 0; j < SLOTS; j++) {
      bl_lease_view_t mine;
      require(&world, bl_lease_table_get(world.table, theirs[i].id, &mine) == BL_OK, "a slot without a lease");
      require(&world, theirs[i].id != tokens[j].id || theirs[i].generation > tokens[j].generation,
              "a token came twice");
    }
    require(&world, holder_store(&successor, &theirs[i], 500, 99) == BL_LEASE_GRANTED, "the successor's evict");
    if (draw(&world, 2) == 0) {
      wake_up(&world, &holder, slots);
    }
  }
  wake_up(&world, &holder, slots);
  // Its tokens are worth nothing in the hands of the successor either.
  for (int i = 0; i < SLOTS; i++) {
    bl_lease_answer_t answer;
    reason = holder_load(&successor, &tokens[i], &answer);
    require(&world, reason != BL_LEASE_GRANTED, "a token of the holder before opened a block");
  }
  for (int i = 0; i < SLOTS && late != 0; i++) {
    if (moving[i]) {
      bl_lease_table_transfer_ended(world.table, tokens[i].id, tokens[i].generation, true, 7, world.now_ns);
    }
  }
  wake_up(&world, &holder, slots);
  check_blocks(&world, &successor, 99, sealed);
  check(&world);
  bl_lease_table_destroy(world.table);
}

static void test_paused_holders(void **state) {
  (void)state;
  const char *only = getenv("BALLAST_SEED");
  for (uint64_t seed = 1; seed <= 10000; seed++) {
    if (only == NULL || strtoull(only, NULL, 10) == seed) {
      pause_once(seed);
    }
  }
}

// ---- death at every edge --------------------------------------------------------------------------------------------

static void die_at(edge_t edge, uint64_t seed) {
  world_t world;
  world_init(&world, edge_names[edge], seed);
  holder_t holder = {.now_ns = 1};
  require(&world, holder_open(&holder, world.table, "job", 0, seed, 16 * GRANULE) == BL_LEASE_GRANTED, "open");
  require(&world, holder_reserve(&holder, 1, 1 + draw(&world, 4 * GRANULE), SLOTS) == BL_LEASE_GRANTED, "reserve");
  bl_lease_token_t slots[SLOTS] = {{.id = 0}};
  bool moving[SLOTS];
  holder_slots(&holder, slots, SLOTS);
  for (int i = 0; i < SLOTS; i++) {
    edge_t there = i == 0 ? edge : (edge_t)draw(&world, EDGES);
    bl_lease_token_t token = slots[i];
    moving[i] = go_to_edge(&holder, &token, there, 7);
  }
  check(&world);
  if (draw(&world, 2) == 0) { // the store dies: another one knows nothing of it
    bl_lease_table_destroy(world.table);
    world_init(&world, "again", seed + 100000);
    holder.table = world.table;
    bl_lease_reason_t reason;
    holder_evict(&holder, &slots[0], 1000, 1, &reason);
    require(&world, reason == BL_LEASE_NO_SESSION, "a restarted store knows a session");
    holder_t next = {.now_ns = 1};
    require(&world, holder_open(&next, world.table, "job", 0, seed, 16 * GRANULE) == BL_LEASE_GRANTED, "open again");
    require(&world, holder_reserve(&next, 1, GRANULE, SLOTS) == BL_LEASE_GRANTED, "reserve again");
    holder_evict(&next, &slots[0], 1000, 1, &reason);
    require(&world, reason == BL_LEASE_INCARNATION, "a token of another incarnation was accepted");
    bl_lease_table_destroy(world.table);
    return;
  }
  bl_lease_action_t action; // the holder dies: its transfers are cancelled and end, its time runs out
  uint64_t deadline;
  while ((deadline = bl_lease_table_next_deadline_ns(world.table)) != UINT64_MAX) {
    bl_lease_table_advance(world.table, deadline);
    world.now_ns = deadline;
  }
  require(&world, world.now_ns <= 1 + 20 * SECOND + 10000000, "the session outlived TTL and grace");
  bool closed = false;
  for (int pass = 0; pass < 2; pass++) {
    while (bl_lease_table_next_action(world.table, &action)) {
      if (action.kind == BL_LEASE_CANCEL_TRANSFER) {
        for (int i = 0; i < SLOTS; i++) {
          moving[i] = moving[i] && slots[i].id != action.id;
        }
        bl_lease_table_transfer_ended(world.table, action.id, action.generation, draw(&world, 2) == 0, 7, world.now_ns);
      }
      closed = closed || action.kind == BL_LEASE_CLOSE_ARENA;
    }
  }
  for (int i = 0; i < SLOTS; i++) {
    require(&world, !moving[i], "a transfer of a dead holder was not cancelled");
  }
  bl_lease_stats_t stats;
  bl_lease_table_stats(world.table, &stats);
  require(&world, stats.held_bytes == 0 && stats.leases[BL_LEASE_FREE] == 8, "a dead holder left something behind");
  require(&world, closed && stats.arena_bytes == 0, "the arena of a dead job stays open");
  check(&world);
  bl_lease_table_destroy(world.table);
}

static void test_death_at_every_edge(void **state) {
  (void)state;
  const char *only = getenv("BALLAST_SEED");
  for (edge_t edge = EDGE_RESERVED; edge < EDGES; edge++) {
    for (uint64_t seed = 1; seed <= 1000; seed++) {
      if (only == NULL || strtoull(only, NULL, 10) == seed) {
        die_at(edge, seed);
      }
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_paused_holders),
      cmocka_unit_test(test_death_at_every_edge),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
