// SPDX-License-Identifier: Apache-2.0
#include "step/explore.h"

#include "base/hash.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// How a state was reached first.
typedef struct node {
  uint32_t parent;
  uint32_t action;
} node_t;

typedef struct seen {
  uint64_t (*hashes)[2]; // open addressing; both 0: empty
  size_t capacity, count;
} seen_t;

typedef struct frontier {
  explore_state_t *states;
  uint32_t *nodes;
  size_t count, capacity;
} frontier_t;

static void *grow(void *block, size_t count, size_t item_bytes) {
  void *bigger = realloc(block, count * item_bytes);
  if (!bigger) {
    fprintf(stderr, "explore: out of memory at %zu items\n", count);
    abort();
  }
  return bigger;
}

static bool insert_hash(seen_t *seen, const uint64_t hash[2]) {
  for (size_t i = hash[0] & (seen->capacity - 1);; i = (i + 1) & (seen->capacity - 1)) {
    uint64_t *entry = seen->hashes[i];
    if (entry[0] == hash[0] && entry[1] == hash[1]) {
      return false;
    }
    if (entry[0] == 0 && entry[1] == 0) {
      entry[0] = hash[0];
      entry[1] = hash[1];
      seen->count++;
      return true;
    }
  }
}

static void widen(seen_t *seen) {
  seen_t wider = {.capacity = seen->capacity ? seen->capacity * 2 : 1u << 16};
  wider.hashes = calloc(wider.capacity, sizeof *wider.hashes);
  if (!wider.hashes) {
    abort();
  }
  for (size_t i = 0; i < seen->capacity; i++) {
    if (seen->hashes[i][0] != 0 || seen->hashes[i][1] != 0) {
      insert_hash(&wider, seen->hashes[i]);
    }
  }
  free(seen->hashes);
  *seen = wider;
}

// True when the state is new.
static bool remember(seen_t *seen, const explore_state_t *state) {
  if (seen->count * 2 >= seen->capacity) {
    widen(seen);
  }
  uint64_t hash[2] = {bl_hash64(state->bytes, state->size, 1), bl_hash64(state->bytes, state->size, 2) | 1};
  return insert_hash(seen, hash);
}

static void push(frontier_t *frontier, const explore_state_t *state, uint32_t node) {
  if (frontier->count == frontier->capacity) {
    frontier->capacity = frontier->capacity ? frontier->capacity * 2 : 1024;
    frontier->states = grow(frontier->states, frontier->capacity, sizeof *frontier->states);
    frontier->nodes = grow(frontier->nodes, frontier->capacity, sizeof *frontier->nodes);
  }
  frontier->states[frontier->count] = *state;
  frontier->nodes[frontier->count++] = node;
}

static void trace_back(explore_result_t *result, const node_t *nodes, uint32_t node, unsigned last_action) {
  unsigned reversed[EXPLORE_TRACE];
  unsigned length = 0;
  reversed[length++] = last_action;
  for (; node != 0 && length < EXPLORE_TRACE; node = nodes[node].parent) {
    reversed[length++] = nodes[node].action;
  }
  result->trace_length = length;
  for (unsigned i = 0; i < length; i++) {
    result->trace[i] = reversed[length - 1 - i];
  }
}

explore_result_t explore(const explore_model_t *model, size_t limit) {
  explore_result_t result = {.complete = true};
  seen_t seen = {0};
  frontier_t now = {0}, next = {0};
  size_t node_capacity = 1u << 16;
  node_t *nodes = grow(NULL, node_capacity, sizeof *nodes);
  nodes[0] = (node_t){0};
  size_t node_count = 1;

  explore_step_t step = {0};
  model->initial(model->context, &step.state);
  remember(&seen, &step.state);
  push(&now, &step.state, 0);
  result.states = 1;
  while (now.count > 0 && !result.broken) {
    next.count = 0;
    for (size_t i = 0; i < now.count && !result.broken; i++) {
      model->enter(model->context, &now.states[i]);
      for (unsigned action = 0; action < model->actions && !result.broken; action++) {
        if (!model->successor(model->context, action, &step)) {
          continue;
        }
        result.transitions++;
        if (!step.broken && result.states >= limit) {
          result.complete = false;
          continue;
        }
        bool is_new = !step.broken && remember(&seen, &step.state);
        result.broken = is_new && model->inspect ? model->inspect(model->context, &step.state) : step.broken;
        if (result.broken) {
          trace_back(&result, nodes, now.nodes[i], action);
        } else if (is_new) {
          if (node_count == node_capacity) {
            node_capacity *= 2;
            nodes = grow(nodes, node_capacity, sizeof *nodes);
          }
          nodes[node_count] = (node_t){.parent = now.nodes[i], .action = action};
          push(&next, &step.state, (uint32_t)node_count++);
          result.states++;
        }
      }
    }
    result.depth += next.count > 0;
    frontier_t swap = now;
    now = next;
    next = swap;
  }
  result.complete = result.complete && !result.broken;
  free(nodes);
  free(now.states);
  free(now.nodes);
  free(next.states);
  free(next.nodes);
  free(seen.hashes);
  return result;
}

void explore_print_trace(const explore_model_t *model, const explore_result_t *result) {
  explore_step_t step = {0};
  explore_state_t state;
  model->initial(model->context, &state);
  for (unsigned i = 0; i < result->trace_length; i++) {
    char text[256];
    model->describe(model->context, &state, result->trace[i], text, sizeof text);
    printf("  %2u %s\n", i + 1, text);
    model->enter(model->context, &state);
    if (!model->successor(model->context, result->trace[i], &step)) {
      printf("  (the trace is longer than what is kept)\n");
      return;
    }
    state = step.state;
  }
}
