// SPDX-License-Identifier: Apache-2.0
// What the table asks for, and the ends of transfers.
#include "lease/walk_core.h"

#include <inttypes.h>

void walk_take_actions(walk_t *walk) {
  bl_lease_action_t action;
  while (bl_lease_table_next_action(walk->table, &action)) {
    switch (action.kind) {
    case BL_LEASE_ANSWER: {
      model_session_t *session = model_session(&walk->model, action.session);
      model_request_t *request = session != NULL ? &session->requests[action.sequence % MODEL_WINDOW] : NULL;
      walk_expect(walk, request != NULL && request->sequence == action.sequence && request->done,
                  "an answer to request %" PRIu64 ", which does not wait", action.sequence);
      if (request != NULL && request->sequence == action.sequence) {
        walk_expect_reason(walk, action.answer.reason, request->answer.reason);
        request->answer = action.answer;
      }
      break;
    }
    case BL_LEASE_CANCEL_TRANSFER: {
      model_lease_t *lease = &walk->model.leases[action.id];
      walk_expect(walk, lease->moving && lease->state == BL_LEASE_QUARANTINED && lease->transfer == action.generation,
                  "a transfer of lease %" PRIu64 " is cancelled that should go on", action.id);
      lease->cancelled = true;
      break;
    }
    case BL_LEASE_END_SESSION:
      walk_expect(walk, model_session(&walk->model, action.session) == NULL && walk->model.ends_due > 0,
                  "session %" PRIx64 " ends, not in the model", action.session);
      walk->model.ends_due--;
      break;
    case BL_LEASE_CLOSE_ARENA:
      walk_expect(walk, walk->model.closes_due > 0, "the arena of job %" PRIu32 " is closed", action.job);
      walk->model.closes_due--;
      break;
    }
  }
  walk_expect(walk, walk->model.ends_due == 0, "%u sessions should have ended", walk->model.ends_due);
  walk_expect(walk, walk->model.closes_due == 0, "%u arenas should have been closed", walk->model.closes_due);
  for (uint32_t i = 1; i <= MODEL_LEASES; i++) {
    const model_lease_t *lease = &walk->model.leases[i];
    walk_expect(walk, lease->state != BL_LEASE_QUARANTINED || lease->cancelled,
                "lease %" PRIu32 " is in quarantine, its transfer not cancelled", i);
  }
}

void walk_end_transfer(walk_t *walk) {
  model_t *model = &walk->model;
  uint32_t id = 1 + (uint32_t)walk_draw(walk, MODEL_LEASES);
  for (int i = 0; i < MODEL_LEASES && !model->leases[id].moving; i++) {
    id = 1 + id % MODEL_LEASES;
  }
  model_lease_t *lease = &model->leases[id];
  bool moved = walk_chance(walk, 85), stale = walk_chance(walk, 10);
  uint64_t checksum = lease->checksum + (walk_chance(walk, 10) ? 1 : 0);
  uint64_t generation = lease->transfer + (stale ? 1 : 0), waiting = lease->waiting, session = lease->session;
  walk_say(walk, "transfer of %" PRIu32 " ended, moved %d%s", id, moved, stale ? ", stale" : "");
  bool known = lease->moving && !stale, good = checksum == lease->checksum;
  if (known) {
    lease->moving = false;
    lease->waiting = 0;
    if (lease->state == BL_LEASE_WRITING) {
      if (moved && good) {
        lease->state = BL_LEASE_SEALED;
      } else {
        model_over(model, id);
      }
      model_answer(model, session, waiting, !moved ? BL_LEASE_TRANSFER : good ? BL_LEASE_GRANTED : BL_LEASE_CHECKSUM);
    } else if (lease->state == BL_LEASE_LOADING) {
      if (!moved) {
        lease->state = BL_LEASE_SEALED;
      } else if (!good) {
        model_lose(model, id);
      }
      model_answer(model, session, waiting, !moved ? BL_LEASE_TRANSFER : good ? BL_LEASE_GRANTED : BL_LEASE_CHECKSUM);
    } else if (lease->then == MODEL_THEN_LOST) {
      model_lose(model, id);
      model_answer(model, session, waiting, BL_LEASE_GONE);
    } else if (lease->then == MODEL_THEN_RESERVED) {
      lease->state = BL_LEASE_RESERVED;
      const model_session_t *owner = model_session(model, session);
      if (model_slots(model, session, lease->granules) > model_wanted(owner, lease->granules)) {
        *lease = (model_lease_t){.generation = lease->generation};
      }
      model_answer(model, session, waiting, BL_LEASE_GRANTED);
    } else {
      int job = lease->job;
      *lease = (model_lease_t){.generation = lease->generation};
      model_close_idle_job(model, job);
    }
  }
  bl_lease_table_transfer_ended(walk->table, id, generation, moved, checksum, model->now_ns);
}
