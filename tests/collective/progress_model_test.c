// SPDX-License-Identifier: Apache-2.0
// Every interleaving of members on a progress (collective/progress.h), by its own functions that are not let wait: a
// member writes, publishes, reads and takes in steps of which any may be next, gives an attempt up anywhere, and begins
// the next one by the rules. In every attempt that all end well every read is of what was written for just this
// collective, before and after it; and nobody waits for ever. Without one of the rules the same search finds a read of
// something else.
#include "collective/progress.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MOST          3
#define WINDOWS       2
#define NUMBERS       4 // collectives of an attempt
#define ATTEMPTS      2
#define TABLE         (1u << 22) // states known, a power of 2
#define BEING_WRITTEN 0xff

typedef enum { ACQUIRE, WRITE, PUBLISH, AWAIT, READ, TAKE, SETTLE, DONE } step_t;
typedef enum { ALL_RULES, NO_ACQUIRE, NO_SETTLE, PUBLISH_FIRST } rules_t;

typedef struct {
  uint8_t attempt, number, step, peer; // where it is; `peer` is the one it waits for or reads
  uint8_t gave_up;                     // attempts, a bit each
  uint8_t misread;
  uint8_t windows[WINDOWS]; // what was written there last: attempt << 4 | number
  uint8_t seen;             // when the read began
} member_t;

typedef struct {
  uint64_t ready[MOST], taken[MOST];
  member_t members[MOST];
  uint8_t may_give_up; // how often, all together
} state_t;

typedef struct {
  uint32_t members;
  rules_t rules;
  state_t *known;
  bool *used;
  uint64_t count;
  bool misread, stuck;
} search_t;

// Collectives use windows 0, 1, 1, 0: again after others, and at once.
static uint32_t window_of(uint32_t number) {
  return number / 2 % 2;
}

static uint32_t last_in_window_of(uint32_t number) {
  return number == 3 ? 2 : number == 4 ? 1 : 0;
}

static uint8_t word_of(const member_t *member) {
  return (uint8_t)(member->attempt << 4 | member->number);
}

// The state's flags as pages that the functions of the progress work on.
typedef struct {
  bl_group_page_t pages[MOST];
  bl_group_progress_t progress; // of the member that moves
} table_t;

static void lay_out(const state_t *state, uint32_t members, uint32_t rank, table_t *table) {
  table->progress = (bl_group_progress_t){
      .page = &table->pages[rank], .rank = rank, .members = members, .attempt = state->members[rank].attempt};
  for (uint32_t i = 0; i < members; i++) {
    atomic_init(&table->pages[i].ready, state->ready[i]);
    atomic_init(&table->pages[i].taken, state->taken[i]);
    table->progress.pages[i] = &table->pages[i];
  }
}

static void keep(state_t *state, uint32_t rank, table_t *table) {
  state->ready[rank] = atomic_load(&table->pages[rank].ready);
  state->taken[rank] = atomic_load(&table->pages[rank].taken);
}

static void begin_attempt(state_t *state, table_t *table, uint32_t rank) {
  member_t *member = &state->members[rank];
  if (member->attempt == ATTEMPTS) {
    member->attempt++; // whoever still waits for this one sees that it is past
    member->number = member->peer = member->seen = 0;
    member->step = DONE;
    bl_group_progress_begin(&table->progress, member->attempt);
    return;
  }
  member->attempt++;
  member->number = 1;
  member->step = ACQUIRE;
  member->peer = 0;
  member->seen = 0;
  bl_group_progress_begin(&table->progress, member->attempt);
}

static void give_up(state_t *state, table_t *table, uint32_t rank) {
  state->members[rank].gave_up |= (uint8_t)(1u << state->members[rank].attempt);
  begin_attempt(state, table, rank);
}

// The next member that is not `rank` itself.
static void next_peer(member_t *member, uint32_t rank, uint8_t then, uint32_t members) {
  member->peer++;
  if (member->peer == rank) {
    member->peer++;
  }
  if (member->peer >= members) {
    member->step = then;
    member->peer = 0;
  }
}

// Waits that do not wait. False: it would.
static bool wait_taken(state_t *state, table_t *table, uint32_t rank, uint32_t number, uint8_t then, uint32_t members) {
  static const bl_group_progress_wait_t at_once = {0};
  member_t *member = &state->members[rank];
  if (member->peer == rank) {
    next_peer(member, rank, then, members);
    return true;
  }
  bl_status_t status = bl_group_progress_wait_taken(&table->progress, member->peer, number, &at_once, NULL);
  if (status == BL_OK) {
    next_peer(member, rank, then, members);
  }
  return status == BL_OK;
}

static bool await_ready(state_t *state, table_t *table, uint32_t rank) {
  static const bl_group_progress_wait_t at_once = {0};
  member_t *member = &state->members[rank];
  bl_status_t status = bl_group_progress_wait_ready(&table->progress, member->peer, member->number, &at_once, NULL);
  if (status == BL_UNAVAILABLE) {
    give_up(state, table, rank);
  } else if (status == BL_OK) {
    member->seen = state->members[member->peer].windows[window_of(member->number)];
    member->step = READ;
  }
  return status != BL_DEADLINE;
}

// One step of this member. False: it waits.
static bool move(const search_t *search, state_t *state, table_t *table, uint32_t rank) {
  member_t *member = &state->members[rank];
  const uint32_t members = search->members;
  uint8_t *window = &member->windows[window_of(member->number)];
  const uint32_t before = last_in_window_of(member->number);
  switch ((step_t)member->step) {
  case ACQUIRE:
    if (search->rules == PUBLISH_FIRST) {
      bl_group_progress_publish(&table->progress, member->number);
    }
    if (before == 0 || search->rules == NO_ACQUIRE) {
      member->step = WRITE;
      *window = BEING_WRITTEN;
      return true;
    }
    if (!wait_taken(state, table, rank, before, WRITE, members)) {
      return false;
    }
    if (member->step == WRITE) {
      *window = BEING_WRITTEN;
    }
    return true;
  case WRITE:
    *window = word_of(member);
    member->step = PUBLISH;
    return true;
  case PUBLISH:
    bl_group_progress_publish(&table->progress, member->number);
    member->step = AWAIT;
    member->peer = rank == 0 ? 1 : 0;
    return true;
  case AWAIT:
    return await_ready(state, table, rank);
  case READ:
    if (member->seen != word_of(member) ||
        state->members[member->peer].windows[window_of(member->number)] != member->seen) {
      member->misread |= (uint8_t)(1u << member->attempt);
    }
    member->seen = 0;
    member->step = AWAIT;
    next_peer(member, rank, TAKE, members);
    return true;
  case TAKE:
    bl_group_progress_take(&table->progress, member->number);
    member->step = member->number == NUMBERS ? SETTLE : ACQUIRE;
    member->number = (uint8_t)(member->number + (member->number < NUMBERS));
    return true;
  case SETTLE:
    if (search->rules == NO_SETTLE) {
      begin_attempt(state, table, rank);
      return true;
    }
    if (!wait_taken(state, table, rank, NUMBERS, DONE, members)) {
      return false;
    }
    if (member->step == DONE) {
      begin_attempt(state, table, rank);
    }
    return true;
  case DONE:
    break;
  }
  return false;
}

// ---- the search

static bool is_new(search_t *search, const state_t *state) {
  uint64_t digest = 0xcbf29ce484222325u;
  for (size_t i = 0; i < sizeof *state; i++) {
    digest = (digest ^ ((const uint8_t *)state)[i]) * 0x100000001b3u;
  }
  for (uint64_t at = digest % TABLE;; at = (at + 1) % TABLE) {
    if (!search->used[at]) {
      search->used[at] = true;
      memcpy(&search->known[at], state, sizeof *state);
      assert_true(++search->count < TABLE / 2);
      return true;
    }
    if (memcmp(&search->known[at], state, sizeof *state) == 0) {
      return false;
    }
  }
}

// An attempt that nobody gave up, and all are past, in which somebody read something else.
static bool has_misread(const search_t *search, const state_t *state) {
  uint8_t gave_up = 0, misread = 0, past = 0xff;
  for (uint32_t i = 0; i < search->members; i++) {
    gave_up |= state->members[i].gave_up;
    misread |= state->members[i].misread;
    past &= (uint8_t)((1u << state->members[i].attempt) - 1);
  }
  return (misread & past & (uint8_t)~gave_up) != 0;
}

static void visit(search_t *search, const state_t *from) {
  bool moved = false, done = true;
  for (uint32_t rank = 0; rank < search->members; rank++) {
    for (int gives_up = 0; gives_up < 2; gives_up++) {
      state_t state;
      table_t table;
      memcpy(&state, from, sizeof state); // with what is between its members: it is compared by bytes
      lay_out(&state, search->members, rank, &table);
      done = done && state.members[rank].step == DONE;
      if (gives_up == 1) {
        if (state.may_give_up == 0 || state.members[rank].step == DONE) {
          continue;
        }
        state.may_give_up--;
        give_up(&state, &table, rank);
      } else if (!move(search, &state, &table, rank)) {
        continue;
      } else {
        moved = true;
      }
      keep(&state, rank, &table);
      search->misread = search->misread || has_misread(search, &state);
      if (is_new(search, &state)) {
        visit(search, &state);
      }
    }
  }
  search->stuck = search->stuck || (!moved && !done);
}

static search_t explore(uint32_t members, uint8_t may_give_up, rules_t rules) {
  search_t search = {.members = members,
                     .rules = rules,
                     .known = malloc(TABLE * sizeof(state_t)),
                     .used = calloc(TABLE, sizeof(bool))};
  state_t start;
  assert_non_null(search.known);
  assert_non_null(search.used);
  memset(&start, 0, sizeof start);
  start.may_give_up = may_give_up;
  for (uint32_t rank = 0; rank < members; rank++) {
    table_t table;
    lay_out(&start, members, rank, &table);
    begin_attempt(&start, &table, rank);
    keep(&start, rank, &table);
  }
  assert_true(is_new(&search, &start));
  visit(&search, &start);
  printf("%u members, %u times given up: %llu states\n", members, may_give_up, (unsigned long long)search.count);
  free(search.known);
  free(search.used);
  return search;
}

static void every_order_reads_what_was_written(void **state) {
  (void)state;
  const struct {
    uint32_t members;
    uint8_t may_give_up;
  } worlds[] = {{2, 0}, {2, 4}, {3, 0}, {3, 2}};
  for (size_t i = 0; i < sizeof worlds / sizeof worlds[0]; i++) {
    const search_t search = explore(worlds[i].members, worlds[i].may_give_up, ALL_RULES);
    assert_false(search.misread);
    assert_false(search.stuck);
  }
}

static void no_rule_is_for_nothing(void **state) {
  (void)state;
  for (rules_t rules = NO_ACQUIRE; rules <= PUBLISH_FIRST; rules++) {
    assert_true(explore(2, 0, rules).misread);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_order_reads_what_was_written),
                                     cmocka_unit_test(no_rule_is_for_nothing)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
