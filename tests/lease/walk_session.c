// SPDX-License-Identifier: Apache-2.0
// Sessions: opened, renewed, closed, revoked.
#include "lease/walk_core.h"

#include <inttypes.h>

model_session_t *walk_any_session(walk_t *walk) {
  model_session_t *session = &walk->model.sessions[walk_draw(walk, MODEL_SESSIONS)];
  for (int i = 0; i < MODEL_SESSIONS && session->number == 0; i++) {
    session = &walk->model.sessions[(session - walk->model.sessions + 1) % MODEL_SESSIONS];
  }
  return session->number != 0 ? session : NULL;
}

// A session that is about to be opened, and what the model knows about it.
typedef struct opening {
  int job, stage;
  model_session_t *before; // of the same job and stage; NULL: none
  model_session_t *unused; // a place; NULL: the table is full
  bool again;              // by the holder of `before`
  uint32_t granules;       // of its arena
  bl_lease_open_t open;
} opening_t;

static opening_t draw_opening(walk_t *walk) {
  opening_t o = {.job = (int)walk_draw(walk, MODEL_JOBS)};
  o.stage = (int)walk_draw(walk, MODEL_STAGES);
  for (int i = 0; i < MODEL_SESSIONS; i++) {
    model_session_t *session = &walk->model.sessions[i];
    const bool same = session->number != 0 && session->job == o.job && session->stage == o.stage;
    o.before = same ? session : o.before;
    o.unused = session->number == 0 ? session : o.unused;
  }
  o.again = o.before != NULL && walk_chance(walk, 50);
  o.open = (bl_lease_open_t){.job = walk_jobs[o.job],
                             .plan = walk_plans[o.job],
                             .process = o.again ? o.before->process : 1 + walk_draw(walk, 2),
                             .stage = (uint32_t)o.stage,
                             .holder = o.again ? o.before->incarnation : walk_id128(++walk->last_incarnation),
                             .key = walk_id128(1000 + walk->draws),
                             .arena_bytes = walk_draw(walk, MODEL_GRANULES + 1) * BL_LEASE_GRANULE_BYTES,
                             .ttl_ns = walk_draw(walk, 2) * 3000000000};
  o.granules = (uint32_t)(o.open.arena_bytes / BL_LEASE_GRANULE_BYTES);
  walk_say(walk, "open %s/%d%s arena %" PRIu64, o.open.job, o.stage, o.again ? " again" : "", o.open.arena_bytes);
  return o;
}

// What the table has to answer.
static bl_lease_reason_t wanted_of(const model_t *model, const opening_t *o) {
  const uint32_t own = model->jobs[o->job].granules;
  uint32_t others = 0;
  for (int i = 0; i < MODEL_NAMES; i++) {
    others += i != model_name(o->job) ? model_charge(model, i) : 0;
  }
  if (o->again) {
    return BL_LEASE_GRANTED;
  }
  if (model->draining) {
    return BL_LEASE_DRAINING;
  }
  if (o->unused == NULL) {
    return BL_LEASE_TABLE_FULL;
  }
  if (own != 0) {
    return o->granules > own ? BL_LEASE_ARENA : BL_LEASE_GRANTED;
  }
  if (o->granules == 0) {
    return BL_LEASE_NO_SIZE;
  }
  return o->granules > model->config.capacity_bytes / BL_LEASE_GRANULE_BYTES - others ? BL_LEASE_CAPACITY
                                                                                      : BL_LEASE_GRANTED;
}

// The session enters the model; those that it takes the place of leave.
static void enter_session(model_t *model, const opening_t *o, const bl_lease_opened_t *opened) {
  if (o->before != NULL) {
    model_end_session(model, o->before);
  }
  if (opened->arena_needed) {
    model->jobs[o->job].granules = o->granules;
  }
  *o->unused = (model_session_t){.number = opened->session,
                                 .key = opened->key,
                                 .incarnation = o->open.holder,
                                 .process = o->open.process,
                                 .job = o->job,
                                 .stage = o->stage,
                                 .renewed_ns = model->now_ns,
                                 .ttl_ns = opened->ttl_ns,
                                 .next_sequence = 1};
  for (int i = 0; i < MODEL_SESSIONS; i++) { // of another process, for the other plan
    model_session_t *other = &model->sessions[i];
    if (other->number != 0 && other->job != o->job && model_name(other->job) == model_name(o->job) &&
        other->stage == o->stage && other->process != o->open.process) {
      int idle = other->job;
      model_end_session(model, other);
      model_close_idle_job(model, idle);
    }
  }
}

// Its arena is made, or cannot be: then all sessions of the job end.
static void make_arena(walk_t *walk, int job, uint32_t opened_job) {
  model_t *model = &walk->model;
  bool well = walk_chance(walk, 95);
  bl_lease_table_arena_made(walk->table, opened_job, well);
  model->jobs[job].made = well;
  for (int i = 0; i < MODEL_SESSIONS && !well; i++) {
    if (model->sessions[i].number != 0 && model->sessions[i].job == job) {
      model_end_session(model, &model->sessions[i]);
      model_close_idle_job(model, job);
    }
  }
}

void walk_open(walk_t *walk) {
  model_t *model = &walk->model;
  const opening_t o = draw_opening(walk);
  const bl_lease_reason_t wanted = wanted_of(model, &o);
  bl_lease_opened_t opened;
  bl_lease_answer_t answer;
  (void)bl_lease_table_open(walk->table, &o.open, model->now_ns, &opened, &answer);
  walk_expect_reason(walk, answer.reason, wanted);
  if (answer.reason != BL_LEASE_GRANTED || wanted != BL_LEASE_GRANTED) {
    return;
  }
  if (o.again) {
    walk_expect(walk, opened.session == o.before->number, "the same holder got another session");
    o.before->renewed_ns = model->now_ns;
    o.before->suspect = false;
    return;
  }
  walk_expect(walk, opened.arena_needed == (model->jobs[o.job].granules == 0), "arena needed: %d", opened.arena_needed);
  bool follows = opened.arena_needed && model_charge(model, o.job) != 0;
  walk_expect(walk, opened.arena_follows == follows, "the arena follows another: %d", opened.arena_follows);
  walk_expect(walk, model_session(model, opened.session) == NULL, "session number %" PRIx64 " again", opened.session);
  enter_session(model, &o, &opened);
  if (opened.arena_needed && walk_chance(walk, 90)) {
    make_arena(walk, o.job, opened.job);
  }
}

void walk_use_session(walk_t *walk) {
  model_session_t *session = walk_any_session(walk);
  if (session == NULL) {
    return;
  }
  uint64_t number = session->number;
  bl_id128_t key = session->key;
  bl_lease_reason_t wanted = BL_LEASE_GRANTED;
  if (walk_chance(walk, 5)) {
    key.bytes[walk_draw(walk, BL_ID128_BYTES)] ^= 1;
    wanted = BL_LEASE_BAD_KEY;
  } else if (walk_chance(walk, 5)) {
    number += UINT64_C(1) << 52;
    wanted = BL_LEASE_NO_SESSION;
  }
  bl_lease_answer_t answer;
  bl_error_t err;
  unsigned drawn = (unsigned)walk_draw(walk, 20);
  int job = session->job;
  if (drawn == 0) {
    walk_say(walk, "close %" PRIx64, number);
    (void)bl_lease_table_close(walk->table, number, &key, walk->model.now_ns, &answer);
    walk_expect_reason(walk, answer.reason, wanted);
  } else if (drawn == 1) {
    walk_say(walk, "revoke session %" PRIx64, session->number);
    walk_expect(walk, bl_lease_table_revoke_session(walk->table, session->number, walk->model.now_ns, &err) == BL_OK,
                "an open session cannot be revoked");
    wanted = BL_LEASE_GRANTED;
  } else {
    walk_say(walk, "keep alive %" PRIx64, number);
    (void)bl_lease_table_keep_alive(walk->table, number, &key, walk->model.now_ns, &answer);
    walk_expect_reason(walk, answer.reason, wanted);
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
