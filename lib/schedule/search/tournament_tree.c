// SPDX-License-Identifier: Apache-2.0
#include "schedule/search/tournament_tree.h"

#include <math.h>
#include <stdlib.h>

bl_status_t bl__tournament_tree_init(bl__tournament_tree_t *tree, uint32_t stages) {
  uint32_t leaves = 2;
  while (leaves < stages) {
    leaves *= 2;
  }
  tree->leaves = leaves;
  tree->times = malloc(leaves * sizeof tree->times[0]);
  tree->winners = malloc(leaves * sizeof tree->winners[0]);
  if (tree->times == NULL || tree->winners == NULL) {
    bl__tournament_tree_cleanup(tree);
    return BL_EXHAUSTED;
  }
  bl__tournament_tree_fill(tree, stages, INFINITY);
  return BL_OK;
}

void bl__tournament_tree_cleanup(bl__tournament_tree_t *tree) {
  free(tree->times);
  free(tree->winners);
  *tree = (bl__tournament_tree_t){0};
}

void bl__tournament_tree_fill(bl__tournament_tree_t *tree, uint32_t stages, double time) {
  for (uint32_t s = 0; s < tree->leaves; s++) {
    tree->times[s] = s < stages ? time : INFINITY;
  }
  for (uint32_t node = tree->leaves; node-- > 1;) {
    uint32_t left = 2 * node < tree->leaves ? tree->winners[2 * node] : 2 * node - tree->leaves;
    uint32_t right = 2 * node < tree->leaves ? tree->winners[2 * node + 1] : left + 1;
    tree->winners[node] = tree->times[left] <= tree->times[right] ? left : right;
  }
}
