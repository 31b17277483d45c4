// SPDX-License-Identifier: Apache-2.0
// Verifies the rendezvous of two stages by trying everything: each order in which words arrive, communicators are made,
// fail (up to a number of times) and end, at both ends. Whatever happens, in the end both use the same generation or
// neither uses any, both were told so, and neither waits. Then a lost connection, and what is said of older
// generations.
#include "datapath/nccl/rendezvous.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define WORDS    8u
#define FAILURES 3u
#define STATES   (1u << 20)

typedef struct word {
  uint8_t kind, failed;
  uint32_t generation;
} word_t;

// One end, and the words on their way to it.
typedef struct end {
  uint8_t lower, state, has_ids, peer_made, again;
  uint8_t told;                // 0 nothing, 1 up, 2 failed
  uint8_t count;               // words
  uint32_t generation, opened; // opened: the last generation that it began to make
  word_t words[WORDS];
} end_t;

typedef struct world {
  end_t ends[2]; // 0 is the lower
  uint8_t failures;
} world_t;

static const bl_error_t broken = {.status = BL_UNAVAILABLE, .text = "broken"};

static bl_nccl_rendezvous_t load(const end_t *end) {
  bl_nccl_rendezvous_t rendezvous = {.lower = end->lower != 0,
                                     .state = (bl_nccl_rendezvous_state_t)end->state,
                                     .generation = end->generation,
                                     .has_ids = end->has_ids != 0,
                                     .peer_made = end->peer_made != 0,
                                     .again = end->again != 0};
  return rendezvous;
}

static void store(end_t *end, const bl_nccl_rendezvous_t *rendezvous) {
  end->state = (uint8_t)rendezvous->state;
  end->generation = rendezvous->generation;
  end->has_ids = rendezvous->has_ids;
  end->peer_made = rendezvous->peer_made;
  end->again = rendezvous->again;
}

static void carry_out(world_t *world, int which, const bl_nccl_rendezvous_t *rendezvous,
                      bl_nccl_rendezvous_step_t step) {
  end_t *end = &world->ends[which], *other = &world->ends[!which];
  store(end, rendezvous);
  if ((step.acts & BL_NCCL_RENDEZVOUS_SAY) != 0) {
    assert_true(other->count < WORDS);
    const bool failed =
        step.kind != BL_NCCL_RENDEZVOUS_IDS && step.kind != BL_NCCL_RENDEZVOUS_USE && step.err.status != BL_OK;
    other->words[other->count++] = (word_t){(uint8_t)step.kind, failed, step.generation};
  }
  if ((step.acts & BL_NCCL_RENDEZVOUS_OPEN) != 0) {
    assert_int_equal(step.acts & BL_NCCL_RENDEZVOUS_CLOSE, 0);
    end->opened = end->generation;
  }
  if ((step.acts & BL_NCCL_RENDEZVOUS_TELL_UP) != 0) {
    assert_int_equal(end->opened, end->generation);
    end->told = 1;
  }
  if ((step.acts & BL_NCCL_RENDEZVOUS_TELL_FAILED) != 0) {
    end->told = 2;
  }
}

typedef enum { TURN, MADE, FAILED, CLOSED, HEARD, EVENTS } event_t;

// Whether the event can happen at that end; then *world is what comes of it.
static bool happen(world_t *world, int which, event_t event, bool late) {
  end_t *end = &world->ends[which];
  const end_t *other = &world->ends[!which];
  bl_nccl_rendezvous_t rendezvous = load(end);
  const bool begun = rendezvous.state == BL_NCCL_RENDEZVOUS_MAKING || rendezvous.state == BL_NCCL_RENDEZVOUS_MADE;
  bl_nccl_rendezvous_step_t step;
  switch (event) {
  case TURN:
    if (!bl_nccl_rendezvous_can_begin(&rendezvous)) {
      return false;
    }
    step = bl_nccl_rendezvous_turn(&rendezvous);
    break;
  case MADE: // takes both
    if (rendezvous.state != BL_NCCL_RENDEZVOUS_MAKING || other->opened != end->opened) {
      return false;
    }
    step = bl_nccl_rendezvous_made(&rendezvous);
    break;
  case FAILED:
    if ((!begun && rendezvous.state != BL_NCCL_RENDEZVOUS_UP) || (!late && world->failures == 0)) {
      return false;
    }
    world->failures -= late ? 0 : 1;
    step = bl_nccl_rendezvous_failed(&rendezvous, &broken);
    break;
  case CLOSED:
    if (rendezvous.state != BL_NCCL_RENDEZVOUS_ENDING) {
      return false;
    }
    step = bl_nccl_rendezvous_closed(&rendezvous);
    break;
  default: {
    if (end->count == 0) {
      return false;
    }
    const word_t word = end->words[0];
    const bl_error_t fine = {.status = BL_OK};
    memmove(end->words, end->words + 1, (WORDS - 1) * sizeof word);
    end->count--;
    memset(&end->words[end->count], 0, sizeof word);
    step = bl_nccl_rendezvous_heard(&rendezvous, (bl_nccl_rendezvous_kind_t)word.kind, word.generation,
                                    word.failed ? &broken : &fine);
    break;
  }
  }
  carry_out(world, which, &rendezvous, step);
  return true;
}

static world_t *visited;
static unsigned visited_count;

static bool is_new(const world_t *world) {
  const uint8_t *bytes = (const uint8_t *)world;
  uint32_t at = 2166136261u;
  for (size_t i = 0; i < sizeof *world; i++) {
    at = (at ^ bytes[i]) * 16777619u;
  }
  for (at %= STATES; visited[at].ends[1].lower != 0xff; at = (at + 1) % STATES) {
    if (memcmp(&visited[at], world, sizeof *world) == 0) {
      return false;
    }
  }
  visited[at] = *world;
  assert_true(++visited_count < STATES / 2);
  return true;
}

// What no event changes any more.
static void check_end(const world_t *world) {
  const end_t *lower = &world->ends[0], *higher = &world->ends[1];
  const bool up = lower->state == BL_NCCL_RENDEZVOUS_UP && higher->state == BL_NCCL_RENDEZVOUS_UP &&
                  lower->generation == higher->generation && lower->told == 1 && higher->told == 1;
  const bool apart = lower->state == BL_NCCL_RENDEZVOUS_APART && higher->state == BL_NCCL_RENDEZVOUS_APART &&
                     lower->told == 2 && higher->told == 2;
  if (!up && !apart) {
    fail_msg("ends as %u (%u, told %u) and %u (%u, told %u)", lower->state, lower->generation, lower->told,
             higher->state, higher->generation, higher->told);
  }
}

static void explore(const world_t *world) {
  if (!is_new(world)) {
    return;
  }
  bool any = false;
  for (int which = 0; which < 2; which++) {
    for (int event = 0; event < EVENTS; event++) {
      world_t next = *world;
      if (happen(&next, which, (event_t)event, false)) {
        any = any || event != FAILED;
        explore(&next);
      }
    }
  }
  // Who makes something alone fails at its deadline.
  for (int which = 0; which < 2 && !any; which++) {
    world_t next = *world;
    const uint8_t state = next.ends[which].state;
    if ((state == BL_NCCL_RENDEZVOUS_MAKING || state == BL_NCCL_RENDEZVOUS_MADE) &&
        happen(&next, which, FAILED, true)) {
      any = true;
      explore(&next);
    }
  }
  if (!any) {
    check_end(world);
  }
}

static void every_order_ends_alike_at_both_ends(void **state) {
  (void)state;
  visited = malloc(STATES * sizeof *visited);
  assert_non_null(visited);
  memset(visited, 0xff, STATES * sizeof *visited);
  world_t world;
  memset(&world, 0, sizeof world);
  world.failures = FAILURES;
  for (int which = 0; which < 2; which++) {
    bl_nccl_rendezvous_t rendezvous;
    bl_nccl_rendezvous_init(&rendezvous, which == 0);
    world.ends[which].lower = which == 0;
    store(&world.ends[which], &rendezvous);
  }
  explore(&world);
  print_message("%u states\n", visited_count);
  assert_true(visited_count > 500);
  free(visited);
}

static void a_restarted_lower_end_begins_at_the_first_generation(void **state) {
  (void)state;
  const bl_error_t fine = {.status = BL_OK};
  bl_nccl_rendezvous_t higher;
  bl_nccl_rendezvous_init(&higher, false);
  (void)bl_nccl_rendezvous_heard(&higher, BL_NCCL_RENDEZVOUS_IDS, 7, &fine);
  (void)bl_nccl_rendezvous_turn(&higher);
  (void)bl_nccl_rendezvous_made(&higher);
  assert_int_equal(bl_nccl_rendezvous_heard(&higher, BL_NCCL_RENDEZVOUS_USE, 7, &fine).acts,
                   BL_NCCL_RENDEZVOUS_TELL_UP);
  assert_int_equal(bl_nccl_rendezvous_part(&higher, &broken).acts, BL_NCCL_RENDEZVOUS_CLOSE);
  bl_nccl_rendezvous_begin(&higher);
  assert_int_equal(bl_nccl_rendezvous_heard(&higher, BL_NCCL_RENDEZVOUS_IDS, 1, &fine).acts, 0);
  assert_false(bl_nccl_rendezvous_can_begin(&higher)); // what is left of the old one must go first
  (void)bl_nccl_rendezvous_closed(&higher);
  assert_true(bl_nccl_rendezvous_can_begin(&higher));
  assert_int_equal(bl_nccl_rendezvous_turn(&higher).acts, BL_NCCL_RENDEZVOUS_OPEN);
}

static void older_generations_are_not_heard(void **state) {
  (void)state;
  const bl_error_t fine = {.status = BL_OK};
  bl_nccl_rendezvous_t lower;
  bl_nccl_rendezvous_init(&lower, true);
  for (uint32_t generation = 1; generation <= 2; generation++) {
    bl_nccl_rendezvous_step_t step = bl_nccl_rendezvous_turn(&lower);
    assert_int_equal(step.generation, generation);
    (void)bl_nccl_rendezvous_made(&lower);
    if (generation == 2) { // what the higher end said before it heard of this one
      assert_int_equal(bl_nccl_rendezvous_heard(&lower, BL_NCCL_RENDEZVOUS_READY, 1, &fine).acts, 0);
      assert_int_equal(bl_nccl_rendezvous_heard(&lower, BL_NCCL_RENDEZVOUS_BROKE, 1, &broken).acts, 0);
    }
    assert_int_equal(bl_nccl_rendezvous_heard(&lower, BL_NCCL_RENDEZVOUS_READY, generation, &fine).acts,
                     BL_NCCL_RENDEZVOUS_SAY | BL_NCCL_RENDEZVOUS_TELL_UP);
    assert_int_equal(bl_nccl_rendezvous_failed(&lower, &broken).acts,
                     BL_NCCL_RENDEZVOUS_CLOSE | BL_NCCL_RENDEZVOUS_SAY);
    (void)bl_nccl_rendezvous_closed(&lower);
    assert_true(bl_nccl_rendezvous_can_begin(&lower)); // it is made again at once
  }
}

static void what_failed_is_made_again_when_it_is_wanted(void **state) {
  (void)state;
  bl_nccl_rendezvous_t lower;
  bl_nccl_rendezvous_init(&lower, true);
  (void)bl_nccl_rendezvous_turn(&lower);
  bl_nccl_rendezvous_step_t step = bl_nccl_rendezvous_failed(&lower, &broken);
  assert_int_equal(step.acts, BL_NCCL_RENDEZVOUS_CLOSE | BL_NCCL_RENDEZVOUS_SAY | BL_NCCL_RENDEZVOUS_TELL_FAILED);
  assert_int_equal(step.kind, BL_NCCL_RENDEZVOUS_DROP);
  (void)bl_nccl_rendezvous_closed(&lower);
  assert_false(bl_nccl_rendezvous_can_begin(&lower));
  assert_int_equal(lower.err.status, BL_UNAVAILABLE);
  bl_nccl_rendezvous_want(&lower);
  assert_true(bl_nccl_rendezvous_can_begin(&lower));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_order_ends_alike_at_both_ends),
      cmocka_unit_test(a_restarted_lower_end_begins_at_the_first_generation),
      cmocka_unit_test(older_generations_are_not_heard),
      cmocka_unit_test(what_failed_is_made_again_when_it_is_wanted),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
