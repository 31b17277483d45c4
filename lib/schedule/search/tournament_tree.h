// SPDX-License-Identifier: Apache-2.0
// Private to lib/schedule: one time per stage, and the stage with the earliest time (of several, the first). Changing a
// time takes log(stages).
#ifndef BALLAST_SCHEDULE_TOURNAMENT_TREE_H
#define BALLAST_SCHEDULE_TOURNAMENT_TREE_H

#include "base/error.h"

#include <stdint.h>

typedef struct bl__tournament_tree {
  double *times;     // [leaves] infinite beyond the stages; read-only for callers
  uint32_t *winners; // [leaves] stage with the earliest time of each subtree; [1]: of all
  uint32_t leaves;   // a power of two
} bl__tournament_tree_t;

// Sets all times to infinity. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__tournament_tree_init(bl__tournament_tree_t *tree, uint32_t stages);
void bl__tournament_tree_cleanup(bl__tournament_tree_t *tree); // a zeroed one is fine
// Sets all times to `time`.
void bl__tournament_tree_fill(bl__tournament_tree_t *tree, uint32_t stages, double time);

static inline void bl__tournament_tree_set(bl__tournament_tree_t *tree, uint32_t stage, double time) {
  tree->times[stage] = time;
  uint32_t node = (tree->leaves + stage) / 2, left = stage & ~1u, right = left + 1;
  for (;;) {
    uint32_t winner = tree->times[left] <= tree->times[right] ? left : right;
    tree->winners[node] = winner;
    if (node == 1) {
      return;
    }
    left = (node & 1) == 0 ? winner : tree->winners[node - 1];
    right = (node & 1) == 0 ? tree->winners[node + 1] : winner;
    node /= 2;
  }
}

static inline uint32_t bl__tournament_tree_stage(const bl__tournament_tree_t *tree) {
  return tree->winners[1];
}

#endif
