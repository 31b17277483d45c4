// SPDX-License-Identifier: Apache-2.0
// Policies as people and messages name them.
//
//   status = bl_policy_read("cap", 3, "", BL_BALANCE_OVERLAP, &policy, &err);
//   bl_policy_format(&policy, text);      // "cap 3"
//
// Pure. Thread: any.
#ifndef BALLAST_JOB_POLICY_H
#define BALLAST_JOB_POLICY_H

#include "job/balance.h"

bool bl_policy_equal(const bl_policy_t *a, const bl_policy_t *b);
const char *bl_policy_mode_name(bl_balance_mode_t mode); // "overlap"
// "cap 3", "bpipe", "none", "auto: bpipe"; with ", fewest" and ", devices 2 3" where it differs from the usual. Returns `text`.
#define BL_POLICY_TEXT 320
const char *bl_policy_format(const bl_policy_t *policy, char text[BL_POLICY_TEXT]);
// Reads names as they come from people. `usual` is the mode when `mode` is "". BL_INVALID names what is wrong.
BL_MUST_USE bl_status_t bl_policy_read(const char *name, uint32_t cap, const char *mode, bl_balance_mode_t usual,
                                       bl_policy_t *policy, bl_error_t *err);
// Adds a device whose store may take blocks. BL_INVALID: beyond BL_POLICY_DEVICES.
BL_MUST_USE bl_status_t bl_policy_add_device(bl_policy_t *policy, uint32_t device, bl_error_t *err);
// What a policy auto stands for, and the copy of a mix. BL_INVALID: it stands for nothing of that name.
BL_MUST_USE bl_status_t bl_policy_read_chosen(const char *name, uint32_t copy, bl_policy_t *policy, bl_error_t *err);

#endif
