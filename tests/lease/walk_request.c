// SPDX-License-Identifier: Apache-2.0
// Requests of sessions: sensible ones and others, once and again.
#include "lease/walk_core.h"

#include <inttypes.h>
#include <string.h>

typedef struct outcome {
  bl_lease_decision_t decision;
  bl_lease_answer_t answer;
} outcome_t;

static outcome_t send(walk_t *walk, const bl_lease_request_t *frame, int kind, const uint64_t words[6]) {
  outcome_t outcome = {.decision = BL_LEASE_DONE};
  bl_lease_token_t token = {.incarnation = walk->model.config.incarnation, .id = words[0], .generation = words[1]};
  token.incarnation.bytes[0] ^= (uint8_t)words[5];
  bl_lease_demand_t demands[2] = {{.bytes = words[1], .count = (uint32_t)words[2]},
                                  {.bytes = words[3], .count = (uint32_t)words[4]}};
  bl_lease_evict_t evict = {.token = token, .bytes = words[2], .checksum = words[3]};
  switch (kind) {
  case REQUEST_RESERVE:
    outcome.decision =
        bl_lease_table_reserve(walk->table, frame, words[0], demands, words[3] != 0 ? 2 : 1, &outcome.answer);
    break;
  case REQUEST_UNRESERVE:
    outcome.decision = bl_lease_table_unreserve(walk->table, frame, words[0], &outcome.answer);
    break;
  case REQUEST_EVICT:
    outcome.decision = bl_lease_table_evict(walk->table, frame, &evict, &outcome.answer);
    break;
  case REQUEST_LOAD:
    outcome.decision = bl_lease_table_load(walk->table, frame, &token, words[2] != 0, &outcome.answer);
    break;
  case REQUEST_KEEP:
    outcome.decision = bl_lease_table_keep(walk->table, frame, &token, words[3], &outcome.answer);
    break;
  default:
    outcome.decision =
        bl_lease_table_release(walk->table, frame, &token, words[2] != 0 ? &words[3] : NULL, &outcome.answer);
    break;
  }
  return outcome;
}

static bool any_suspect(const model_t *model, int job) {
  for (int i = 0; i < MODEL_SESSIONS; i++) {
    if (model->sessions[i].number != 0 && model->sessions[i].job == job && model->sessions[i].suspect) {
      return true;
    }
  }
  return false;
}

// Whether slots of a plan were taken from the session: its next reservation then has several sizes.
static bool misses_slots(const model_t *model, const model_session_t *session) {
  for (uint32_t i = 1; i <= MODEL_GRANULES; i++) {
    if (model_slots(model, session->number, i) < model_wanted(session, i)) {
      return true;
    }
  }
  return false;
}

// A request of a kind, mostly a sensible one. No reservation of several sizes while a session may give way: which of
// them find room depends on the order in which they are placed, which is the table's affair.
static int choose(walk_t *walk, const model_session_t *session, uint64_t words[6]) {
  memset(words, 0, 6 * sizeof *words);
  if (walk_chance(walk, 25)) {
    words[0] = walk_draw(walk, 6);
    bool somebody_may_yield = any_suspect(&walk->model, session->job);
    if (walk_chance(walk, 40) || (somebody_may_yield && misses_slots(&walk->model, session))) {
      return REQUEST_UNRESERVE;
    }
    words[1] = walk_draw(walk, UINT64_C(6) * BL_LEASE_GRANULE_BYTES) + (walk_chance(walk, 97) ? 1 : 0);
    words[2] = walk_draw(walk, 5);
    if (walk_chance(walk, 30) && !somebody_may_yield) {
      words[3] = 1 + walk_draw(walk, UINT64_C(3) * BL_LEASE_GRANULE_BYTES);
      words[4] = 1 + walk_draw(walk, 3);
    }
    return REQUEST_RESERVE;
  }
  uint32_t id = 1 + (uint32_t)walk_draw(walk, MODEL_LEASES);
  for (int i = 0; i < MODEL_LEASES && walk->model.leases[id].session != session->number; i++) {
    id = 1 + id % MODEL_LEASES;
  }
  id = walk_chance(walk, 3) ? 1 + (uint32_t)walk_draw(walk, MODEL_LEASES + 3) : id;
  const model_lease_t *lease = &walk->model.leases[id <= MODEL_LEASES ? id : 0];
  words[0] = id;
  words[1] =
      lease->generation + (walk_chance(walk, 4) ? 1 : 0) - (walk_chance(walk, 6) && lease->generation > 0 ? 1 : 0);
  words[5] = walk_chance(walk, 2) ? 7 : 0;
  static const int sensible[BL_LEASE_STATES] = {
      [BL_LEASE_RESERVED] = REQUEST_EVICT, [BL_LEASE_WRITING] = REQUEST_RELEASE,
      [BL_LEASE_SEALED] = REQUEST_LOAD,    [BL_LEASE_LOADING] = REQUEST_RELEASE,
      [BL_LEASE_LOST] = REQUEST_RELEASE,   [BL_LEASE_QUARANTINED] = REQUEST_LOAD};
  int kind = sensible[lease->state];
  if (lease->state == BL_LEASE_LOADING && walk_chance(walk, 30)) {
    kind = REQUEST_KEEP;
  }
  if (kind == 0 || walk_chance(walk, 15)) {
    kind = REQUEST_EVICT + (int)walk_draw(walk, 4);
  }
  if (kind == REQUEST_EVICT) {
    words[2] =
        walk_draw(walk, (uint64_t)(lease->granules + (walk_chance(walk, 5) ? 1 : 0)) * BL_LEASE_GRANULE_BYTES + 1);
    words[3] = walk_draw(walk, 1000);
  } else {
    words[2] = walk_draw(walk, 2);
    words[3] = kind == REQUEST_KEEP || (kind == REQUEST_RELEASE && words[2] != 0)
                   ? (walk_chance(walk, 90) ? lease->checksum : 1 + lease->checksum)
                   : 0;
  }
  return kind;
}

static void run_request(walk_t *walk, model_session_t *session, const bl_lease_request_t *frame, int kind,
                        const uint64_t words[6], model_request_t *record) {
  bool begins = false, exact = true, known = false;
  uint64_t number = session->number;
  for (int i = 0; i < BL_LEASE_PLANS; i++) {
    known = known || session->plans[i].version == words[0];
  }
  bl_lease_demand_t demands[2] = {{.bytes = words[1], .count = (uint32_t)words[2]},
                                  {.bytes = words[3], .count = (uint32_t)words[4]}};
  bl_lease_reason_t wanted = BL_LEASE_GRANTED;
  *record = (model_request_t){.sequence = frame->sequence, .kind = kind};
  memcpy(record->words, words, sizeof record->words);
  switch (kind) {
  case REQUEST_RESERVE:
    wanted = model_reserve(&walk->model, session, words[0], demands, words[3] != 0 ? 2 : 1, &exact);
    break;
  case REQUEST_UNRESERVE:
    wanted = model_unreserve(session, words[0]);
    break;
  case REQUEST_EVICT:
    wanted = model_evict(&walk->model, session, words, frame->sequence, &begins);
    break;
  case REQUEST_LOAD:
    wanted = model_load(&walk->model, session, words, frame->sequence, &begins);
    break;
  case REQUEST_KEEP:
    wanted = model_keep(&walk->model, session, words);
    break;
  default:
    wanted = model_release(&walk->model, session, words, frame->sequence, &begins);
    break;
  }
  outcome_t outcome = send(walk, frame, kind, words);
  walk_expect(walk, outcome.decision == (begins ? BL_LEASE_BEGIN : BL_LEASE_DONE), "decision %d",
              (int)outcome.decision);
  record->done = !begins;
  record->answer = outcome.answer;
  if (!exact && wanted == BL_LEASE_GRANTED && outcome.answer.reason == BL_LEASE_SPACE) {
    (void)model_unreserve(session, words[0]); // fragmented: the table may be right
    return;
  }
  bool unused = wanted == BL_LEASE_NO_LEASE && outcome.answer.reason == BL_LEASE_GENERATION &&
                walk->model.leases[words[0]].state == BL_LEASE_FREE;
  if (!unused) { // a reservation that did not fit may have used up a generation, unseen
    walk_expect_reason(walk, outcome.answer.reason, wanted);
  }
  if (kind == REQUEST_RESERVE && wanted == BL_LEASE_GRANTED && !known) {
    walk_adopt_new_slots(walk, session);
  } else if (kind == REQUEST_UNRESERVE && wanted == BL_LEASE_GRANTED) {
    walk_adopt_dropped_slots(walk, session);
  }
  walk_expect(walk, model_session(&walk->model, number) != NULL, "a request ended its own session");
}

// The same request again, or its number for another.
static void repeat_request(walk_t *walk, model_session_t *session, const bl_lease_request_t *frame,
                           model_request_t *record) {
  uint64_t words[6];
  memcpy(words, record->words, sizeof words);
  bool other = walk_chance(walk, 10);
  words[0] += other ? 1 : 0;
  outcome_t outcome = send(walk, frame, record->kind, words);
  if (frame->sequence <= session->acknowledged || other) {
    walk_expect_reason(walk, outcome.answer.reason, BL_LEASE_SEQUENCE);
  } else if (record->done) {
    walk_expect(walk, outcome.decision == BL_LEASE_DONE, "a repeated request is done again");
    walk_expect_reason(walk, outcome.answer.reason, record->answer.reason);
    walk_expect(walk, outcome.answer.generation == record->answer.generation, "a repeated request has another answer");
  } else {
    walk_expect(walk, outcome.decision == BL_LEASE_WAIT, "a repeated request does not wait");
  }
}

void walk_request(walk_t *walk) {
  model_session_t *session = walk_any_session(walk);
  if (session == NULL) {
    return;
  }
  bl_lease_request_t frame = {.session = session->number,
                              .key = session->key,
                              .sequence = session->next_sequence,
                              .acknowledged = session->acknowledged,
                              .now_ns = walk->model.now_ns};
  if (session->next_sequence > 1 && walk_chance(walk, 10)) { // an earlier one
    frame.sequence =
        session->next_sequence - 1 - walk_draw(walk, session->next_sequence < 4 ? session->next_sequence - 1 : 4);
    model_request_t *record = &session->requests[frame.sequence % MODEL_WINDOW];
    if (record->sequence == frame.sequence) {
      frame.acknowledged = 0;
      walk_say(walk, "%" PRIx64 " request %" PRIu64 " again", session->number, frame.sequence);
      repeat_request(walk, session, &frame, record);
    }
    return;
  }
  uint64_t words[6];
  int kind = choose(walk, session, words);
  walk_say(walk, "%" PRIx64 " request %" PRIu64 " kind %d: %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64,
           session->number, frame.sequence, kind, words[0], words[1], words[2], words[3]);
  // Acknowledge what has been answered, mostly.
  while (session->acknowledged + 1 < session->next_sequence &&
         session->requests[(session->acknowledged + 1) % MODEL_WINDOW].done && walk_chance(walk, 70)) {
    session->acknowledged++;
  }
  frame.acknowledged = session->acknowledged;
  if (frame.sequence - frame.acknowledged > MODEL_WINDOW) {
    outcome_t outcome = send(walk, &frame, kind, words);
    walk_expect_reason(walk, outcome.answer.reason, BL_LEASE_WINDOW);
    return;
  }
  session->next_sequence++;
  run_request(walk, session, &frame, kind, words, &session->requests[frame.sequence % MODEL_WINDOW]);
}
