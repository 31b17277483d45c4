// SPDX-License-Identifier: Apache-2.0
// Verifies the life of a communicator for every event in every state, the deadlines of each step, and by a walk over all
// reachable states that none of them can be left hanging: an abort is asked for exactly once, and what was launched is
// forgotten only when it is over or the abort has returned. And: versions that differ are refused by name; the order in
// which communicators are made lets every set of processes come through.
#include "base/random.h"
#include "datapath/nccl/life.h"
#include "datapath/nccl/order.h"
#include "datapath/nccl/version.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const bl_nccl_deadlines_t deadlines = {
    .create_ns = 100, .transfer_ns = 10, .bytes_per_second = 1000000000, .abort_ns = 50};

static bl_nccl_life_t life_in(bl_nccl_state_t state) {
  bl_nccl_life_t life;
  bl_nccl_life_init(&life, &deadlines);
  if (state != BL_NCCL_NONE) {
    (void)bl_nccl_life_on(&life, BL_NCCL_EVENT_CREATE, 1, BL_OK, 0);
  }
  if (state == BL_NCCL_READY || state == BL_NCCL_IN_USE) {
    (void)bl_nccl_life_on(&life, BL_NCCL_EVENT_CREATED, 1, BL_OK, 0);
  }
  if (state == BL_NCCL_IN_USE) {
    (void)bl_nccl_life_on(&life, BL_NCCL_EVENT_LAUNCHED, 1, BL_OK, 20);
  }
  if (state == BL_NCCL_ABORTING || state == BL_NCCL_STUCK || state == BL_NCCL_DEAD) {
    (void)bl_nccl_life_on(&life, BL_NCCL_EVENT_FAILED, 1, BL_IO, 0);
  }
  if (state == BL_NCCL_STUCK) {
    (void)bl_nccl_life_on(&life, BL_NCCL_EVENT_TICK, 51, BL_OK, 0);
  }
  if (state == BL_NCCL_DEAD) {
    (void)bl_nccl_life_on(&life, BL_NCCL_EVENT_ABORTED, 1, BL_OK, 0);
  }
  assert_string_equal(bl_nccl_state_name(life.state), bl_nccl_state_name(state));
  return life;
}

// What each event does in each state; TICK long after every deadline. An empty cell changes nothing.
typedef struct {
  bl_nccl_state_t to;
  bl_nccl_act_t act;
  bool set;
} cell_t;
#define CELL(to, act)                                                                                                  \
  { to, BL_NCCL_ACT_##act, true }
static const cell_t table[BL_NCCL_STATES][BL_NCCL_EVENTS] = {
    [BL_NCCL_NONE] = {[BL_NCCL_EVENT_CREATE] = CELL(BL_NCCL_CREATING, CREATE),
                      [BL_NCCL_EVENT_CANCEL] = CELL(BL_NCCL_DEAD, TELL_DEAD)},
    [BL_NCCL_CREATING] = {[BL_NCCL_EVENT_CREATED] = CELL(BL_NCCL_READY, TELL_READY),
                          [BL_NCCL_EVENT_FAILED] = CELL(BL_NCCL_ABORTING, ABORT),
                          [BL_NCCL_EVENT_CANCEL] = CELL(BL_NCCL_ABORTING, ABORT),
                          [BL_NCCL_EVENT_TICK] = CELL(BL_NCCL_ABORTING, ABORT)},
    [BL_NCCL_READY] = {[BL_NCCL_EVENT_LAUNCHED] = CELL(BL_NCCL_IN_USE, NONE),
                       [BL_NCCL_EVENT_FAILED] = CELL(BL_NCCL_ABORTING, ABORT),
                       [BL_NCCL_EVENT_CANCEL] = CELL(BL_NCCL_ABORTING, ABORT)},
    [BL_NCCL_IN_USE] = {[BL_NCCL_EVENT_LAUNCHED] = CELL(BL_NCCL_IN_USE, NONE),
                        [BL_NCCL_EVENT_OVER] = CELL(BL_NCCL_READY, NONE),
                        [BL_NCCL_EVENT_FAILED] = CELL(BL_NCCL_ABORTING, ABORT),
                        [BL_NCCL_EVENT_CANCEL] = CELL(BL_NCCL_ABORTING, ABORT),
                        [BL_NCCL_EVENT_TICK] = CELL(BL_NCCL_ABORTING, ABORT)},
    [BL_NCCL_ABORTING] = {[BL_NCCL_EVENT_ABORTED] = CELL(BL_NCCL_DEAD, TELL_DEAD),
                          [BL_NCCL_EVENT_TICK] = CELL(BL_NCCL_STUCK, TELL_STUCK)},
    [BL_NCCL_STUCK] = {[BL_NCCL_EVENT_ABORTED] = CELL(BL_NCCL_DEAD, TELL_DEAD)},
};

static void every_event_in_every_state(void **state) {
  (void)state;
  for (int s = 0; s < BL_NCCL_STATES; s++) {
    for (int e = 0; e < BL_NCCL_EVENTS; e++) {
      bl_nccl_life_t life = life_in((bl_nccl_state_t)s), before = life;
      bl_nccl_act_t act = bl_nccl_life_on(&life, (bl_nccl_event_t)e, 100000, BL_UNAVAILABLE, 7);
      const cell_t *cell = &table[s][e];
      bl_nccl_state_t to = cell->set ? cell->to : (bl_nccl_state_t)s;
      if (life.state != to || act != (cell->set ? cell->act : BL_NCCL_ACT_NONE)) {
        fail_msg("event %d in state %s: state %s, act %d", e, bl_nccl_state_name((bl_nccl_state_t)s),
                 bl_nccl_state_name(life.state), (int)act);
      }
      if (!cell->set) {
        assert_memory_equal(&life, &before, sizeof life);
      }
      if (to == BL_NCCL_ABORTING && s != BL_NCCL_ABORTING) {
        assert_int_equal(life.cause, e == BL_NCCL_EVENT_TICK ? BL_DEADLINE : BL_UNAVAILABLE);
        assert_int_equal(life.late, e == BL_NCCL_EVENT_TICK);
      }
    }
  }
}

static void deadlines_are_those_of_each_step(void **state) {
  (void)state;
  bl_nccl_life_t life = life_in(BL_NCCL_CREATING);
  assert_int_equal(life.deadline_ns, 101);
  assert_int_equal(bl_nccl_life_on(&life, BL_NCCL_EVENT_TICK, 100, BL_OK, 0), BL_NCCL_ACT_NONE);
  assert_int_equal(bl_nccl_life_on(&life, BL_NCCL_EVENT_TICK, 101, BL_OK, 0), BL_NCCL_ACT_ABORT);
  assert_int_equal(life.deadline_ns, 151);
  assert_int_equal(bl_nccl_life_on(&life, BL_NCCL_EVENT_TICK, 150, BL_OK, 0), BL_NCCL_ACT_NONE);
  assert_int_equal(bl_nccl_life_on(&life, BL_NCCL_EVENT_TICK, 151, BL_OK, 0), BL_NCCL_ACT_TELL_STUCK);

  // Transfers follow each other: each has its own time from the end of the one before, by its bytes.
  life = life_in(BL_NCCL_READY);
  assert_int_equal(life.deadline_ns, UINT64_MAX);
  (void)bl_nccl_life_on(&life, BL_NCCL_EVENT_LAUNCHED, 1000, BL_OK, 100);
  (void)bl_nccl_life_on(&life, BL_NCCL_EVENT_LAUNCHED, 1001, BL_OK, 300);
  assert_int_equal(life.deadline_ns, 1000 + 10 + 100);
  (void)bl_nccl_life_on(&life, BL_NCCL_EVENT_OVER, 1050, BL_OK, 0);
  assert_int_equal(life.state, BL_NCCL_IN_USE);
  assert_int_equal(life.deadline_ns, 1050 + 10 + 300);
  (void)bl_nccl_life_on(&life, BL_NCCL_EVENT_OVER, 1060, BL_OK, 0);
  assert_int_equal(life.state, BL_NCCL_READY);
  assert_int_equal(life.deadline_ns, UINT64_MAX);

  // The largest blocks do not overflow.
  (void)bl_nccl_life_on(&life, BL_NCCL_EVENT_LAUNCHED, 2000, BL_OK, UINT64_C(1) << 40);
  assert_int_equal(life.deadline_ns, 2000 + 10 + (UINT64_C(1) << 40));

  bl_nccl_life_init(&life, NULL);
  assert_int_equal(life.deadlines.abort_ns, BL_NCCL_ABORT_NS);
  assert_int_equal(life.deadlines.create_ns, BL_NCCL_CREATE_NS);
}

static void no_more_is_taken_than_fits(void **state) {
  (void)state;
  bl_nccl_life_t life = life_in(BL_NCCL_READY);
  for (uint32_t i = 0; i < BL_NCCL_IN_FLIGHT; i++) {
    assert_true(bl_nccl_life_takes(&life));
    (void)bl_nccl_life_on(&life, BL_NCCL_EVENT_LAUNCHED, 5, BL_OK, i);
  }
  assert_false(bl_nccl_life_takes(&life));
  bl_nccl_life_t before = life;
  (void)bl_nccl_life_on(&life, BL_NCCL_EVENT_LAUNCHED, 6, BL_OK, 99);
  assert_memory_equal(&life, &before, sizeof life);
  for (uint32_t i = 0; i < 3 * BL_NCCL_IN_FLIGHT; i++) { // round and round
    assert_int_equal(life.bytes[life.first], i);
    (void)bl_nccl_life_on(&life, BL_NCCL_EVENT_OVER, 7, BL_OK, 0);
    (void)bl_nccl_life_on(&life, BL_NCCL_EVENT_LAUNCHED, 7, BL_OK, i + BL_NCCL_IN_FLIGHT);
  }
  static const bl_nccl_state_t closed[] = {BL_NCCL_NONE, BL_NCCL_CREATING, BL_NCCL_ABORTING, BL_NCCL_STUCK,
                                           BL_NCCL_DEAD};
  for (size_t i = 0; i < sizeof closed / sizeof closed[0]; i++) {
    life = life_in(closed[i]);
    assert_false(bl_nccl_life_takes(&life));
  }
}

// All histories of a given length, with up to two transfers: whoever gives it time gets to an end.
static void walk(const bl_nccl_life_t *life, unsigned depth, unsigned aborts, unsigned launched, uint64_t now_ns) {
  assert_true(aborts <= 1);
  assert_true(life->in_flight <= launched);
  if (life->state == BL_NCCL_DEAD) {
    assert_int_equal(life->in_flight, 0);
    assert_int_not_equal(life->cause, BL_OK);
    return;
  }
  bool hangs = life->state == BL_NCCL_NONE || life->state == BL_NCCL_READY || life->state == BL_NCCL_STUCK;
  assert_int_equal(hangs, life->deadline_ns == UINT64_MAX);
  if (depth == 0) {
    return;
  }
  for (int e = 0; e < BL_NCCL_EVENTS; e++) {
    if (e == BL_NCCL_EVENT_LAUNCHED && life->in_flight == 2) {
      continue;
    }
    if (e == BL_NCCL_EVENT_ABORTED && aborts == 0) {
      continue; // it cannot return before it was called
    }
    bl_nccl_life_t next = *life;
    uint64_t then_ns = e == BL_NCCL_EVENT_TICK && life->deadline_ns != UINT64_MAX ? life->deadline_ns : now_ns + 1;
    bl_nccl_act_t act = bl_nccl_life_on(&next, (bl_nccl_event_t)e, then_ns, BL_IO, 3);
    walk(&next, depth - 1, aborts + (act == BL_NCCL_ACT_ABORT), next.in_flight > launched ? next.in_flight : launched,
         then_ns);
  }
}

static void no_history_hangs(void **state) {
  (void)state;
  bl_nccl_life_t life = life_in(BL_NCCL_NONE);
  walk(&life, 7, 0, 0, 1);
}

static void other_versions_are_refused_by_name(void **state) {
  (void)state;
  char text[BL_NCCL_VERSION_TEXT];
  bl_error_t err = {0};
  assert_string_equal(bl_nccl_version_format(22809, text), "2.28.9");
  assert_string_equal(bl_nccl_version_format(2708, text), "2.7.8");
  assert_string_equal(bl_nccl_version_format(0, text), "none");
  assert_int_equal(bl_nccl_version_check("stage 0", 22809, "stage 1", 22809, &err), BL_OK);
  assert_int_equal(bl_nccl_version_check("stage 0", 22809, "the store at 10.0.0.7:7800", 22703, &err), BL_PRECONDITION);
  assert_string_equal(err.text, "stage 0 has NCCL 2.28.9 and the store at 10.0.0.7:7800 has NCCL 2.27.3: install one "
                                "version on both");
  assert_int_equal(bl_nccl_version_check("stage 0", 22809, "stage 1", 0, &err), BL_PRECONDITION);
  assert_int_equal(bl_nccl_version_check("stage 0", 0, "stage 1", 0, &err), BL_PRECONDITION);
}

static int compare(const void *a, const void *b) {
  return bl_nccl_way_compare(a, b);
}

// Sorts, removes what is there twice or leads to itself, and returns how many are left.
static size_t in_order(bl_nccl_way_t *ways, size_t count) {
  size_t kept = 0;
  qsort(ways, count, sizeof *ways, compare);
  for (size_t i = 0; i < count; i++) {
    bool again = kept > 0 && bl_nccl_way_compare(&ways[i], &ways[kept - 1]) == 0;
    if (!again && ways[i].from != ways[i].to) {
      ways[kept++] = ways[i];
    }
  }
  return kept;
}

// Every process goes through its own ways in the order, one after the other, and each takes both.
static void the_order_lets_everybody_through(void **state) {
  (void)state;
  enum { DEVICES = 9, WAYS = 60 };
  for (uint64_t seed = 1; seed <= 200; seed++) {
    bl_nccl_way_t ways[WAYS];
    uint64_t draw = 0;
    for (size_t i = 0; i < WAYS; i++) {
      ways[i] = (bl_nccl_way_t){.from = (uint32_t)bl_random_below(seed, draw++, DEVICES),
                                .to = (uint32_t)bl_random_below(seed, draw++, DEVICES)};
    }
    size_t count = in_order(ways, WAYS), made = 0, at[DEVICES] = {0};
    for (size_t i = 1; i < count; i++) {
      assert_true(bl_nccl_way_compare(&ways[i - 1], &ways[i]) < 0);
      assert_true(bl_nccl_way_compare(&ways[i], &ways[i - 1]) > 0);
    }
    for (bool moved = true; moved;) {
      moved = false;
      for (uint32_t d = 0; d < DEVICES; d++) {
        while (at[d] < count && ways[at[d]].from != d && ways[at[d]].to != d) {
          at[d]++;
        }
      }
      for (size_t i = 0; i < count; i++) {
        if (at[ways[i].from] == i && at[ways[i].to] == i) {
          at[ways[i].from]++;
          at[ways[i].to]++;
          made++;
          moved = true;
        }
      }
    }
    assert_int_equal(made, count);
  }
}

static void who_was_stopped_gives_the_whole_time_again(void **state) {
  (void)state;
  bl_nccl_life_t life = life_in(BL_NCCL_IN_USE); // from 1, 20 bytes: until 1 + 10 + 20
  uint64_t now_ns = 1;
  for (unsigned i = 0; i < BL_NCCL_EXCUSES; i++) {
    assert_int_equal(life.deadline_ns, now_ns + 30);
    now_ns += 1000;
    bl_nccl_life_excuse(&life, now_ns);
    assert_int_equal(life.state, BL_NCCL_IN_USE);
    assert_int_equal(life.in_flight, 1);
  }
  bl_nccl_life_excuse(&life, now_ns + 20); // no more
  assert_int_equal(bl_nccl_life_on(&life, BL_NCCL_EVENT_TICK, now_ns + 30, BL_OK, 0), BL_NCCL_ACT_ABORT);
  assert_int_equal(life.cause, BL_DEADLINE);
  life = life_in(BL_NCCL_READY); // which waits for nothing
  bl_nccl_life_excuse(&life, 5000);
  assert_int_equal(life.deadline_ns, UINT64_MAX);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(who_was_stopped_gives_the_whole_time_again),
      cmocka_unit_test(every_event_in_every_state),
      cmocka_unit_test(deadlines_are_those_of_each_step),
      cmocka_unit_test(no_more_is_taken_than_fits),
      cmocka_unit_test(no_history_hangs),
      cmocka_unit_test(other_versions_are_refused_by_name),
      cmocka_unit_test(the_order_lets_everybody_through),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
