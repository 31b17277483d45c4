// SPDX-License-Identifier: Apache-2.0
#include "service_wire.h"

#include "followed.h"
#include "meter.h"
#include "plan_notes_wire.h"
#include "state_wire.h"
#include "sys/clock.h"
#include "sys/log.h"
#include "waiters.h"

#include "ballast/v1/stage.pb-c.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONNECT_DEADLINE_NS (30ull * BL_NS_PER_S)
#define TRACE_BATCH         512 // events of one message: about 20 KiB
#define WAITS               16

struct bl_service {
  bl_stage_t *stage;
  bl_service_stop_fn stop;
  void *context;
  bl_board_t *board; // NULL: nobody measures
  bl_plan_notes_t notes;
  uint64_t preparing_version;
  bl_policy_forward_t *forward; // NULL: none
  bl_waiters_t configuring, connecting, preparing, running, committing, aborting, copying, writing;
  bl_followed_t followed;
};

static bl_driver_id_t identity(const Ballast__V1__DriverIdentity *driver) {
  return driver == NULL ? (bl_driver_id_t){0} : (bl_driver_id_t){.epoch = driver->epoch, .id = driver->id};
}

// Whether it is the driver that this stage follows is what counts.
static void hear(bl_service_t *self, const Ballast__V1__DriverIdentity *driver) {
  if (driver != NULL && bl_driver_id_equal(identity(driver), bl_stage_step(self->stage)->driver)) {
    bl_followed_hear(&self->followed);
  }
}

// ---- replies

static void reply_configured(bl_service_t *self, bl_rpc_call_t *call, bl_waiters_t *waiters) {
  const bl_engine_t *engine = bl_stage_engine(self->stage);
  Ballast__V1__ConfigureResponse output = BALLAST__V1__CONFIGURE_RESPONSE__INIT;
  bl_memory_wire_t memory;
  bl_memory_to_wire(&engine->account, &memory);
  output.memory = memory.pointers;
  output.n_memory = BL_MEMORY_TAGS;
  output.unix_address = (char *)bl_hub_unix_address(engine->hub);
  output.tcp_address = (char *)bl_hub_tcp_address(engine->hub);
  output.token = (ProtobufCBinaryData){.data = (uint8_t *)bl_hub_token(engine->hub), .len = BL_HUB_TOKEN_BYTES};
  output.instruction_set = (char *)engine->ops->describe(engine->compute);
  output.slot_bytes = engine->slot_bytes;
  output.machine = (char *)bl_hub_machine(engine->hub);
  if (call != NULL) {
    bl_rpc_call_reply(call, &output.base);
  } else {
    bl_waiters_reply(waiters, &output.base);
  }
}

static void on_configured(void *context, const bl_error_t *err) {
  bl_service_t *self = context;
  if (err->status != BL_OK) {
    bl_waiters_fail(&self->configuring, err);
  } else {
    reply_configured(self, NULL, &self->configuring);
  }
}

static void on_connected(void *context, const bl_error_t *err) {
  bl_service_t *self = context;
  if (err->status != BL_OK) {
    bl_waiters_fail(&self->connecting, err);
    return;
  }
  bl_paths_wire_t paths;
  bl_paths_to_wire(bl_stage_engine(self->stage)->hub, &paths);
  Ballast__V1__ConnectResponse output = BALLAST__V1__CONNECT_RESPONSE__INIT;
  output.paths = paths.pointers;
  output.n_paths = paths.count;
  bl_waiters_reply(&self->connecting, &output.base);
}

// To one call, or with call NULL to all that wait: prepared, refused for good, or not possible now.
static void reply_prepared(bl_service_t *self, bl_rpc_call_t *call, uint64_t version, const bl_error_t *err) {
  Ballast__V1__PreparePlanResponse output = BALLAST__V1__PREPARE_PLAN_RESPONSE__INIT;
  if (err->status != BL_OK) {
    if (!bl_stage_has_refused(self->stage, version) || err->status == BL_FENCED) {
      if (call != NULL) {
        bl_rpc_call_fail(call, err);
      } else {
        bl_waiters_fail(&self->preparing, err);
      }
      return;
    }
    output.status = bl_status_grpc_code(err->status);
    output.refusal = (char *)err->text;
  }
  if (call != NULL) {
    bl_rpc_call_reply(call, &output.base);
  } else {
    bl_waiters_reply(&self->preparing, &output.base);
  }
}

static void on_prepared(void *context, const bl_error_t *err) {
  bl_service_t *self = context;
  if (err->status == BL_OK) {
    bl_plan_notes_keep(&self->notes, bl_stage_step(self->stage));
  }
  reply_prepared(self, NULL, self->preparing_version, err);
}

static void reply_vote(bl_service_t *self, bl_rpc_call_t *call, bl_waiters_t *waiters) {
  const bl_vote_t *vote = bl_stage_vote(self->stage);
  bl_vote_wire_t wire;
  bl_vote_to_wire(vote, &wire);
  Ballast__V1__RunResponse output = BALLAST__V1__RUN_RESPONSE__INIT;
  output.vote = &wire.message;
  output.token = vote->token < 0 ? 0 : (uint32_t)vote->token;
  if (call != NULL) {
    bl_rpc_call_reply(call, &output.base);
  } else {
    bl_waiters_reply(waiters, &output.base);
  }
}

static void on_ran(void *context, bl_stage_outcome_t outcome, const bl_error_t *err) {
  bl_service_t *self = context;
  if (self->board != NULL) {
    bl_meter_ran(self->board, self->stage, outcome);
  }
  switch (outcome) {
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

static void reply_applied(bl_service_t *self, bl_rpc_call_t *call, bl_waiters_t *waiters) {
  Ballast__V1__CommitResponse output = BALLAST__V1__COMMIT_RESPONSE__INIT;
  output.applied = bl_stage_step(self->stage)->applied;
  if (call != NULL) {
    bl_rpc_call_reply(call, &output.base);
  } else {
    bl_waiters_reply(waiters, &output.base);
  }
}

static void on_committed(void *context) {
  bl_service_t *self = context;
  if (self->board != NULL) {
    bl_meter_committed(self->board, self->stage);
  }
  reply_applied(self, NULL, &self->committing);
}

static void on_copied(void *context) {
  bl_service_t *self = context;
  Ballast__V1__SnapshotResponse output = BALLAST__V1__SNAPSHOT_RESPONSE__INIT;
  bl_waiters_reply(&self->copying, &output.base);
}

static void reply_written(bl_service_t *self, bl_rpc_call_t *call, bl_waiters_t *waiters) {
  bl_saved_wire_t wire;
  if (!bl_saved_to_wire(bl_stage_saver(self->stage), &wire)) {
    bl_error_t err;
    (void)bl_error_set(&err, BL_INTERNAL, "no memory to say what was written");
    if (call != NULL) {
      bl_rpc_call_fail(call, &err);
    } else {
      bl_waiters_fail(waiters, &err);
    }
    return;
  }
  if (call != NULL) {
    bl_rpc_call_reply(call, &wire.message.base);
  } else {
    bl_waiters_reply(waiters, &wire.message.base);
  }
  bl_saved_wire_cleanup(&wire);
}

static void on_written(void *context, const bl_error_t *err) {
  bl_service_t *self = context;
  if (err->status != BL_OK) {
    bl_waiters_fail(&self->writing, err);
  } else {
    reply_written(self, NULL, &self->writing);
  }
}

// ---- calls

static void handle_takeover(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  bl_service_t *self = context;
  const Ballast__V1__TakeoverRequest *request = (const Ballast__V1__TakeoverRequest *)input;
  Ballast__V1__TakeoverResponse output = BALLAST__V1__TAKEOVER_RESPONSE__INIT;
  bl_driver_id_t before = bl_stage_step(self->stage)->driver;
  output.accepted = bl_stage_takeover(self->stage, identity(request->driver), request->run);
  if (output.accepted && !bl_driver_id_equal(before, identity(request->driver))) {
    bl_followed_take(&self->followed, request->run, request->address);
  }
  hear(self, request->driver);
  if (output.accepted && self->forward != NULL) {
    bl_policy_forward_learn(self->forward, "", request->address); // one driver at a time
  }
  bl_state_wire_t state;
  bl_state_to_wire(self->stage, &state);
  state.message.plans = bl_plan_notes_list(&self->notes, bl_stage_step(self->stage), &state.message.n_plans);
  output.state = &state.message;
  bl_rpc_call_reply(call, &output.base);
}

static void handle_configure(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  bl_service_t *self = context;
  const Ballast__V1__ConfigureRequest *request = (const Ballast__V1__ConfigureRequest *)input;
  bl_error_t err = {0};
  if (request->stage < 0) {
    (void)bl_error_set(&err, BL_INVALID, "stage %d: not a stage number", request->stage);
    bl_rpc_call_fail(call, &err);
    return;
  }
  bl_stage_configuration_t configuration = {.job = request->job,
                                            .rank = (uint32_t)request->stage,
                                            .resume = request->resume,
                                            .resume_digest = request->resume_digest,
                                            .digest = request->digest};
  switch (bl_stage_configure(self->stage, identity(request->driver), &configuration, &err)) {
  case BL_STAGE_REFUSE:
    bl_rpc_call_fail(call, &err);
    break;
  case BL_STAGE_ANSWER:
    reply_configured(self, call, NULL);
    break;
  case BL_STAGE_WAIT:
  case BL_STAGE_BEGIN:
    bl_waiters_add(&self->configuring, call);
    break;
  }
}

static bl_status_t read_peers(const Ballast__V1__ConnectRequest *request, bl_hub_peer_t *peers, bl_path_t *path,
                              bl_error_t *err) {
  if (request->n_peers > BL_HUB_MAX_PEERS) {
    return bl_error_set(err, BL_INVALID, "%zu peers, the most is %d", request->n_peers, BL_HUB_MAX_PEERS);
  }
  if (!bl_path_parse(request->data_path[0] == '\0' ? "auto" : request->data_path, path)) {
    return bl_error_set(err, BL_INVALID, "'%.40s' is not a data path: auto, shm or tcp", request->data_path);
  }
  for (size_t i = 0; i < request->n_peers; i++) {
    const Ballast__V1__Peer *peer = request->peers[i];
    if (peer->token.len != BL_HUB_TOKEN_BYTES) {
      return bl_error_set(err, BL_INVALID, "token of stage %d has %zu bytes, not %d", peer->stage, peer->token.len,
                          BL_HUB_TOKEN_BYTES);
    }
    peers[i] = (bl_hub_peer_t){.stage = peer->stage,
                               .unix_address = peer->unix_address,
                               .tcp_address = peer->tcp_address,
                               .machine = peer->machine};
    memcpy(peers[i].token, peer->token.data, BL_HUB_TOKEN_BYTES);
  }
  return BL_OK;
}

static void handle_connect(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  bl_service_t *self = context;
  const Ballast__V1__ConnectRequest *request = (const Ballast__V1__ConnectRequest *)input;
  bl_error_t err = {0};
  bl_hub_peer_t peers[BL_HUB_MAX_PEERS];
  bl_path_t path;
  if (read_peers(request, peers, &path, &err) != BL_OK ||
      bl_stage_connect(self->stage, identity(request->driver), peers, request->n_peers, path,
                       bl_clock_now_ns() + CONNECT_DEADLINE_NS, &err) == BL_STAGE_REFUSE) {
    bl_rpc_call_fail(call, &err);
    return;
  }
  bl_waiters_add(&self->connecting, call);
}

static void handle_prepare_plan(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  bl_service_t *self = context;
  const Ballast__V1__PreparePlanRequest *request = (const Ballast__V1__PreparePlanRequest *)input;
  bl_executor_plan_request_t plan = {.version = request->version,
                                     .digest = request->digest,
                                     .kind = (bl_run_kind_t)request->kind,
                                     .policy = bl_plan_policy(request),
                                     .follows = request->follows,
                                     .csv = request->schedule,
                                     .csv_bytes = strlen(request->schedule)};
  bl_error_t err = {0};
  if ((unsigned)request->kind >= BL_RUN_KINDS) {
    (void)bl_error_set(&err, BL_INVALID, "%d is not a kind of run", (int)request->kind);
    bl_rpc_call_fail(call, &err);
    return;
  }
  switch (bl_stage_prepare(self->stage, identity(request->driver), &plan, &err)) {
  case BL_STAGE_REFUSE:
    reply_prepared(self, call, plan.version, &err);
    break;
  case BL_STAGE_ANSWER:
    bl_plan_notes_offer(&self->notes, request);
    bl_plan_notes_keep(&self->notes, bl_stage_step(self->stage));
    reply_prepared(self, call, plan.version, &err);
    break;
  case BL_STAGE_BEGIN:
    bl_plan_notes_offer(&self->notes, request);
    self->preparing_version = plan.version;
    // fall through
  case BL_STAGE_WAIT:
    bl_waiters_add(&self->preparing, call);
    break;
  }
}

static void handle_run(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
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
  bl_error_t err = {0};
  if ((unsigned)request->kind >= BL_RUN_KINDS) {
    (void)bl_error_set(&err, BL_INVALID, "%d is not a kind of run", (int)request->kind);
    bl_rpc_call_fail(call, &err);
    return;
  }
  switch (bl_stage_run(self->stage, identity(request->driver), &run, &err)) {
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

static void handle_commit(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  bl_service_t *self = context;
  const Ballast__V1__CommitRequest *request = (const Ballast__V1__CommitRequest *)input;
  bl_commit_t commit = {.step = request->step,
                        .attempt = request->attempt,
                        .scale = request->scale,
                        .learning_rate = request->learning_rate,
                        .recorder = request->recorder};
  bl_error_t err = {0};
  switch (bl_stage_commit(self->stage, identity(request->driver), &commit, &err)) {
  case BL_STAGE_REFUSE:
    bl_rpc_call_fail(call, &err);
    break;
  case BL_STAGE_ANSWER:
    reply_applied(self, call, NULL);
    break;
  case BL_STAGE_WAIT:
  case BL_STAGE_BEGIN:
    bl_waiters_add(&self->committing, call);
    break;
  }
}

static void handle_abort(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  bl_service_t *self = context;
  const Ballast__V1__AbortRequest *request = (const Ballast__V1__AbortRequest *)input;
  bl_error_t err = {0};
  switch (bl_stage_abort(self->stage, identity(request->driver), request->step, request->attempt, &err)) {
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

static void handle_snapshot(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  bl_service_t *self = context;
  const Ballast__V1__SnapshotRequest *request = (const Ballast__V1__SnapshotRequest *)input;
  bl_error_t err = {0};
  switch (bl_stage_snapshot(self->stage, identity(request->driver), request->step, &err)) {
  case BL_STAGE_REFUSE:
    bl_rpc_call_fail(call, &err);
    break;
  case BL_STAGE_ANSWER: {
    Ballast__V1__SnapshotResponse output = BALLAST__V1__SNAPSHOT_RESPONSE__INIT;
    bl_rpc_call_reply(call, &output.base);
    break;
  }
  case BL_STAGE_WAIT:
  case BL_STAGE_BEGIN:
    bl_waiters_add(&self->copying, call);
    break;
  }
}

static void handle_write_snapshot(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  bl_service_t *self = context;
  const Ballast__V1__WriteSnapshotRequest *request = (const Ballast__V1__WriteSnapshotRequest *)input;
  bl_saver_request_t save = {
      .step = request->step,
      .folder = request->folder,
      .names = {
          [BL_CHECKPOINT_SHARD_WEIGHTS] = request->weights, [BL_CHECKPOINT_SHARD_OPTIMIZER] = request->optimizer}};
  bl_error_t err = {0};
  switch (bl_stage_write(self->stage, identity(request->driver), &save, &err)) {
  case BL_STAGE_REFUSE:
    bl_rpc_call_fail(call, &err);
    break;
  case BL_STAGE_ANSWER:
    reply_written(self, call, NULL);
    break;
  case BL_STAGE_WAIT:
  case BL_STAGE_BEGIN:
    bl_waiters_add(&self->writing, call);
    break;
  }
}

static void handle_release(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  bl_service_t *self = context;
  const Ballast__V1__ReleaseRequest *request = (const Ballast__V1__ReleaseRequest *)input;
  bl_error_t err = {0};
  if (bl_stage_release(self->stage, identity(request->driver), &err) == BL_STAGE_REFUSE) {
    bl_rpc_call_fail(call, &err);
    return;
  }
  Ballast__V1__ReleaseResponse output = BALLAST__V1__RELEASE_RESPONSE__INIT;
  bl_rpc_call_reply(call, &output.base);
}

// What a running stage is doing: progress through its operations, and what it waits for.
static void describe_run(const bl_stage_t *stage, Ballast__V1__StageStatusResponse *output, char cell[BL_OP_TEXT]) {
  const bl_executor_plan_t *plan = bl_stage_running_plan(stage);
  if (plan == NULL) {
    return;
  }
  uint32_t done = atomic_load(&bl_stage_progress(stage)->done);
  output->operations_done = done;
  output->operations_total = (uint32_t)plan->stage.op_count;
  if (bl_stage_step(stage)->phase == BL_STAGE_RUNNING && done < plan->stage.op_count) {
    output->operation = (char *)bl_op_format(plan->stage.ops[done].op, cell);
  }
}

// The wait for a core that other stages of this machine have; returns how many there are, 0 or 1.
static size_t core_wait(const bl_stage_t *stage, const bl_engine_t *engine, bl_hub_wait_t *wait) {
  const bl_run_progress_t *progress = bl_stage_progress(stage);
  const uint64_t since_ns = atomic_load(&progress->core_since_ns);
  if (since_ns == 0 || engine->core_tokens == NULL) {
    return 0;
  }
  const uint32_t holder = bl_core_tokens_holder(engine->core_tokens);
  *wait = (bl_hub_wait_t){
      .since_ns = since_ns, .peer = -1, .micro_batch = (int32_t)atomic_load(&progress->core_micro_batch)};
  if (holder < BL_CORE_TOKENS_MEMBERS) {
    wait->peer = (int32_t)holder;
    snprintf(wait->what, sizeof wait->what, "a core, which stage %u has", holder);
  } else {
    snprintf(wait->what, sizeof wait->what, "a core");
  }
  return 1;
}

// The wait for a store, if the run is in one.
static bool describe_store_wait(const bl_run_progress_t *progress, Ballast__V1__Wait *message, char what[64]) {
  uint64_t parked = atomic_load(&progress->parked), since_ns = atomic_load(&progress->waiting_ns);
  if (parked == 0 || since_ns == 0) {
    return false;
  }
  bool load = (parked >> 62 & 1) != 0;
  *message = (Ballast__V1__Wait)BALLAST__V1__WAIT__INIT;
  message->at_store = (int32_t)(parked >> 32 & 0xffff);
  message->micro_batch = (int32_t)(parked & 0xffffffff);
  message->peer = -1;
  message->since_ns = since_ns;
  snprintf(what, 64, "%s store %d", load ? "load from" : "eviction to", message->at_store);
  message->what = what;
  return true;
}

static void handle_status(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  bl_service_t *self = context;
  uint64_t silent_ms = bl_followed_silent_ms(&self->followed); // but for this call
  hear(self, ((const Ballast__V1__StageStatusRequest *)input)->driver);
  const bl_stage_step_t *step = bl_stage_step(self->stage);
  const bl_engine_t *engine = bl_stage_engine(self->stage);
  Ballast__V1__StageStatusResponse output = BALLAST__V1__STAGE_STATUS_RESPONSE__INIT;
  bl_state_wire_t state;
  bl_state_to_wire(self->stage, &state);
  state.message.run = self->followed.run;
  state.message.driver_address = self->followed.address;
  state.message.driver_silent_ms = silent_ms;
  output.state = &state.message;
  output.phase = (char *)bl_stage_phase_name(step->phase);
  output.running_step = step->run.step;
  output.running_attempt = step->run.attempt;
  output.now_ns = bl_clock_now_ns();
  char cell[BL_OP_TEXT];
  bl_memory_wire_t memory;
  bl_paths_wire_t paths;
  bl_hub_wait_t waits[WAITS];
  Ballast__V1__Wait messages[WAITS];
  Ballast__V1__Wait *pointers[WAITS];
  char what[64];
  bl_vote_wire_t vote;
  if (engine != NULL) {
    describe_run(self->stage, &output, cell);
    bl_memory_to_wire(&engine->account, &memory);
    output.memory = memory.pointers;
    output.n_memory = BL_MEMORY_TAGS;
    bl_paths_to_wire(engine->hub, &paths);
    output.paths = paths.pointers;
    output.n_paths = paths.count;
    size_t count = bl_hub_waits(engine->hub, waits, WAITS - 2); // the last two are kept for others
    output.n_waits = count < WAITS - 2 ? count : WAITS - 2;
    output.n_waits += core_wait(self->stage, engine, &waits[output.n_waits]);
    for (size_t i = 0; i < output.n_waits; i++) {
      messages[i] = (Ballast__V1__Wait)BALLAST__V1__WAIT__INIT;
      messages[i].what = waits[i].what;
      messages[i].since_ns = waits[i].since_ns;
      messages[i].peer = waits[i].peer;
      messages[i].micro_batch = waits[i].micro_batch;
      messages[i].at_store = -1;
      pointers[i] = &messages[i];
    }
    if (describe_store_wait(bl_stage_progress(self->stage), &messages[output.n_waits], what)) {
      pointers[output.n_waits] = &messages[output.n_waits];
      output.n_waits++;
    }
    output.waits = pointers;
    bl_vote_to_wire(bl_stage_commit_vote(self->stage), &vote);
    output.counters = &vote.counters;
  }
  bl_rpc_call_reply(call, &output.base);
}

// ---- trace: a stream in batches, read from the ring while nothing runs

typedef struct {
  bl_service_t *service;
  size_t next;
} trace_reader_t;

static void send_trace(bl_rpc_call_t *call, void *context);

static void end_trace(bl_rpc_call_t *call, trace_reader_t *reader, bl_status_t status, const char *text) {
  free(reader);
  bl_rpc_call_finish(call, status, text);
}

static void trace_cancelled(bl_rpc_call_t *call, void *context) {
  end_trace(call, context, BL_CANCELLED, "the caller gave up");
}

static void send_trace(bl_rpc_call_t *call, void *context) {
  trace_reader_t *reader = context;
  bl_stage_t *stage = reader->service->stage;
  bl_stage_phase_t phase = bl_stage_step(stage)->phase;
  const bl_engine_t *engine = bl_stage_engine(stage);
  if (engine == NULL || phase == BL_STAGE_RUNNING || phase == BL_STAGE_STOPPING) {
    end_trace(call, reader, BL_PRECONDITION,
              engine == NULL ? "not configured" : "a step is running: ask between steps");
    return;
  }
  size_t left = bl_trace_count(engine->trace) - reader->next;
  size_t count = left < TRACE_BATCH ? left : TRACE_BATCH;
  if (count == 0) {
    end_trace(call, reader, BL_OK, "");
    return;
  }
  static Ballast__V1__TraceEvent
      events[TRACE_BATCH]; // of the loop's thread alone: packed before bl_rpc_call_send returns
  static Ballast__V1__TraceEvent *pointers[TRACE_BATCH];
  for (size_t i = 0; i < count; i++) {
    const bl_trace_event_t *event = bl_trace_get(engine->trace, reader->next + i);
    events[i] = (Ballast__V1__TraceEvent)BALLAST__V1__TRACE_EVENT__INIT;
    events[i].name = (char *)event->name;
    events[i].wait = event->wait;
    events[i].start_ns = event->start_ns;
    events[i].end_ns = event->end_ns;
    events[i].micro_batch = event->micro_batch;
    events[i].slots_in_use = event->slots_in_use;
    pointers[i] = &events[i];
  }
  reader->next += count;
  Ballast__V1__StageTraceResponse output = BALLAST__V1__STAGE_TRACE_RESPONSE__INIT;
  output.events = pointers;
  output.n_events = count;
  bl_status_t status = bl_rpc_call_send(call, &output.base, send_trace, reader);
  if (status != BL_OK) {
    end_trace(call, reader, status, "the trace could not be sent");
  }
}

static void handle_trace(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  (void)input;
  trace_reader_t *reader = bl_rpc_call_is_cancelled(call) ? NULL : calloc(1, sizeof *reader);
  if (reader == NULL) {
    bl_rpc_call_finish(call, BL_EXHAUSTED, "no memory to send a trace, or nobody to send it to");
    return;
  }
  reader->service = context;
  bl_rpc_call_on_cancel(call, trace_cancelled, reader);
  send_trace(call, reader);
}

static void handle_stop(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  bl_service_t *self = context;
  const Ballast__V1__StageStopRequest *request = (const Ballast__V1__StageStopRequest *)input;
  bl_error_t err = {0};
  if (bl_stage_check(self->stage, identity(request->driver), &err) == BL_STAGE_REFUSE) {
    bl_rpc_call_fail(call, &err);
    return;
  }
  Ballast__V1__StageStopResponse output = BALLAST__V1__STAGE_STOP_RESPONSE__INIT;
  bl_rpc_call_reply(call, &output.base);
  self->stop(self->context, request->exit_code);
}

// ---- the service

static const bl_rpc_method_t methods[] = {
    {"Takeover", handle_takeover},
    {"Configure", handle_configure},
    {"Connect", handle_connect},
    {"PreparePlan", handle_prepare_plan},
    {"Run", handle_run},
    {"Commit", handle_commit},
    {"Abort", handle_abort},
    {"Status", handle_status},
    {"Trace", handle_trace},
    {"Release", handle_release},
    {"Stop", handle_stop},
    {"Snapshot", handle_snapshot},
    {"WriteSnapshot", handle_write_snapshot},
};

bl_status_t bl_service_create(bl_loop_t *loop, const bl_stage_options_t *options, bl_service_stop_fn stop,
                              void *context, bl_service_t **service, bl_error_t *err) {
  bl_service_t *made = calloc(1, sizeof *made);
  if (made == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for the service");
  }
  made->stop = stop;
  made->context = context;
  bl_stage_options_t observed = *options;
  observed.observer = (bl_stage_observer_t){.context = made,
                                            .configured = on_configured,
                                            .connected = on_connected,
                                            .prepared = on_prepared,
                                            .ran = on_ran,
                                            .committed = on_committed,
                                            .copied = on_copied,
                                            .written = on_written};
  bl_status_t status = bl_stage_create(loop, &observed, &made->stage, err);
  if (status != BL_OK) {
    free(made);
    return status;
  }
  *service = made;
  return BL_OK;
}

bl_status_t bl_service_serve(bl_service_t *service, bl_rpc_server_t *server, bl_error_t *err) {
  return bl_rpc_server_add_service(server, &ballast__v1__stage__descriptor, methods, sizeof methods / sizeof methods[0],
                                   service, err);
}

void bl_service_set_forward(bl_service_t *service, bl_policy_forward_t *forward) {
  service->forward = forward;
}

void bl_service_set_board(bl_service_t *self, bl_board_t *board) {
  self->board = board;
}

void bl_service_collect(const bl_service_t *self) {
  bl_meter_collect(self->board, self->stage);
}

void bl_service_end_calls(bl_service_t *service) {
  bl_error_t err = {0};
  (void)bl_error_set(&err, BL_UNAVAILABLE, "the stage is ending");
  bl_waiters_t *all[] = {&service->configuring, &service->connecting, &service->preparing, &service->running,
                         &service->committing,  &service->aborting,   &service->copying,   &service->writing};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
    bl_waiters_fail(all[i], &err);
  }
}

void bl_service_destroy(bl_service_t *service) {
  if (service == NULL) {
    return;
  }
  bl_stage_destroy(service->stage);
  bl_plan_notes_cleanup(&service->notes);
  free(service);
}
