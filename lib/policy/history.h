// SPDX-License-Identifier: Apache-2.0
// The balancing policies of a run: which is in force, which were before, since when, and who asked for them.
//
//   bl_policy_history_t history = {0};
//   bl_policy_history_add(&history, &(bl_policy_record_t){.policy = policy, .from_step = 1});      // becomes version 1
//   bl_policy_history_current(&history)->version
//
// Only policies that are in force get a version, so none is used up by a refusal. A history is plain data: it travels
// with every plan, and the next driver reads it from the stages. The oldest of more than BL_POLICY_HISTORY_MAX are
// forgotten.
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
  uint64_t from_step; // the first step under it
  uint64_t request;   // of the call that asked for it; 0: the job
  uint64_t restores;  // version of a rollback's aim; 0: none
} bl_policy_record_t;

typedef struct bl_policy_history {
  bl_policy_record_t records[BL_POLICY_HISTORY_MAX]; // oldest first; the last is in force
  size_t count;
} bl_policy_history_t;

// Appends the record under the next version.
void bl_policy_history_add(bl_policy_history_t *history, const bl_policy_record_t *record);
// The one in force; NULL while there is none.
const bl_policy_record_t *bl_policy_history_current(const bl_policy_history_t *history);
// NULL when it is not, or no longer, known.
const bl_policy_record_t *bl_policy_history_find_request(const bl_policy_history_t *history, uint64_t request);
// The one that step ran under: the newest that began by then, or the oldest known.
const bl_policy_record_t *bl_policy_history_of_step(const bl_policy_history_t *history, uint64_t step);
// What a rollback goes back to: `version`, or with 0 the one before the one in force. BL_NOT_FOUND says what is known.
BL_MUST_USE bl_status_t bl_policy_history_rollback(const bl_policy_history_t *history, uint64_t version,
                                                   const bl_policy_record_t **record, bl_error_t *err);

#endif
