// SPDX-License-Identifier: Apache-2.0
// The policy `auto`: from measured times of operations, block bytes and path rates to the way of balancing that should
// give the shortest step within a budget, and why.
//
//   bl_automatic_t found;
//   status = bl_automatic_decide(&(bl_automatic_request_t){.schedule = schedule, .costs = &costs, .budget = 3, ...}, &found, &err);
//   found.options[found.best].kind, found.reasons[stage]
//   bl_automatic_cleanup(&found);
//
// Weighed are: nothing moves; pairs (s, p-1-s), any devices and the host alone, each with copies beside operations
// (overlap) and with as few copies as possible (fewest), a host store taking what devices have no room for; no copies,
// but blocks that are given up and made again (drop); and both in one plan (mix): blocks are parked whose copies hide
// and for which stores have room, the rest is made again. Each that fits the budget is simulated; the fastest wins, and
// of those within BL_AUTOMATIC_EQUAL of it the first in that order. A mix is tried with copies taken to be as long as
// measured, and longer and shorter, which parks fewer and more. Full recomputation is simulated beside them and never
// chosen: within the same slots it makes more blocks again than drop.
//
// Steps take longer than simulated, and not under every option by as much. Who passes `measurements` has each
// prediction multiplied by what steps under that option took beside their simulation, so that a choice that turns out
// worse than what was in force before it is taken back (policy/measurements.h).
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
#define BL_AUTOMATIC_GAIN    0.02  // share of the step for which the one in force is changed
#define BL_AUTOMATIC_TRIAL   4     // steps of a trial: one that warms up and those that are measured
#define BL_AUTOMATIC_EQUAL   0.001 // share of the step below which predictions do not tell two options apart
#define BL_AUTOMATIC_SLOWER  2.0   // times as long as with drop: steps that are not worth a look

typedef struct bl_automatic_option {
  bl_policy_kind_t kind;
  bl_balance_mode_t mode;
  bool fits;          // a mix: and it is none of the others
  double step;        // seconds, if it fits; `ratio`, if it is known, is in it
  double ratio;       // of its steps, measured over simulated; 0: it was never in force
  uint32_t evictions; // of all stages
  uint32_t dropped;   // blocks of all stages that are made again
  uint32_t copy;      // of a mix: what the plan takes a copy to be, in hundredths of a forward; else 0
} bl_automatic_option_t;

typedef struct bl_automatic_request {
  const bl_schedule_t *schedule; // as it is, without evictions
  const bl_schedule_t *pooled;   // the order that pairs and any devices balance; NULL: the same
  const bl_costs_t *costs;       // seconds; `path` is not looked at
  const double *block_bytes;     // [stages] that an eviction of the stage moves
  const double *path_rates;      // [stages] bytes per second to the stores, above 0; NULL: not known, nothing moves
  double overhead;               // seconds of a step before and after its operations
  uint32_t cores;                // that all stages share; 0: every stage has its own
  double handover;               // seconds that a core takes from one to the next
  uint32_t budget;               // slots a device keeps and lends; UINT32_MAX: no limit
  uint64_t lenders;              // bit d: the store of device d may take blocks; 0: all may
  const double *copies;          // [stages * stages] as in balance/balance.h: which stores are near; NULL: all alike
  uint32_t hosts;                // host stores, and host_of, host_slots, host_only as in balance/balance.h
  const uint16_t *host_of;
  uint32_t host_slots;
  bool host_only;
  const double *host_rates;              // [stages] bytes per second to the host store, above 0; NULL: as path_rates
  const bl_automatic_option_t *in_force; // kept unless the fastest gains more than BL_AUTOMATIC_GAIN; NULL: none
  double measured;                       // seconds of a step under it; 0: not known
  bl_measurements_t *measurements; // of predictions, which `measured` is added to; NULL: they are taken as they are
  bool recomputes;                 // the schedule recomputes already: there is nothing to evict
} bl_automatic_request_t;

typedef struct bl_automatic {
  bl_automatic_option_t options[BL_AUTOMATIC_OPTIONS];
  size_t best;       // of options: what should be in force
  double recomputed; // seconds of a step with full recomputation; 0: it does not fit, or is done already
  uint32_t stages;
  char (*reasons)[BL_AUTOMATIC_REASON]; // [stages] one sentence each
} bl_automatic_t;

// BL_EXHAUSTED: nothing fits the budget; says the smallest that does. BL_INVALID: bad costs, or a rate that is not
// above
// 0. On failure there is nothing to clean up.
BL_MUST_USE bl_status_t bl_automatic_decide(const bl_automatic_request_t *request, bl_automatic_t *found,
                                            bl_error_t *err);
// Before steps under `start`, which parks blocks, are looked at: what they would take by what one block of a stage
// took.
typedef struct bl_automatic_start {
  double parked, again; // seconds of a step, where blocks are parked and where they are made again; 0: does not fit
  bool slow; // the first is more than BL_AUTOMATIC_SLOWER times the other: to look at such steps costs too much
} bl_automatic_start_t;
// `in_force`, `measured` and `measurements` are not looked at. Fails as bl_automatic_decide does with bad costs and
// rates.
BL_MUST_USE bl_status_t bl_automatic_foresee(const bl_automatic_request_t *request, const bl_automatic_option_t *start,
                                             bl_automatic_start_t *found, bl_error_t *err);
// Where blocks are given up no path is used, and none measured. The option that parks blocks and would be the fastest
// by what was last known of them, to be tried again at times: NULL if nothing is given up or nothing can be parked.
const bl_automatic_option_t *bl_automatic_untried(const bl_automatic_t *found);
// Steps after which BL_AUTOMATIC_TRIAL steps of it have cost no more than `share` of the time since, by what was known.
uint64_t bl_automatic_untried_for(const bl_automatic_t *found, double share);
void bl_automatic_cleanup(bl_automatic_t *found); // a zeroed one is fine

#endif
