// SPDX-License-Identifier: Apache-2.0
#include "policy/policy.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const char *bl_policy_kind_name(bl_policy_kind_t kind) {
  static const char *const names[] = {"none", "bpipe", "cap", "drop", "offload", "auto", "mix"};
  return names[kind];
}

bool bl_policy_equal(const bl_policy_t *a, const bl_policy_t *b) {
  bool same_mode = a->mode == b->mode || a->kind == BL_POLICY_NONE || a->kind == BL_POLICY_DROP;
  return a->kind == b->kind && a->chosen == b->chosen && a->cap == b->cap && a->devices == b->devices &&
         a->copy == b->copy && same_mode;
}

bool bl_policy_probes(const bl_policy_t *policy) {
  return policy->kind == BL_POLICY_AUTO && policy->chosen == BL_POLICY_MIX && policy->copy == BL_POLICY_COPY_PROBE;
}

const char *bl_policy_mode_name(bl_balance_mode_t mode) {
  return mode == BL_BALANCE_FEWEST ? "fewest" : "overlap";
}

const char *bl_policy_format(const bl_policy_t *policy, char text[BL_POLICY_TEXT]) {
  int length = snprintf(text, BL_POLICY_TEXT, "%s", bl_policy_kind_name(policy->kind));
  if (policy->kind == BL_POLICY_NONE) {
    return text;
  }
  if (policy->cap != 0) {
    length += snprintf(text + length, BL_POLICY_TEXT - (size_t)length, " %" PRIu32, policy->cap);
  }
  const bool automatic = policy->kind == BL_POLICY_AUTO;
  if (automatic && policy->chosen != BL_POLICY_AUTO) {
    length += snprintf(text + length, BL_POLICY_TEXT - (size_t)length, ": %s", bl_policy_kind_name(policy->chosen));
  }
  bool moves = policy->kind != BL_POLICY_DROP && policy->chosen != BL_POLICY_DROP &&
               !(automatic && policy->chosen == BL_POLICY_NONE);
  if (policy->mode == BL_BALANCE_FEWEST && moves) {
    length += snprintf(text + length, BL_POLICY_TEXT - (size_t)length, ", fewest");
  }
  for (uint32_t i = 0, first = 1; i < BL_POLICY_DEVICES; i++) {
    if ((policy->devices >> i & 1) != 0) {
      length += snprintf(text + length, BL_POLICY_TEXT - (size_t)length, "%s %" PRIu32, first ? ", devices" : "", i);
      first = 0;
    }
  }
  return text;
}

static bl_status_t read_mode(const char *mode, bl_balance_mode_t *to, bl_error_t *err) {
  if (strcmp(mode, "overlap") == 0) {
    *to = BL_BALANCE_OVERLAP;
  } else if (strcmp(mode, "fewest") == 0) {
    *to = BL_BALANCE_FEWEST;
  } else {
    return bl_error_set(err, BL_INVALID, "'%.40s' is no mode of balancing: overlap or fewest", mode);
  }
  return BL_OK;
}

bl_status_t bl_policy_read(const char *name, uint32_t cap, const char *mode, bl_balance_mode_t usual,
                           bl_policy_t *policy, bl_error_t *err) {
  bl_policy_t read = {.cap = cap, .mode = usual};
  bool known = false;
  for (int kind = BL_POLICY_NONE; kind <= BL_POLICY_AUTO && !known; kind++) {
    read.kind = (bl_policy_kind_t)kind;
    known = strcmp(name, bl_policy_kind_name(read.kind)) == 0;
  }
  if (!known) {
    return bl_error_set(err, BL_INVALID, "'%.40s' is no policy: none, bpipe, cap, drop, offload or auto", name);
  }
  read.chosen = read.kind == BL_POLICY_AUTO ? BL_POLICY_AUTO : BL_POLICY_NONE;
  if (read.kind == BL_POLICY_CAP && cap == 0) {
    return bl_error_set(err, BL_INVALID, "the policy cap needs a number of slots from 1 on, for example cap 3");
  }
  if (read.kind == BL_POLICY_NONE && cap != 0) {
    return bl_error_set(err, BL_INVALID, "the policy none moves nothing and has no cap");
  }
  bl_status_t status = mode[0] == '\0' ? BL_OK : read_mode(mode, &read.mode, err);
  if (status == BL_OK) {
    *policy = read;
  }
  return status;
}

bl_status_t bl_policy_add_device(bl_policy_t *policy, uint32_t device, bl_error_t *err) {
  if (policy->kind == BL_POLICY_NONE || policy->kind == BL_POLICY_DROP || policy->kind == BL_POLICY_OFFLOAD) {
    return bl_error_set(err, BL_INVALID, "the policy %s moves nothing%s and names no devices",
                        bl_policy_kind_name(policy->kind), policy->kind == BL_POLICY_OFFLOAD ? " to devices" : "");
  }
  if (device >= BL_POLICY_DEVICES) {
    return bl_error_set(err, BL_INVALID, "device %" PRIu32 ": a policy can name devices 0 to %d", device,
                        BL_POLICY_DEVICES - 1);
  }
  policy->devices |= UINT64_C(1) << device;
  return BL_OK;
}

bl_status_t bl_policy_read_chosen(const char *name, uint32_t copy, bl_policy_t *policy, bl_error_t *err) {
  for (int kind = BL_POLICY_NONE; kind <= BL_POLICY_MIX; kind++) {
    if (strcmp(name, bl_policy_kind_name((bl_policy_kind_t)kind)) == 0) {
      policy->chosen = (bl_policy_kind_t)kind;
      policy->copy = copy;
      return BL_OK;
    }
  }
  return bl_error_set(err, BL_INVALID, "'%.40s' is nothing that auto stands for", name);
}
