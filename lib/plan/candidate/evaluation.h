// SPDX-License-Identifier: Apache-2.0
// Private to lib/plan: the state of an evaluation (evaluate.h), and its steps. Order, memory and time are in
// evaluate.c. Changes that make an order fit are in fit.c.
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
  double effort;   // search budget
  bl__order_cache_t *cache;
  bl_schedule_t *schedule;
  bl_schedule_t *hosted; // made for memory of the host, beside `schedule`; NULL: none
  bl_balance_result_t balanced;
  bl_chunk_span_t *spans;           // [chunks]
  bl_chunk_costs_t *costs;          // [chunks]; with slices, the mean of one slice
  bl_chunk_costs_t *slice_costs;    // [chunks, c->slices]
  uint32_t *numbers;                // [7 * stages + chunks] storage of the arrays below
  uint32_t *peaks;                  // [stages] slots without balancing
  uint32_t *slots;                  // [stages] own and lent
  uint32_t *edges;                  // [stages]
  uint32_t *pages, *page_gradients; // [stages] of the KV cache, 0 without slices
  uint32_t *max_layers;             // [chunks] maximum number of layers that fit
  uint16_t *stage_of;               // [chunks]
  double *copies;                   // [stages * stages] relative time of copies between two stages; NULL: all equal
  bl_host_places_t host;            // if the request has a host and the policy parks
  uint32_t host_slots;              // blocks of a pipeline that fit in the memory of one machine
} bl__evaluation_t;

bool bl__evaluation_on_cluster(const bl__evaluation_t *eval);
// Makes eval->schedule, within c->slots if set, in place of the former one, and eval->hosted. Sets peaks and edges.
BL_MUST_USE bl_status_t bl__evaluation_order(bl__evaluation_t *eval);
// Sets peaks, pages and edges to those of one of the two orders.
BL_MUST_USE bl_status_t bl__evaluation_count(bl__evaluation_t *eval, const bl_schedule_t *order);
// Returns the costs with which orders are searched, as in the written job.
bl_costs_t bl__evaluation_costs(const bl__evaluation_t *eval);
// Computes the footprint of `stage` with `slots` blocks.
BL_MUST_USE bl_status_t bl__evaluation_footprint(const bl__evaluation_t *eval, uint32_t stage, uint32_t slots,
                                                 bl_footprint_t *footprint);
BL_MUST_USE bl_status_t
bl__evaluation_measure(bl__evaluation_t *eval); // memory with eval->slots: sets c->fits and, if it does not fit, c->why
BL_MUST_USE bl_status_t bl__evaluation_time(bl__evaluation_t *eval);
// Moves layers away from stages that exceed the memory limit. Each stage must have one chunk.
BL_MUST_USE bl_status_t bl__evaluation_move_layers(bl__evaluation_t *eval);

// Parks or drops, by the policy, the blocks for which there is no slot, at the largest cap that fits.
BL_MUST_USE bl_status_t bl__fit_balance(bl__evaluation_t *eval);
// Searches the order within the limit that eval->c->limit stands for. With a policy that parks, searches for balancing
// at that limit.
BL_MUST_USE bl_status_t bl__fit_limit(bl__evaluation_t *eval);

#endif
