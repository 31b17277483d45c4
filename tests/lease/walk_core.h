// SPDX-License-Identifier: Apache-2.0
// Inside of walk.h: the walk's state, and its parts.
#ifndef TESTS_LEASE_WALK_CORE_H
#define TESTS_LEASE_WALK_CORE_H

#include "lease/model.h"
#include "lease/walk.h"

#define WALK_RECALL 12 // calls shown before a failure

typedef struct walk {
  bl_lease_table_t *table;
  model_t model;
  uint64_t key, draws, calls;
  uint64_t last_incarnation;
  char recall[WALK_RECALL][160];
  char failure[256];
} walk_t;

enum { REQUEST_RESERVE = 1, REQUEST_UNRESERVE, REQUEST_EVICT, REQUEST_LOAD, REQUEST_RELEASE, REQUEST_KEEP };

// walk.c
extern const char *const walk_jobs[MODEL_JOBS];
extern const uint64_t walk_plans[MODEL_JOBS];
uint64_t walk_draw(walk_t *walk, uint64_t bound);
bool walk_chance(walk_t *walk, unsigned percent);
// What is done now, for those who read a failure.
void walk_say(walk_t *walk, const char *format, ...) __attribute__((format(printf, 2, 3)));
// The first that does not hold ends the walk.
void walk_expect(walk_t *walk, bool holds, const char *format, ...) __attribute__((format(printf, 3, 4)));
void walk_expect_reason(walk_t *walk, bl_lease_reason_t got, bl_lease_reason_t wanted);
bl_id128_t walk_id128(uint64_t value);

// walk_compare.c
void walk_compare(walk_t *walk);
// Takes over the slots that a granted reservation chose, and which idle ones went when a plan was given up.
void walk_adopt_new_slots(walk_t *walk, const model_session_t *session);
void walk_adopt_dropped_slots(walk_t *walk, const model_session_t *session);

// One call of a kind, or what one comes to.
void walk_take_actions(walk_t *walk); // walk_transfer.c
void walk_end_transfer(walk_t *walk);
model_session_t *walk_any_session(walk_t *walk); // walk_session.c; NULL: none is open
void walk_open(walk_t *walk);
void walk_use_session(walk_t *walk);
void walk_request(walk_t *walk); // walk_request.c
void walk_operate(walk_t *walk); // walk_operator.c

#endif
