// SPDX-License-Identifier: Apache-2.0
// A holder of leases for tests: one session, its key, its numbers; calls in one line.
#ifndef TESTS_LEASE_HOLDER_H
#define TESTS_LEASE_HOLDER_H

#include "lease/table.h"

#include <string.h>

#define GRANULE ((uint64_t)BL_LEASE_GRANULE_BYTES)

typedef struct holder {
  bl_lease_table_t *table;
  uint64_t session, sequence, acknowledged;
  bl_id128_t key, store;
  uint64_t now_ns;
} holder_t;

static inline bl_id128_t id128_of(uint64_t value) {
  bl_id128_t id = {{0}};
  memcpy(id.bytes, &value, sizeof value);
  return id;
}

// `process` is a random number of the process, `plan` one of the job's; the fields of the same names of
// bl_lease_open_t.
static inline bl_lease_reason_t holder_open_plan(holder_t *holder, bl_lease_table_t *table, const char *job,
                                                 uint64_t plan, uint32_t stage, uint64_t process, uint64_t incarnation,
                                                 uint64_t arena_bytes) {
  uint64_t now_ns = holder->now_ns;
  bl_lease_open_t open = {.job = job,
                          .plan = plan,
                          .process = process,
                          .stage = stage,
                          .holder = id128_of(incarnation),
                          .key = id128_of(incarnation + 7777),
                          .arena_bytes = arena_bytes};
  bl_lease_opened_t opened = {0};
  bl_lease_answer_t answer;
  (void)bl_lease_table_open(table, &open, now_ns, &opened, &answer);
  if (answer.reason == BL_LEASE_GRANTED) {
    *holder = (holder_t){.table = table,
                         .session = opened.session,
                         .key = opened.key,
                         .store = bl_lease_table_config(table)->incarnation,
                         .now_ns = now_ns};
    if (opened.arena_needed) {
      bl_lease_table_arena_made(table, opened.job, true);
    }
  }
  return answer.reason;
}

static inline bl_lease_reason_t holder_open(holder_t *holder, bl_lease_table_t *table, const char *job, uint32_t stage,
                                            uint64_t incarnation, uint64_t arena_bytes) {
  return holder_open_plan(holder, table, job, 0, stage, incarnation, incarnation, arena_bytes);
}

// The frame of the next request; everything before it is acknowledged.
static inline bl_lease_request_t holder_next(holder_t *holder) {
  holder->sequence++;
  return (bl_lease_request_t){.session = holder->session,
                              .key = holder->key,
                              .sequence = holder->sequence,
                              .acknowledged = holder->sequence - 1,
                              .now_ns = holder->now_ns};
}

static inline bl_lease_reason_t holder_reserve(holder_t *holder, uint64_t plan, uint64_t bytes, uint32_t count) {
  bl_lease_request_t request = holder_next(holder);
  bl_lease_demand_t demand = {.bytes = bytes, .count = count};
  bl_lease_answer_t answer;
  (void)bl_lease_table_reserve(holder->table, &request, plan, &demand, 1, &answer);
  return answer.reason;
}

static inline bl_lease_reason_t holder_unreserve(holder_t *holder, uint64_t plan) {
  bl_lease_request_t request = holder_next(holder);
  bl_lease_answer_t answer;
  (void)bl_lease_table_unreserve(holder->table, &request, plan, &answer);
  return answer.reason;
}

// The tokens of up to `capacity` slots of the session; returns how many there are.
static inline uint32_t holder_slots(const holder_t *holder, bl_lease_token_t *tokens, uint32_t capacity) {
  uint64_t cursor = 0;
  uint32_t count = 0;
  bl_lease_view_t view;
  while (bl_lease_table_slots(holder->table, holder->session, &cursor, &view)) {
    if (count < capacity) {
      tokens[count] = (bl_lease_token_t){holder->store, view.id, view.generation};
    }
    count++;
  }
  return count;
}

static inline bl_lease_decision_t holder_evict(holder_t *holder, const bl_lease_token_t *token, uint64_t bytes,
                                               uint64_t checksum, bl_lease_reason_t *reason) {
  bl_lease_request_t request = holder_next(holder);
  bl_lease_evict_t evict = {.token = *token, .bytes = bytes, .checksum = checksum};
  bl_lease_answer_t answer;
  bl_lease_decision_t decision = bl_lease_table_evict(holder->table, &request, &evict, &answer);
  *reason = answer.reason;
  return decision;
}

static inline bl_lease_reason_t holder_load(holder_t *holder, const bl_lease_token_t *token,
                                            bl_lease_answer_t *answer) {
  bl_lease_request_t request = holder_next(holder);
  (void)bl_lease_table_load(holder->table, &request, token, false, answer);
  return answer->reason;
}

static inline bl_lease_reason_t holder_release(holder_t *holder, bl_lease_token_t *token, const uint64_t *checksum) {
  bl_lease_request_t request = holder_next(holder);
  bl_lease_answer_t answer;
  (void)bl_lease_table_release(holder->table, &request, token, checksum, &answer);
  if (answer.reason == BL_LEASE_GRANTED) {
    token->generation = answer.generation;
  }
  return answer.reason;
}

// Evicts and lets the transfer end well.
static inline bl_lease_reason_t holder_store(holder_t *holder, const bl_lease_token_t *token, uint64_t bytes,
                                             uint64_t checksum) {
  bl_lease_reason_t reason;
  if (holder_evict(holder, token, bytes, checksum, &reason) == BL_LEASE_BEGIN) {
    bl_lease_table_transfer_ended(holder->table, token->id, token->generation, true, checksum, holder->now_ns);
  }
  return reason;
}

// Takes and forgets all actions.
static inline void drain_actions(bl_lease_table_t *table) {
  bl_lease_action_t action;
  while (bl_lease_table_next_action(table, &action)) {
  }
}

#endif
