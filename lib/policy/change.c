// SPDX-License-Identifier: Apache-2.0
#include "policy/change.h"

#include <assert.h>
#include <string.h>

// ---- the queue

static void take_first(bl_changes_t *changes) {
  changes->change = changes->waiting[0];
  changes->waiting_count--;
  memmove(changes->waiting, changes->waiting + 1, changes->waiting_count * sizeof changes->waiting[0]);
}

static void put_first(bl_changes_t *changes) {
  memmove(changes->waiting + 1, changes->waiting, changes->waiting_count * sizeof changes->waiting[0]);
  changes->waiting[0] = changes->change;
  changes->waiting_count++;
}

// ---- opening

void bl_changes_learn(bl_changes_t *changes, const bl_policy_history_t *left) {
  assert(changes->phase == BL_CHANGES_CLOSED);
  changes->history = *left;
}

bool bl_changes_open(bl_changes_t *changes, const bl_policy_t *first, uint64_t applied) {
  assert(changes->phase == BL_CHANGES_CLOSED);
  const bool left = changes->history.count > 0;
  changes->phase = BL_CHANGES_OPENING;
  changes->next = changes->history;
  if (!left) {
    bl_policy_history_add(&changes->next, &(bl_policy_record_t){.policy = *first, .from_step = applied + 1});
  }
  changes->wanted = *bl_policy_history_current(&changes->next);
  return left;
}

void bl_changes_first_agreed(bl_changes_t *changes) {
  assert(changes->phase == BL_CHANGES_OPENING);
  changes->history = changes->next;
}

bl_changes_verdict_t bl_changes_first_refused(bl_changes_t *changes, bl_status_t status, bool waits, uint64_t now_ms) {
  assert(changes->phase == BL_CHANGES_OPENING);
  const bool passes = status == BL_UNAVAILABLE || status == BL_DEADLINE;
  if (changes->refused_since_ms == 0) {
    changes->refused_since_ms = now_ms;
  }
  if (status == BL_PRECONDITION) {
    return BL_CHANGES_BLAME;
  }
  const bool late = now_ms - changes->refused_since_ms > BL_CHANGES_SETUP_MS;
  return passes && (waits || !late) ? BL_CHANGES_AGAIN : BL_CHANGES_FAIL;
}

void bl_changes_opened(bl_changes_t *changes) {
  assert(changes->phase == BL_CHANGES_OPENING && changes->history.count > 0);
  changes->phase = BL_CHANGES_STEADY;
}

// ---- requests

// Sets *record to what the request asks for now, for bl_policy_history_add.
static bl_status_t resolve(const bl_changes_t *changes, const bl_policy_request_t *request, uint64_t applied,
                           bl_policy_record_t *record, bl_error_t *err) {
  *record = (bl_policy_record_t){.policy = request->begun, .request = request->request, .from_step = applied + 1};
  if (request->rollback) {
    const bl_policy_record_t *earlier;
    bl_status_t status = bl_policy_history_rollback(&changes->history, request->to_version, &earlier, err);
    if (status != BL_OK) {
      return status;
    }
    record->policy = earlier->policy;
    record->restores = earlier->version;
    return BL_OK;
  }
  const bl_policy_t *asked = &request->policy, *now = &bl_policy_history_current(&changes->history)->policy;
  if (now->kind == BL_POLICY_AUTO && asked->kind == BL_POLICY_AUTO && asked->chosen == BL_POLICY_AUTO &&
      now->cap == asked->cap && now->devices == asked->devices) {
    record->policy = *now; // what auto has chosen stays
  }
  return BL_OK;
}

// Returns true if the request needs no change: it was carried out before, or what it asks for is in force.
static bool is_done(const bl_changes_t *changes, const bl_policy_request_t *request, const bl_policy_record_t *wanted,
                    bl_changes_answer_t *answer) {
  const bl_policy_record_t *current = bl_policy_history_current(&changes->history);
  const bl_policy_record_t *before = bl_policy_history_find_request(&changes->history, request->request);
  *answer = (bl_changes_answer_t){.record = before != NULL ? before : current,
                                  .unchanged = before == NULL && bl_policy_equal(&current->policy, &wanted->policy)};
  answer->in_force = answer->record == current;
  return before != NULL || answer->unchanged;
}

bl_changes_ask_t bl_changes_ask(const bl_changes_t *changes, const bl_policy_request_t *request, uint64_t applied,
                                bl_policy_record_t *wanted, bl_changes_answer_t *answer, bl_error_t *err) {
  if (changes->phase < BL_CHANGES_STEADY) {
    return BL_CHANGES_ASK_LATER;
  }
  if (resolve(changes, request, applied, wanted, err) != BL_OK) {
    return BL_CHANGES_ASK_REFUSED;
  }
  // With changes before it in the queue, what it asks for may be in force by then, or no longer be.
  const bool first = bl_changes_open_count(changes) == 0;
  return (first || request->dry_run) && is_done(changes, request, wanted, answer) ? BL_CHANGES_ASK_DONE
                                                                                  : BL_CHANGES_ASK_LOOK;
}

bool bl_changes_full(const bl_changes_t *changes) {
  return changes->waiting_count >= BL_CHANGES_MAX;
}

void bl_changes_add(bl_changes_t *changes, const bl_policy_request_t *request, void *caller, uint64_t now_ms) {
  assert(!bl_changes_full(changes));
  changes->waiting[changes->waiting_count++] = (bl_change_t){.caller = caller, .request = *request, .asked_ms = now_ms};
}

static bool is_under_way(const bl_changes_t *changes) {
  return changes->phase == BL_CHANGES_MAKING || changes->phase == BL_CHANGES_PREPARING;
}

size_t bl_changes_open_count(const bl_changes_t *changes) {
  return changes->waiting_count + (is_under_way(changes) ? 1 : 0);
}

// ---- boundaries

bl_changes_action_t bl_changes_boundary(bl_changes_t *changes, uint64_t applied, uint64_t attempt, bool held,
                                        bl_changes_answer_t *answer, bl_error_t *err) {
  assert(changes->phase == BL_CHANGES_STEADY);
  err->status = BL_OK;
  const bool step_is_due = !held && changes->changed_before == attempt + 1;
  if (changes->waiting_count == 0 || step_is_due) {
    return BL_CHANGES_NOTHING;
  }
  take_first(changes);
  const bl_policy_request_t *request = &changes->change.request;
  if (resolve(changes, request, applied, &changes->wanted, err) != BL_OK ||
      is_done(changes, request, &changes->wanted, answer)) {
    return BL_CHANGES_ANSWER;
  }
  if (request->dry_run) {
    return BL_CHANGES_LOOK;
  }
  changes->next = changes->history;
  bl_policy_history_add(&changes->next, &changes->wanted);
  changes->phase = BL_CHANGES_MAKING;
  return BL_CHANGES_MAKE;
}

void bl_changes_unplannable(bl_changes_t *changes) {
  assert(changes->phase == BL_CHANGES_MAKING);
  changes->phase = BL_CHANGES_STEADY;
}

bool bl_changes_stores_away(bl_changes_t *changes, uint64_t now_ms) {
  assert(changes->phase == BL_CHANGES_MAKING);
  const bool early = now_ms - changes->change.asked_ms < BL_CHANGES_STORES_MS;
  changes->phase = BL_CHANGES_STEADY;
  if (early) {
    put_first(changes);
  }
  return early;
}

void bl_changes_proposed(bl_changes_t *changes, uint64_t version, uint64_t now_ms) {
  assert(changes->phase == BL_CHANGES_MAKING);
  bl_change_t *change = &changes->change;
  if (change->proposals++ == 0) {
    change->reservation = version;
    change->proposed_ms = now_ms;
  }
  changes->phase = BL_CHANGES_PREPARING;
}

void bl_changes_agreed(bl_changes_t *changes, uint64_t attempt) {
  assert(changes->phase == BL_CHANGES_PREPARING);
  changes->history = changes->next;
  changes->changed_before = attempt + 1;
  changes->phase = BL_CHANGES_STEADY;
}

bool bl_changes_refused(bl_changes_t *changes, bl_status_t status, uint64_t attempt, uint64_t now_ms) {
  assert(changes->phase == BL_CHANGES_PREPARING);
  const bl_change_t *change = &changes->change;
  const bool early =
      change->proposals <= BL_CHANGES_PROPOSALS || now_ms - change->proposed_ms < BL_CHANGES_PROPOSALS_MS;
  const bool again = status == BL_DEADLINE && early;
  changes->changed_before = attempt + 1;
  changes->phase = BL_CHANGES_STEADY;
  if (again) {
    put_first(changes);
  }
  return again;
}

// ---- the end

void bl_changes_end(bl_changes_t *changes) {
  if (is_under_way(changes)) {
    put_first(changes);
  }
  changes->phase = BL_CHANGES_ENDED;
}

bool bl_changes_take(bl_changes_t *changes, bl_change_t *change) {
  assert(changes->phase == BL_CHANGES_ENDED);
  const bool any = changes->waiting_count > 0;
  if (any) {
    take_first(changes);
    *change = changes->change;
  }
  return any;
}
