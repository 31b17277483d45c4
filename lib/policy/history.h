// SPDX-License-Identifier: Apache-2.0
// The balancing policies of a run: which is in force, which were before, from which step, and which request set them.
//
//   bl_policy_history_t history = {0};
//   bl_policy_history_add(&history, &(bl_policy_record_t){.policy = policy, .from_step = 1});      // becomes version 1
//   bl_policy_history_current(&history)->version
//
// Only policies that are in force get a version, so a refusal uses none. A history is plain data: every plan carries
// it, and the next driver reads it from the stages. Beyond BL_POLICY_HISTORY_MAX the oldest are forgotten.
//
// Pure. Thread: values, one owner.
#ifndef BALLAST_POLICY_HISTORY_H
#define BALLAST_POLICY_HISTORY_H

#include "policy/policy.h"

#include <stddef.h>

#define BL_POLICY_HISTORY_MAX 32 // about 1 KiB on the wire, with every plan

typedef struct bl_policy_record {
  uint64_t version; // from 1
  bl_policy_t policy;
  uint64_t from_step; // first step under it
  uint64_t request;   // of the call that asked for it; 0: the job
  uint64_t restores;  // version that a rollback restores; 0: none
} bl_policy_record_t;

typedef struct bl_policy_history {
  bl_policy_record_t records[BL_POLICY_HISTORY_MAX]; // oldest first; the last is in force
  size_t count;
} bl_policy_history_t;

// Appends the record under the next version.
void bl_policy_history_add(bl_policy_history_t *history, const bl_policy_record_t *record);
// Returns the policy in force; NULL: none yet.
const bl_policy_record_t *bl_policy_history_current(const bl_policy_history_t *history);
// Returns the record of that request; NULL: it is not, or no longer, known.
const bl_policy_record_t *bl_policy_history_find_request(const bl_policy_history_t *history, uint64_t request);
// Returns the record of the policy that ran at `step`: the newest that began by then, or the oldest known.
const bl_policy_record_t *bl_policy_history_of_step(const bl_policy_history_t *history, uint64_t step);
// Finds what a rollback restores: `version`, or with 0 the policy before the one in force. BL_NOT_FOUND lists what is
// known.
BL_MUST_USE bl_status_t bl_policy_history_rollback(const bl_policy_history_t *history, uint64_t version,
                                                   const bl_policy_record_t **record, bl_error_t *err);

#endif
