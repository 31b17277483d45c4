// SPDX-License-Identifier: Apache-2.0
// Exhaustive breadth-first search over the states of a small model. The model packs a state into bytes; the search
// knows no more about it than that, and remembers 128-bit hashes of the states it has seen.
#ifndef TESTS_STEP_EXPLORE_H
#define TESTS_STEP_EXPLORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXPLORE_STATE_BYTES 704
#define EXPLORE_TRACE       96

typedef struct explore_state {
  uint16_t size;
  uint8_t bytes[EXPLORE_STATE_BYTES];
} explore_state_t;

// What a successor looks like; `broken` is NULL or names the invariant that the transition or the new state violates.
typedef struct explore_step {
  explore_state_t state;
  const char *broken;
} explore_step_t;

typedef struct explore_model {
  const void *context;
  void (*initial)(const void *context, explore_state_t *state);
  // The next successors are of this state, which stays where it is meanwhile.
  void (*enter)(const void *context, const explore_state_t *state);
  // Fills in the transition number `action` of the state entered. False when that one is not possible here.
  bool (*successor)(const void *context, unsigned action, explore_step_t *step);
  // Looks at a state that is new (may be missing): NULL, or the invariant that does not hold in it.
  const char *(*inspect)(const void *context, const explore_state_t *state);
  unsigned actions; // numbers are 0 .. actions - 1
  // Says what `action` does in `state`, for traces.
  void (*describe)(const void *context, const explore_state_t *state, unsigned action, char *text, size_t text_bytes);
} explore_model_t;

typedef struct explore_result {
  size_t states;
  size_t transitions;
  unsigned depth;        // of the deepest state
  bool complete;         // every reachable state was seen
  const char *broken;    // the first violated invariant, NULL when none
  unsigned trace_length; // actions from the initial state to the violation
  unsigned trace[EXPLORE_TRACE];
} explore_result_t;

// Searches until a violation, the end, or `limit` states.
explore_result_t explore(const explore_model_t *model, size_t limit);
// Prints the trace of a violation to stdout, one action per line.
void explore_print_trace(const explore_model_t *model, const explore_result_t *result);

#endif
