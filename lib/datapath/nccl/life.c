// SPDX-License-Identifier: Apache-2.0
#include "datapath/nccl/life.h"

#include <stddef.h>

static const char *const names[BL_NCCL_STATES] = {
#define X(identifier, name) [identifier] = name,
    BL_NCCL_STATE_TABLE(X)
#undef X
};

const char *bl_nccl_state_name(bl_nccl_state_t state) {
  return (unsigned)state < BL_NCCL_STATES ? names[state] : "unknown";
}

static uint64_t or_default(uint64_t value, uint64_t preset) {
  return value != 0 ? value : preset;
}

void bl_nccl_life_init(bl_nccl_life_t *life, const bl_nccl_deadlines_t *deadlines) {
  bl_nccl_deadlines_t wanted = deadlines != NULL ? *deadlines : (bl_nccl_deadlines_t){0};
  *life =
      (bl_nccl_life_t){.deadlines = {.create_ns = or_default(wanted.create_ns, BL_NCCL_CREATE_NS),
                                     .transfer_ns = or_default(wanted.transfer_ns, BL_NCCL_TRANSFER_NS),
                                     .bytes_per_second = or_default(wanted.bytes_per_second, BL_NCCL_BYTES_PER_SECOND),
                                     .abort_ns = or_default(wanted.abort_ns, BL_NCCL_ABORT_NS)},
                       .deadline_ns = UINT64_MAX};
}

static void enter(bl_nccl_life_t *life, bl_nccl_state_t state, uint64_t now_ns, uint64_t for_ns) {
  life->state = state;
  life->since_ns = now_ns;
  life->excused = 0;
  life->deadline_ns = for_ns == UINT64_MAX ? UINT64_MAX : now_ns + for_ns;
}

// Transfers of a communicator run one after the other. The deadline is that of the oldest, counted from when it could
// begin.
static void watch_oldest(bl_nccl_life_t *life, uint64_t now_ns) {
  uint64_t bytes = life->bytes[life->first], rate = life->deadlines.bytes_per_second;
  uint64_t moving_ns = bytes / rate * UINT64_C(1000000000) + bytes % rate * UINT64_C(1000000000) / rate;
  enter(life, BL_NCCL_IN_USE, now_ns, life->deadlines.transfer_ns + moving_ns);
}

static bl_nccl_act_t abort_for(bl_nccl_life_t *life, uint64_t now_ns, bl_status_t cause, bool late) {
  life->cause = cause;
  life->late = late;
  enter(life, BL_NCCL_ABORTING, now_ns, life->deadlines.abort_ns);
  return BL_NCCL_ACT_ABORT;
}

static bool is_live(bl_nccl_state_t state) {
  return state == BL_NCCL_CREATING || state == BL_NCCL_READY || state == BL_NCCL_IN_USE;
}

static bl_nccl_act_t on_tick(bl_nccl_life_t *life, uint64_t now_ns) {
  if (now_ns < life->deadline_ns) {
    return BL_NCCL_ACT_NONE;
  }
  if (life->state == BL_NCCL_ABORTING) {
    enter(life, BL_NCCL_STUCK, now_ns, UINT64_MAX);
    return BL_NCCL_ACT_TELL_STUCK;
  }
  return is_live(life->state) ? abort_for(life, now_ns, BL_DEADLINE, true) : BL_NCCL_ACT_NONE;
}

bl_nccl_act_t bl_nccl_life_on(bl_nccl_life_t *life, bl_nccl_event_t event, uint64_t now_ns, bl_status_t cause,
                              uint64_t bytes) {
  switch (event) {
  case BL_NCCL_EVENT_CREATE:
    if (life->state == BL_NCCL_NONE) {
      enter(life, BL_NCCL_CREATING, now_ns, life->deadlines.create_ns);
      return BL_NCCL_ACT_CREATE;
    }
    break;
  case BL_NCCL_EVENT_CREATED:
    if (life->state == BL_NCCL_CREATING) {
      enter(life, BL_NCCL_READY, now_ns, UINT64_MAX);
      return BL_NCCL_ACT_TELL_READY;
    }
    break;
  case BL_NCCL_EVENT_LAUNCHED:
    if (bl_nccl_life_takes(life)) {
      life->bytes[(life->first + life->in_flight++) % BL_NCCL_IN_FLIGHT] = bytes;
      if (life->in_flight == 1) {
        watch_oldest(life, now_ns);
      }
    }
    break;
  case BL_NCCL_EVENT_OVER:
    if (life->state == BL_NCCL_IN_USE) {
      life->first = (life->first + 1) % BL_NCCL_IN_FLIGHT;
      if (--life->in_flight > 0) {
        watch_oldest(life, now_ns);
      } else {
        enter(life, BL_NCCL_READY, now_ns, UINT64_MAX);
      }
    }
    break;
  case BL_NCCL_EVENT_FAILED:
    if (is_live(life->state)) {
      return abort_for(life, now_ns, cause, false);
    }
    break;
  case BL_NCCL_EVENT_CANCEL:
    if (life->state == BL_NCCL_NONE) {
      life->cause = cause;
      enter(life, BL_NCCL_DEAD, now_ns, UINT64_MAX);
      return BL_NCCL_ACT_TELL_DEAD;
    }
    if (is_live(life->state)) {
      return abort_for(life, now_ns, cause, false);
    }
    break;
  case BL_NCCL_EVENT_ABORTED:
    if (life->state == BL_NCCL_ABORTING || life->state == BL_NCCL_STUCK) {
      life->in_flight = 0;
      enter(life, BL_NCCL_DEAD, now_ns, UINT64_MAX);
      return BL_NCCL_ACT_TELL_DEAD;
    }
    break;
  case BL_NCCL_EVENT_TICK:
    return on_tick(life, now_ns);
  case BL_NCCL_EVENTS:
    break;
  }
  return BL_NCCL_ACT_NONE;
}

void bl_nccl_life_excuse(bl_nccl_life_t *life, uint64_t now_ns) {
  if (life->deadline_ns != UINT64_MAX && life->excused < BL_NCCL_EXCUSES && now_ns > life->since_ns) {
    const uint32_t excused = life->excused + 1;
    enter(life, life->state, now_ns, life->deadline_ns - life->since_ns);
    life->excused = excused;
  }
}

bool bl_nccl_life_takes(const bl_nccl_life_t *life) {
  return (life->state == BL_NCCL_READY || life->state == BL_NCCL_IN_USE) && life->in_flight < BL_NCCL_IN_FLIGHT;
}
