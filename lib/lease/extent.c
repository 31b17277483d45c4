// SPDX-License-Identifier: Apache-2.0
#include "lease/extent.h"

#include <stdlib.h>

bl_status_t bl_extents_init(bl_extents_t *extents, uint32_t capacity) {
  bl_extent_node_t *nodes = calloc((size_t)capacity + 1, sizeof *nodes);
  if (nodes == NULL) {
    return BL_EXHAUSTED;
  }
  *extents = (bl_extents_t){.nodes = nodes, .capacity = capacity};
  return BL_OK;
}

void bl_extents_cleanup(bl_extents_t *extents) {
  free(extents->nodes);
  *extents = (bl_extents_t){0};
}

static uint32_t node_new(bl_extents_t *extents) {
  uint32_t node = extents->unused;
  if (node != 0) {
    extents->unused = extents->nodes[node].next;
    extents->nodes[node] = (bl_extent_node_t){0};
  } else if (extents->ever_used < extents->capacity) {
    node = ++extents->ever_used;
  }
  return node;
}

static void node_free(bl_extents_t *extents, uint32_t node) {
  extents->nodes[node] = (bl_extent_node_t){.next = extents->unused};
  extents->unused = node;
}

// ---- treap of free runs ---------------------------------------------------------------------------------------------

static uint32_t priority(uint32_t node) {
  uint64_t x = node * 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9u;
  return (uint32_t)(x >> 32);
}

static bool is_before(const bl_extent_node_t *a, const bl_extent_node_t *b) {
  return a->granules != b->granules ? a->granules < b->granules : a->offset < b->offset;
}

static void insert(bl_extents_t *extents, bl_extent_space_t *space, uint32_t node) {
  bl_extent_node_t *nodes = extents->nodes;
  uint32_t *link = &space->root;
  while (*link != 0 && priority(*link) >= priority(node)) {
    link = is_before(&nodes[*link], &nodes[node]) ? &nodes[*link].right : &nodes[*link].left;
  }
  // Split this subtree into the nodes before and after `node`.
  uint32_t rest = *link;
  uint32_t *before = &nodes[node].left, *after = &nodes[node].right;
  *link = node;
  while (rest != 0) {
    if (is_before(&nodes[rest], &nodes[node])) {
      *before = rest;
      before = &nodes[rest].right;
      rest = *before;
    } else {
      *after = rest;
      after = &nodes[rest].left;
      rest = *after;
    }
  }
  *before = *after = 0;
}

static void erase(bl_extents_t *extents, bl_extent_space_t *space, uint32_t node) {
  bl_extent_node_t *nodes = extents->nodes;
  uint32_t *link = &space->root;
  while (*link != node) {
    link = is_before(&nodes[*link], &nodes[node]) ? &nodes[*link].right : &nodes[*link].left;
  }
  uint32_t left = nodes[node].left, right = nodes[node].right;
  while (left != 0 && right != 0) {
    if (priority(left) >= priority(right)) {
      *link = left;
      link = &nodes[left].right;
      left = *link;
    } else {
      *link = right;
      link = &nodes[right].left;
      right = *link;
    }
  }
  *link = left != 0 ? left : right;
  nodes[node].left = nodes[node].right = 0;
}

static uint32_t best_fit(const bl_extents_t *extents, const bl_extent_space_t *space, uint32_t granules) {
  uint32_t best = 0;
  for (uint32_t node = space->root; node != 0;) {
    if (extents->nodes[node].granules >= granules) {
      best = node;
      node = extents->nodes[node].left;
    } else {
      node = extents->nodes[node].right;
    }
  }
  return best;
}

uint32_t bl_extent_largest(const bl_extents_t *extents, const bl_extent_space_t *space) {
  uint32_t node = space->root;
  while (node != 0 && extents->nodes[node].right != 0) {
    node = extents->nodes[node].right;
  }
  return extents->nodes[node].granules; // node 0 has 0
}

// ---- spaces ---------------------------------------------------------------------------------------------------------

bool bl_extent_space_open(bl_extents_t *extents, bl_extent_space_t *space, uint32_t granules) {
  uint32_t node = node_new(extents);
  if (node == 0) {
    return false;
  }
  extents->nodes[node] = (bl_extent_node_t){.granules = granules, .free = true};
  *space = (bl_extent_space_t){.first = node, .granules = granules, .free_granules = granules};
  insert(extents, space, node);
  return true;
}

void bl_extent_space_close(bl_extents_t *extents, bl_extent_space_t *space) {
  for (uint32_t node = space->first; node != 0;) {
    uint32_t next = extents->nodes[node].next;
    node_free(extents, node);
    node = next;
  }
  *space = (bl_extent_space_t){0};
}

bl_extent_t bl_extent_allocate(bl_extents_t *extents, bl_extent_space_t *space, uint32_t granules) {
  bl_extent_node_t *nodes = extents->nodes;
  uint32_t node = best_fit(extents, space, granules);
  if (node == 0) {
    return 0;
  }
  uint32_t rest = 0;
  if (nodes[node].granules > granules && (rest = node_new(extents)) == 0) {
    return 0;
  }
  erase(extents, space, node);
  if (rest != 0) {
    nodes[rest] = (bl_extent_node_t){.offset = nodes[node].offset + granules,
                                     .granules = nodes[node].granules - granules,
                                     .previous = node,
                                     .next = nodes[node].next,
                                     .free = true};
    if (nodes[rest].next != 0) {
      nodes[nodes[rest].next].previous = rest;
    }
    nodes[node].next = rest;
    nodes[node].granules = granules;
    insert(extents, space, rest);
  }
  nodes[node].free = false;
  space->free_granules -= granules;
  return node;
}

// Joins `node` with the next free run `next`, which is in the treap; `node` is not.
static void join_next(bl_extents_t *extents, bl_extent_space_t *space, uint32_t node, uint32_t next) {
  bl_extent_node_t *nodes = extents->nodes;
  erase(extents, space, next);
  nodes[node].granules += nodes[next].granules;
  nodes[node].next = nodes[next].next;
  if (nodes[node].next != 0) {
    nodes[nodes[node].next].previous = node;
  }
  node_free(extents, next);
}

void bl_extent_free(bl_extents_t *extents, bl_extent_space_t *space, bl_extent_t extent) {
  bl_extent_node_t *nodes = extents->nodes;
  uint32_t node = extent;
  space->free_granules += nodes[node].granules;
  nodes[node].free = true;
  uint32_t next = nodes[node].next;
  if (next != 0 && nodes[next].free) {
    join_next(extents, space, node, next);
  }
  uint32_t previous = nodes[node].previous;
  if (previous != 0 && nodes[previous].free) {
    erase(extents, space, previous);
    nodes[previous].granules += nodes[node].granules;
    nodes[previous].next = nodes[node].next;
    if (nodes[node].next != 0) {
      nodes[nodes[node].next].previous = previous;
    }
    node_free(extents, node);
    node = previous;
  }
  insert(extents, space, node);
}

// ---- soundness ------------------------------------------------------------------------------------------------------

static uint32_t count_tree(const bl_extents_t *extents, uint32_t node, bool *sound) {
  const bl_extent_node_t *nodes = extents->nodes;
  if (node == 0) {
    return 0;
  }
  uint32_t left = nodes[node].left, right = nodes[node].right;
  *sound = *sound && nodes[node].free && (left == 0 || is_before(&nodes[left], &nodes[node])) &&
           (right == 0 || is_before(&nodes[node], &nodes[right]));
  return 1 + count_tree(extents, left, sound) + count_tree(extents, right, sound);
}

bool bl_extent_space_is_sound(const bl_extents_t *extents, const bl_extent_space_t *space) {
  const bl_extent_node_t *nodes = extents->nodes;
  uint32_t offset = 0, free_granules = 0, runs = 0;
  bool sound = true;
  for (uint32_t node = space->first, previous = 0; node != 0; previous = node, node = nodes[node].next) {
    sound = sound && nodes[node].offset == offset && nodes[node].previous == previous && nodes[node].granules > 0;
    sound = sound && !(nodes[node].free && previous != 0 && nodes[previous].free);
    offset += nodes[node].granules;
    free_granules += nodes[node].free ? nodes[node].granules : 0;
    runs += nodes[node].free ? 1 : 0;
  }
  return count_tree(extents, space->root, &sound) == runs && sound && offset == space->granules &&
         free_granules == space->free_granules;
}
