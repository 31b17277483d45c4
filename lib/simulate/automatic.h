// SPDX-License-Identifier: Apache-2.0
// The policy `auto`. From measured times of operations, block bytes and path rates it chooses the way of balancing that
// should give the shortest step within a budget, and explains the choice.
//
//   bl_automatic_t found;
//   bl_automatic_request_t request = {.schedule = schedule, .costs = &costs, .budget = 3, ...};
//   status = bl_automatic_decide(&request, &found, &err);
//   found.options[found.best].kind, found.reasons[stage]
//   bl_automatic_cleanup(&found);
//
// The options are, in this order:
// - Nothing moves.
// - Blocks are parked at pairs (s, p-1-s), at any devices, or at the host alone. Each is tried with copies during
//   operations (overlap) and with as few copies as possible (fewest). A host store takes blocks for which devices have
//   no slot.
// - Blocks are dropped and recomputed, without copies (drop).
// - Both in one plan (mix): blocks are parked if their copies hide and stores have slots for them. The rest is
//   recomputed. A mix is tried with copies as long as measured, and with longer and shorter ones, which parks fewer and
//   more blocks.
//
// Each option that fits the budget is simulated, and the fastest wins. Options within BL_AUTOMATIC_EQUAL of it count as
// equal; the first of these wins. Full recomputation is simulated for comparison and never chosen: with the same slots
// it recomputes more blocks than drop.
//
// Steps take longer than simulated, and not by the same factor under every option. With `measurements`, each prediction
// is multiplied by the ratio of measured to simulated steps under its option. So a choice that turns out worse than the
// former one is taken back (policy/measurements.h).
//
// Thread: pure functions, any thread.
#ifndef BALLAST_SIMULATE_AUTOMATIC_H
#define BALLAST_SIMULATE_AUTOMATIC_H

#include "policy/measurements.h"
#include "schedule/balance/balance.h"
#include "schedule/ir/costs.h"
#include "simulate/machine.h"

#define BL_AUTOMATIC_OPTIONS 10
#define BL_AUTOMATIC_REASON  256
#define BL_AUTOMATIC_GAIN    0.02  // share of the step that a change must gain
#define BL_AUTOMATIC_TRIAL   4     // steps of a trial: one to warm up, and those that are measured
#define BL_AUTOMATIC_EQUAL   0.001 // share of the step below which predictions count as equal
#define BL_AUTOMATIC_SLOWER  2.0   // times the step of drop: slower steps are not worth measuring

typedef struct bl_automatic_option {
  bl_policy_kind_t kind;
  bl_balance_mode_t mode;
  bool fits;          // a mix fits only if it both parks and drops blocks
  double step;        // seconds, if it fits; multiplied by `ratio` if that is known
  double ratio;       // of its steps, measured over simulated; 0: it was never in force
  uint32_t evictions; // of all stages
  uint32_t dropped;   // recomputed blocks of all stages
  uint32_t copy;      // of a mix: assumed time of a copy, in hundredths of a forward; else 0
} bl_automatic_option_t;

typedef struct bl_automatic_request {
  const bl_schedule_t *schedule; // without evictions
  const bl_schedule_t *pooled;   // order to balance with pairs or any devices; NULL: the same
  const bl_costs_t *hosted;      // `pooled` is made for memory of the host, with these costs; NULL: it is not
  const bl_costs_t *costs;       // seconds; `path` is ignored
  const double *block_bytes;     // [stages] bytes of one eviction of the stage
  const double *path_rates;      // [stages] bytes per second to the stores, above 0; NULL: not known, nothing moves
  double overhead;               // seconds of a step outside its operations
  uint32_t cores;                // shared by all stages; 0: every stage has its own
  const double *evict_calls;     // [stages] seconds of the compute thread for an eviction, as in machine.h; NULL: none
  double handover;               // seconds to hand a core from one operation to the next
  uint32_t budget;               // slots of a device, own and lent; UINT32_MAX: no limit
  const bl_balance_cap_t *lenders;       // which stores may take blocks (its copies, hosts and host_*, too); NULL: all
  const double *host_rates;              // [stages] bytes per second to the host store, above 0; NULL: as path_rates
  const bl_automatic_option_t *in_force; // kept unless the fastest option gains more than BL_AUTOMATIC_GAIN; NULL: none
  double measured;                       // seconds of a step under in_force; 0: not known
  bl_measurements_t *measurements;       // gets `measured`; NULL: predictions are not corrected
} bl_automatic_request_t;

typedef struct bl_automatic {
  bl_automatic_option_t options[BL_AUTOMATIC_OPTIONS];
  size_t best;       // index of the option that should be in force
  double recomputed; // seconds of a step with full recomputation; 0: it does not fit
  uint32_t stages;
  char (*reasons)[BL_AUTOMATIC_REASON]; // [stages] one sentence each
} bl_automatic_t;

// Chooses an option. BL_EXHAUSTED: no option fits the budget; the message has the smallest budget that does.
// BL_INVALID: bad costs, or a rate that is not above 0. On failure there is nothing to clean up.
BL_MUST_USE bl_status_t bl_automatic_decide(const bl_automatic_request_t *request, bl_automatic_t *found,
                                            bl_error_t *err);
// The prediction for `start`, an option that parks blocks, before its steps are measured. It is based on the times of
// one block per stage.
typedef struct bl_automatic_start {
  double parked, recomputed; // seconds of a step with parking and with recomputation; 0: does not fit
  bool slow; // `parked` is above BL_AUTOMATIC_SLOWER times `again`, so that measuring such steps costs too much
} bl_automatic_start_t;
// Ignores `in_force`, `measured` and `measurements`. Fails as bl_automatic_decide does with bad costs and rates.
BL_MUST_USE bl_status_t bl_automatic_foresee(const bl_automatic_request_t *request, const bl_automatic_option_t *start,
                                             bl_automatic_start_t *found, bl_error_t *err);
// While blocks are dropped, no path is used or measured. Returns the option that parks blocks and would be the fastest
// by the last measurements, to be tried from time to time. NULL: the best option is not drop, or nothing can be parked.
const bl_automatic_option_t *bl_automatic_untried(const bl_automatic_t *found);
// Returns the number of steps after which BL_AUTOMATIC_TRIAL steps of that option cost at most `share` of the time
// since, by predictions. UINT64_MAX: never.
uint64_t bl_automatic_untried_for(const bl_automatic_t *found, double share);
void bl_automatic_cleanup(bl_automatic_t *found); // a zeroed one is fine

#endif
