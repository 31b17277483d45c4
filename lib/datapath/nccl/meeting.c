// SPDX-License-Identifier: Apache-2.0
#include "datapath/nccl/meeting.h"

static const bl_nccl_meeting_step_t nothing;

static bl_nccl_meeting_step_t act(const bl_nccl_meeting_t *meeting, unsigned acts) {
  return (bl_nccl_meeting_step_t){.acts = acts, .generation = meeting->generation, .err = meeting->err};
}

static bl_nccl_meeting_step_t say(const bl_nccl_meeting_t *meeting, unsigned acts, bl_nccl_meeting_verb_t verb) {
  bl_nccl_meeting_step_t step = act(meeting, acts | BL_NCCL_MEETING_SAY);
  step.verb = verb;
  return step;
}

static bool has_begun(const bl_nccl_meeting_t *meeting) {
  return meeting->state == BL_NCCL_MEETING_MAKING || meeting->state == BL_NCCL_MEETING_MADE;
}

static void end(bl_nccl_meeting_t *meeting, const bl_error_t *why, bool again) {
  meeting->err = *why;
  meeting->state = BL_NCCL_MEETING_ENDING;
  meeting->again = again;
  meeting->has_ids = meeting->peer_made = false;
}

void bl_nccl_meeting_init(bl_nccl_meeting_t *meeting, bool lower) {
  *meeting = (bl_nccl_meeting_t){.lower = lower, .state = BL_NCCL_MEETING_WAITING};
}

bl_nccl_meeting_step_t bl_nccl_meeting_turn(bl_nccl_meeting_t *meeting) {
  if (!bl_nccl_meeting_can_begin(meeting)) {
    return nothing;
  }
  meeting->state = BL_NCCL_MEETING_MAKING;
  meeting->has_ids = meeting->peer_made = false;
  bl_error_clear(&meeting->err);
  if (!meeting->lower) {
    return act(meeting, BL_NCCL_MEETING_OPEN);
  }
  meeting->generation++;
  return say(meeting, BL_NCCL_MEETING_OPEN, BL_NCCL_MEETING_IDS);
}

bl_nccl_meeting_step_t bl_nccl_meeting_made(bl_nccl_meeting_t *meeting) {
  if (meeting->state != BL_NCCL_MEETING_MAKING) {
    return nothing;
  }
  meeting->state = BL_NCCL_MEETING_MADE;
  if (!meeting->lower) {
    return say(meeting, 0, BL_NCCL_MEETING_READY);
  }
  if (!meeting->peer_made) {
    return nothing;
  }
  meeting->state = BL_NCCL_MEETING_UP;
  return say(meeting, BL_NCCL_MEETING_TELL_UP, BL_NCCL_MEETING_USE);
}

bl_nccl_meeting_step_t bl_nccl_meeting_failed(bl_nccl_meeting_t *meeting, const bl_error_t *why) {
  const bl_nccl_meeting_state_t before = meeting->state;
  if (before != BL_NCCL_MEETING_UP && !has_begun(meeting)) {
    return nothing;
  }
  end(meeting, why, before == BL_NCCL_MEETING_UP);
  if (before == BL_NCCL_MEETING_UP) {
    return say(meeting, BL_NCCL_MEETING_CLOSE, BL_NCCL_MEETING_BROKE);
  }
  if (meeting->lower) {
    return say(meeting, BL_NCCL_MEETING_CLOSE | BL_NCCL_MEETING_TELL_FAILED, BL_NCCL_MEETING_DROP);
  }
  // The lower end decides, and may have: it hears of this as an end that did not make it, or as a break.
  return say(meeting, BL_NCCL_MEETING_CLOSE,
             before == BL_NCCL_MEETING_MAKING ? BL_NCCL_MEETING_READY : BL_NCCL_MEETING_BROKE);
}

bl_nccl_meeting_step_t bl_nccl_meeting_closed(bl_nccl_meeting_t *meeting) {
  if (meeting->state == BL_NCCL_MEETING_ENDING) {
    meeting->state = meeting->again ? BL_NCCL_MEETING_WAITING : BL_NCCL_MEETING_APART;
    meeting->again = false;
  }
  return nothing;
}

static bl_nccl_meeting_step_t hear_lower(bl_nccl_meeting_t *meeting, bl_nccl_meeting_verb_t verb,
                                         const bl_error_t *why) {
  const bool up = meeting->state == BL_NCCL_MEETING_UP;
  switch (verb) {
  case BL_NCCL_MEETING_READY:
    if (!has_begun(meeting)) {
      return nothing;
    }
    if (why->status != BL_OK) {
      end(meeting, why, false);
      return say(meeting, BL_NCCL_MEETING_CLOSE | BL_NCCL_MEETING_TELL_FAILED, BL_NCCL_MEETING_DROP);
    }
    meeting->peer_made = true;
    if (meeting->state == BL_NCCL_MEETING_MAKING) {
      return nothing;
    }
    meeting->state = BL_NCCL_MEETING_UP;
    return say(meeting, BL_NCCL_MEETING_TELL_UP, BL_NCCL_MEETING_USE);
  case BL_NCCL_MEETING_BROKE:
    if (!up && !has_begun(meeting)) {
      return nothing;
    }
    end(meeting, why, up);
    return up ? act(meeting, BL_NCCL_MEETING_CLOSE)
              : say(meeting, BL_NCCL_MEETING_CLOSE | BL_NCCL_MEETING_TELL_FAILED, BL_NCCL_MEETING_DROP);
  default:
    return nothing;
  }
}

// Ids of a new generation: the lower end has left the one before.
static bl_nccl_meeting_step_t hear_ids(bl_nccl_meeting_t *meeting, uint32_t generation) {
  meeting->generation = generation;
  meeting->has_ids = true;
  if (has_begun(meeting) || meeting->state == BL_NCCL_MEETING_UP) {
    meeting->state = BL_NCCL_MEETING_ENDING;
    meeting->again = true;
    return act(meeting, BL_NCCL_MEETING_CLOSE);
  }
  meeting->again = true;
  if (meeting->state == BL_NCCL_MEETING_APART) {
    meeting->state = BL_NCCL_MEETING_WAITING;
  }
  return nothing;
}

static bl_nccl_meeting_step_t hear_higher(bl_nccl_meeting_t *meeting, bl_nccl_meeting_verb_t verb,
                                          const bl_error_t *why) {
  switch (verb) {
  case BL_NCCL_MEETING_USE:
    if (meeting->state != BL_NCCL_MEETING_MADE) {
      return nothing; // it broke here meanwhile, which the lower end is about to hear
    }
    meeting->state = BL_NCCL_MEETING_UP;
    return act(meeting, BL_NCCL_MEETING_TELL_UP);
  case BL_NCCL_MEETING_DROP:
    if (has_begun(meeting)) {
      end(meeting, why, false);
      return act(meeting, BL_NCCL_MEETING_CLOSE | BL_NCCL_MEETING_TELL_FAILED);
    }
    meeting->err = *why;
    meeting->again = meeting->has_ids = false;
    if (meeting->state == BL_NCCL_MEETING_WAITING) {
      meeting->state = BL_NCCL_MEETING_APART;
    }
    return act(meeting, BL_NCCL_MEETING_TELL_FAILED);
  case BL_NCCL_MEETING_BROKE:
    if (meeting->state != BL_NCCL_MEETING_UP && meeting->state != BL_NCCL_MEETING_MADE) {
      return nothing;
    }
    end(meeting, why, true);
    return act(meeting, BL_NCCL_MEETING_CLOSE);
  default:
    return nothing;
  }
}

bl_nccl_meeting_step_t bl_nccl_meeting_heard(bl_nccl_meeting_t *meeting, bl_nccl_meeting_verb_t verb,
                                             uint32_t generation, const bl_error_t *why) {
  if (verb == BL_NCCL_MEETING_IDS) {
    return !meeting->lower && generation > meeting->generation ? hear_ids(meeting, generation) : nothing;
  }
  if (!meeting->lower && verb == BL_NCCL_MEETING_DROP && generation > meeting->generation) {
    meeting->generation = generation; // its ids could not be drawn
  }
  if (generation != meeting->generation) {
    return nothing;
  }
  return meeting->lower ? hear_lower(meeting, verb, why) : hear_higher(meeting, verb, why);
}

void bl_nccl_meeting_want(bl_nccl_meeting_t *meeting) {
  if (meeting->state == BL_NCCL_MEETING_APART) {
    meeting->state = BL_NCCL_MEETING_WAITING;
  } else if (meeting->state == BL_NCCL_MEETING_ENDING) {
    meeting->again = true;
  }
}

bl_nccl_meeting_step_t bl_nccl_meeting_part(bl_nccl_meeting_t *meeting, const bl_error_t *why) {
  const bool there = meeting->state == BL_NCCL_MEETING_UP || has_begun(meeting);
  meeting->generation = meeting->lower ? meeting->generation : 0; // the next lower end may be another process
  meeting->has_ids = meeting->again = false;
  if (there) {
    end(meeting, why, false);
    return act(meeting, BL_NCCL_MEETING_CLOSE);
  }
  meeting->err = *why;
  if (meeting->state == BL_NCCL_MEETING_WAITING) {
    meeting->state = BL_NCCL_MEETING_APART;
  }
  return nothing;
}

void bl_nccl_meeting_meet(bl_nccl_meeting_t *meeting) {
  bl_nccl_meeting_want(meeting);
}
