// SPDX-License-Identifier: Apache-2.0
// Between the files of lib/plan: what an attempt (attempt.h) holds while it is made, and its steps. Its order, memory and
// time are in attempt.c; what is done where the order does not fit as it is, in squeezing.c.
#ifndef BALLAST_PLAN_TRYING_H
#define BALLAST_PLAN_TRYING_H

#include "plan/candidate/attempt.h"

typedef struct bl__trying {
  const bl_plan_request_t *request;
  bl_plan_candidate_t *c;
  const bl_schedule_info_t *info;
  const bl_profile_t *profile; // NULL: the device's model
  bl_layout_options_t options;
  uint32_t chunks; // virtual stages
  double effort;   // of searched schedules
  bl__order_cache_t *cache;
  bl_schedule_t *schedule;
  bl_balance_result_t balanced;
  bl_chunk_span_t *spans;  // [chunks]
  bl_chunk_costs_t *costs; // [chunks]
  uint32_t *numbers;       // [5 * stages + chunks]: the rest
  uint32_t *peaks;         // [stages] slots without balancing
  uint32_t *slots;         // [stages] own and lent
  uint32_t *edges;         // [stages]
  uint32_t *most;          // [chunks] layers that fit
  uint16_t *stage_of;      // [chunks]
  double *copies;          // [stages * stages] what copies between two stages take; NULL: all the same
  bl_host_places_t host;   // where the request has one and the policy parks
  uint32_t host_slots;     // blocks of a pipeline that one machine has room for
} bl__trying_t;

bool bl__trying_on_cluster(const bl__trying_t *a);
// Makes a->schedule, within c->slots if there are any, in place of the one before, and sets peaks and edges.
BL_MUST_USE bl_status_t bl__trying_order(bl__trying_t *a);
// Of `stage` with `slots` blocks.
BL_MUST_USE bl_status_t bl__trying_footprint(const bl__trying_t *a, uint32_t stage, uint32_t slots,
                                             bl_footprint_t *footprint);
BL_MUST_USE bl_status_t bl__trying_measure(bl__trying_t *a); // memory with a->slots: sets c->fits and, if not, c->why
BL_MUST_USE bl_status_t bl__trying_time(bl__trying_t *a);
// Fewer layers where a stage is too full, where each stage has one chunk.
BL_MUST_USE bl_status_t bl__trying_move_layers(bl__trying_t *a);

// Parks or gives up what has no room, as the policy has it, at the largest cap that fits.
BL_MUST_USE bl_status_t bl__squeeze_balance(bl__trying_t *a);
// Searches the order again within the limit that a->c->limit means; with a policy that parks, for balancing at it.
BL_MUST_USE bl_status_t bl__squeeze_limit(bl__trying_t *a);

#endif
