// SPDX-License-Identifier: Apache-2.0
#include "service_core_wire.h"

#include "sys/clock.h"
#include "sys/log.h"
#include "sys/version.h"

#include <string.h>

#define CONNECT_DEADLINE_NS    (30ull * BL_NS_PER_S)
#define PEER_PROBE_DEADLINE_NS (120ull * BL_NS_PER_S) // if communicators are created too, pair by pair

void bl__handle_takeover(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  bl_service_t *self = context;
  const Ballast__V1__TakeoverRequest *request = (const Ballast__V1__TakeoverRequest *)input;
  Ballast__V1__TakeoverResponse output = BALLAST__V1__TAKEOVER_RESPONSE__INIT;
  bl_driver_id_t before = bl_stage_step(self->stage)->driver;
  output.accepted = bl_stage_takeover(self->stage, bl__service_identity(request->driver), request->run);
  if (output.accepted && !bl_driver_id_equal(before, bl__service_identity(request->driver))) {
    bl_current_driver_take(&self->current_driver, request->run, request->address);
  }
  bl__service_driver_seen(self, request->driver);
  if (output.accepted && self->policy_proxy != NULL) {
    bl_policy_proxy_learn(self->policy_proxy, "", request->address); // one driver at a time
  }
  bl_state_wire_t state;
  bl_state_to_wire(self->stage, &state);
  state.message.plans = bl_plan_notes_list(&self->notes, bl_stage_step(self->stage), &state.message.n_plans);
  output.state = &state.message;
  bl_rpc_call_reply(call, &output.base);
}

// ---- configuration

static void reply_configured(bl_service_t *self, bl_rpc_call_t *call, bl_waiters_t *waiters) {
  const bl_engine_t *engine = bl_stage_engine(self->stage);
  Ballast__V1__ConfigureResponse output = BALLAST__V1__CONFIGURE_RESPONSE__INIT;
  bl_memory_wire_t memory;
  bl_memory_to_wire(&engine->account, &memory);
  output.memory = memory.pointers;
  output.n_memory = BL_MEMORY_TAGS;
  output.unix_address = (char *)bl_transport_unix_address(engine->transport);
  output.tcp_address = (char *)bl_transport_tcp_address(engine->transport);
  output.token =
      (ProtobufCBinaryData){.data = (uint8_t *)bl_transport_token(engine->transport), .len = BL_TRANSPORT_TOKEN_BYTES};
  output.slot_bytes = engine->slot_bytes;
  output.machine = (char *)bl_transport_machine(engine->transport);
  size_t count = 0;
  const bl_ops_choice_t *chosen = engine->ops->choices != NULL ? engine->ops->choices(engine->compute, &count) : NULL;
  bl_choices_wire_t choices;
  bl_choices_to_wire(chosen, count, &choices);
  output.choices = choices.pointers;
  output.n_choices = choices.count;
  if (call != NULL) {
    bl_rpc_call_reply(call, &output.base);
  } else {
    bl_waiters_reply(waiters, &output.base);
  }
  bl_choices_wire_cleanup(&choices);
}

void bl__service_configured(void *context, const bl_error_t *err) {
  bl_service_t *self = context;
  if (err->status != BL_OK) {
    bl_waiters_fail(&self->configuring, err);
  } else {
    reply_configured(self, NULL, &self->configuring);
  }
}

void bl__handle_configure(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  bl_service_t *self = context;
  const Ballast__V1__ConfigureRequest *request = (const Ballast__V1__ConfigureRequest *)input;
  bl_error_t err = {0};
  if (request->stage < 0) {
    (void)bl_error_set(&err, BL_INVALID, "stage %d: not a stage number", request->stage);
  } else if (strcmp(request->version, bl_build()) != 0) {
    (void)bl_error_set(&err, BL_PRECONDITION,
                       "this stage-service is Ballast %s, the driver is %s; all programs of a run need one version",
                       bl_build(), request->version[0] != '\0' ? request->version : "of an earlier version");
  }
  if (err.status != BL_OK) {
    bl_rpc_call_fail(call, &err);
    return;
  }
  bl_stage_configuration_t configuration = {.job = request->job,
                                            .orders = {.own = request->n_orders > 0 ? request->orders[0] : NULL,
                                                       .other = request->n_orders > 1 ? request->orders[1] : NULL},
                                            .rank = (uint32_t)request->stage,
                                            .resume = request->resume,
                                            .resume_digest = request->resume_digest,
                                            .digest = request->digest};
  switch (bl_stage_configure(self->stage, bl__service_identity(request->driver), &configuration, &err)) {
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

// ---- data paths

// Reports the stage as not ready while a data path that the job requires is missing.
static void tell_ready(bl_service_t *self, const bl_error_t *err) {
  const bl_engine_t *engine = bl_stage_engine(self->stage);
  const bool waits =
      engine != NULL && engine->job.balance.require != BL_JOB_DATA_PATH_AUTO && err->status == BL_UNAVAILABLE;
  if (waits != self->waits_for_path) {
    self->waits_for_path = waits;
    bl_log(waits ? BL_LOG_WARNING : BL_LOG_INFO, "%s",
           waits ? "not ready: a data path that the job requires is not there"
                 : "ready: no required data path is missing");
    if (self->ready != NULL) {
      self->ready(self->ready_context, !waits);
    }
  }
}

void bl__service_connected(void *context, const bl_error_t *err) {
  bl_service_t *self = context;
  const bl_engine_t *engine = bl_stage_engine(self->stage);
  // Other paths are required for blocks only.
  if (engine != NULL && engine->job.balance.require == BL_JOB_DATA_PATH_NCCL) {
    tell_ready(self, err);
  }
  if (err->status != BL_OK) {
    bl_waiters_fail(&self->connecting, err);
    return;
  }
  bl_paths_wire_t paths;
  bl_paths_to_wire(bl_stage_engine(self->stage)->transport, &paths);
  Ballast__V1__ConnectResponse output = BALLAST__V1__CONNECT_RESPONSE__INIT;
  output.paths = paths.pointers;
  output.n_paths = paths.count;
  bl_waiters_reply(&self->connecting, &output.base);
}

static bl_status_t read_peers(const Ballast__V1__ConnectRequest *request, bl_transport_peer_t *peers, bl_path_t *path,
                              bl_error_t *err) {
  if (request->n_peers > BL_TRANSPORT_MAX_PEERS) {
    return bl_error_set(err, BL_INVALID, "%zu peers, the most is %d", request->n_peers, BL_TRANSPORT_MAX_PEERS);
  }
  if (!bl_path_parse(request->data_path[0] == '\0' ? "auto" : request->data_path, path)) {
    return bl_error_set(err, BL_INVALID, "'%.40s' is not a data path: auto, shm, tcp, cuda-ipc or nccl",
                        request->data_path);
  }
  for (size_t i = 0; i < request->n_peers; i++) {
    bl_status_t status = bl_peer_from_wire(request->peers[i], &peers[i], err);
    if (status != BL_OK) {
      return status;
    }
  }
  return BL_OK;
}

void bl__handle_connect(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  bl_service_t *self = context;
  const Ballast__V1__ConnectRequest *request = (const Ballast__V1__ConnectRequest *)input;
  bl_error_t err = {0};
  bl_transport_peer_t peers[BL_TRANSPORT_MAX_PEERS];
  bl_path_t path = BL_PATH_AUTO;
  const bl_engine_t *engine = bl_stage_engine(self->stage);
  const uint64_t timeout_ns = engine != NULL && engine->nccl != NULL ? PEER_PROBE_DEADLINE_NS : CONNECT_DEADLINE_NS;
  if (read_peers(request, peers, &path, &err) != BL_OK ||
      bl_stage_connect(self->stage, bl__service_identity(request->driver), peers, request->n_peers, path,
                       bl_clock_now_ns() + timeout_ns, &err) == BL_STAGE_REFUSE) {
    bl_rpc_call_fail(call, &err);
    return;
  }
  bl_waiters_add(&self->connecting, call);
}

// ---- plans

// Replies to one call, or with call NULL to all waiting ones: prepared, refused for good, or not possible now.
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

void bl__service_prepared(void *context, const bl_error_t *err) {
  bl_service_t *self = context;
  if (err->status == BL_OK) {
    bl_plan_notes_keep(&self->notes, bl_stage_step(self->stage));
  }
  tell_ready(self, err);
  reply_prepared(self, NULL, self->preparing_version, err);
}

void bl__handle_prepare_plan(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  bl_service_t *self = context;
  const Ballast__V1__PreparePlanRequest *request = (const Ballast__V1__PreparePlanRequest *)input;
  bl_executor_plan_request_t plan = {.version = request->version,
                                     .digest = request->digest,
                                     .kind = (bl_run_kind_t)request->kind,
                                     .policy = bl_plan_policy(request),
                                     .follows = request->follows,
                                     .reservation = request->reservation,
                                     .csv = request->schedule,
                                     .csv_bytes = strlen(request->schedule)};
  bl_error_t err = {0};
  if ((unsigned)request->kind >= BL_RUN_KINDS) {
    (void)bl_error_set(&err, BL_INVALID, "%d is not a kind of run", (int)request->kind);
    bl_rpc_call_fail(call, &err);
    return;
  }
  switch (bl_stage_prepare(self->stage, bl__service_identity(request->driver), &plan, &err)) {
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

// ---- the end of a job

void bl__handle_release(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  bl_service_t *self = context;
  const Ballast__V1__ReleaseRequest *request = (const Ballast__V1__ReleaseRequest *)input;
  bl_error_t err = {0};
  if (bl_stage_release(self->stage, bl__service_identity(request->driver), &err) == BL_STAGE_REFUSE) {
    bl_rpc_call_fail(call, &err);
    return;
  }
  tell_ready(self, &err); // the job and its requirement are gone
  Ballast__V1__ReleaseResponse output = BALLAST__V1__RELEASE_RESPONSE__INIT;
  bl_rpc_call_reply(call, &output.base);
}
