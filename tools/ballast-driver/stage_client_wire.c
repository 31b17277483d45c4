// SPDX-License-Identifier: Apache-2.0
#include "stage_client_wire.h"

#include "policy_records_wire.h"
#include "stage_answer_wire.h"

#include "base/hash.h"
#include "sys/log.h"
#include "sys/version.h"

#include "ballast/v1/stage.pb-c.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

// Configure reads weights and touches all planned memory. The other calls answer from the stage's state.
#define SHORT_DEADLINE_MS     10000
#define CONNECT_DEADLINE_MS   130000 // communicators are created one after the other; a stage gives up earlier
#define PREPARE_DEADLINE_MS   30000  // the stage reserves slots at stores
#define COMMIT_DEADLINE_MS    60000
#define CONFIGURE_DEADLINE_MS 900000

static const ProtobufCServiceDescriptor *const service = &ballast__v1__stage__descriptor;

// A call in flight.
typedef struct pending pending_t;
struct pending {
  bl_stage_client_t *client;
  bl__answer_fn read; // reads the output; NULL: there is nothing in it
  bl_stage_answer_fn done;
  bl_stage_trace_fn event;
  void *context;
  // A call that could not be made.
  bl_message_t message;
  bl_error_t err;
  LIST_ENTRY(pending) listed;
};

struct bl_stage_client {
  bl_rpc_t *rpc;
  bl_rpc_channel_t *channel;
  LIST_HEAD(, pending) failed; // calls that could not be made and whose `done` has not fired yet
};

bl_status_t bl_stage_client_create(bl_rpc_t *rpc, const char *address, bl_stage_client_t **client, bl_error_t *err) {
  bl_stage_client_t *made = calloc(1, sizeof *made);
  if (made == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for a stage");
  }
  made->rpc = rpc;
  bl_status_t status =
      bl_rpc_channel_create(rpc, address, &(bl_rpc_channel_options_t){.server_roles = BL_STAGES}, &made->channel, err);
  if (status != BL_OK) {
    free(made);
    return status;
  }
  *client = made;
  return BL_OK;
}

void bl_stage_client_destroy(bl_stage_client_t *client) {
  if (client == NULL) {
    return;
  }
  pending_t *pending;
  LIST_FOREACH(pending, &client->failed, listed) {
    pending->client = NULL;
  }
  bl_rpc_channel_destroy(client->channel);
  free(client);
}

const char *bl_stage_client_address(const bl_stage_client_t *client) {
  return bl_rpc_channel_address(client->channel);
}

// ---- calls ----------------------------------------------------------------------------------------------------------

static void finish(pending_t *pending, const ProtobufCMessage *output, const bl_error_t *err) {
  bl_stage_answer_t answer = {.err = err};
  void *made = NULL;
  if (output != NULL && pending->read != NULL) {
    pending->read(output, &answer, &made);
  }
  pending->done(&answer, pending->context);
  free(made);
  free(pending);
}

static void answered(const ProtobufCMessage *output, const bl_error_t *err, void *context) {
  finish(context, output, err);
}

static void tell_failed(bl_message_t *message) {
  pending_t *pending = BL_MESSAGE_OWNER(message, pending_t, message);
  if (pending->client == NULL) {
    free(pending);
    return;
  }
  LIST_REMOVE(pending, listed);
  finish(pending, NULL, &pending->err);
}

static void fail_later(pending_t *pending) {
  bl_stage_client_t *client = pending->client;
  LIST_INSERT_HEAD(&client->failed, pending, listed);
  pending->message.handle = tell_failed;
  bl_loop_post(bl_rpc_loop(client->rpc), &pending->message);
}

static pending_t *pend(bl_stage_client_t *client, bl__answer_fn read, bl_stage_answer_fn done, void *context) {
  pending_t *pending = calloc(1, sizeof *pending);
  if (pending == NULL) {
    // Only a few hundred bytes. A driver may end at any point: its successor takes the run over.
    bl_log(BL_LOG_ERROR, "ending: no memory for a call to the stage at %s", bl_stage_client_address(client));
    exit(bl_status_exit_code(BL_EXHAUSTED));
  }
  *pending = (pending_t){.client = client, .read = read, .done = done, .context = context};
  return pending;
}

static void call(bl_stage_client_t *client, const char *method, const ProtobufCMessage *input, uint64_t deadline_ms,
                 pending_t *pending) {
  if (bl_rpc_channel_call(client->channel, service, method, input, deadline_ms, answered, pending, &pending->err) !=
      BL_OK) {
    fail_later(pending);
  }
}

static Ballast__V1__DriverIdentity identity(bl_driver_id_t driver) {
  Ballast__V1__DriverIdentity message = BALLAST__V1__DRIVER_IDENTITY__INIT;
  message.epoch = driver.epoch;
  message.id = driver.id;
  return message;
}

// ---- methods --------------------------------------------------------------------------------------------------------

void bl_stage_client_status(bl_stage_client_t *client, bl_driver_id_t driver, bl_stage_answer_fn done, void *context) {
  Ballast__V1__DriverIdentity who = identity(driver);
  Ballast__V1__StageStatusRequest request = BALLAST__V1__STAGE_STATUS_REQUEST__INIT;
  request.driver = driver.epoch != 0 ? &who : NULL;
  call(client, "Status", &request.base, BL_STAGE_STATUS_MS, pend(client, bl__answer_status, done, context));
}

void bl_stage_client_takeover(bl_stage_client_t *client, bl_driver_id_t driver, const char *run, const char *address,
                              bl_stage_answer_fn done, void *context) {
  Ballast__V1__DriverIdentity who = identity(driver);
  Ballast__V1__TakeoverRequest request = BALLAST__V1__TAKEOVER_REQUEST__INIT;
  request.driver = &who;
  request.run = (char *)run;
  request.address = (char *)address;
  call(client, "Takeover", &request.base, SHORT_DEADLINE_MS, pend(client, bl__answer_takeover, done, context));
}

uint64_t bl_configure_request_digest(const bl_configure_request_t *configuration) {
  uint64_t digest = bl_hash64(configuration->job, strlen(configuration->job), (uint64_t)configuration->stage);
  if (configuration->resume_digest != 0) {
    digest = bl_hash64(&configuration->resume_digest, sizeof configuration->resume_digest, digest);
  }
  return digest == 0 ? 1 : digest; // 0 is "not configured"
}

void bl_stage_client_configure(bl_stage_client_t *client, bl_driver_id_t driver,
                               const bl_configure_request_t *configuration, bl_stage_answer_fn done, void *context) {
  Ballast__V1__DriverIdentity who = identity(driver);
  Ballast__V1__ConfigureRequest request = BALLAST__V1__CONFIGURE_REQUEST__INIT;
  request.driver = &who;
  request.job = (char *)configuration->job;
  char *orders[] = {(char *)configuration->orders.own, (char *)configuration->orders.other};
  request.orders = orders;
  request.n_orders = orders[1] != NULL ? 2 : 1;
  request.stage = (int32_t)configuration->stage;
  request.digest = bl_configure_request_digest(configuration);
  request.resume = (char *)(configuration->resume != NULL ? configuration->resume : "");
  request.resume_digest = configuration->resume_digest;
  request.version = (char *)bl_build();
  call(client, "Configure", &request.base, CONFIGURE_DEADLINE_MS, pend(client, bl__answer_place, done, context));
}

void bl_stage_client_connect(bl_stage_client_t *client, bl_driver_id_t driver, const bl_stage_peer_t *peers,
                             size_t peer_count, const char *data_path, bl_stage_answer_fn done, void *context) {
  pending_t *pending = pend(client, bl__answer_paths, done, context);
  Ballast__V1__Peer *messages = calloc(peer_count + 1, sizeof *messages);
  Ballast__V1__Peer **pointers = calloc(peer_count + 1, sizeof(Ballast__V1__Peer *));
  if (messages == NULL || pointers == NULL) {
    (void)bl_error_set(&pending->err, BL_EXHAUSTED, "no memory to connect a stage");
    fail_later(pending);
    goto free_arrays;
  }
  for (size_t i = 0; i < peer_count; i++) {
    const bl_stage_place_t *place = peers[i].place;
    messages[i] = (Ballast__V1__Peer)BALLAST__V1__PEER__INIT;
    messages[i].stage = peers[i].stage;
    messages[i].unix_address = (char *)place->unix_address;
    messages[i].tcp_address = (char *)place->tcp_address;
    messages[i].machine = (char *)place->machine;
    messages[i].token = (ProtobufCBinaryData){.data = (uint8_t *)place->token, .len = place->token_bytes};
    pointers[i] = &messages[i];
  }
  Ballast__V1__DriverIdentity who = identity(driver);
  Ballast__V1__ConnectRequest request = BALLAST__V1__CONNECT_REQUEST__INIT;
  request.driver = &who;
  request.peers = pointers;
  request.n_peers = peer_count;
  request.data_path = (char *)data_path;
  call(client, "Connect", &request.base, CONNECT_DEADLINE_MS, pending);
free_arrays:
  free(messages);
  free(pointers);
}

void bl_stage_client_prepare(bl_stage_client_t *client, bl_driver_id_t driver, const bl_stage_plan_text_t *plan,
                             bl_stage_answer_fn done, void *context) {
  Ballast__V1__DriverIdentity who = identity(driver);
  Ballast__V1__PreparePlanRequest request = BALLAST__V1__PREPARE_PLAN_REQUEST__INIT;
  request.driver = &who;
  request.version = plan->record.version;
  request.kind = (Ballast__V1__RunKind)plan->kind;
  request.schedule = (char *)plan->schedule;
  request.digest = plan->record.digest;
  request.follows = plan->record.follows;
  request.reservation = plan->reservation;
  bl_policy_history_wire_t history = {.count = 0};
  if (plan->history != NULL) {
    bl_policy_history_to_wire(plan->history, &history);
    request.policies = history.pointers;
    request.n_policies = history.count;
  }
  call(client, "PreparePlan", &request.base, PREPARE_DEADLINE_MS, pend(client, bl__answer_prepared, done, context));
}

void bl_stage_client_run(bl_stage_client_t *client, bl_driver_id_t driver, const bl_stage_run_text_t *run,
                         bl_stage_answer_fn done, void *context) {
  Ballast__V1__DriverIdentity who = identity(driver);
  Ballast__V1__RunRequest request = BALLAST__V1__RUN_REQUEST__INIT;
  request.driver = &who;
  request.step = run->run.step;
  request.attempt = run->run.attempt;
  request.plan_version = run->run.plan_version;
  request.kind = (Ballast__V1__RunKind)run->run.kind;
  request.tokens = (uint32_t *)run->tokens;
  request.n_tokens = run->token_count;
  request.draw_seed = run->draw_seed;
  request.first_window = run->first_window;
  request.temperature = run->temperature;
  Ballast__V1__Offer offer = BALLAST__V1__OFFER__INIT;
  offer.attempt = run->offer.attempt;
  offer.scale = run->offer.scale;
  offer.learning_rate = run->offer.learning_rate;
  request.offer = offer.attempt != 0 ? &offer : NULL;
  call(client, "Run", &request.base, BL_RPC_NO_DEADLINE, pend(client, bl__answer_run, done, context));
}

void bl_stage_client_commit(bl_stage_client_t *client, bl_driver_id_t driver, const bl_commit_t *commit,
                            bl_stage_answer_fn done, void *context) {
  Ballast__V1__DriverIdentity who = identity(driver);
  Ballast__V1__CommitRequest request = BALLAST__V1__COMMIT_REQUEST__INIT;
  request.driver = &who;
  request.step = commit->step;
  request.attempt = commit->attempt;
  request.scale = commit->scale;
  request.learning_rate = commit->learning_rate;
  request.recorder = commit->recorder;
  call(client, "Commit", &request.base, COMMIT_DEADLINE_MS, pend(client, NULL, done, context));
}

void bl_stage_client_abort(bl_stage_client_t *client, bl_driver_id_t driver, uint64_t next, uint64_t attempt,
                           bl_stage_answer_fn done, void *context) {
  Ballast__V1__DriverIdentity who = identity(driver);
  Ballast__V1__AbortRequest request = BALLAST__V1__ABORT_REQUEST__INIT;
  request.driver = &who;
  request.step = next;
  request.attempt = attempt;
  call(client, "Abort", &request.base, COMMIT_DEADLINE_MS, pend(client, NULL, done, context));
}

void bl_stage_client_snapshot(bl_stage_client_t *client, bl_driver_id_t driver, uint64_t step, bl_stage_answer_fn done,
                              void *context) {
  Ballast__V1__DriverIdentity who = identity(driver);
  Ballast__V1__SnapshotRequest request = BALLAST__V1__SNAPSHOT_REQUEST__INIT;
  request.driver = &who;
  request.step = step;
  call(client, "Snapshot", &request.base, COMMIT_DEADLINE_MS, pend(client, NULL, done, context));
}

void bl_stage_client_write_snapshot(bl_stage_client_t *client, bl_driver_id_t driver, uint64_t step, const char *folder,
                                    const char *const names[2], bl_stage_answer_fn done, void *context) {
  Ballast__V1__DriverIdentity who = identity(driver);
  Ballast__V1__WriteSnapshotRequest request = BALLAST__V1__WRITE_SNAPSHOT_REQUEST__INIT;
  request.driver = &who;
  request.step = step;
  request.folder = (char *)folder;
  request.weights = (char *)names[0];
  request.optimizer = (char *)names[1];
  call(client, "WriteSnapshot", &request.base, BL_RPC_NO_DEADLINE, pend(client, bl__answer_files, done, context));
}

void bl_stage_client_release(bl_stage_client_t *client, bl_driver_id_t driver, bl_stage_answer_fn done, void *context) {
  Ballast__V1__DriverIdentity who = identity(driver);
  Ballast__V1__ReleaseRequest request = BALLAST__V1__RELEASE_REQUEST__INIT;
  request.driver = &who;
  call(client, "Release", &request.base, SHORT_DEADLINE_MS, pend(client, NULL, done, context));
}

void bl_stage_client_stop(bl_stage_client_t *client, bl_driver_id_t driver, bl_stage_answer_fn done, void *context) {
  Ballast__V1__DriverIdentity who = identity(driver);
  Ballast__V1__StageStopRequest request = BALLAST__V1__STAGE_STOP_REQUEST__INIT;
  request.driver = &who;
  call(client, "Stop", &request.base, SHORT_DEADLINE_MS, pend(client, NULL, done, context));
}

// ---- traces ---------------------------------------------------------------------------------------------------------

static void traced(const ProtobufCMessage *output, void *context) {
  const pending_t *pending = context;
  const Ballast__V1__StageTraceResponse *response = (const Ballast__V1__StageTraceResponse *)output;
  for (size_t i = 0; i < response->n_events; i++) {
    const Ballast__V1__TraceEvent *event = response->events[i];
    bl_trace_event_t copy = {.wait = event->wait,
                             .start_ns = event->start_ns,
                             .end_ns = event->end_ns,
                             .micro_batch = event->micro_batch,
                             .slots_in_use = event->slots_in_use,
                             .moved_bytes = event->moved_bytes,
                             .waited_ns = event->waited_ns};
    snprintf(copy.name, sizeof copy.name, "%s", event->name);
    pending->event(&copy, pending->context);
  }
}

void bl_stage_client_trace(bl_stage_client_t *client, bl_stage_trace_fn event, bl_stage_answer_fn done, void *context) {
  Ballast__V1__StageTraceRequest request = BALLAST__V1__STAGE_TRACE_REQUEST__INIT;
  pending_t *pending = pend(client, NULL, done, context);
  pending->event = event;
  if (bl_rpc_channel_stream(client->channel, service, "Trace", &request.base, SHORT_DEADLINE_MS, traced, answered,
                            pending, &pending->err) != BL_OK) {
    fail_later(pending);
  }
}
