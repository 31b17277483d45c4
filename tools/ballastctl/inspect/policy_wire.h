// SPDX-License-Identifier: Apache-2.0
// The calls of ballast.v1.Driver about policies, with answers as JSON.
//
// A policy is {"policy": "bpipe", "cap": 3, "mode": "overlap", "version": 2, "from_step": 17, "devices": [...], ...}.
// `order` exists if policies that park have another order. `cap` is null if the policy has none. Under auto there are
// `chosen`, `decision`, and a `reason` per device.
// Thread: each call runs a loop of its own and blocks.
#ifndef BALLAST_BALLASTCTL_POLICY_WIRE_H
#define BALLAST_BALLASTCTL_POLICY_WIRE_H

#include "base/error.h"

#include <jansson.h>
#include <stdint.h>

typedef struct bl_ctl_policy_change {
  const char *name; // "cap"; NULL: a rollback
  uint32_t cap;     // 0: not given
  const char *mode; // NULL: the job's
  uint32_t *devices;
  size_t device_count;
  uint64_t to_version; // of a rollback; 0: the one before
  bool dry_run;
} bl_ctl_policy_change_t;

// *answer is a new reference. BL_DEADLINE: the driver has not answered in time; the change may still be made.
BL_MUST_USE bl_status_t bl_ctl_policy_set(const char *address, uint64_t timeout_ms,
                                          const bl_ctl_policy_change_t *change, json_t **answer, bl_error_t *err);
BL_MUST_USE bl_status_t bl_ctl_policy_get(const char *address, uint64_t timeout_ms, json_t **answer, bl_error_t *err);
// *answer is an array, newest first.
BL_MUST_USE bl_status_t bl_ctl_policy_history(const char *address, uint64_t timeout_ms, json_t **answer,
                                              bl_error_t *err);

#endif
