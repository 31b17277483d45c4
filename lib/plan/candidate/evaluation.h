// SPDX-License-Identifier: Apache-2.0
// Between the files of lib/plan: what an evaluation (evaluate.h) holds while it is made, and its steps. Its order, memory
// and time are in evaluate.c; what is done where the order does not fit as it is, in fit.c.
#ifndef BALLAST_PLAN_EVALUATION_H
#define BALLAST_PLAN_EVALUATION_H

#include "plan/candidate/evaluate.h"

typedef struct bl__evaluation {
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
  uint32_t *max_layers;    // [chunks] layers that fit
  uint16_t *stage_of;      // [chunks]
  double *copies;          // [stages * stages] what copies between two stages take; NULL: all the same
  bl_host_places_t host;   // where the request has one and the policy parks
  uint32_t host_slots;     // blocks of a pipeline that one machine has room for
} bl__evaluation_t;

bool bl__evaluation_on_cluster(const bl__evaluation_t *eval);
// Makes eval->schedule, within c->slots if there are any, in place of the one before, and sets peaks and edges.
BL_MUST_USE bl_status_t bl__evaluation_order(bl__evaluation_t *eval);
// Of `stage` with `slots` blocks.
BL_MUST_USE bl_status_t bl__evaluation_footprint(const bl__evaluation_t *eval, uint32_t stage, uint32_t slots,
                                                 bl_footprint_t *footprint);
BL_MUST_USE bl_status_t
bl__evaluation_measure(bl__evaluation_t *eval); // memory with eval->slots: sets c->fits and, if not, c->why
BL_MUST_USE bl_status_t bl__evaluation_time(bl__evaluation_t *eval);
// Fewer layers where a stage is too full, where each stage has one chunk.
BL_MUST_USE bl_status_t bl__evaluation_move_layers(bl__evaluation_t *eval);

// Parks or gives up what has no room, as the policy has it, at the largest cap that fits.
BL_MUST_USE bl_status_t bl__fit_balance(bl__evaluation_t *eval);
// Searches the order again within the limit that eval->c->limit means; with a policy that parks, for balancing at it.
BL_MUST_USE bl_status_t bl__fit_limit(bl__evaluation_t *eval);

#endif
