// SPDX-License-Identifier: Apache-2.0
// Private to lib/schedule: list scheduling with real costs under a memory limit.
//
// Takes a base schedule that runs within the limits. Whenever a stage is free, it starts the operation that a rule
// prefers among those whose dependencies have ended ("squeeze and reorder" of Qi et al., NeurIPS 2024, with the given
// costs). The result neither deadlocks nor exceeds the limits: an operation may overtake others of its stage only if
// the rest of the base order still fits in memory, and the rest of the base orders can always run. Operations of one
// type and chunk keep their order, so W and B ascend in micro-batch.
#ifndef BALLAST_SCHEDULE_DISPATCH_H
#define BALLAST_SCHEDULE_DISPATCH_H

#include "schedule/ir/costs.h"
#include "schedule/ir/schedule.h"

typedef enum bl__preference {
  BL__PREFER_BASE_ORDER,   // the first ready operation of the base order
  BL__PREFER_BACKWARD,     // I and B, then the base order
  BL__PREFER_WEIGHTS_LAST, // I and B, then F, then W
  BL__PREFER_FORWARD,      // F, then I and B, then W
  BL__PREFERENCES
} bl__preference_t;

// Full recomputation of the order that is searched; its lists have no R yet (recompute.h).
typedef struct bl__recompute_options {
  bool on;         // an R precedes every backward, unless its F stands directly before it. R needs no gradient
  uint32_t slots;  // maximum of blocks of a stage between I and the end of W, which R's fill; 0: no limit
  uint32_t chunks; // the first so many of a stage recompute; the others fill slots from F on. 0: all recompute
} bl__recompute_options_t;

// Returns the index of a virtual stage among the chunks of its stage, counted along the model.
static inline uint32_t bl__chunk_of(const bl_schedule_t *shape, uint32_t virtual_stage) {
  return shape->placement == BL_PLACEMENT_CONTIGUOUS ? virtual_stage % shape->chunks : virtual_stage / shape->stages;
}

// Returns whether the chunk keeps its blocks while other chunks recompute theirs.
static inline bool bl__chunk_kept(const bl_schedule_t *shape, bl__recompute_options_t recompute,
                                  uint32_t virtual_stage) {
  return recompute.chunks > 0 && bl__chunk_of(shape, virtual_stage) >= recompute.chunks;
}

typedef struct bl__dispatch_rule {
  bl__preference_t preference;
  double patience; // share of a W that may delay an operation known to become ready: 0 wait for it, 1 never wait
  uint32_t window; // operations of the base order that may be overtaken; at least 1
} bl__dispatch_rule_t;

// A base order that can be dispatched by several rules, one after the other.
typedef struct bl__dispatcher bl__dispatcher_t;

// `base`, `costs` and `limits` [stages], blocks, are borrowed until the dispatcher is destroyed. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__dispatcher_create(const bl_schedule_t *base, const bl_costs_t *costs,
                                              const uint32_t *limits, bl__recompute_options_t recompute,
                                              bl__dispatcher_t **dispatcher);
void bl__dispatcher_destroy(bl__dispatcher_t *dispatcher); // NULL is fine
// Fills `made`, a schedule of the same shape, and sets *t_end to its end. BL_INTERNAL: the base order cannot run within
// the limits. BL_NOT_FOUND: the result would end after `latest`; `made` is incomplete. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__dispatcher_run(bl__dispatcher_t *dispatcher, bl__dispatch_rule_t rule, double latest,
                                           bl_schedule_t *made, double *t_end);
// Sets *t_end to the end of the lists in their order, with the R's of `recompute`. BL_INTERNAL: they cannot run.
// BL_NOT_FOUND: they end after `latest`. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__dispatch_in_order(const bl_schedule_t *schedule, const bl_costs_t *costs,
                                              bl__recompute_options_t recompute, double latest, double *t_end);
// The same without a latest end.
BL_MUST_USE bl_status_t bl__dispatch_end(const bl_schedule_t *schedule, const bl_costs_t *costs,
                                         bl__recompute_options_t recompute, double *t_end);

#endif
