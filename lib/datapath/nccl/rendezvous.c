// SPDX-License-Identifier: Apache-2.0
#include "datapath/nccl/rendezvous.h"

static const bl_nccl_rendezvous_step_t nothing;

static bl_nccl_rendezvous_step_t act(const bl_nccl_rendezvous_t *rendezvous, unsigned acts) {
  return (bl_nccl_rendezvous_step_t){.acts = acts, .generation = rendezvous->generation, .err = rendezvous->err};
}

static bl_nccl_rendezvous_step_t say(const bl_nccl_rendezvous_t *rendezvous, unsigned acts,
                                     bl_nccl_rendezvous_kind_t kind) {
  bl_nccl_rendezvous_step_t step = act(rendezvous, acts | BL_NCCL_RENDEZVOUS_SAY);
  step.kind = kind;
  return step;
}

static bool has_begun(const bl_nccl_rendezvous_t *rendezvous) {
  return rendezvous->state == BL_NCCL_RENDEZVOUS_MAKING || rendezvous->state == BL_NCCL_RENDEZVOUS_MADE;
}

static void end(bl_nccl_rendezvous_t *rendezvous, const bl_error_t *why, bool again) {
  rendezvous->err = *why;
  rendezvous->state = BL_NCCL_RENDEZVOUS_ENDING;
  rendezvous->again = again;
  rendezvous->has_ids = rendezvous->peer_made = false;
}

void bl_nccl_rendezvous_init(bl_nccl_rendezvous_t *rendezvous, bool lower) {
  *rendezvous = (bl_nccl_rendezvous_t){.lower = lower, .state = BL_NCCL_RENDEZVOUS_WAITING};
}

bl_nccl_rendezvous_step_t bl_nccl_rendezvous_turn(bl_nccl_rendezvous_t *rendezvous) {
  if (!bl_nccl_rendezvous_can_begin(rendezvous)) {
    return nothing;
  }
  rendezvous->state = BL_NCCL_RENDEZVOUS_MAKING;
  rendezvous->has_ids = rendezvous->peer_made = false;
  bl_error_clear(&rendezvous->err);
  if (!rendezvous->lower) {
    return act(rendezvous, BL_NCCL_RENDEZVOUS_OPEN);
  }
  rendezvous->generation++;
  return say(rendezvous, BL_NCCL_RENDEZVOUS_OPEN, BL_NCCL_RENDEZVOUS_IDS);
}

bl_nccl_rendezvous_step_t bl_nccl_rendezvous_made(bl_nccl_rendezvous_t *rendezvous) {
  if (rendezvous->state != BL_NCCL_RENDEZVOUS_MAKING) {
    return nothing;
  }
  rendezvous->state = BL_NCCL_RENDEZVOUS_MADE;
  if (!rendezvous->lower) {
    return say(rendezvous, 0, BL_NCCL_RENDEZVOUS_READY);
  }
  if (!rendezvous->peer_made) {
    return nothing;
  }
  rendezvous->state = BL_NCCL_RENDEZVOUS_UP;
  return say(rendezvous, BL_NCCL_RENDEZVOUS_TELL_UP, BL_NCCL_RENDEZVOUS_USE);
}

bl_nccl_rendezvous_step_t bl_nccl_rendezvous_failed(bl_nccl_rendezvous_t *rendezvous, const bl_error_t *why) {
  const bl_nccl_rendezvous_state_t before = rendezvous->state;
  if (before != BL_NCCL_RENDEZVOUS_UP && !has_begun(rendezvous)) {
    return nothing;
  }
  end(rendezvous, why, before == BL_NCCL_RENDEZVOUS_UP);
  if (before == BL_NCCL_RENDEZVOUS_UP) {
    return say(rendezvous, BL_NCCL_RENDEZVOUS_CLOSE, BL_NCCL_RENDEZVOUS_BROKE);
  }
  if (rendezvous->lower) {
    return say(rendezvous, BL_NCCL_RENDEZVOUS_CLOSE | BL_NCCL_RENDEZVOUS_TELL_FAILED, BL_NCCL_RENDEZVOUS_DROP);
  }
  // The lower end decides, and may have decided already. It learns of this as a MADE with the cause, or as BROKE.
  return say(rendezvous, BL_NCCL_RENDEZVOUS_CLOSE,
             before == BL_NCCL_RENDEZVOUS_MAKING ? BL_NCCL_RENDEZVOUS_READY : BL_NCCL_RENDEZVOUS_BROKE);
}

bl_nccl_rendezvous_step_t bl_nccl_rendezvous_closed(bl_nccl_rendezvous_t *rendezvous) {
  if (rendezvous->state == BL_NCCL_RENDEZVOUS_ENDING) {
    rendezvous->state = rendezvous->again ? BL_NCCL_RENDEZVOUS_WAITING : BL_NCCL_RENDEZVOUS_APART;
    rendezvous->again = false;
  }
  return nothing;
}

static bl_nccl_rendezvous_step_t hear_lower(bl_nccl_rendezvous_t *rendezvous, bl_nccl_rendezvous_kind_t kind,
                                            const bl_error_t *why) {
  const bool up = rendezvous->state == BL_NCCL_RENDEZVOUS_UP;
  switch (kind) {
  case BL_NCCL_RENDEZVOUS_READY:
    if (!has_begun(rendezvous)) {
      return nothing;
    }
    if (why->status != BL_OK) {
      end(rendezvous, why, false);
      return say(rendezvous, BL_NCCL_RENDEZVOUS_CLOSE | BL_NCCL_RENDEZVOUS_TELL_FAILED, BL_NCCL_RENDEZVOUS_DROP);
    }
    rendezvous->peer_made = true;
    if (rendezvous->state == BL_NCCL_RENDEZVOUS_MAKING) {
      return nothing;
    }
    rendezvous->state = BL_NCCL_RENDEZVOUS_UP;
    return say(rendezvous, BL_NCCL_RENDEZVOUS_TELL_UP, BL_NCCL_RENDEZVOUS_USE);
  case BL_NCCL_RENDEZVOUS_BROKE:
    if (!up && !has_begun(rendezvous)) {
      return nothing;
    }
    end(rendezvous, why, up);
    return up ? act(rendezvous, BL_NCCL_RENDEZVOUS_CLOSE)
              : say(rendezvous, BL_NCCL_RENDEZVOUS_CLOSE | BL_NCCL_RENDEZVOUS_TELL_FAILED, BL_NCCL_RENDEZVOUS_DROP);
  default:
    return nothing;
  }
}

// Ids of a new generation: the lower end has left the previous one.
static bl_nccl_rendezvous_step_t hear_ids(bl_nccl_rendezvous_t *rendezvous, uint32_t generation) {
  rendezvous->generation = generation;
  rendezvous->has_ids = true;
  if (has_begun(rendezvous) || rendezvous->state == BL_NCCL_RENDEZVOUS_UP) {
    rendezvous->state = BL_NCCL_RENDEZVOUS_ENDING;
    rendezvous->again = true;
    return act(rendezvous, BL_NCCL_RENDEZVOUS_CLOSE);
  }
  rendezvous->again = true;
  if (rendezvous->state == BL_NCCL_RENDEZVOUS_APART) {
    rendezvous->state = BL_NCCL_RENDEZVOUS_WAITING;
  }
  return nothing;
}

static bl_nccl_rendezvous_step_t hear_higher(bl_nccl_rendezvous_t *rendezvous, bl_nccl_rendezvous_kind_t kind,
                                             const bl_error_t *why) {
  switch (kind) {
  case BL_NCCL_RENDEZVOUS_USE:
    if (rendezvous->state != BL_NCCL_RENDEZVOUS_MADE) {
      return nothing; // it broke here, and the lower end is about to be notified
    }
    rendezvous->state = BL_NCCL_RENDEZVOUS_UP;
    return act(rendezvous, BL_NCCL_RENDEZVOUS_TELL_UP);
  case BL_NCCL_RENDEZVOUS_DROP:
    if (has_begun(rendezvous)) {
      end(rendezvous, why, false);
      return act(rendezvous, BL_NCCL_RENDEZVOUS_CLOSE | BL_NCCL_RENDEZVOUS_TELL_FAILED);
    }
    rendezvous->err = *why;
    rendezvous->again = rendezvous->has_ids = false;
    if (rendezvous->state == BL_NCCL_RENDEZVOUS_WAITING) {
      rendezvous->state = BL_NCCL_RENDEZVOUS_APART;
    }
    return act(rendezvous, BL_NCCL_RENDEZVOUS_TELL_FAILED);
  case BL_NCCL_RENDEZVOUS_BROKE:
    if (rendezvous->state != BL_NCCL_RENDEZVOUS_UP && rendezvous->state != BL_NCCL_RENDEZVOUS_MADE) {
      return nothing;
    }
    end(rendezvous, why, true);
    return act(rendezvous, BL_NCCL_RENDEZVOUS_CLOSE);
  default:
    return nothing;
  }
}

bl_nccl_rendezvous_step_t bl_nccl_rendezvous_heard(bl_nccl_rendezvous_t *rendezvous, bl_nccl_rendezvous_kind_t kind,
                                                   uint32_t generation, const bl_error_t *why) {
  if (kind == BL_NCCL_RENDEZVOUS_IDS) {
    return !rendezvous->lower && generation > rendezvous->generation ? hear_ids(rendezvous, generation) : nothing;
  }
  if (!rendezvous->lower && kind == BL_NCCL_RENDEZVOUS_DROP && generation > rendezvous->generation) {
    rendezvous->generation = generation; // its ids could not be drawn
  }
  if (generation != rendezvous->generation) {
    return nothing;
  }
  return rendezvous->lower ? hear_lower(rendezvous, kind, why) : hear_higher(rendezvous, kind, why);
}

void bl_nccl_rendezvous_want(bl_nccl_rendezvous_t *rendezvous) {
  if (rendezvous->state == BL_NCCL_RENDEZVOUS_APART) {
    rendezvous->state = BL_NCCL_RENDEZVOUS_WAITING;
  } else if (rendezvous->state == BL_NCCL_RENDEZVOUS_ENDING) {
    rendezvous->again = true;
  }
}

bl_nccl_rendezvous_step_t bl_nccl_rendezvous_part(bl_nccl_rendezvous_t *rendezvous, const bl_error_t *why) {
  const bool there = rendezvous->state == BL_NCCL_RENDEZVOUS_UP || has_begun(rendezvous);
  rendezvous->generation = rendezvous->lower ? rendezvous->generation : 0; // the next lower end may be another process
  rendezvous->has_ids = rendezvous->again = false;
  if (there) {
    end(rendezvous, why, false);
    return act(rendezvous, BL_NCCL_RENDEZVOUS_CLOSE);
  }
  rendezvous->err = *why;
  if (rendezvous->state == BL_NCCL_RENDEZVOUS_WAITING) {
    rendezvous->state = BL_NCCL_RENDEZVOUS_APART;
  }
  return nothing;
}

void bl_nccl_rendezvous_begin(bl_nccl_rendezvous_t *rendezvous) {
  bl_nccl_rendezvous_want(rendezvous);
}
