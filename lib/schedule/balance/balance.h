// SPDX-License-Identifier: Apache-2.0
// Balancing: one pure pass over any schedule that evicts blocks to stores so that no stage holds more than its own
// slots. The resident block whose next use is farthest is evicted (Belady's rule; for 1F1B this is BPipe's "evict the
// latest"), only between its F and its I or B. BPipe is this pass with pairs (s, p-1-s) and cap ceil((p+2)/2).
// Thread: pure functions, any thread.
#ifndef BALLAST_SCHEDULE_BALANCE_H
#define BALLAST_SCHEDULE_BALANCE_H

#include "policy/policy.h"
#include "schedule/ir/schedule.h"

// All arrays are borrowed for the call.
typedef struct bl_balance_request {
  bl_balance_mode_t mode;
  const uint32_t *own;  // [stages] own slots of each stage
  const uint32_t *lent; // [stores] slots of each store; store d lives on stage d, those after the last stage on hosts
  uint32_t stores;
  // Who reaches whom, preferred first: stage s may use reach[s * reach_count ...], BL_STORE_NONE ends a row.
  const uint16_t *reach;
  uint32_t reach_count;
  // Bandwidth: what one copy takes between stage s and store d, copies[s * stores + d], in any unit. NULL: all the same.
  // Otherwise rooms are given out so that the copies of a step take the least time, those that wait at a store for
  // another stage's counted (acceptors.h), and `reach` decides where that leaves a choice.
  const double *copies;
  // 0: all that leave are parked. Above: what one copy takes, in forwards; blocks whose copies would hold their stage up for
  // longer than making them again, or for which stores have no room, are given up and made again instead (drop.h).
  double copy;
  uint32_t parks; // with `copy`: the most blocks that a stage parks in a step, the others are given up; 0: any number
} bl_balance_request_t;

typedef struct bl_balance_result {
  bl_schedule_t *schedule; // a new one; the caller destroys it
  uint32_t *evictions;     // [stages]; loads are as many
  uint32_t *late;          // [stages] loads directly before the backward that waits for them, in mode overlap
  uint32_t *dropped;       // [stages] blocks that are given up instead, where the request has `copy`
  uint32_t *parked_peak;   // [stages] most blocks of the stage away at once; transfers run in list order,
                           // so that an E may take the room of the L before it
  uint32_t *reserved;      // [stages * stores] slots that stage s reserves at store d: reserved[s * stores + d]
  uint32_t stages, stores;
} bl_balance_result_t;

// BL_EXHAUSTED: names stage and operation for which no block can be evicted and the fewest own slots that work, or the
// stage for whose blocks the stores have no room. BL_INVALID: the schedule has evictions already (with `copy` also: it
// recomputes), or `copy` or one of `copies` is no time.
BL_MUST_USE bl_status_t bl_balance(const bl_schedule_t *schedule, const bl_balance_request_t *request,
                                   bl_balance_result_t *result, bl_error_t *err);
void bl_balance_result_cleanup(bl_balance_result_t *result);

// ceil((p + 2) / 2): BPipe's cap on device-micro-batches.
static inline uint32_t bl_balance_bpipe_cap(uint32_t stages) {
  return (stages + 3) / 2;
}
// In slots: for every chunk of a pipe. Where sequences are in slices, each chunk keeps the others of one sequence beside.
static inline uint32_t bl_balance_bpipe_slots(const bl_schedule_t *schedule) {
  return (bl_balance_bpipe_cap(schedule->stages) + schedule->slices - 1) * schedule->chunks / schedule->pipes;
}

// Budgets of all devices under one cap.
typedef struct bl_balance_cap {
  uint32_t slots;  // of a device, its own and those it lends (slots, that is blocks)
  bool pairs_only; // bpipe: stage s evicts to stage p-1-s alone; else to any, that one preferred
  bl_balance_mode_t mode;
  uint64_t lenders;        // bit d: the store of device d takes blocks (beyond 63: none do); 0: all do
  const double *copies;    // [stages * stages] as in bl_balance_request_t, or NULL; for pairs only it changes nothing
  double copy;             // as in bl_balance_request_t
  uint32_t parks;          // as in bl_balance_request_t
  uint32_t hosts;          // host stores; a stage reaches one of them, after all devices
  const uint16_t *host_of; // [stages] which; NULL: the first
  uint32_t host_slots;     // that each lends
  bool host_only;          // devices lend nothing
} bl_balance_cap_t;

// Balances `schedule` under a cap: every stage whose peak exceeds it evicts to the stages that have room below it, lent
// slots being the cap minus the store's own peak, and what they have no room for to its host store. BL_EXHAUSTED also says the smallest cap that works, which takes several
// tries: `err` NULL spares them.
BL_MUST_USE bl_status_t bl_balance_within(const bl_schedule_t *schedule, const bl_balance_cap_t *cap,
                                          bl_balance_result_t *result, bl_error_t *err);
// The same with all lenders, and all that leave is parked.
BL_MUST_USE bl_status_t bl_balance_cap(const bl_schedule_t *schedule, uint32_t cap_slots, bool pairs_only,
                                       bl_balance_mode_t mode, bl_balance_result_t *result, bl_error_t *err);

#endif
