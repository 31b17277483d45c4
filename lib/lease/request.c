// SPDX-License-Identifier: Apache-2.0
// What all sequenced requests have in common: session, key, window, and one answer.
#include "lease/table_core.h"

#include <stddef.h>

static bl_lease_reason_t reason_of(bl_request_window_verdict_t verdict) {
  return verdict == BL_REQUEST_WINDOW_FULL ? BL_LEASE_WINDOW : BL_LEASE_SEQUENCE;
}

bool bl__request_begin(bl_lease_table_t *table, const bl_lease_request_t *request, uint64_t digest, uint32_t *session,
                       bl_request_window_entry_t **entry, bl_lease_decision_t *decision, bl_lease_answer_t *answer) {
  bl__set_time(table, request->now_ns);
  *answer = (bl_lease_answer_t){0};
  bl_lease_reason_t reason;
  *session = bl__session_find(table, request->session, &request->key, &reason);
  if (*session == 0) {
    *decision = bl__refuse(table, reason, answer);
    return false;
  }
  bl_request_window_t *window = &table->sessions[*session].window;
  bl_request_window_verdict_t verdict =
      bl_request_window_begin(window, request->sequence, request->acknowledged, digest, entry);
  switch (verdict) {
  case BL_REQUEST_WINDOW_NEW:
    return true;
  case BL_REQUEST_WINDOW_PENDING:
    table->stats.repeated++;
    *decision = BL_LEASE_WAIT;
    return false;
  case BL_REQUEST_WINDOW_DONE:
    table->stats.repeated++;
    *answer = (*entry)->answer;
    *decision = BL_LEASE_DONE;
    return false;
  case BL_REQUEST_WINDOW_DEAD:
  case BL_REQUEST_WINDOW_FULL:
    break;
  }
  *decision = bl__refuse(table, reason_of(verdict), answer);
  return false;
}

bl_lease_decision_t bl__request_done(bl_lease_table_t *table, bl_request_window_entry_t *entry,
                                     const bl_lease_answer_t *answer, bl_lease_answer_t *out) {
  if (answer->reason != BL_LEASE_GRANTED) {
    table->stats.refused[answer->reason]++;
  }
  entry->answer = *answer;
  entry->done = true;
  *out = entry->answer;
  return BL_LEASE_DONE;
}

bl_lease_decision_t bl__request_refuse(bl_lease_table_t *table, bl_request_window_entry_t *entry,
                                       bl_lease_reason_t reason, bl_lease_answer_t *out) {
  (void)bl__refuse(table, reason, &entry->answer); // also counts it
  entry->done = true;
  *out = entry->answer;
  return BL_LEASE_DONE;
}

void bl__request_answer(bl_lease_table_t *table, uint32_t session, uint64_t sequence, const bl_lease_answer_t *answer) {
  bl_request_window_entry_t *entry = bl_request_window_find(&table->sessions[session].window, sequence);
  if (entry == NULL || entry->done) {
    return;
  }
  if (answer->reason != BL_LEASE_GRANTED) {
    table->stats.refused[answer->reason]++;
  }
  entry->answer = *answer;
  entry->done = true;
  if (entry->queued) {
    return;
  }
  uint32_t index = (uint32_t)(entry - table->entries) + 1;
  entry->queued = true;
  entry->next_queued = 0;
  if (table->answers.last != 0) {
    table->entries[table->answers.last - 1].next_queued = index;
  } else {
    table->answers.first = index;
  }
  table->answers.last = index;
}
