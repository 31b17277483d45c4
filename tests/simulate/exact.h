// SPDX-License-Identifier: Apache-2.0
// Exact search for tests: the least time in which a step can end at unit costs (F, I and W of 1, no latency), on the
// placement of a given schedule and with no more blocks on any stage than its worst peak. Asks, for one time after the
// other, whether a step that short exists, by depth-first search over what stages have done at each moment.
//
// Without losing an optimum: micro-batches of a pipe pass in order, since all are alike (so do those that are cut into
// slices, each with its slices behind one another); W's of a stage are alike; and a
// stage stands still only where nothing but F's could run and memory may run short (or where a fused B, which takes two
// units, would not fit a gap), since whatever is moved into a gap from later helps. A state is given up when some stage
// cannot finish in time: what it has left, in the order of how much must follow each operation elsewhere (Jackson's
// rule).
//
// Bounded by the number of states looked at, so that all machines give the same answer.
#ifndef BALLAST_TESTS_SIMULATE_EXACT_H
#define BALLAST_TESTS_SIMULATE_EXACT_H

#include "schedule/ir/schedule.h"

#include <stdlib.h>
#include <string.h>

#define EXACT_STAGES  4
#define EXACT_VIRTUAL 8
#define EXACT_BATCHES 6
#define EXACT_TABLE   (1u << 20) // states remembered; beyond, the search goes on without remembering

typedef struct exact_state {
  uint8_t forwards[EXACT_VIRTUAL], inputs[EXACT_VIRTUAL]; // done, by virtual stage
  uint8_t weights[EXACT_STAGES]; // done, by stage; of a fused B the second half that comes next: its chunk's place + 1
} exact_state_t;

typedef struct exact {
  uint32_t stages, virtual_stages, depth, slices;
  bool fused;
  uint32_t stage_of[EXACT_VIRTUAL];
  uint32_t limit;                                                          // blocks of every stage
  uint32_t batches[EXACT_VIRTUAL];                                         // micro-batches of its pipe, or their slices
  uint32_t chunk_count[EXACT_STAGES], chunks[EXACT_STAGES][EXACT_VIRTUAL]; // virtual stages of a stage
  uint32_t tail_forward[EXACT_VIRTUAL], tail_input[EXACT_VIRTUAL], tail_weight[EXACT_VIRTUAL]; // time that must follow
  uint64_t *keys; // [EXACT_TABLE] states that cannot end in time, when reached at `times` or later
  uint8_t *times;
  uint32_t remembered, t_end;
  uint64_t states, budget;
  bool spent;
} exact_t;

typedef struct exact_result {
  uint32_t least; // no step is shorter
  bool reached;   // and one of `least` exists
  uint64_t states;
} exact_result_t;

static inline uint64_t exact_key(const exact_t *e, const exact_state_t *state) {
  // 3 + 3 bits for each of 8 virtual stages (4 + 4 with up to 4 of them), 4 for each of 4 stages: 64
  uint32_t bits = e->virtual_stages <= EXACT_STAGES ? 4 : 3;
  uint64_t key = 0;
  for (uint32_t v = 0; v < e->virtual_stages; v++) {
    key = key << 2 * bits | (uint64_t)(state->forwards[v] << bits | state->inputs[v]);
  }
  for (uint32_t s = 0; s < e->stages; s++) {
    key = key << 4 | state->weights[s];
  }
  return key;
}

// The entry of the state; empty ones have time 0.
static inline uint32_t exact_slot(const exact_t *e, uint64_t key) {
  uint32_t at = (uint32_t)((key * 0x9e3779b97f4a7c15ull) >> 44) % EXACT_TABLE;
  while (e->times[at] != 0 && e->keys[at] != key) {
    at = (at + 1) % EXACT_TABLE;
  }
  return at;
}

static inline uint32_t exact_inputs_of(const exact_t *e, const exact_state_t *state, uint32_t s) {
  uint32_t inputs = 0;
  for (uint32_t c = 0; c < e->chunk_count[s]; c++) {
    inputs += state->inputs[e->chunks[s][c]];
  }
  return inputs;
}

// Blocks of the stage that were released.
static inline uint32_t exact_released(const exact_t *e, const exact_state_t *state, uint32_t s) {
  return e->fused ? exact_inputs_of(e, state, s) - (state->weights[s] > 0) : state->weights[s];
}

// Can no stage finish by t_end any more? Counts what is left by how much must follow it.
static inline bool exact_hopeless(const exact_t *e, const exact_state_t *state, uint32_t now) {
  for (uint32_t s = 0; s < e->stages; s++) {
    uint32_t left[4 * EXACT_VIRTUAL + 2] = {0}; // by tail
    uint32_t all = 0;
    for (uint32_t c = 0; c < e->chunk_count[s]; c++) {
      uint32_t v = e->chunks[s][c], m = e->batches[v];
      left[e->tail_forward[v]] += m - state->forwards[v];
      left[e->tail_input[v]] += m - state->inputs[v];
      left[e->tail_weight[v]] += e->fused ? m - state->inputs[v] + (state->weights[s] == c + 1) : m;
    }
    left[0] -= e->fused ? 0 : state->weights[s];
    for (uint32_t tail = 4 * EXACT_VIRTUAL + 2; tail-- > 0;) {
      all += left[tail];
      if (left[tail] > 0 && now + all + tail > e->t_end) {
        return true;
      }
    }
  }
  return false;
}

static inline bool exact_halfway(const exact_t *e, const exact_state_t *state, uint32_t v) {
  uint32_t s = e->stage_of[v];
  return state->weights[s] > 0 && e->chunks[s][state->weights[s] - 1] == v;
}

// What a stage may run next: virtual stage * 4 + type, or EXACT_IDLE.
#define EXACT_IDLE UINT32_MAX

// Has the operation before the next one, on another virtual stage, ended?
static inline bool exact_ready(const exact_t *e, const exact_state_t *state, bl_op_type_t type, uint32_t v) {
  if (type == BL_OP_F) {
    return state->forwards[v] < e->batches[v] && (v % e->depth == 0 || state->forwards[v - 1] > state->forwards[v]);
  }
  // Backwards of a micro-batch go from its last slice to the first.
  uint32_t done = state->inputs[v], k = e->slices;
  if (done == e->batches[v] || state->forwards[v] < done / k * k + (k - done % k)) {
    return false;
  }
  if ((v + 1) % e->depth == 0) {
    return true;
  }
  // A fused B passes its gradient on when both halves are done.
  uint32_t next = v + 1;
  return state->inputs[next] - (e->fused && exact_halfway(e, state, next)) > state->inputs[v];
}

static inline uint32_t exact_choices(const exact_t *e, const exact_state_t *state, uint32_t s,
                                     uint32_t choices[2 * EXACT_VIRTUAL + 2]) {
  uint32_t count = 0, held = 0, left = 0, inputs = exact_inputs_of(e, state, s);
  if (e->fused && state->weights[s] > 0) {
    choices[0] = BL_OP_W; // the second half
    return 1;
  }
  for (uint32_t c = e->chunk_count[s]; c-- > 0;) {
    uint32_t v = e->chunks[s][c];
    held += state->forwards[v];
    left += e->batches[v] - state->forwards[v];
    if (exact_ready(e, state, BL_OP_I, v)) {
      choices[count++] = v * 4 + BL_OP_I;
    }
  }
  held -= exact_released(e, state, s);
  bool tight = held + left > e->limit; // an F that fills a gap might take memory that is needed before
  bool idle = e->fused ? true : count == 0 && tight;
  for (uint32_t c = e->chunk_count[s]; c-- > 0 && held < e->limit;) {
    uint32_t v = e->chunks[s][c];
    if (exact_ready(e, state, BL_OP_F, v)) {
      choices[count++] = v * 4 + BL_OP_F;
      idle = idle && tight;
    }
  }
  if (!e->fused && inputs > state->weights[s]) {
    choices[count++] = BL_OP_W;
    idle = false;
  }
  if (count == 0 || idle) {
    choices[count++] = EXACT_IDLE;
  }
  return count;
}

static inline bool exact_done(const exact_t *e, const exact_state_t *state) {
  for (uint32_t s = 0; s < e->stages; s++) {
    uint32_t total = 0;
    for (uint32_t c = 0; c < e->chunk_count[s]; c++) {
      total += e->batches[e->chunks[s][c]];
    }
    if (exact_released(e, state, s) < total) {
      return false;
    }
  }
  return true;
}

// Runs the choice on stage s.
static inline void exact_run(const exact_t *e, exact_state_t *state, uint32_t s, uint32_t choice) {
  uint32_t v = choice / 4;
  if (choice == EXACT_IDLE) {
    return;
  }
  switch (choice % 4) {
  case BL_OP_F:
    state->forwards[v]++;
    break;
  case BL_OP_W:
    state->weights[s] = e->fused ? 0 : (uint8_t)(state->weights[s] + 1);
    break;
  default:
    state->inputs[v]++;
    for (uint32_t c = 0; e->fused && c < e->chunk_count[s]; c++) {
      state->weights[s] = e->chunks[s][c] == v ? (uint8_t)(c + 1) : state->weights[s];
    }
  }
}

static inline bool exact_from(exact_t *e, const exact_state_t *state, uint32_t now);

// Chooses for stage s and those after it, all of them by the state at `now`.
static inline bool exact_step(exact_t *e, const exact_state_t *state, const exact_state_t *next, uint32_t now,
                              uint32_t s) {
  if (s == e->stages) {
    return exact_from(e, next, now + 1);
  }
  uint32_t choices[2 * EXACT_VIRTUAL + 2], count = exact_choices(e, state, s, choices);
  for (uint32_t k = 0; k < count && !e->spent; k++) {
    exact_state_t after = *next;
    exact_run(e, &after, s, choices[k]);
    if (exact_step(e, state, &after, now, s + 1)) {
      return true;
    }
  }
  return false;
}

// Can a step end by t_end from here?
static inline bool exact_from(exact_t *e, const exact_state_t *state, uint32_t now) {
  if (exact_done(e, state)) {
    return true;
  }
  if (exact_hopeless(e, state, now)) {
    return false;
  }
  uint64_t key = exact_key(e, state);
  uint32_t slot = exact_slot(e, key);
  if (e->times[slot] != 0 && e->times[slot] <= now + 1) {
    return false;
  }
  if (++e->states > e->budget) {
    e->spent = true;
    return false;
  }
  if (exact_step(e, state, state, now, 0)) {
    return true;
  }
  slot = exact_slot(e, key); // others were added meanwhile
  if (!e->spent && (e->times[slot] != 0 || e->remembered < EXACT_TABLE / 2)) {
    e->remembered += e->times[slot] == 0;
    e->keys[slot] = key;
    e->times[slot] = (uint8_t)(now + 1);
  }
  return false;
}

// Micro-batches of a bidirectional schedule's pipe are what its first stage lists.
static inline void exact_prepare(exact_t *e, const bl_schedule_t *schedule, bool fused, uint32_t limit) {
  e->stages = schedule->stages;
  e->virtual_stages = schedule->virtual_stages;
  e->depth = bl_schedule_depth(schedule);
  e->slices = schedule->slices;
  e->fused = fused;
  e->limit = limit;
  for (uint32_t v = 0; v < e->virtual_stages; v++) {
    uint32_t s = schedule->stage_of[v], at = v % e->depth, after = e->depth - 1 - at;
    e->stage_of[v] = s;
    e->chunks[s][e->chunk_count[s]++] = v;
    for (size_t i = 0; i < schedule->lists[s].count; i++) {
      bl_op_t op = schedule->lists[s].ops[i];
      e->batches[v] += op.virtual_stage == v && op.type == BL_OP_F;
    }
    e->tail_weight[v] = fused ? 2 * at : 0;
    e->tail_input[v] = fused ? 2 * at + 1 : at + 1;
    e->tail_forward[v] = fused ? after + 2 * e->depth : after + e->depth + 1;
  }
}

// From `least` on, up to `most`, which is known to be possible. `budget`: states for all of it.
static inline exact_result_t exact_search(const bl_schedule_t *schedule, bool fused, uint32_t limit, uint32_t least,
                                          uint32_t most, uint64_t budget) {
  exact_t *e = calloc(1, sizeof *e);
  exact_result_t result = {.least = least};
  e->keys = malloc(EXACT_TABLE * sizeof e->keys[0]);
  e->times = malloc(EXACT_TABLE);
  exact_prepare(e, schedule, fused, limit);
  e->budget = budget;
  exact_state_t start = {0};
  for (; result.least < most && !e->spent && !result.reached; result.least += !e->spent && !result.reached) {
    memset(e->times, 0, EXACT_TABLE);
    e->remembered = 0;
    e->t_end = result.least;
    result.reached = exact_from(e, &start, 0);
  }
  result.reached = result.reached || result.least == most;
  result.states = e->states;
  free(e->times);
  free(e->keys);
  free(e);
  return result;
}

#endif
