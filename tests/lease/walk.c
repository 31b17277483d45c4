// SPDX-License-Identifier: Apache-2.0
#include "lease/walk.h"

#include "base/random.h"
#include "lease/model.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define RECALL 12 // calls shown before a failure

enum { REQUEST_RESERVE = 1, REQUEST_UNRESERVE, REQUEST_EVICT, REQUEST_LOAD, REQUEST_RELEASE };

static const char *const jobs[MODEL_JOBS] = {"alpha", "beta"};

typedef struct walk {
  bl_lease_table_t *table;
  model_t model;
  uint64_t key, draws, calls;
  uint64_t last_incarnation;
  bl_lease_action_t ended[MODEL_SESSIONS * 4]; // END_SESSION actions of one call
  char recall[RECALL][160];
  char failure[256];
} walk_t;

static uint64_t draw(walk_t *walk, uint64_t bound) {
  return bl_random_below(walk->key, walk->draws++, bound);
}

static bool chance(walk_t *walk, unsigned percent) {
  return draw(walk, 100) < percent;
}

__attribute__((format(printf, 2, 3))) static void say(walk_t *walk, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(walk->recall[walk->calls % RECALL], sizeof walk->recall[0], format, arguments);
  va_end(arguments);
}

__attribute__((format(printf, 3, 4))) static void expect(walk_t *walk, bool holds, const char *format, ...) {
  if (!holds && walk->failure[0] == '\0') {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(walk->failure, sizeof walk->failure, format, arguments);
    va_end(arguments);
  }
}

static void expect_reason(walk_t *walk, bl_lease_reason_t got, bl_lease_reason_t wanted) {
  expect(walk, got == wanted, "the answer is '%s', the model says '%s'", bl_lease_reason_name(got),
         bl_lease_reason_name(wanted));
}

static bl_incarnation_t incarnation_of(uint64_t value) {
  bl_incarnation_t incarnation = {{0}};
  memcpy(incarnation.bytes, &value, sizeof value);
  return incarnation;
}

// ---- comparison ----------------------------------------------------------------------------------------------------------

static void compare_lease(walk_t *walk, uint32_t id) {
  const model_lease_t *lease = &walk->model.leases[id];
  bl_lease_view_t view;
  if (bl_lease_table_get(walk->table, id, &view) != BL_OK) {
    expect(walk, lease->state == BL_LEASE_FREE, "lease %" PRIu32 " is gone, the model has it %s", id,
           bl_lease_state_name(lease->state));
    return;
  }
  expect(walk, view.state == lease->state, "lease %" PRIu32 " is %s, the model says %s", id,
         bl_lease_state_name(view.state), bl_lease_state_name(lease->state));
  if (view.state != lease->state) {
    return;
  }
  expect(walk, view.generation == lease->generation, "lease %" PRIu32 " has generation %" PRIu64 ", not %" PRIu64, id,
         view.generation, lease->generation);
  expect(walk, view.session == lease->session, "lease %" PRIu32 " belongs to session %" PRIx64 ", not %" PRIx64, id,
         view.session, lease->session);
  bool same_room = lease->state == BL_LEASE_LOST
                       ? view.room_bytes == 0
                       : view.offset_bytes == (uint64_t)lease->offset * BL_LEASE_GRANULE_BYTES &&
                             view.room_bytes == (uint64_t)lease->granules * BL_LEASE_GRANULE_BYTES;
  expect(walk, same_room, "lease %" PRIu32 " has another room than in the model", id);
  expect(walk, view.block_bytes == lease->bytes && view.checksum == lease->checksum,
         "lease %" PRIu32 " holds %" PRIu64 " bytes, in the model %" PRIu64, id, view.block_bytes, lease->bytes);
}

static void compare(walk_t *walk) {
  bl_lease_stats_t stats;
  bl_lease_table_stats(walk->table, &stats);
  uint64_t held = 0, in_flight = 0;
  for (uint32_t i = 1; i <= MODEL_LEASES; i++) {
    compare_lease(walk, i);
    const model_lease_t *lease = &walk->model.leases[i];
    bool flying = lease->state == BL_LEASE_WRITING || lease->state == BL_LEASE_LOADING;
    in_flight += flying ? lease->bytes : 0;
  }
  uint32_t cursor = 0;
  bl_lease_job_view_t job;
  while (bl_lease_table_jobs(walk->table, &cursor, &job)) {
    int index = strcmp(job.name, jobs[0]) == 0 ? 0 : 1;
    uint32_t longest, free = model_free_granules(&walk->model, index, &longest);
    expect(walk, job.free_bytes == (uint64_t)free * BL_LEASE_GRANULE_BYTES, "job %s: free %" PRIu64, job.name,
           job.free_bytes);
    expect(walk, job.largest_free_bytes == (uint64_t)longest * BL_LEASE_GRANULE_BYTES, "job %s: largest %" PRIu64,
           job.name, job.largest_free_bytes);
  }
  for (int i = 0; i < MODEL_JOBS; i++) {
    held += model_held_bytes(&walk->model, i, -1);
  }
  expect(walk, stats.held_bytes == held, "held %" PRIu64 " bytes, in the model %" PRIu64, stats.held_bytes, held);
  expect(walk, stats.in_flight_bytes == in_flight, "in flight %" PRIu64 ", in the model %" PRIu64,
         stats.in_flight_bytes, in_flight);
  bl_error_t err = {0};
  expect(walk, bl_lease_table_audit(walk->table, &err) == BL_OK, "audit: %s", err.text);
}

static bool overlaps(const model_t *model, const model_lease_t *room) {
  for (int i = 1; i <= MODEL_LEASES; i++) {
    const model_lease_t *other = &model->leases[i];
    if (other->state != BL_LEASE_FREE && other->state != BL_LEASE_LOST && other->job == room->job &&
        other->offset < room->offset + room->granules && room->offset < other->offset + other->granules) {
      return true;
    }
  }
  return false;
}

// Takes over the rooms that a granted reservation chose.
static void adopt_new_rooms(walk_t *walk, const model_session_t *session) {
  for (uint32_t i = 1; i <= MODEL_LEASES; i++) {
    model_lease_t *lease = &walk->model.leases[i];
    bl_lease_view_t view;
    if (lease->state != BL_LEASE_FREE || bl_lease_table_get(walk->table, i, &view) != BL_OK) {
      continue;
    }
    model_lease_t room = {.state = BL_LEASE_RESERVED,
                          .generation = view.generation,
                          .session = session->number,
                          .job = session->job,
                          .stage = session->stage,
                          .offset = (uint32_t)(view.offset_bytes / BL_LEASE_GRANULE_BYTES),
                          .granules = (uint32_t)(view.room_bytes / BL_LEASE_GRANULE_BYTES)};
    expect(walk, view.generation > lease->generation, "lease %" PRIu32 ": generation %" PRIu64 " again", i,
           view.generation);
    expect(walk, !overlaps(&walk->model, &room), "lease %" PRIu32 " overlaps another room", i);
    expect(walk, room.offset + room.granules <= walk->model.jobs[session->job].granules,
           "lease %" PRIu32 " lies beyond the arena", i);
    *lease = room;
  }
  for (uint32_t i = 1; i <= MODEL_GRANULES; i++) {
    uint32_t held = model_rooms(&walk->model, session->number, i), wanted = model_wanted(session, i);
    expect(walk, held >= wanted, "%" PRIu32 " rooms of %" PRIu32 " granules, %" PRIu32 " wanted", held, i, wanted);
  }
}

// Takes over which idle rooms went when a plan was given up.
static void adopt_dropped_rooms(walk_t *walk, const model_session_t *session) {
  for (uint32_t i = 1; i <= MODEL_LEASES; i++) {
    model_lease_t *lease = &walk->model.leases[i];
    bl_lease_view_t view;
    if (lease->session == session->number && lease->state == BL_LEASE_RESERVED &&
        bl_lease_table_get(walk->table, i, &view) != BL_OK) {
      expect(walk, model_rooms(&walk->model, session->number, lease->granules) > model_wanted(session, lease->granules),
             "a room of %" PRIu32 " granules went although wanted", lease->granules);
      *lease = (model_lease_t){.generation = lease->generation};
    }
  }
  for (uint32_t i = 1; i <= MODEL_LEASES; i++) {
    const model_lease_t *lease = &walk->model.leases[i];
    bool idle = lease->session == session->number && lease->state == BL_LEASE_RESERVED;
    expect(walk,
           !idle ||
               model_rooms(&walk->model, session->number, lease->granules) <= model_wanted(session, lease->granules),
           "a room of %" PRIu32 " granules stayed although nobody wants it", lease->granules);
  }
}

// ---- actions -----------------------------------------------------------------------------------------------------------

static void take_actions(walk_t *walk) {
  bl_lease_action_t action;
  while (bl_lease_table_next_action(walk->table, &action)) {
    switch (action.kind) {
    case BL_LEASE_ANSWER: {
      model_session_t *session = model_session(&walk->model, action.session);
      model_request_t *request = session != NULL ? &session->requests[action.sequence % MODEL_WINDOW] : NULL;
      expect(walk, request != NULL && request->sequence == action.sequence && request->done,
             "an answer to request %" PRIu64 ", which does not wait", action.sequence);
      if (request != NULL && request->sequence == action.sequence) {
        expect_reason(walk, action.answer.reason, request->answer.reason);
        request->answer = action.answer;
      }
      break;
    }
    case BL_LEASE_CANCEL_TRANSFER: {
      model_lease_t *lease = &walk->model.leases[action.id];
      expect(walk, lease->moving && lease->state == BL_LEASE_QUARANTINED && lease->transfer == action.generation,
             "a transfer of lease %" PRIu64 " is cancelled that should go on", action.id);
      lease->cancelled = true;
      break;
    }
    case BL_LEASE_END_SESSION:
      expect(walk, model_session(&walk->model, action.session) == NULL && walk->model.ends_due > 0,
             "session %" PRIx64 " ends, not in the model", action.session);
      walk->model.ends_due--;
      break;
    case BL_LEASE_CLOSE_ARENA:
      expect(walk, walk->model.closes_due > 0, "the arena of job %" PRIu32 " is closed", action.job);
      walk->model.closes_due--;
      break;
    }
  }
  expect(walk, walk->model.ends_due == 0, "%u sessions should have ended", walk->model.ends_due);
  expect(walk, walk->model.closes_due == 0, "%u arenas should have been closed", walk->model.closes_due);
  for (uint32_t i = 1; i <= MODEL_LEASES; i++) {
    const model_lease_t *lease = &walk->model.leases[i];
    expect(walk, lease->state != BL_LEASE_QUARANTINED || lease->cancelled,
           "lease %" PRIu32 " is in quarantine, its transfer not cancelled", i);
  }
}

// ---- sessions -----------------------------------------------------------------------------------------------------------

static model_session_t *any_session(walk_t *walk) {
  model_session_t *session = &walk->model.sessions[draw(walk, MODEL_SESSIONS)];
  for (int i = 0; i < MODEL_SESSIONS && session->number == 0; i++) {
    session = &walk->model.sessions[(session - walk->model.sessions + 1) % MODEL_SESSIONS];
  }
  return session->number != 0 ? session : NULL;
}

static void do_open(walk_t *walk) {
  model_t *model = &walk->model;
  int job = (int)draw(walk, MODEL_JOBS), stage = (int)draw(walk, MODEL_STAGES);
  model_session_t *before = NULL, *unused = NULL;
  for (int i = 0; i < MODEL_SESSIONS; i++) {
    model_session_t *session = &model->sessions[i];
    before = session->number != 0 && session->job == job && session->stage == stage ? session : before;
    unused = session->number == 0 ? session : unused;
  }
  bool again = before != NULL && chance(walk, 50);
  bl_lease_open_t open = {.job = jobs[job],
                          .stage = (uint32_t)stage,
                          .holder = again ? before->incarnation : incarnation_of(++walk->last_incarnation),
                          .key = incarnation_of(1000 + walk->draws),
                          .arena_bytes = draw(walk, MODEL_GRANULES + 1) * BL_LEASE_GRANULE_BYTES,
                          .ttl_ns = draw(walk, 2) * 3000000000};
  say(walk, "open %s/%d%s arena %" PRIu64, open.job, stage, again ? " again" : "", open.arena_bytes);
  bl_lease_reason_t wanted = BL_LEASE_GRANTED;
  uint32_t granules = (uint32_t)(open.arena_bytes / BL_LEASE_GRANULE_BYTES), used = 0;
  for (int i = 0; i < MODEL_JOBS; i++) {
    used += model->jobs[i].granules;
  }
  if (!again) {
    if (model->draining) {
      wanted = BL_LEASE_DRAINING;
    } else if (unused == NULL) {
      wanted = BL_LEASE_TABLE_FULL;
    } else if (model->jobs[job].granules != 0) {
      wanted = granules > model->jobs[job].granules ? BL_LEASE_BAD_BYTES : BL_LEASE_GRANTED;
    } else if (granules == 0) {
      wanted = BL_LEASE_BAD_BYTES;
    } else if (granules > model->config.capacity_bytes / BL_LEASE_GRANULE_BYTES - used) {
      wanted = BL_LEASE_CAPACITY;
    }
  }
  bl_lease_opened_t opened;
  bl_lease_answer_t answer;
  (void)bl_lease_table_open(walk->table, &open, model->now_ns, &opened, &answer);
  expect_reason(walk, answer.reason, wanted);
  if (answer.reason != BL_LEASE_GRANTED || wanted != BL_LEASE_GRANTED) {
    return;
  }
  if (again) {
    expect(walk, opened.session == before->number, "the same holder got another session");
    before->renewed_ns = model->now_ns;
    before->suspect = false;
    return;
  }
  expect(walk, opened.arena_needed == (model->jobs[job].granules == 0), "arena needed: %d", opened.arena_needed);
  expect(walk, model_session(model, opened.session) == NULL, "session number %" PRIx64 " again", opened.session);
  if (before != NULL) {
    model_end_session(model, before);
  }
  if (opened.arena_needed) {
    model->jobs[job].granules = granules;
  }
  *unused = (model_session_t){.number = opened.session,
                              .key = opened.key,
                              .incarnation = open.holder,
                              .job = job,
                              .stage = stage,
                              .renewed_ns = model->now_ns,
                              .ttl_ns = opened.ttl_ns,
                              .next_sequence = 1};
  if (opened.arena_needed && chance(walk, 90)) {
    bool well = chance(walk, 95);
    bl_lease_table_arena_made(walk->table, opened.job, well);
    model->jobs[job].made = well;
    for (int i = 0; i < MODEL_SESSIONS && !well; i++) {
      if (model->sessions[i].number != 0 && model->sessions[i].job == job) {
        model_end_session(model, &model->sessions[i]);
        model_close_idle_job(model, job);
      }
    }
  }
}

static void do_session(walk_t *walk) {
  model_session_t *session = any_session(walk);
  if (session == NULL) {
    return;
  }
  uint64_t number = session->number;
  bl_incarnation_t key = session->key;
  bl_lease_reason_t wanted = BL_LEASE_GRANTED;
  if (chance(walk, 5)) {
    key.bytes[draw(walk, BL_INCARNATION_BYTES)] ^= 1;
    wanted = BL_LEASE_BAD_KEY;
  } else if (chance(walk, 5)) {
    number += UINT64_C(1) << 52;
    wanted = BL_LEASE_NO_SESSION;
  }
  bl_lease_answer_t answer;
  bl_error_t err;
  unsigned verb = (unsigned)draw(walk, 20);
  int job = session->job;
  if (verb == 0) {
    say(walk, "close %" PRIx64, number);
    (void)bl_lease_table_close(walk->table, number, &key, walk->model.now_ns, &answer);
    expect_reason(walk, answer.reason, wanted);
  } else if (verb == 1) {
    say(walk, "revoke session %" PRIx64, session->number);
    expect(walk, bl_lease_table_revoke_session(walk->table, session->number, walk->model.now_ns, &err) == BL_OK,
           "an open session cannot be revoked");
    wanted = BL_LEASE_GRANTED;
  } else {
    say(walk, "keep alive %" PRIx64, number);
    (void)bl_lease_table_keep_alive(walk->table, number, &key, walk->model.now_ns, &answer);
    expect_reason(walk, answer.reason, wanted);
    if (wanted == BL_LEASE_GRANTED) {
      session->renewed_ns = walk->model.now_ns;
      session->suspect = false;
    }
    return;
  }
  if (wanted == BL_LEASE_GRANTED) {
    model_end_session(&walk->model, session);
    model_close_idle_job(&walk->model, job);
  }
}

// ---- requests -----------------------------------------------------------------------------------------------------------

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
  bl_lease_block_t block = {.token = token, .bytes = words[2], .checksum = words[3]};
  switch (kind) {
  case REQUEST_RESERVE:
    outcome.decision =
        bl_lease_table_reserve(walk->table, frame, words[0], demands, words[3] != 0 ? 2 : 1, &outcome.answer);
    break;
  case REQUEST_UNRESERVE:
    outcome.decision = bl_lease_table_unreserve(walk->table, frame, words[0], &outcome.answer);
    break;
  case REQUEST_EVICT:
    outcome.decision = bl_lease_table_evict(walk->table, frame, &block, &outcome.answer);
    break;
  case REQUEST_LOAD:
    outcome.decision = bl_lease_table_load(walk->table, frame, &token, words[2] != 0, &outcome.answer);
    break;
  default:
    outcome.decision =
        bl_lease_table_release(walk->table, frame, &token, words[2] != 0 ? &words[3] : NULL, &outcome.answer);
    break;
  }
  return outcome;
}

// What a token comes to before the state of the lease is looked at.
static bl_lease_reason_t check_token(const model_t *model, const model_session_t *session, const uint64_t words[6]) {
  if (words[5] != 0) {
    return BL_LEASE_INCARNATION;
  }
  if (words[0] == 0 || words[0] > MODEL_LEASES) {
    return BL_LEASE_NO_LEASE;
  }
  const model_lease_t *lease = &model->leases[words[0]];
  if (words[1] == 0 || words[1] > lease->generation) {
    return BL_LEASE_NO_LEASE;
  }
  if (words[1] < lease->generation || lease->state == BL_LEASE_FREE) {
    return BL_LEASE_GENERATION;
  }
  return lease->session == session->number ? BL_LEASE_GRANTED : BL_LEASE_NOT_YOURS;
}

static bool is_lost(const model_lease_t *lease) {
  return lease->state == BL_LEASE_LOST || (lease->state == BL_LEASE_QUARANTINED && lease->then == MODEL_THEN_LOST);
}

static bool has_credit(const model_t *model, const model_session_t *session, uint64_t bytes) {
  uint64_t flying = model_in_flight_bytes(model, session->number);
  return flying == 0 || flying + bytes <= model->config.session_flow_bytes;
}

// What each request does to the model; returns the reason and whether a transfer begins.
static bl_lease_reason_t model_evict(walk_t *walk, const model_session_t *session, const uint64_t words[6],
                                     uint64_t sequence, bool *begins) {
  bl_lease_reason_t reason = check_token(&walk->model, session, words);
  if (reason != BL_LEASE_GRANTED) {
    return reason;
  }
  model_lease_t *lease = &walk->model.leases[words[0]];
  if (is_lost(lease)) {
    return BL_LEASE_GONE;
  }
  if (lease->state != BL_LEASE_RESERVED) {
    return BL_LEASE_STATE;
  }
  if (words[2] == 0 || words[2] > (uint64_t)lease->granules * BL_LEASE_GRANULE_BYTES) {
    return BL_LEASE_BAD_BYTES;
  }
  if (session->suspect) {
    return BL_LEASE_SUSPECT;
  }
  if (!has_credit(&walk->model, session, words[2])) {
    return BL_LEASE_CREDIT;
  }
  lease->state = BL_LEASE_WRITING;
  lease->bytes = words[2];
  lease->checksum = words[3];
  lease->moving = *begins = true;
  lease->cancelled = false;
  lease->transfer = lease->generation;
  lease->waiting = sequence;
  return BL_LEASE_GRANTED;
}

static bl_lease_reason_t model_load(walk_t *walk, const model_session_t *session, const uint64_t words[6],
                                    uint64_t sequence, bool *begins) {
  bl_lease_reason_t reason = check_token(&walk->model, session, words);
  if (reason != BL_LEASE_GRANTED) {
    return reason;
  }
  model_lease_t *lease = &walk->model.leases[words[0]];
  if (is_lost(lease)) {
    return BL_LEASE_GONE;
  }
  if (lease->state == BL_LEASE_SEALED) {
    if (!has_credit(&walk->model, session, lease->bytes)) {
      return BL_LEASE_CREDIT;
    }
  } else if (lease->state != BL_LEASE_LOADING || lease->moving) {
    return BL_LEASE_STATE;
  }
  lease->state = BL_LEASE_LOADING;
  if (words[2] != 0) {
    lease->moving = *begins = true;
    lease->cancelled = false;
    lease->transfer = lease->generation;
    lease->waiting = sequence;
  }
  return BL_LEASE_GRANTED;
}

static void model_answer(walk_t *walk, uint64_t number, uint64_t sequence, bl_lease_reason_t reason) {
  model_session_t *session = model_session(&walk->model, number);
  if (session != NULL && sequence != 0) {
    model_request_t *request = &session->requests[sequence % MODEL_WINDOW];
    if (request->sequence == sequence) {
      request->done = true;
      request->answer.reason = reason;
    }
  }
}

static bl_lease_reason_t model_release(walk_t *walk, const model_session_t *session, const uint64_t words[6],
                                       uint64_t sequence, bool *begins) {
  bl_lease_reason_t reason = check_token(&walk->model, session, words);
  if (reason != BL_LEASE_GRANTED) {
    return reason;
  }
  uint32_t id = (uint32_t)words[0];
  model_lease_t *lease = &walk->model.leases[id];
  bool loaded = words[2] != 0;
  if (lease->state == BL_LEASE_RESERVED || (lease->state == BL_LEASE_QUARANTINED && !is_lost(lease)) ||
      (loaded && (lease->state != BL_LEASE_LOADING || lease->moving))) {
    return BL_LEASE_STATE;
  }
  if (lease->state == BL_LEASE_QUARANTINED) {
    return BL_LEASE_GONE;
  }
  if (lease->state == BL_LEASE_LOST) {
    *lease = (model_lease_t){.generation = lease->generation};
    return BL_LEASE_GRANTED;
  }
  reason = loaded && words[3] != lease->checksum ? BL_LEASE_CHECKSUM : BL_LEASE_GRANTED;
  *begins = lease->moving;
  uint64_t waiting = lease->waiting;
  model_over(&walk->model, id);
  if (*begins) {
    lease->waiting = sequence;
    model_answer(walk, session->number, waiting, BL_LEASE_CANCELLED);
  }
  return reason;
}

static bl_lease_reason_t model_unreserve(model_session_t *session, uint64_t version) {
  for (int i = 0; i < BL_LEASE_PLANS && version != 0; i++) {
    if (session->plans[i].version == version) {
      session->plans[i] = (model_plan_t){0};
      return BL_LEASE_GRANTED;
    }
  }
  return BL_LEASE_PLAN;
}

static bool any_suspect(const model_t *model, int job) {
  for (int i = 0; i < MODEL_SESSIONS; i++) {
    if (model->sessions[i].number != 0 && model->sessions[i].job == job && model->sessions[i].suspect) {
      return true;
    }
  }
  return false;
}

// Whether rooms of a plan were taken from the session: its next reservation then has several sizes.
static bool misses_rooms(const model_t *model, const model_session_t *session) {
  for (uint32_t i = 1; i <= MODEL_GRANULES; i++) {
    if (model_rooms(model, session->number, i) < model_wanted(session, i)) {
      return true;
    }
  }
  return false;
}

// A request of a kind, mostly a sensible one. No reservation of several sizes while a session may give way: which of
// them find room depends on the order in which they are placed, which is the table's affair.
static int choose(walk_t *walk, const model_session_t *session, uint64_t words[6]) {
  memset(words, 0, 6 * sizeof *words);
  if (chance(walk, 25)) {
    words[0] = draw(walk, 6);
    bool somebody_may_yield = any_suspect(&walk->model, session->job);
    if (chance(walk, 40) || (somebody_may_yield && misses_rooms(&walk->model, session))) {
      return REQUEST_UNRESERVE;
    }
    words[1] = draw(walk, UINT64_C(6) * BL_LEASE_GRANULE_BYTES) + (chance(walk, 97) ? 1 : 0);
    words[2] = draw(walk, 5);
    if (chance(walk, 30) && !somebody_may_yield) {
      words[3] = 1 + draw(walk, UINT64_C(3) * BL_LEASE_GRANULE_BYTES);
      words[4] = 1 + draw(walk, 3);
    }
    return REQUEST_RESERVE;
  }
  uint32_t id = 1 + (uint32_t)draw(walk, MODEL_LEASES);
  for (int i = 0; i < MODEL_LEASES && walk->model.leases[id].session != session->number; i++) {
    id = 1 + id % MODEL_LEASES;
  }
  id = chance(walk, 3) ? 1 + (uint32_t)draw(walk, MODEL_LEASES + 3) : id;
  const model_lease_t *lease = &walk->model.leases[id <= MODEL_LEASES ? id : 0];
  words[0] = id;
  words[1] = lease->generation + (chance(walk, 4) ? 1 : 0) - (chance(walk, 6) && lease->generation > 0 ? 1 : 0);
  words[5] = chance(walk, 2) ? 7 : 0;
  static const int sensible[BL_LEASE_STATES] = {
      [BL_LEASE_RESERVED] = REQUEST_EVICT, [BL_LEASE_WRITING] = REQUEST_RELEASE,
      [BL_LEASE_SEALED] = REQUEST_LOAD,    [BL_LEASE_LOADING] = REQUEST_RELEASE,
      [BL_LEASE_LOST] = REQUEST_RELEASE,   [BL_LEASE_QUARANTINED] = REQUEST_LOAD};
  int kind = sensible[lease->state];
  if (kind == 0 || chance(walk, 15)) {
    kind = REQUEST_EVICT + (int)draw(walk, 3);
  }
  if (kind == REQUEST_EVICT) {
    words[2] = draw(walk, (uint64_t)(lease->granules + (chance(walk, 5) ? 1 : 0)) * BL_LEASE_GRANULE_BYTES + 1);
    words[3] = draw(walk, 1000);
  } else {
    words[2] = draw(walk, 2);
    words[3] =
        kind == REQUEST_RELEASE && words[2] != 0 ? (chance(walk, 90) ? lease->checksum : 1 + lease->checksum) : 0;
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
    wanted = model_evict(walk, session, words, frame->sequence, &begins);
    break;
  case REQUEST_LOAD:
    wanted = model_load(walk, session, words, frame->sequence, &begins);
    break;
  default:
    wanted = model_release(walk, session, words, frame->sequence, &begins);
    break;
  }
  outcome_t outcome = send(walk, frame, kind, words);
  expect(walk, outcome.decision == (begins ? BL_LEASE_BEGIN : BL_LEASE_DONE), "decision %d", (int)outcome.decision);
  record->done = !begins;
  record->answer = outcome.answer;
  if (!exact && wanted == BL_LEASE_GRANTED && outcome.answer.reason == BL_LEASE_SPACE) {
    (void)model_unreserve(session, words[0]); // fragmented: the table may be right
    return;
  }
  bool unused = wanted == BL_LEASE_NO_LEASE && outcome.answer.reason == BL_LEASE_GENERATION &&
                walk->model.leases[words[0]].state == BL_LEASE_FREE;
  if (!unused) { // a reservation that did not fit may have used up a generation, unseen
    expect_reason(walk, outcome.answer.reason, wanted);
  }
  if (kind == REQUEST_RESERVE && wanted == BL_LEASE_GRANTED && !known) {
    adopt_new_rooms(walk, session);
  } else if (kind == REQUEST_UNRESERVE && wanted == BL_LEASE_GRANTED) {
    adopt_dropped_rooms(walk, session);
  }
  expect(walk, model_session(&walk->model, number) != NULL, "a request ended its own session");
}

// The same request again, or its number for another.
static void repeat_request(walk_t *walk, model_session_t *session, const bl_lease_request_t *frame,
                           model_request_t *record) {
  uint64_t words[6];
  memcpy(words, record->words, sizeof words);
  bool other = chance(walk, 10);
  words[0] += other ? 1 : 0;
  outcome_t outcome = send(walk, frame, record->kind, words);
  if (frame->sequence <= session->acknowledged || other) {
    expect_reason(walk, outcome.answer.reason, BL_LEASE_SEQUENCE);
  } else if (record->done) {
    expect(walk, outcome.decision == BL_LEASE_DONE, "a repeated request is done again");
    expect_reason(walk, outcome.answer.reason, record->answer.reason);
    expect(walk, outcome.answer.generation == record->answer.generation, "a repeated request has another answer");
  } else {
    expect(walk, outcome.decision == BL_LEASE_WAIT, "a repeated request does not wait");
  }
}

static void do_request(walk_t *walk) {
  model_session_t *session = any_session(walk);
  if (session == NULL) {
    return;
  }
  bl_lease_request_t frame = {.session = session->number,
                              .key = session->key,
                              .sequence = session->next_sequence,
                              .acknowledged = session->acknowledged,
                              .now_ns = walk->model.now_ns};
  if (session->next_sequence > 1 && chance(walk, 10)) { // an earlier one
    frame.sequence =
        session->next_sequence - 1 - draw(walk, session->next_sequence < 4 ? session->next_sequence - 1 : 4);
    model_request_t *record = &session->requests[frame.sequence % MODEL_WINDOW];
    if (record->sequence == frame.sequence) {
      frame.acknowledged = 0;
      say(walk, "%" PRIx64 " request %" PRIu64 " again", session->number, frame.sequence);
      repeat_request(walk, session, &frame, record);
    }
    return;
  }
  uint64_t words[6];
  int kind = choose(walk, session, words);
  say(walk, "%" PRIx64 " request %" PRIu64 " kind %d: %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64, session->number,
      frame.sequence, kind, words[0], words[1], words[2], words[3]);
  // Acknowledge what has been answered, mostly.
  while (session->acknowledged + 1 < session->next_sequence &&
         session->requests[(session->acknowledged + 1) % MODEL_WINDOW].done && chance(walk, 70)) {
    session->acknowledged++;
  }
  frame.acknowledged = session->acknowledged;
  if (frame.sequence - frame.acknowledged > MODEL_WINDOW) {
    outcome_t outcome = send(walk, &frame, kind, words);
    expect_reason(walk, outcome.answer.reason, BL_LEASE_WINDOW);
    return;
  }
  session->next_sequence++;
  run_request(walk, session, &frame, kind, words, &session->requests[frame.sequence % MODEL_WINDOW]);
}

// ---- transfers and operators ----------------------------------------------------------------------------------------------

static void do_transfer_ended(walk_t *walk) {
  model_t *model = &walk->model;
  uint32_t id = 1 + (uint32_t)draw(walk, MODEL_LEASES);
  for (int i = 0; i < MODEL_LEASES && !model->leases[id].moving; i++) {
    id = 1 + id % MODEL_LEASES;
  }
  model_lease_t *lease = &model->leases[id];
  bool moved = chance(walk, 85), stale = chance(walk, 10);
  uint64_t checksum = lease->checksum + (chance(walk, 10) ? 1 : 0);
  uint64_t generation = lease->transfer + (stale ? 1 : 0), waiting = lease->waiting, session = lease->session;
  say(walk, "transfer of %" PRIu32 " ended, moved %d%s", id, moved, stale ? ", stale" : "");
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
      model_answer(walk, session, waiting, !moved ? BL_LEASE_TRANSFER : good ? BL_LEASE_GRANTED : BL_LEASE_CHECKSUM);
    } else if (lease->state == BL_LEASE_LOADING) {
      if (!moved) {
        lease->state = BL_LEASE_SEALED;
      } else if (!good) {
        model_lose(model, id);
      }
      model_answer(walk, session, waiting, !moved ? BL_LEASE_TRANSFER : good ? BL_LEASE_GRANTED : BL_LEASE_CHECKSUM);
    } else if (lease->then == MODEL_THEN_LOST) {
      model_lose(model, id);
      model_answer(walk, session, waiting, BL_LEASE_GONE);
    } else if (lease->then == MODEL_THEN_RESERVED) {
      lease->state = BL_LEASE_RESERVED;
      const model_session_t *owner = model_session(model, session);
      if (model_rooms(model, session, lease->granules) > model_wanted(owner, lease->granules)) {
        *lease = (model_lease_t){.generation = lease->generation};
      }
      model_answer(walk, session, waiting, BL_LEASE_GRANTED);
    } else {
      int job = lease->job;
      *lease = (model_lease_t){.generation = lease->generation};
      model_close_idle_job(model, job);
    }
  }
  bl_lease_table_transfer_ended(walk->table, id, generation, moved, checksum, model->now_ns);
}

static void do_operator(walk_t *walk) {
  model_t *model = &walk->model;
  bl_error_t err;
  switch (draw(walk, 4)) {
  case 0: {
    uint32_t id = 1 + (uint32_t)draw(walk, MODEL_LEASES);
    const model_lease_t *lease = &model->leases[id];
    bool held = lease->state != BL_LEASE_FREE && lease->state != BL_LEASE_LOST &&
                !(lease->state == BL_LEASE_QUARANTINED && lease->then != MODEL_THEN_RESERVED);
    bl_status_t wanted = held ? BL_OK : lease->state == BL_LEASE_FREE ? BL_NOT_FOUND : BL_PRECONDITION;
    uint64_t generation = chance(walk, 50) ? 0 : lease->generation;
    say(walk, "revoke %" PRIu32, id);
    if (held) {
      model_lose(model, id);
    }
    bl_status_t status = bl_lease_table_revoke(walk->table, id, generation, model->now_ns, &err);
    expect(walk, status == wanted, "revoke: %s, the model says %s", bl_status_name(status), bl_status_name(wanted));
    break;
  }
  case 1:
    model->draining = chance(walk, 20);
    say(walk, "drain %d", model->draining);
    bl_lease_table_drain(walk->table, model->draining);
    break;
  case 2: {
    int job = (int)draw(walk, MODEL_JOBS);
    uint64_t bytes = chance(walk, 50) ? BL_LEASE_NO_QUOTA : draw(walk, MODEL_GRANULES) * BL_LEASE_GRANULE_BYTES;
    say(walk, "quota %s %" PRIu64, jobs[job], bytes);
    model->jobs[job].quota_bytes = bytes;
    expect(walk, bl_lease_table_set_quota(walk->table, jobs[job], NULL, bytes, &err) == BL_OK, "quota refused");
    break;
  }
  default: {
    int job = (int)draw(walk, MODEL_JOBS);
    uint32_t stage = (uint32_t)draw(walk, MODEL_STAGES);
    uint64_t bytes = chance(walk, 60) ? BL_LEASE_NO_QUOTA : draw(walk, MODEL_GRANULES) * BL_LEASE_GRANULE_BYTES;
    say(walk, "quota %s/%" PRIu32 " %" PRIu64, jobs[job], stage, bytes);
    model->jobs[job].stage_quota_bytes[stage] = bytes;
    expect(walk, bl_lease_table_set_quota(walk->table, jobs[job], &stage, bytes, &err) == BL_OK, "quota refused");
    break;
  }
  }
}

// ---- the walk -----------------------------------------------------------------------------------------------------------

static void step(walk_t *walk) {
  say(walk, "nothing");
  uint64_t pause_ns = 1 + (chance(walk, 8) ? draw(walk, 3000000000) : draw(walk, 1000000));
  model_set_time(&walk->model, walk->model.now_ns + pause_ns);
  bl_lease_table_advance(walk->table, walk->model.now_ns);
  take_actions(walk);
  uint64_t verb = draw(walk, 100);
  if (verb < 6) {
    do_open(walk);
  } else if (verb < 18) {
    do_session(walk);
  } else if (verb < 70) {
    do_request(walk);
  } else if (verb < 96) {
    do_transfer_ended(walk);
  } else {
    do_operator(walk);
  }
  take_actions(walk);
  compare(walk);
  walk->calls++;
}

static void print_failure(const walk_t *walk, uint64_t seed) {
  fprintf(stderr, "seed %" PRIu64 ", call %" PRIu64 ": %s\n", seed, walk->calls - 1, walk->failure);
  for (uint64_t i = walk->calls > RECALL ? walk->calls - RECALL : 0; i < walk->calls; i++) {
    fprintf(stderr, "  %" PRIu64 ": %s\n", i, walk->recall[i % RECALL]);
  }
}

bool walk_run(uint64_t seed, uint64_t calls, walk_result_t *result) {
  walk_t walk = {.key = bl_random_key(seed, "lease walk")};
  bl_lease_config_t config = {.incarnation = incarnation_of(seed + 1),
                              .capacity_bytes = UINT64_C(60) * BL_LEASE_GRANULE_BYTES,
                              .max_jobs = MODEL_JOBS,
                              .max_sessions = MODEL_SESSIONS,
                              .max_leases = MODEL_LEASES,
                              .window = MODEL_WINDOW,
                              .history = 64,
                              .session_flow_bytes = UINT64_C(8) * BL_LEASE_GRANULE_BYTES};
  bl_error_t err = {0};
  if (bl_lease_table_create(&config, 1, &walk.table, &err) != BL_OK) {
    fprintf(stderr, "%s\n", err.text);
    return false;
  }
  model_init(&walk.model, bl_lease_table_config(walk.table), 1);
  while (walk.calls < calls && walk.failure[0] == '\0') {
    step(&walk);
  }
  if (walk.failure[0] != '\0') {
    print_failure(&walk, seed);
  }
  bl_lease_stats_t stats;
  bl_lease_table_stats(walk.table, &stats);
  result->calls += walk.calls;
  result->granted += stats.reserved;
  result->sealed += stats.evicted;
  result->loaded += stats.loaded;
  result->repeated += stats.repeated;
  for (int i = 0; i < BL_SESSION_ENDS; i++) {
    result->ended += stats.ended[i];
  }
  result->suspects_evicted += stats.ended[BL_SESSION_EVICTED];
  uint64_t reasons = 0;
  for (int i = 0; i < BL_LEASE_REASONS; i++) {
    reasons += stats.refused[i] != 0 ? 1 : 0;
  }
  result->refused_reasons = reasons > result->refused_reasons ? reasons : result->refused_reasons;
  bl_lease_table_destroy(walk.table);
  return walk.failure[0] == '\0';
}
