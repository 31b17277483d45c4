// SPDX-License-Identifier: Apache-2.0
#include "policy/choice.h"

#include <assert.h>

static bool is_automatic(const bl_choice_now_t *now) {
  return now->in_force != NULL && now->in_force->policy.kind == BL_POLICY_AUTO;
}

// ---- boundaries

// Forgets everything: another policy is in force than the one that this state was about.
static void forget(bl_choice_t *choice, const bl_choice_now_t *now) {
  choice->version = is_automatic(now) ? now->in_force->version : 0;
  choice->phase = choice->phase == BL_CHOICE_ASKED ? BL_CHOICE_ASKED : BL_CHOICE_RESTING;
  choice->reason = BL_CHOICE_CHANGE;
  choice->checks = choice->found = choice->begins = false;
  choice->next = choice->trial_at = 0;
  bl_measurements_forget(now->measurements);
}

// Ends a rest if steps take far longer than when the policy was chosen: something has changed.
static bool watch(bl_choice_t *choice, const bl_choice_now_t *now) {
  if (choice->watched == now->applied) {
    return false;
  }
  choice->watched = now->applied;
  const bool slower = bl_measurements_step(now->measurements, now->seconds) && choice->next > now->applied + 1;
  choice->next = slower ? now->applied + 1 : choice->next;
  return slower;
}

static bool is_due(const bl_choice_t *choice, const bl_choice_now_t *now) {
  const bool warm = now->applied + bl_policy_probes(&now->in_force->policy) > now->in_force->from_step;
  return choice->phase != BL_CHOICE_ASKED && now->drives && now->moves && now->seconds > 0 && warm &&
         now->applied != choice->sampled && now->applied >= choice->next;
}

static bool trial_is_due(const bl_choice_t *choice, uint64_t applied) {
  return choice->phase == BL_CHOICE_RESTING && !choice->checks && choice->trial_at != 0 && applied >= choice->trial_at;
}

bl_choice_action_t bl_choice_boundary(bl_choice_t *choice, const bl_choice_now_t *now, bool *slower) {
  const bool automatic = is_automatic(now);
  if (!automatic || now->in_force->version != choice->version) {
    forget(choice, now);
  }
  *slower = watch(choice, now);
  if (automatic && is_due(choice, now)) {
    return BL_CHOICE_SAMPLE;
  }
  const bool tries =
      automatic && now->in_force->policy.chosen == BL_POLICY_DROP && now->drives && trial_is_due(choice, now->applied);
  return tries ? BL_CHOICE_TRY : BL_CHOICE_NOTHING;
}

bool bl_choice_will_look(const bl_choice_t *choice, const bl_choice_now_t *now) {
  return is_automatic(now) && now->moves &&
         (now->applied + 1 >= choice->next || trial_is_due(choice, now->applied + 1));
}

// ---- samples

bl_choice_due_t bl_choice_sampled(bl_choice_t *choice, const bl_choice_now_t *now, uint32_t whole) {
  assert(choice->phase != BL_CHOICE_ASKED && now->applied != choice->sampled);
  choice->samples = choice->phase == BL_CHOICE_SAMPLING ? choice->samples + 1 : 1;
  choice->phase = BL_CHOICE_SAMPLING;
  choice->sampled = now->applied;
  if (bl_policy_probes(&now->in_force->policy)) {
    return BL_CHOICE_BEGIN;
  }
  return whole >= BL_CHOICE_STEPS || choice->samples >= BL_CHOICE_SAMPLES ? BL_CHOICE_DECIDE : BL_CHOICE_MORE;
}

void bl_choice_unsampled(bl_choice_t *choice, const bl_choice_now_t *now) {
  choice->sampled = now->applied;
}

void bl_choice_measured(bl_choice_t *choice, uint64_t applied) {
  choice->measured = applied;
  choice->refused = 0;
}

// ---- decisions

bool bl_choice_begun(bl_choice_t *choice, bool slow) {
  assert(choice->phase == BL_CHOICE_SAMPLING);
  if (slow && choice->samples < BL_CHOICE_PROBES) {
    return false; // only the first step shows it, and that one had to warm up
  }
  choice->begins = true;
  return true;
}

// Sets when to park some blocks again, if blocks are dropped.
static void plan_trial(bl_choice_t *choice, uint64_t applied, const bl_choice_found_t *found) {
  choice->trial_at = 0;
  if (!found->gives_up || !found->may_try) {
    return;
  }
  const uint64_t after = found->trial_after < BL_CHOICE_NEVER ? found->trial_after : BL_CHOICE_NEVER;
  const uint64_t rest = (after > BL_CHOICE_REST ? after : BL_CHOICE_REST) << choice->refused;
  choice->trial = found->trial;
  choice->measured = choice->measured == 0 ? applied : choice->measured;
  choice->trial_at = rest < BL_CHOICE_NEVER ? choice->measured + rest : 0;
}

bool bl_choice_decided(bl_choice_t *choice, const bl_choice_now_t *now, const bl_choice_found_t *found) {
  assert(choice->phase == BL_CHOICE_SAMPLING);
  const bool asks = found->known && found->other;
  if (found->known) {
    choice->found = true;
    plan_trial(choice, now->applied, found);
  }
  if (!asks) {
    choice->checks = false;
    choice->phase = BL_CHOICE_RESTING;
    choice->next = now->applied + BL_CHOICE_REST;
  }
  return asks;
}

void bl_choice_asked(bl_choice_t *choice, const bl_choice_now_t *now, bl_choice_reason_t reason, bool asked) {
  assert(choice->phase != BL_CHOICE_ASKED);
  if (reason == BL_CHOICE_TRIAL && !asked) {
    return; // it is requested again at the next boundary
  }
  choice->phase = asked ? BL_CHOICE_ASKED : BL_CHOICE_RESTING;
  choice->reason = reason;
  switch (reason) {
  case BL_CHOICE_START:
    choice->next = now->applied + (asked ? BL_CHOICE_REST : 1);
    break;
  case BL_CHOICE_CHANGE:
    choice->found = asked; // otherwise another change is waiting
    choice->checks = asked && !choice->checks;
    choice->next = now->applied + BL_CHOICE_REST;
    break;
  case BL_CHOICE_TRIAL:
    choice->found = true;
    choice->trial_at = 0;
    break;
  }
}

void bl_choice_answered(bl_choice_t *choice, uint64_t applied, const bl_policy_record_t *record) {
  assert(choice->phase == BL_CHOICE_ASKED);
  choice->phase = BL_CHOICE_RESTING;
  if (record == NULL) {
    choice->found = choice->checks = false;
    choice->begins = choice->begins && choice->reason != BL_CHOICE_START;
    if (choice->reason == BL_CHOICE_TRIAL) {
      choice->measured = applied;
      choice->refused += choice->refused < BL_CHOICE_PATIENCE;
    }
    return;
  }
  choice->version = record->version;
  if (choice->reason != BL_CHOICE_CHANGE || choice->checks) {
    choice->next = 0;
  }
}

bl_choice_told_t bl_choice_told(const bl_choice_t *choice, const bl_policy_record_t *in_force) {
  if (choice->version != in_force->version) {
    return BL_CHOICE_NOTHING_KNOWN;
  }
  if (choice->found && choice->phase != BL_CHOICE_ASKED) {
    return BL_CHOICE_FOUND;
  }
  return choice->begins ? BL_CHOICE_BEGINS : BL_CHOICE_NOTHING_KNOWN;
}
