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

void walk_open(walk_t *walk) {
  model_t *model = &walk->model;
  int job = (int)walk_draw(walk, MODEL_JOBS), stage = (int)walk_draw(walk, MODEL_STAGES);
  model_session_t *before = NULL, *unused = NULL;
  for (int i = 0; i < MODEL_SESSIONS; i++) {
    model_session_t *session = &model->sessions[i];
    before = session->number != 0 && session->job == job && session->stage == stage ? session : before;
    unused = session->number == 0 ? session : unused;
  }
  bool again = before != NULL && walk_chance(walk, 50);
  bl_lease_open_t open = {.job = walk_jobs[job],
                          .plan = walk_plans[job],
                          .process = again ? before->process : 1 + walk_draw(walk, 2),
                          .stage = (uint32_t)stage,
                          .holder = again ? before->incarnation : walk_incarnation(++walk->last_incarnation),
                          .key = walk_incarnation(1000 + walk->draws),
                          .arena_bytes = walk_draw(walk, MODEL_GRANULES + 1) * BL_LEASE_GRANULE_BYTES,
                          .ttl_ns = walk_draw(walk, 2) * 3000000000};
  walk_say(walk, "open %s/%d%s arena %" PRIu64, open.job, stage, again ? " again" : "", open.arena_bytes);
  bl_lease_reason_t wanted = BL_LEASE_GRANTED;
  uint32_t granules = (uint32_t)(open.arena_bytes / BL_LEASE_GRANULE_BYTES), others = 0;
  for (int i = 0; i < MODEL_NAMES; i++) {
    others += i != model_name(job) ? model_charge(model, i) : 0;
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
    } else if (granules > model->config.capacity_bytes / BL_LEASE_GRANULE_BYTES - others) {
      wanted = BL_LEASE_CAPACITY;
    }
  }
  bl_lease_opened_t opened;
  bl_lease_answer_t answer;
  (void)bl_lease_table_open(walk->table, &open, model->now_ns, &opened, &answer);
  walk_expect_reason(walk, answer.reason, wanted);
  if (answer.reason != BL_LEASE_GRANTED || wanted != BL_LEASE_GRANTED) {
    return;
  }
  if (again) {
    walk_expect(walk, opened.session == before->number, "the same holder got another session");
    before->renewed_ns = model->now_ns;
    before->suspect = false;
    return;
  }
  walk_expect(walk, opened.arena_needed == (model->jobs[job].granules == 0), "arena needed: %d", opened.arena_needed);
  bool follows = opened.arena_needed && model_charge(model, job) != 0;
  walk_expect(walk, opened.arena_follows == follows, "the arena follows another: %d", opened.arena_follows);
  walk_expect(walk, model_session(model, opened.session) == NULL, "session number %" PRIx64 " again", opened.session);
  if (before != NULL) {
    model_end_session(model, before);
  }
  if (opened.arena_needed) {
    model->jobs[job].granules = granules;
  }
  *unused = (model_session_t){.number = opened.session,
                              .key = opened.key,
                              .incarnation = open.holder,
                              .process = open.process,
                              .job = job,
                              .stage = stage,
                              .renewed_ns = model->now_ns,
                              .ttl_ns = opened.ttl_ns,
                              .next_sequence = 1};
  for (int i = 0; i < MODEL_SESSIONS; i++) { // of another process, for the other plan
    model_session_t *other = &model->sessions[i];
    if (other->number != 0 && other->job != job && model_name(other->job) == model_name(job) && other->stage == stage &&
        other->process != open.process) {
      int idle = other->job;
      model_end_session(model, other);
      model_close_idle_job(model, idle);
    }
  }
  if (opened.arena_needed && walk_chance(walk, 90)) {
    bool well = walk_chance(walk, 95);
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

void walk_use_session(walk_t *walk) {
  model_session_t *session = walk_any_session(walk);
  if (session == NULL) {
    return;
  }
  uint64_t number = session->number;
  bl_incarnation_t key = session->key;
  bl_lease_reason_t wanted = BL_LEASE_GRANTED;
  if (walk_chance(walk, 5)) {
    key.bytes[walk_draw(walk, BL_INCARNATION_BYTES)] ^= 1;
    wanted = BL_LEASE_BAD_KEY;
  } else if (walk_chance(walk, 5)) {
    number += UINT64_C(1) << 52;
    wanted = BL_LEASE_NO_SESSION;
  }
  bl_lease_answer_t answer;
  bl_error_t err;
  unsigned verb = (unsigned)walk_draw(walk, 20);
  int job = session->job;
  if (verb == 0) {
    walk_say(walk, "close %" PRIx64, number);
    (void)bl_lease_table_close(walk->table, number, &key, walk->model.now_ns, &answer);
    walk_expect_reason(walk, answer.reason, wanted);
  } else if (verb == 1) {
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
