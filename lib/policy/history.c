// SPDX-License-Identifier: Apache-2.0
#include "policy/history.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void bl_policy_history_add(bl_policy_history_t *history, const bl_policy_record_t *record) {
  const bl_policy_record_t *current = bl_policy_history_current(history);
  bl_policy_record_t added = *record;
  added.version = current != NULL ? current->version + 1 : 1;
  if (history->count == BL_POLICY_HISTORY_MAX) {
    memmove(history->records, history->records + 1, (BL_POLICY_HISTORY_MAX - 1) * sizeof history->records[0]);
    history->count--;
  }
  history->records[history->count++] = added;
}

const bl_policy_record_t *bl_policy_history_current(const bl_policy_history_t *history) {
  return history->count > 0 ? &history->records[history->count - 1] : NULL;
}

static const bl_policy_record_t *find(const bl_policy_history_t *history, uint64_t version) {
  for (size_t i = 0; i < history->count; i++) {
    if (history->records[i].version == version) {
      return &history->records[i];
    }
  }
  return NULL;
}

const bl_policy_record_t *bl_policy_history_find_request(const bl_policy_history_t *history, uint64_t request) {
  for (size_t i = history->count; request != 0 && i-- > 0;) {
    if (history->records[i].request == request) {
      return &history->records[i];
    }
  }
  return NULL;
}

const bl_policy_record_t *bl_policy_history_of_step(const bl_policy_history_t *history, uint64_t step) {
  for (size_t i = history->count; i-- > 0;) {
    if (history->records[i].from_step <= step || i == 0) {
      return &history->records[i];
    }
  }
  return NULL;
}

// Returns the policy before the current one. Consecutive choices of auto count as one policy.
static const bl_policy_record_t *before_current(const bl_policy_history_t *history) {
  const bl_policy_record_t *current = bl_policy_history_current(history);
  for (size_t i = history->count; i-- > 0;) {
    const bl_policy_record_t *record = &history->records[i];
    if (record != current && (record->policy.kind != BL_POLICY_AUTO || current->policy.kind != BL_POLICY_AUTO)) {
      return record;
    }
  }
  return NULL;
}

bl_status_t bl_policy_history_rollback(const bl_policy_history_t *history, uint64_t version,
                                       const bl_policy_record_t **record, bl_error_t *err) {
  const bl_policy_record_t *found = version == 0 ? before_current(history) : find(history, version);
  if (found == NULL && version == 0) {
    return bl_error_set(err, BL_NOT_FOUND, "no policy was in force before the present one");
  }
  if (found == NULL) {
    return bl_error_set(err, BL_NOT_FOUND,
                        "policy version %" PRIu64 " is not known; the history has versions %" PRIu64 " to %" PRIu64,
                        version, history->records[0].version, history->records[history->count - 1].version);
  }
  *record = found;
  return BL_OK;
}
