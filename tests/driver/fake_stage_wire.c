// SPDX-License-Identifier: Apache-2.0
#include "driver/fake_stage_wire.h"

#include "model/parameters.h"
#include "schedule/csv/csv.h"

#include "ballast/v1/stage.pb-c.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TENSORS_MAX 256
#define LOSSES_MAX  64

static double loss_of(uint64_t step, uint32_t micro_batch) {
  return 4.0 / (double)(step + 1) + 0.01 * micro_batch + 1e-9 * (double)(step * 7919 % 1009);
}

static double square_of(uint64_t step, uint32_t tensor) {
  return 0.1 * (tensor + 1) / (double)(step + 2);
}

double fake_loss(const bl_training_t *training, uint64_t step) {
  double sum = 0;
  for (uint32_t i = 0; i < training->schedule->micro_batches; i++) {
    sum += loss_of(step, i);
  }
  return sum / training->schedule->micro_batches;
}

double fake_grad_norm(const bl_training_t *training, uint64_t step) {
  double sum = 0;
  for (uint32_t i = 0; i < bl_parameter_count(&training->model); i++) {
    sum += square_of(step, i);
  }
  return sqrt(sum);
}

// ---- messages ------------------------------------------------------------------------------------------------------

typedef struct vote_message {
  Ballast__V1__Vote vote;
  Ballast__V1__StageCounters counters;
  double losses[LOSSES_MAX], squares[TENSORS_MAX];
  uint32_t tensors[TENSORS_MAX];
} vote_message_t;

static bool is_head(const fake_stage_t *stage) {
  const bl_schedule_t *schedule = stage->training->schedule;
  return schedule->stage_of[schedule->virtual_stages - 1] == stage->index;
}

static void make_vote(const fake_stage_t *stage, uint64_t step, uint64_t attempt, uint64_t plan_version,
                      bl_run_kind_t kind, vote_message_t *message) {
  const bl_training_t *training = stage->training;
  Ballast__V1__Vote *vote = &message->vote;
  *vote = (Ballast__V1__Vote)BALLAST__V1__VOTE__INIT;
  message->counters = (Ballast__V1__StageCounters)BALLAST__V1__STAGE_COUNTERS__INIT;
  message->counters.own_slots = training->stages[stage->index].slots;
  message->counters.recomputed = plan_version == 1 ? stage->recomputed : 0;
  vote->counters = &message->counters;
  vote->step = step;
  vote->attempt = attempt;
  vote->plan_version = plan_version;
  bool bad = stage->nonfinite_step == step && kind == BL_RUN_TRAIN;
  vote->finite = !bad;
  vote->nonfinite_micro_batch = bad ? stage->nonfinite_micro_batch : -1;
  vote->losses = message->losses;
  vote->parameter = message->tensors;
  vote->squares = message->squares;
  if (is_head(stage)) {
    vote->n_losses = training->schedule->micro_batches;
    vote->tokens = 1000;
    for (uint32_t i = 0; i < vote->n_losses; i++) {
      message->losses[i] = kind == BL_RUN_TRAIN          ? loss_of(step, i)
                           : stage->nonfinite_validation ? (double)NAN
                                                         : fake_loss(training, step);
    }
  }
  for (uint32_t v = 0; v < training->partition.count && kind == BL_RUN_TRAIN; v++) {
    bl_chunk_span_t span = training->partition.spans[v];
    for (uint32_t i = 0;
         training->schedule->stage_of[v] == stage->index && i < bl_chunk_span_parameter_count(&training->model, span);
         i++) {
      uint32_t tensor = bl_chunk_span_parameter(&training->model, span, i);
      if (bl_chunk_span_owns(&training->model, span, tensor)) {
        message->tensors[vote->n_parameter++] = tensor;
        message->squares[vote->n_squares++] = square_of(step, tensor);
      }
    }
  }
}

typedef struct state_message {
  Ballast__V1__StageState state;
  vote_message_t prepared, committed;
  Ballast__V1__CommitRecord commit;
} state_message_t;

static void make_state(const fake_stage_t *stage, state_message_t *message) {
  const bl_stage_step_t *step = &stage->step;
  message->state = (Ballast__V1__StageState)BALLAST__V1__STAGE_STATE__INIT;
  message->state.epoch = step->driver.epoch;
  message->state.incarnation = stage->incarnation;
  message->state.configured = step->configured;
  message->state.applied = step->applied;
  message->state.highest_attempt = step->highest_attempt;
  message->state.plan_version = step->plan_version;
  message->state.process = 1000 + stage->index;
  if (bl_stage_step_is_prepared(step)) {
    make_vote(stage, step->run.step, step->run.attempt, step->run.plan_version, BL_RUN_TRAIN, &message->prepared);
    message->state.prepared = &message->prepared.vote;
  }
  if (step->last_commit.step > 0) {
    make_vote(stage, step->last_commit.step, step->last_commit.attempt, 1, BL_RUN_TRAIN, &message->committed);
    message->commit = (Ballast__V1__CommitRecord)BALLAST__V1__COMMIT_RECORD__INIT;
    message->commit.step = step->last_commit.step;
    message->commit.attempt = step->last_commit.attempt;
    message->commit.scale = step->last_commit.scale;
    message->commit.learning_rate = step->last_commit.learning_rate;
    message->commit.vote = &message->committed.vote;
    message->state.last_commit = &message->commit;
  }
}

// ---- calls ---------------------------------------------------------------------------------------------------------

static void dropped(bl_rpc_call_t *call, void *context) {
  (void)context;
  bl_rpc_call_finish(call, BL_CANCELLED, "dropped by the test");
}

// True when the test drops the call here: it is finished once its caller has gone.
static bool drops(fake_stage_t *stage, bl_rpc_call_t *call, const char *method, bool handled) {
  if (stage->hook == NULL || !stage->hook(stage, method, handled, stage->hook_context)) {
    return false;
  }
  bl_rpc_call_on_cancel(call, dropped, NULL);
  return true;
}

static void answer(fake_stage_t *stage, bl_rpc_call_t *call, const char *method, const ProtobufCMessage *output) {
  if (!drops(stage, call, method, true)) {
    bl_rpc_call_reply(call, output);
  }
}

static bl_driver_id_t identity(const Ballast__V1__DriverIdentity *driver) {
  return driver == NULL ? (bl_driver_id_t){0} : (bl_driver_id_t){.epoch = driver->epoch, .id = driver->id};
}

static void on_status(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  (void)input;
  fake_stage_t *stage = context;
  if (stage->fail_statuses > 0) {
    stage->fail_statuses--;
    bl_rpc_call_finish(call, BL_UNAVAILABLE, "no status, says the test");
    return;
  }
  state_message_t *state = calloc(1, sizeof *state);
  make_state(stage, state);
  Ballast__V1__StageStatusResponse output = BALLAST__V1__STAGE_STATUS_RESPONSE__INIT;
  output.state = &state->state;
  if (!drops(stage, call, "Status", false)) {
    answer(stage, call, "Status", &output.base);
  }
  free(state);
}

static void on_takeover(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  fake_stage_t *stage = context;
  const Ballast__V1__TakeoverRequest *request = (const Ballast__V1__TakeoverRequest *)input;
  if (drops(stage, call, "Takeover", false)) {
    return;
  }
  Ballast__V1__TakeoverResponse output = BALLAST__V1__TAKEOVER_RESPONSE__INIT;
  output.accepted = bl_stage_step_takeover(&stage->step, identity(request->driver));
  state_message_t *state = calloc(1, sizeof *state);
  make_state(stage, state);
  state->state.plans = bl_plan_notes_list(&stage->notes, &stage->step, &state->state.n_plans);
  output.state = &state->state;
  answer(stage, call, "Takeover", &output.base);
  free(state);
}

static void count_orders(fake_stage_t *stage, size_t count, char *const *orders) {
  char *own;
  size_t bytes;
  const bool written = bl_csv_write(stage->training->schedule, &own, &bytes) == BL_OK;
  const bool same = written && count == 1 && strcmp(own, orders[0]) == 0;
  stage->orders += same;
  stage->other_orders += !same;
  if (written) {
    free(own);
  }
}

static void on_configure(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  fake_stage_t *stage = context;
  const Ballast__V1__ConfigureRequest *request = (const Ballast__V1__ConfigureRequest *)input;
  bl_error_t err;
  if (drops(stage, call, "Configure", false)) {
    return;
  }
  if (stage->fail_configures > 0) {
    stage->fail_configures--;
    bl_rpc_call_finish(call, BL_UNAVAILABLE, "a fault made by the test");
    return;
  }
  count_orders(stage, request->n_orders, request->orders);
  bl_stage_decision_t decision =
      bl_stage_step_configure(&stage->step, identity(request->driver), request->digest, &err);
  if (decision == BL_STAGE_REFUSE) {
    bl_rpc_call_fail(call, &err);
    return;
  }
  if (decision == BL_STAGE_BEGIN) {
    bl_stage_step_configure_ended(&stage->step, true, 0);
    stage->applied_count = 0;
  }
  Ballast__V1__ConfigureResponse output = BALLAST__V1__CONFIGURE_RESPONSE__INIT;
  output.slot_bytes = 64;
  answer(stage, call, "Configure", &output.base);
}

static void on_connect(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  fake_stage_t *stage = context;
  const Ballast__V1__ConnectRequest *request = (const Ballast__V1__ConnectRequest *)input;
  bl_error_t err;
  if (drops(stage, call, "Connect", false)) {
    return;
  }
  if (bl_stage_step_connect(&stage->step, identity(request->driver), &err) == BL_STAGE_REFUSE) {
    bl_rpc_call_fail(call, &err);
    return;
  }
  Ballast__V1__ConnectResponse output = BALLAST__V1__CONNECT_RESPONSE__INIT;
  answer(stage, call, "Connect", &output.base);
}

static void on_prepare(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  fake_stage_t *stage = context;
  const Ballast__V1__PreparePlanRequest *request = (const Ballast__V1__PreparePlanRequest *)input;
  bl_error_t err;
  uint64_t replaces;
  if (drops(stage, call, "PreparePlan", false)) {
    return;
  }
  bl_run_kind_t kind = (bl_run_kind_t)request->kind;
  bl_plan_record_t plan = {.version = request->version,
                           .digest = request->digest,
                           .policy = bl_plan_policy(request),
                           .follows = request->follows};
  Ballast__V1__PreparePlanResponse output = BALLAST__V1__PREPARE_PLAN_RESPONSE__INIT;
  switch (bl_stage_step_plan(&stage->step, identity(request->driver), kind, plan, &replaces, &err)) {
  case BL_STAGE_REFUSE:
    bl_rpc_call_fail(call, &err);
    return;
  case BL_STAGE_BEGIN:
    if (kind == BL_RUN_TRAIN && stage->refuse_plans > 0) {
      stage->refuse_plans--;
      bl_stage_step_plan_refused(&stage->step, plan.version);
      output.status = bl_status_grpc_code(stage->refuse_status == BL_OK ? BL_EXHAUSTED : stage->refuse_status);
      output.refusal = (char *)"no room, says the test";
      break;
    }
    bl_stage_step_plan_installed(&stage->step, kind, plan);
    bl_plan_notes_offer(&stage->notes, request);
    bl_plan_notes_keep(&stage->notes, &stage->step);
    break;
  default:
    break;
  }
  answer(stage, call, "PreparePlan", &output.base);
}

static void reply_vote(fake_stage_t *stage, bl_rpc_call_t *call) {
  const bl_run_id_t *run = &stage->step.run;
  vote_message_t *message = calloc(1, sizeof *message);
  make_vote(stage, run->step, run->attempt, run->plan_version, run->kind, message);
  Ballast__V1__RunResponse output = BALLAST__V1__RUN_RESPONSE__INIT;
  output.vote = &message->vote;
  output.token = run->kind == BL_RUN_GENERATE && is_head(stage) ? 'a' + (uint32_t)(run->attempt % 26) : 0;
  answer(stage, call, "Run", &output.base);
  free(message);
}

static void run_ended(fake_stage_t *stage) {
  bool fails = stage->fail_runs > 0 && stage->step.phase == BL_STAGE_RUNNING;
  stage->fail_runs -= fails;
  bl_stage_outcome_t outcome = bl_stage_step_run_ended(&stage->step, !fails);
  for (size_t i = 0; i < stage->running_count; i++) {
    if (outcome == BL_STAGE_KEEP) {
      reply_vote(stage, stage->running[i]);
    } else {
      bl_rpc_call_finish(stage->running[i], outcome == BL_STAGE_DROP ? BL_CANCELLED : stage->fail_status,
                         outcome == BL_STAGE_DROP ? "aborted" : "a fault made by the test");
    }
  }
  stage->running_count = 0;
  for (size_t i = 0; i < stage->aborting_count; i++) {
    Ballast__V1__AbortResponse output = BALLAST__V1__ABORT_RESPONSE__INIT;
    answer(stage, stage->aborting[i], "Abort", &output.base);
  }
  stage->aborting_count = 0;
}

static void run_timer(bl_timer_t *timer, void *context) {
  (void)timer;
  run_ended(context);
}

static void on_run(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  fake_stage_t *stage = context;
  const Ballast__V1__RunRequest *request = (const Ballast__V1__RunRequest *)input;
  bl_error_t err;
  if (drops(stage, call, "Run", false)) {
    return;
  }
  bl_run_id_t run = {.kind = (bl_run_kind_t)request->kind,
                     .step = request->step,
                     .attempt = request->attempt,
                     .plan_version = request->plan_version};
  switch (bl_stage_step_run(&stage->step, identity(request->driver), &run, &err)) {
  case BL_STAGE_REFUSE:
    bl_rpc_call_fail(call, &err);
    break;
  case BL_STAGE_ANSWER:
    reply_vote(stage, call);
    break;
  case BL_STAGE_BEGIN:
    stage->runs += run.kind == BL_RUN_TRAIN;
    stage->validations += run.kind == BL_RUN_VALIDATE;
    stage->running[stage->running_count++] = call;
    if (stage->run_ms > 0 && run.kind == BL_RUN_TRAIN) {
      bl_timer_start(stage->timer, stage->run_ms, 0);
    } else {
      run_ended(stage);
    }
    break;
  case BL_STAGE_WAIT:
    stage->running[stage->running_count++] = call;
    break;
  }
}

static void on_commit(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  fake_stage_t *stage = context;
  const Ballast__V1__CommitRequest *request = (const Ballast__V1__CommitRequest *)input;
  bl_error_t err;
  if (drops(stage, call, "Commit", false)) {
    return;
  }
  bl_commit_t commit = {.step = request->step,
                        .attempt = request->attempt,
                        .scale = request->scale,
                        .learning_rate = request->learning_rate};
  switch (bl_stage_step_commit(&stage->step, identity(request->driver), &commit, &err)) {
  case BL_STAGE_REFUSE:
    bl_rpc_call_fail(call, &err);
    return;
  case BL_STAGE_BEGIN:
    if (stage->applied_count < FAKE_STEPS_MAX) {
      stage->applied_policy[stage->applied_count] = stage->step.plans[BL_RUN_TRAIN][0].policy;
      stage->applied[stage->applied_count++] = commit;
    }
    bl_stage_step_commit_ended(&stage->step);
    break;
  default:
    break;
  }
  Ballast__V1__CommitResponse output = BALLAST__V1__COMMIT_RESPONSE__INIT;
  output.applied = stage->step.applied;
  answer(stage, call, "Commit", &output.base);
}

static void on_abort(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  fake_stage_t *stage = context;
  const Ballast__V1__AbortRequest *request = (const Ballast__V1__AbortRequest *)input;
  bl_error_t err;
  bool had_vote;
  if (drops(stage, call, "Abort", false)) {
    return;
  }
  switch (
      bl_stage_step_abort(&stage->step, identity(request->driver), request->step, request->attempt, &had_vote, &err)) {
  case BL_STAGE_REFUSE:
    bl_rpc_call_fail(call, &err);
    return;
  case BL_STAGE_BEGIN:
    bl_timer_start(stage->timer, 1, 0);
    // fall through
  case BL_STAGE_WAIT:
    stage->aborting[stage->aborting_count++] = call;
    return;
  case BL_STAGE_ANSWER:
    break;
  }
  stage->aborts++;
  Ballast__V1__AbortResponse output = BALLAST__V1__ABORT_RESPONSE__INIT;
  answer(stage, call, "Abort", &output.base);
}

static void on_release(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  fake_stage_t *stage = context;
  const Ballast__V1__ReleaseRequest *request = (const Ballast__V1__ReleaseRequest *)input;
  bl_error_t err;
  if (bl_stage_step_release(&stage->step, identity(request->driver), &err) == BL_STAGE_REFUSE) {
    bl_rpc_call_fail(call, &err);
    return;
  }
  stage->releases++;
  Ballast__V1__ReleaseResponse output = BALLAST__V1__RELEASE_RESPONSE__INIT;
  bl_rpc_call_reply(call, &output.base);
}

static void on_stop(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  (void)input;
  fake_stage_t *stage = context;
  stage->stops++;
  Ballast__V1__StageStopResponse output = BALLAST__V1__STAGE_STOP_RESPONSE__INIT;
  bl_rpc_call_reply(call, &output.base);
}

// Two events that say which run they are of, the step by their start.
void fake_stage_send_trace(fake_stage_t *stage) {
  Ballast__V1__TraceEvent events[2], *pointers[2];
  char names[2][16];
  for (int i = 0; i < 2; i++) {
    snprintf(names[i], sizeof names[i], "%u%c%d", stage->index, i == 0 ? 'F' : 'B', (int)stage->step.run.kind);
    events[i] = (Ballast__V1__TraceEvent)BALLAST__V1__TRACE_EVENT__INIT;
    events[i].name = names[i];
    events[i].start_ns = stage->traced_step;
    pointers[i] = &events[i];
  }
  Ballast__V1__StageTraceResponse output = BALLAST__V1__STAGE_TRACE_RESPONSE__INIT;
  output.events = pointers;
  output.n_events = 2;
  (void)!bl_rpc_call_send(stage->tracing, &output.base, NULL, NULL);
  bl_rpc_call_finish(stage->tracing, BL_OK, "");
  stage->tracing = NULL;
}

static void on_trace(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  (void)input;
  fake_stage_t *stage = context;
  stage->tracing = call;
  stage->traced_step = stage->step.applied;
  if (!stage->holds_traces) {
    fake_stage_send_trace(stage);
  }
}

// ---- checkpoints ---------------------------------------------------------------------------------------------------

static void on_snapshot(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  (void)input, (void)context;
  Ballast__V1__SnapshotResponse output = BALLAST__V1__SNAPSHOT_RESPONSE__INIT;
  bl_rpc_call_reply(call, &output.base);
}

// One byte; false where the folder has gone.
static bool make_file(const fake_stage_t *stage, int i) {
  char path[PATH_MAX + 64];
  snprintf(path, sizeof path, "%s/%s", stage->folder, stage->names[i]);
  FILE *file = fopen(path, "w");
  bool good = file != NULL && fputc('x', file) == 'x';
  return file != NULL && fclose(file) == 0 && good;
}

static void written(bl_timer_t *timer, void *context) {
  (void)timer;
  fake_stage_t *stage = context;
  char first[PATH_MAX + 64];
  snprintf(first, sizeof first, "%s/%s", stage->folder, stage->names[0]);
  bool whole = access(first, F_OK) == 0 && make_file(stage, 1);
  stage->whole_writes += whole;
  Ballast__V1__SavedFile files[2], *pointers[2];
  for (int i = 0; i < 2; i++) {
    files[i] = (Ballast__V1__SavedFile)BALLAST__V1__SAVED_FILE__INIT;
    files[i].name = i == 1 && stage->wrong_name != NULL ? (char *)stage->wrong_name : stage->names[i];
    files[i].size_bytes = 1;
    pointers[i] = &files[i];
  }
  Ballast__V1__WriteSnapshotResponse output = BALLAST__V1__WRITE_SNAPSHOT_RESPONSE__INIT;
  output.files = pointers;
  output.n_files = 2;
  bl_rpc_call_t *call = stage->writing;
  stage->writing = NULL;
  if (whole) {
    bl_rpc_call_reply(call, &output.base);
  } else {
    bl_rpc_call_finish(call, BL_IO, "the folder has gone");
  }
}

void fake_stage_finish_write(fake_stage_t *stage) {
  bl_timer_stop(stage->writer);
  written(stage->writer, stage);
}

static void on_write_snapshot(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  fake_stage_t *stage = context;
  const Ballast__V1__WriteSnapshotRequest *request = (const Ballast__V1__WriteSnapshotRequest *)input;
  if (stage->writing != NULL && strcmp(stage->folder, request->folder) != 0) { // for a driver that has gone
    stage->refused_writes++;
    bl_rpc_call_finish(call, BL_UNAVAILABLE, "still being written to another folder");
    return;
  }
  stage->writes++;
  if (stage->write_fails) {
    bl_rpc_call_finish(call, stage->write_status == BL_OK ? BL_EXHAUSTED : stage->write_status,
                       "no room, says the test");
    return;
  }
  snprintf(stage->folder, sizeof stage->folder, "%s", request->folder);
  snprintf(stage->names[0], sizeof stage->names[0], "%s", request->weights);
  snprintf(stage->names[1], sizeof stage->names[1], "%s", request->optimizer);
  if (stage->writing != NULL || !make_file(stage, 0)) {
    bl_rpc_call_finish(call, BL_IO, "the folder has gone, or two writes at a time");
    return;
  }
  stage->writing = call;
  bl_timer_start(stage->writer, stage->write_ms, 0);
}

// ---- life ----------------------------------------------------------------------------------------------------------

static void require(bl_status_t status, const bl_error_t *err) {
  if (status != BL_OK) {
    fprintf(stderr, "fake stage: %s\n", err->text);
    abort();
  }
}

void fake_stage_start(fake_stage_t *stage, bl_rpc_t *rpc, const bl_training_t *training, uint32_t index,
                      const char *address) {
  static const bl_rpc_method_t methods[] = {
      {"Status", on_status},
      {"Takeover", on_takeover},
      {"Configure", on_configure},
      {"Connect", on_connect},
      {"PreparePlan", on_prepare},
      {"Run", on_run},
      {"Commit", on_commit},
      {"Abort", on_abort},
      {"Release", on_release},
      {"Stop", on_stop},
      {"Trace", on_trace},
      {"Snapshot", on_snapshot},
      {"WriteSnapshot", on_write_snapshot},
  };
  static uint64_t incarnations;
  bl_error_t err;
  char wanted[BL_RPC_ADDRESS_BYTES]; // `address` may be our own
  snprintf(wanted, sizeof wanted, "%s", address);
  *stage = (fake_stage_t){.rpc = rpc, .training = training, .index = index, .incarnation = ++incarnations};
  require(bl_rpc_server_create(rpc, NULL, &stage->server, &err), &err);
  require(bl_rpc_server_add_service(stage->server, &ballast__v1__stage__descriptor, methods,
                                    sizeof methods / sizeof methods[0], stage, &err),
          &err);
  require(bl_rpc_server_listen(stage->server, wanted, stage->address, sizeof stage->address, &err), &err);
  require(bl_rpc_server_start(stage->server, &err), &err);
  require(bl_timer_create(bl_rpc_loop(rpc), run_timer, stage, &stage->timer, &err), &err);
  require(bl_timer_create(bl_rpc_loop(rpc), written, stage, &stage->writer, &err), &err);
}

static void stopped(bl_rpc_server_t *server, void *context) {
  fake_stage_t *stage = context;
  bl_rpc_server_destroy(server);
  stage->server = NULL;
  bl_loop_stop(bl_rpc_loop(stage->rpc));
}

void fake_stage_kill(fake_stage_t *stage) {
  if (stage->server == NULL) {
    return;
  }
  bl_timer_destroy(stage->timer);
  bl_timer_destroy(stage->writer);
  if (stage->writing != NULL) {
    bl_rpc_call_finish(stage->writing, BL_UNAVAILABLE, "killed");
    stage->writing = NULL;
  }
  if (stage->tracing != NULL) {
    bl_rpc_call_finish(stage->tracing, BL_UNAVAILABLE, "killed");
    stage->tracing = NULL;
  }
  for (size_t i = 0; i < stage->running_count; i++) {
    bl_rpc_call_finish(stage->running[i], BL_UNAVAILABLE, "killed");
  }
  for (size_t i = 0; i < stage->aborting_count; i++) {
    bl_rpc_call_finish(stage->aborting[i], BL_UNAVAILABLE, "killed");
  }
  stage->running_count = stage->aborting_count = 0;
  bl_rpc_server_shutdown(stage->server, 0, stopped, stage);
  while (stage->server != NULL) {
    bl_loop_run(bl_rpc_loop(stage->rpc));
  }
  bl_plan_notes_cleanup(&stage->notes);
}
