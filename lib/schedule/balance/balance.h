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
  // Stores that each stage reaches, preferred first: reach[s * reach_count ...] for stage s. BL_STORE_NONE ends a row.
  const uint16_t *reach;
  uint32_t reach_count;
  // Time of one copy between stage s and store d: copies[s * stores + d], in any unit. NULL: all take the same.
  // Otherwise slots are divided so that the copies of a step take the least time, including the time for which they
  // wait at a store for another stage's copies (acceptors.h). `reach` decides between equal divisions.
  const double *copies;
  // 0: all blocks that leave are parked. Above 0: the time of one copy, in forwards. A block is then dropped and
  // recomputed (drop.h) if its copies would delay its stage for longer than R takes, or if the stores lack slots.
  double copy;
  uint32_t parks; // with `copy`: maximum of blocks that a stage parks in a step, the rest is dropped; 0: any number
} bl_balance_request_t;

typedef struct bl_balance_result {
  bl_schedule_t *schedule; // new, owned by the caller; bl_balance_result_cleanup destroys it
  uint32_t *evictions;     // [stages]; loads are as many
  uint32_t *late;          // [stages] loads directly before the backward that waits for them, in mode overlap
  uint32_t *dropped;       // [stages] blocks that are dropped instead, if the request has `copy`
  uint32_t *parked_peak;   // [stages] maximum of the stage's blocks that are evicted at once. Transfers run in list
                           // order, so an E may take the slot of the L before it
  uint32_t *reserved;      // [stages * stores] slots that stage s reserves at store d: reserved[s * stores + d]
  uint32_t stages, stores;
} bl_balance_result_t;

// BL_EXHAUSTED: names the stage and operation for which no block can be evicted, and the minimum of own slots that
// works; or the stage for whose blocks the stores lack slots; or no memory. BL_INVALID: the schedule already evicts
// (with `copy` also: recomputes), `reach` names a store that does not exist, or `copy` or one of `copies` is not a
// valid time.
BL_MUST_USE bl_status_t bl_balance(const bl_schedule_t *schedule, const bl_balance_request_t *request,
                                   bl_balance_result_t *result, bl_error_t *err);
void bl_balance_result_cleanup(bl_balance_result_t *result);

// ceil((p + 2) / 2): BPipe's cap on device-micro-batches.
static inline uint32_t bl_balance_bpipe_cap(uint32_t stages) {
  return (stages + 3) / 2;
}
// The same in slots: once for every chunk of a pipe. With slices, each chunk also keeps the other slices of one
// sequence.
static inline uint32_t bl_balance_bpipe_slots(const bl_schedule_t *schedule) {
  return (bl_balance_bpipe_cap(schedule->stages) + schedule->slices - 1) * schedule->chunks / schedule->pipes;
}

// Budgets of all devices under one cap.
typedef struct bl_balance_cap {
  uint32_t slots;  // of a device: own and lent
  bool pairs_only; // bpipe: stage s evicts only to stage p-1-s; otherwise to any, that one preferred
  bl_balance_mode_t mode;
  uint64_t lenders;        // bit d: the store of device d takes blocks (those beyond 63 take none); 0: all do
  const double *copies;    // [stages * stages] as in bl_balance_request_t, or NULL; no effect with pairs_only
  double copy;             // as in bl_balance_request_t
  uint32_t parks;          // as in bl_balance_request_t
  uint32_t hosts;          // host stores; a stage reaches one of them, after all devices
  const uint16_t *host_of; // [stages] the host store that a stage reaches; NULL: the first
  uint32_t host_slots;     // that each host store lends
  bool host_only;          // devices lend nothing
} bl_balance_cap_t;

// Balances `schedule` under a cap. Every stage whose peak exceeds the cap evicts to stages whose peak is below it, each
// of which lends the cap minus its own peak. Blocks for which they lack slots are evicted to the stage's host store.
// BL_EXHAUSTED also names the smallest cap that works; finding it takes several tries, which `err` NULL saves.
BL_MUST_USE bl_status_t bl_balance_within(const bl_schedule_t *schedule, const bl_balance_cap_t *cap,
                                          bl_balance_result_t *result, bl_error_t *err);
// The same with all devices as lenders and no host store; all blocks that leave are parked.
BL_MUST_USE bl_status_t bl_balance_cap(const bl_schedule_t *schedule, uint32_t cap_slots, bool pairs_only,
                                       bl_balance_mode_t mode, bl_balance_result_t *result, bl_error_t *err);
// Returns the slots that bpipe keeps on a device if nobody says how many: bl_balance_bpipe_slots, or the smallest
// number above that works. An order that is made for more slots may keep too many blocks for BPipe's cap. `cap` gives
// everything but the slots.
uint32_t bl_balance_bpipe_default(const bl_schedule_t *schedule, const bl_balance_cap_t *cap);

#endif
