// SPDX-License-Identifier: Apache-2.0
#include "service_core_wire.h"

#include "meter.h"

// ---- runs

static void reply_vote(bl_service_t *self, bl_rpc_call_t *call, bl_waiters_t *waiters) {
  const bl_vote_t *vote = bl_stage_vote(self->stage);
  bl_vote_wire_t wire;
  bl_vote_to_wire(vote, &wire);
  Ballast__V1__RunResponse output = BALLAST__V1__RUN_RESPONSE__INIT;
  output.vote = &wire.message;
  output.token = vote->generated_token < 0 ? 0 : (uint32_t)vote->generated_token;
  if (call != NULL) {
    bl_rpc_call_reply(call, &output.base);
  } else {
    bl_waiters_reply(waiters, &output.base);
  }
}

void bl__service_ran(void *context, bl_stage_outcome_t outcome, const bl_error_t *err) {
  bl_service_t *self = context;
  if (self->registry != NULL) {
    bl_meter_ran(self->registry, self->stage,
                 err->status != BL_OK && outcome == BL_STAGE_AHEAD ? BL_STAGE_FAILED : outcome);
  }
  switch (outcome) {
  case BL_STAGE_AHEAD: // no call waits for it before the commit
  case BL_STAGE_UNDO:  // reported as BL_STAGE_DROP when it is done
    return;
  case BL_STAGE_KEEP:
    reply_vote(self, NULL, &self->running);
    break;
  case BL_STAGE_FAILED:
    bl_waiters_fail(&self->running, err);
    break;
  case BL_STAGE_DROP: {
    bl_error_t aborted;
    (void)bl_error_set(&aborted, BL_CANCELLED, "the attempt was aborted");
    bl_waiters_fail(&self->running, &aborted);
    break;
  }
  }
  Ballast__V1__AbortResponse output = BALLAST__V1__ABORT_RESPONSE__INIT;
  bl_waiters_reply(&self->aborting, &output.base);
}

void bl__handle_run(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  bl_service_t *self = context;
  const Ballast__V1__RunRequest *request = (const Ballast__V1__RunRequest *)input;
  bl_stage_run_request_t run = {.id = {.kind = (bl_run_kind_t)request->kind,
                                       .step = request->step,
                                       .attempt = request->attempt,
                                       .plan_version = request->plan_version},
                                .first_window = request->first_window,
                                .tokens = request->tokens,
                                .token_count = (uint32_t)request->n_tokens,
                                .draw_seed = request->draw_seed,
                                .temperature = request->temperature};
  if (request->offer != NULL) {
    run.offer = (bl_offer_t){.attempt = request->offer->attempt,
                             .scale = request->offer->scale,
                             .learning_rate = request->offer->learning_rate};
  }
  bl_error_t err = {0};
  if ((unsigned)request->kind >= BL_RUN_KINDS) {
    (void)bl_error_set(&err, BL_INVALID, "%d is not a kind of run", (int)request->kind);
    bl_rpc_call_fail(call, &err);
    return;
  }
  switch (bl_stage_run(self->stage, bl__service_identity(request->driver), &run, &err)) {
  case BL_STAGE_REFUSE:
    bl_rpc_call_fail(call, &err);
    break;
  case BL_STAGE_ANSWER:
    reply_vote(self, call, NULL);
    break;
  case BL_STAGE_WAIT:
  case BL_STAGE_BEGIN:
    bl_waiters_add(&self->running, call);
    break;
  }
}

// ---- commits and aborts

static void reply_applied(bl_service_t *self, bl_rpc_call_t *call, bl_waiters_t *waiters) {
  Ballast__V1__CommitResponse output = BALLAST__V1__COMMIT_RESPONSE__INIT;
  output.applied = bl_stage_step(self->stage)->applied;
  if (call != NULL) {
    bl_rpc_call_reply(call, &output.base);
  } else {
    bl_waiters_reply(waiters, &output.base);
  }
}

static void note_committed(bl_service_t *self, bool ahead) {
  if (self->registry != NULL) {
    bl_meter_committed(self->registry, self->stage, ahead);
  }
}

void bl__service_committed(void *context) {
  bl_service_t *self = context;
  note_committed(self, false);
  reply_applied(self, NULL, &self->committing);
}

void bl__handle_commit(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  bl_service_t *self = context;
  const Ballast__V1__CommitRequest *request = (const Ballast__V1__CommitRequest *)input;
  bl_commit_t commit = {.step = request->step,
                        .attempt = request->attempt,
                        .scale = request->scale,
                        .learning_rate = request->learning_rate,
                        .recorder = request->recorder};
  const uint64_t before = bl_stage_step(self->stage)->applied;
  bl_error_t err = {0};
  switch (bl_stage_commit(self->stage, bl__service_identity(request->driver), &commit, &err)) {
  case BL_STAGE_REFUSE:
    bl_rpc_call_fail(call, &err);
    break;
  case BL_STAGE_ANSWER:
    if (bl_stage_step(self->stage)->applied != before) { // applied ahead, now confirmed
      note_committed(self, true);
    }
    reply_applied(self, call, NULL);
    break;
  case BL_STAGE_WAIT:
  case BL_STAGE_BEGIN:
    bl_waiters_add(&self->committing, call);
    break;
  }
}

void bl__handle_abort(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  bl_service_t *self = context;
  const Ballast__V1__AbortRequest *request = (const Ballast__V1__AbortRequest *)input;
  bl_error_t err = {0};
  switch (bl_stage_abort(self->stage, bl__service_identity(request->driver), request->step, request->attempt, &err)) {
  case BL_STAGE_REFUSE:
    bl_rpc_call_fail(call, &err);
    break;
  case BL_STAGE_ANSWER: {
    Ballast__V1__AbortResponse output = BALLAST__V1__ABORT_RESPONSE__INIT;
    bl_rpc_call_reply(call, &output.base);
    break;
  }
  case BL_STAGE_WAIT:
  case BL_STAGE_BEGIN:
    bl_waiters_add(&self->aborting, call);
    break;
  }
}
