// SPDX-License-Identifier: Apache-2.0
// Balancing policies: the list of them, what each means, and their names for people and messages.
//
//   status = bl_policy_read("cap", 3, "", BL_BALANCE_OVERLAP, &policy, &err);
//   bl_policy_format(&policy, text);      // "cap 3"
//
// none   nothing moves; every stage must have the slots that the schedule needs.
// bpipe  stages s and p-1-s are pairs: the one that needs more than the cap parks blocks at the other.
// cap    a stage that needs more than the cap parks blocks at any devices that need less, preferring short copies
//        (balance.slow_paths; training->copies).
// drop   a stage that needs more than the cap drops blocks when their F has ended and recomputes them before their
//        backward, from their kept input (schedule/balance/drop.h). Nothing moves; without a cap, memory.slots is it.
// offload  a stage that needs more than the cap parks blocks at its host's store (balance.host); without a cap,
//        memory.slots is it. Under bpipe and cap a job's host store takes what does not fit on devices.
// mix    of the blocks for which a stage has no slot, those are parked whose copies hide and which fit into stores. The
//        rest is dropped and recomputed (schedule/balance/balance.h, copy). Only auto chooses it.
// auto   one of the six, chosen repeatedly while the run goes on (policy/choice.h).
// The plan that a policy means for a job: job/balance.h. Which blocks move: schedule/balance/balance.h.
//
// Pure. Thread: any.
#ifndef BALLAST_POLICY_POLICY_H
#define BALLAST_POLICY_POLICY_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum bl_policy_kind {
  BL_POLICY_NONE,
  BL_POLICY_BPIPE,
  BL_POLICY_CAP,
  BL_POLICY_DROP,
  BL_POLICY_OFFLOAD,
  BL_POLICY_AUTO,
  BL_POLICY_MIX, // no job can request it: what auto may choose
} bl_policy_kind_t;
const char *bl_policy_kind_name(bl_policy_kind_t kind); // "bpipe"
// Returns whether this policy parks blocks at stores.
static inline bool bl_policy_copies(bl_policy_kind_t kind) {
  return kind == BL_POLICY_BPIPE || kind == BL_POLICY_CAP || kind == BL_POLICY_OFFLOAD || kind == BL_POLICY_MIX;
}
// Returns whether a job that begins with this policy has an order made for balancing (`pooled` of schedule/generate.h).
static inline bool bl_policy_pools(bl_policy_kind_t kind) {
  return kind == BL_POLICY_BPIPE || kind == BL_POLICY_CAP;
}

typedef enum bl_balance_mode {
  BL_BALANCE_OVERLAP, // an E runs during the operation before the one that needs the slot, an L during the operation
                      // before its backward, or directly before the backward if no slot is free earlier: copies hide
                      // behind compute, for a few more evictions
  BL_BALANCE_FEWEST,  // evict when full, load just before use
} bl_balance_mode_t;
const char *bl_policy_mode_name(bl_balance_mode_t mode); // "overlap"

typedef struct bl_policy {
  bl_policy_kind_t kind;
  uint32_t cap; // slots a device keeps; 0: bpipe's own (bl_balance_bpipe_default); auto: memory.slots
  bl_balance_mode_t mode;
  uint64_t devices;        // bit d: the store of device d may take blocks; 0: all may
  bl_policy_kind_t chosen; // what auto stands for, any kind but auto; auto: not chosen yet. Other policies: none
  uint32_t copy;           // of mix: time of a copy in hundredths of a forward, or BL_POLICY_COPY_PROBE; otherwise 0
} bl_policy_t;
#define BL_POLICY_COPY_ASSUMED 50         // while paths are not measured: copies hide
#define BL_POLICY_COPY_PROBE   UINT32_MAX // each stage parks one block of a step, however long that takes
// Devices that a policy can name.
#define BL_POLICY_DEVICES 64

bool bl_policy_equal(const bl_policy_t *a, const bl_policy_t *b);
// Whether it is the mix that a run under auto begins with, to measure paths.
bool bl_policy_probes(const bl_policy_t *policy);
// Formats "cap 3", "bpipe", "none", "auto: bpipe", with ", fewest" and ", devices 2 3" if not the default. Returns
// `text`.
#define BL_POLICY_TEXT 320
const char *bl_policy_format(const bl_policy_t *policy, char text[BL_POLICY_TEXT]);
// Reads names given by people. `usual` is the mode if `mode` is "". BL_INVALID names what is wrong.
BL_MUST_USE bl_status_t bl_policy_read(const char *name, uint32_t cap, const char *mode, bl_balance_mode_t usual,
                                       bl_policy_t *policy, bl_error_t *err);
// Adds a device whose store may take blocks. BL_INVALID: beyond BL_POLICY_DEVICES.
BL_MUST_USE bl_status_t bl_policy_add_device(bl_policy_t *policy, uint32_t device, bl_error_t *err);
// Reads what a policy auto stands for, and the copy of a mix. BL_INVALID: auto stands for nothing of that name.
BL_MUST_USE bl_status_t bl_policy_read_chosen(const char *name, uint32_t copy, bl_policy_t *policy, bl_error_t *err);

#endif
