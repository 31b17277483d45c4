// SPDX-License-Identifier: Apache-2.0
#include "stage.h"

#include "loop/timer.h"
#include "loop/worker.h"
#include "prepared.h"
#include "sys/clock.h"
#include "sys/log.h"
#include "sys/thread.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define PLANS (BL_RUN_KINDS * BL_STAGE_PLANS) // what the step machine keeps

// A piece of work on the compute thread, and its outcome. One of each noun at a time: the step machine sees to it.
typedef struct {
  bl_task_t task;
  bl_stage_t *stage;
  bl_error_t err;
} work_t;

struct bl_stage {
  bl_stage_step_t step;
  bl_stage_options_t options;
  bl_loop_t *loop;
  bl_worker_t *worker;
  uint64_t incarnation;
  bl_engine_t *engine;
  bool connected;
  bl_prepared_t *plans[PLANS];
  bl_prepared_t *retired[PLANS + 1]; // of no use any more; destroyed where waiting for a store does no harm
  size_t retired_count;
  const bl_prepared_t *running_plan;
  bl_vote_t vote, commit_vote; // of step.run, of step.last_commit

  work_t configure;
  char *job, *resume; // of the configuration under way
  size_t job_bytes;
  uint64_t resume_digest; // of this and the present configuration
  uint32_t rank;
  bl_engine_t *old_engine;  // freed on the way to the new one
  bl_engine_t *made_engine; // from configure_work to configure_done

  work_t prepare;
  bool preparing;
  bl_driver_id_t plan_driver;              // who asked
  bl_timer_t *rest;                        // looks whether a driver is still there
  uint64_t driven_ms;                      // when one asked for something last
  bl_executor_plan_request_t plan_request; // csv is ours
  uint64_t plan_replaces;
  bl_prepared_t *made_plan; // from prepare_work to prepare_done

  work_t run;
  bl_run_t run_request;
  uint32_t *context; // tokens of a BL_RUN_GENERATE, [seq]
  bl_run_progress_t progress;

  work_t commit;

  bl_saver_t *saver;

  bl_message_t connect_message; // from the data path's thread
  bl_error_t connect_error;
  bool connecting;
  bool connect_dropped; // what connects is of a configuration that has gone
};

static uint64_t random_bits(void) {
  uint64_t bits = 0;
  while (bits == 0) { // 0 means "none" on the wire
    if (getrandom(&bits, sizeof bits, 0) != (ssize_t)sizeof bits) {
      bits = bl_clock_now_ns();
    }
  }
  return bits;
}

static bl_stage_decision_t refuse(bl_error_t *err, bl_status_t status, const char *text) {
  (void)bl_error_set(err, status, "%s", text);
  return BL_STAGE_REFUSE;
}

// ---- rest

// Nobody drives: what the stage holds at stores serves nobody.
static void look_for_driver(bl_timer_t *timer, void *context) {
  (void)timer;
  bl_stage_t *stage = context;
  bl_stage_phase_t phase = stage->step.phase;
  bool busy = stage->preparing || phase == BL_STAGE_RUNNING || phase == BL_STAGE_STOPPING;
  if (busy || bl_loop_now_ms(stage->loop) - stage->driven_ms < stage->options.rest_ms) {
    return;
  }
  for (size_t i = 0; i < PLANS; i++) {
    if (stage->plans[i] != NULL && stage->plans[i]->parking != NULL) {
      bl_store_parking_rest(stage->plans[i]->parking);
    }
  }
}

static void driven(bl_stage_t *stage) {
  stage->driven_ms = bl_loop_now_ms(stage->loop);
}

// ---- creation

static void configure_work(bl_task_t *task);
static void configure_done(bl_task_t *task);
static void prepare_work(bl_task_t *task);
static void prepare_done(bl_task_t *task);
static void run_work(bl_task_t *task);
static void run_done(bl_task_t *task);
static void commit_work(bl_task_t *task);
static void commit_done(bl_task_t *task);
static void connect_done(bl_message_t *message);

static void snapshot_copied(void *context) {
  const bl_stage_t *stage = context;
  if (stage->options.observer.copied != NULL) {
    stage->options.observer.copied(stage->options.observer.context);
  }
}

static void snapshot_written(void *context, const bl_error_t *err) {
  const bl_stage_t *stage = context;
  if (stage->options.observer.written != NULL) {
    stage->options.observer.written(stage->options.observer.context, err);
  }
}

bl_status_t bl_stage_create(bl_loop_t *loop, const bl_stage_options_t *options, bl_stage_t **stage, bl_error_t *err) {
  bl_stage_t *made = calloc(1, sizeof *made);
  if (made == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for a stage");
  }
  made->loop = loop;
  made->options = *options;
  made->incarnation = random_bits();
  made->connect_message.handle = connect_done;
  work_t *works[] = {&made->configure, &made->prepare, &made->run, &made->commit};
  for (size_t i = 0; i < sizeof works / sizeof works[0]; i++) {
    works[i]->stage = made;
  }
  bl_task_init(&made->configure.task, configure_work, configure_done);
  bl_task_init(&made->prepare.task, prepare_work, prepare_done);
  bl_task_init(&made->run.task, run_work, run_done);
  bl_task_init(&made->commit.task, commit_work, commit_done);
  bl_status_t status = bl_worker_create(loop, "compute", &made->worker, err);
  if (status == BL_OK) {
    status = bl_timer_create(loop, look_for_driver, made, &made->rest, err);
  }
  if (status == BL_OK) {
    bl_saver_observer_t observer = {.context = made, .copied = snapshot_copied, .written = snapshot_written};
    status = bl_saver_create(loop, made->worker, &observer, &made->saver, err);
  }
  if (status != BL_OK) {
    bl_timer_destroy(made->rest);
    bl_worker_destroy(made->worker);
    free(made);
    return status;
  }
  if (options->rest_ms > 0) {
    bl_timer_start(made->rest, options->rest_ms, options->rest_ms);
  }
  *stage = made;
  return BL_OK;
}

// Destroys what is of no use any more, on the compute thread or while it rests.
static void bury_retired(bl_stage_t *stage) {
  for (size_t i = 0; i < stage->retired_count; i++) {
    bl_prepared_destroy(stage->retired[i]);
  }
  stage->retired_count = 0;
}

static void retire(bl_stage_t *stage, bl_prepared_t **place) {
  if (*place == NULL) {
    return;
  }
  if (stage->running_plan == *place) {
    stage->running_plan = NULL;
  }
  if (stage->retired_count == sizeof stage->retired / sizeof stage->retired[0]) {
    bury_retired(stage); // cannot be: each run and each plan buries
  }
  stage->retired[stage->retired_count++] = *place;
  *place = NULL;
}

static void drop_plans(bl_stage_t *stage) {
  for (size_t i = 0; i < PLANS; i++) {
    retire(stage, &stage->plans[i]);
  }
}

// Forgets everything of a configuration but the engine.
static void drop_history(bl_stage_t *stage) {
  drop_plans(stage);
  bl_vote_cleanup(&stage->vote);
  bl_vote_cleanup(&stage->commit_vote);
  free(stage->context);
  stage->context = NULL;
  stage->connected = false;
  stage->connect_dropped = stage->connecting; // ended by the hub's end
  if (stage->saver != NULL) {
    bl_saver_forget(stage->saver);
  }
}

void bl_stage_destroy(bl_stage_t *stage) {
  if (stage == NULL) {
    return;
  }
  stage->options.observer = (bl_stage_observer_t){0};
  bl_timer_destroy(stage->rest);
  if (stage->engine != NULL) {
    bl_executor_interrupt(stage->engine, &stage->progress);
  }
  bl_worker_destroy(stage->worker);
  stage->worker = NULL;
  bl_saver_destroy(stage->saver);
  stage->saver = NULL;
  bl_loop_drain(stage->loop);
  bl_prepared_destroy(stage->made_plan);
  drop_plans(stage);
  bury_retired(stage);
  bl_engine_destroy(stage->engine); // its hub ends a pending connect
  bl_loop_drain(stage->loop);
  bl_engine_destroy(stage->old_engine);
  drop_history(stage);
  free((char *)(uintptr_t)stage->plan_request.csv);
  free(stage->job);
  free(stage->resume);
  free(stage);
}

// ---- drivers

bool bl_stage_takeover(bl_stage_t *stage, bl_driver_id_t driver, const char *run) {
  driven(stage);
  bool news = !bl_driver_id_equal(stage->step.driver, driver);
  bool accepted = bl_stage_step_takeover(&stage->step, driver);
  if (accepted && news) {
    bl_log(BL_LOG_INFO, "following driver %016lx, epoch %lu, run '%s'", driver.id, driver.epoch, run);
  } else if (!accepted) {
    bl_log(BL_LOG_WARNING, "refused driver %016lx, epoch %lu: following epoch %lu", driver.id, driver.epoch,
           stage->step.driver.epoch);
  }
  return accepted;
}

bl_stage_decision_t bl_stage_check(const bl_stage_t *stage, bl_driver_id_t driver, bl_error_t *err) {
  return bl_stage_step_check(&stage->step, driver, err);
}

// ---- configuration

static void configure_work(bl_task_t *task) {
  bl_stage_t *stage = BL_TASK_OWNER(task, work_t, task)->stage;
  work_t *work = &stage->configure;
  bl_error_clear(&work->err);
  bury_retired(stage);
  bl_engine_destroy(stage->old_engine);
  stage->old_engine = NULL;
  bl_thread_flush_denormals();
  bl_engine_options_t options = {.job = stage->job,
                                 .job_bytes = stage->job_bytes,
                                 .resume = stage->resume,
                                 .resume_digest = stage->resume_digest,
                                 .stage = stage->rank,
                                 .first_core = stage->options.first_core,
                                 .core_tokens = stage->options.core_tokens,
                                 .unix_path = stage->options.unix_path,
                                 .tcp_host = stage->options.tcp_host,
                                 .tcp_advertise = stage->options.tcp_advertise,
                                 .tls = stage->options.tls,
                                 .plaintext_ok = stage->options.plaintext_ok};
  bl_engine_t *engine;
  if (bl_engine_create(&options, &engine, &work->err) == BL_OK) {
    stage->made_engine = engine;
  }
}

// Room for votes and contexts, so that steps do not allocate.
static bl_status_t make_room(bl_stage_t *stage, bl_error_t *err) {
  const bl_engine_t *engine = stage->engine;
  uint32_t losses = engine->training.schedule->micro_batches, devices = engine->training.stage_count;
  bl_status_t status = bl_vote_init(&stage->vote, losses, engine->parameter_count, devices);
  if (status == BL_OK) {
    status = bl_vote_init(&stage->commit_vote, losses, engine->parameter_count, devices);
  }
  stage->context = calloc(engine->training.model.seq, sizeof *stage->context);
  return status == BL_OK && stage->context != NULL ? BL_OK : bl_error_set(err, BL_EXHAUSTED, "no memory for votes");
}

static void configure_done(bl_task_t *task) {
  bl_stage_t *stage = BL_TASK_OWNER(task, work_t, task)->stage;
  bl_error_t *err = &stage->configure.err;
  free(stage->job);
  free(stage->resume);
  stage->job = NULL;
  stage->resume = NULL;
  stage->engine = stage->made_engine; // NULL when it failed
  stage->made_engine = NULL;
  if (err->status == BL_OK && make_room(stage, err) != BL_OK) {
    stage->old_engine = stage->engine;
    stage->engine = NULL;
  }
  bool well = err->status == BL_OK;
  bl_stage_step_configure_ended(&stage->step, well, well ? stage->engine->applied : 0);
  if (err->status != BL_OK) {
    bl_log(BL_LOG_ERROR, "cannot be configured as stage %u: %s", stage->rank, err->text);
  } else {
    bl_log_context("stage=%u", stage->rank);
    bl_log(BL_LOG_INFO, "configured: %u slots of %lu bytes, %u edge buffers, %s", stage->engine->slots.count,
           stage->engine->slot_bytes, stage->engine->edge_count, stage->engine->ops->describe(stage->engine->compute));
  }
  if (stage->options.observer.configured != NULL) {
    stage->options.observer.configured(stage->options.observer.context, err);
  }
}

bl_stage_decision_t bl_stage_configure(bl_stage_t *stage, bl_driver_id_t driver,
                                       const bl_stage_configuration_t *configuration, bl_error_t *err) {
  char *job = strdup(configuration->job), *resume = strdup(configuration->resume);
  bl_stage_decision_t decision = BL_STAGE_REFUSE;
  if (job == NULL || resume == NULL) {
    (void)refuse(err, BL_EXHAUSTED, "no memory for the job");
  } else if (stage->preparing) {
    (void)refuse(err, BL_EXHAUSTED, "a plan is being prepared: ask again");
  } else {
    decision = bl_stage_step_configure(&stage->step, driver, configuration->digest, err);
  }
  if (decision == BL_STAGE_BEGIN && bl_saver_is_busy(stage->saver)) {
    bl_stage_step_configure_ended(&stage->step, false, 0);
    decision = refuse(err, BL_EXHAUSTED, "still writing a checkpoint of the configuration before");
  }
  if (decision != BL_STAGE_BEGIN) {
    free(job);
    free(resume);
    return decision;
  }
  drop_history(stage);
  stage->old_engine = stage->engine;
  stage->engine = NULL;
  stage->job = job;
  stage->job_bytes = strlen(job);
  stage->resume = resume;
  stage->resume_digest = configuration->resume_digest;
  stage->rank = configuration->rank;
  bl_worker_submit(stage->worker, &stage->configure.task);
  return BL_STAGE_BEGIN;
}

bl_stage_decision_t bl_stage_release(bl_stage_t *stage, bl_driver_id_t driver, bl_error_t *err) {
  if (bl_saver_is_busy(stage->saver) || stage->preparing) {
    return refuse(err, BL_EXHAUSTED,
                  stage->preparing ? "a plan is being prepared: ask again" : "still writing a checkpoint");
  }
  bl_stage_decision_t decision = bl_stage_step_release(&stage->step, driver, err);
  if (decision == BL_STAGE_ANSWER) {
    drop_history(stage);
    bury_retired(stage);
    bl_engine_destroy(stage->engine);
    stage->engine = NULL;
    bl_log(BL_LOG_INFO, "released");
  }
  return decision;
}

// ---- data paths

// On the data path's thread.
static void peers_connected(void *user, bl_status_t status, const bl_error_t *err) {
  bl_stage_t *stage = user;
  bl_error_clear(&stage->connect_error);
  if (status != BL_OK) {
    stage->connect_error = *err;
  }
  bl_loop_post(stage->loop, &stage->connect_message);
}

static void connect_done(bl_message_t *message) {
  bl_stage_t *stage = BL_MESSAGE_OWNER(message, bl_stage_t, connect_message);
  if (stage->connect_dropped) {
    (void)bl_error_set(&stage->connect_error, BL_CANCELLED, "the configuration that was to be connected has gone");
  }
  stage->connecting = false;
  stage->connected = stage->connect_error.status == BL_OK;
  if (!stage->connected && !stage->connect_dropped) {
    bl_log(BL_LOG_ERROR, "data path: %s", stage->connect_error.text);
  }
  stage->connect_dropped = false;
  if (stage->options.observer.connected != NULL) {
    stage->options.observer.connected(stage->options.observer.context, &stage->connect_error);
  }
}

static bl_status_t check_peers(const bl_stage_t *stage, const bl_hub_peer_t *peers, size_t count, bl_error_t *err) {
  uint32_t needed[BL_HUB_MAX_PEERS];
  uint32_t needed_count = bl_engine_peers(stage->engine, needed, BL_HUB_MAX_PEERS);
  for (uint32_t i = 0; i < needed_count && i < BL_HUB_MAX_PEERS; i++) {
    bool given = false;
    for (size_t k = 0; k < count; k++) {
      given = given || peers[k].stage == (int32_t)needed[i];
    }
    if (!given) {
      return bl_error_set(err, BL_INVALID, "stage %u exchanges tensors with stage %u, which is not among the peers",
                          stage->engine->stage, needed[i]);
    }
  }
  return BL_OK;
}

bl_stage_decision_t bl_stage_connect(bl_stage_t *stage, bl_driver_id_t driver, const bl_hub_peer_t *peers, size_t count,
                                     bl_path_t path, uint64_t deadline_ns, bl_error_t *err) {
  bl_stage_decision_t decision = bl_stage_step_connect(&stage->step, driver, err);
  if (decision != BL_STAGE_ANSWER) {
    return decision;
  }
  if (stage->connecting) {
    return BL_STAGE_WAIT;
  }
  if (check_peers(stage, peers, count, err) != BL_OK) {
    return BL_STAGE_REFUSE;
  }
  stage->connecting = true;
  if (bl_hub_connect(stage->engine->hub, peers, count, path, deadline_ns, peers_connected, stage, err) != BL_OK) {
    stage->connecting = false;
    return BL_STAGE_REFUSE;
  }
  return BL_STAGE_BEGIN;
}

// ---- plans

static bl_prepared_t **find_plan(bl_stage_t *stage, uint64_t version) {
  for (size_t i = 0; i < PLANS; i++) {
    if (stage->plans[i] != NULL && stage->plans[i]->plan->version == version) {
      return &stage->plans[i];
    }
  }
  return NULL;
}

static void drop_plan(bl_stage_t *stage, uint64_t version) {
  bl_prepared_t **place = version == 0 ? NULL : find_plan(stage, version);
  if (place != NULL) {
    retire(stage, place);
  }
}

static bl_prepared_t **free_place(bl_stage_t *stage) {
  for (size_t i = 0; i < PLANS; i++) {
    if (stage->plans[i] == NULL) {
      return &stage->plans[i];
    }
  }
  return NULL;
}

// Plans that the step machine no longer knows (it forgets an older one when a newer one runs).
static void drop_forgotten(bl_stage_t *stage) {
  for (size_t i = 0; i < PLANS; i++) {
    bool known = stage->plans[i] == NULL;
    for (size_t k = 0; k < PLANS && !known; k++) {
      known = stage->step.plans[k / BL_STAGE_PLANS][k % BL_STAGE_PLANS].version == stage->plans[i]->plan->version;
    }
    if (!known) {
      retire(stage, &stage->plans[i]);
    }
  }
}

static void prepare_work(bl_task_t *task) {
  bl_stage_t *stage = BL_TASK_OWNER(task, work_t, task)->stage;
  work_t *work = &stage->prepare;
  bl_error_clear(&work->err);
  bury_retired(stage);
  work->err.status = bl_prepared_create(stage->engine, &stage->plan_request, &stage->made_plan, &work->err);
}

static void prepare_done(bl_task_t *task) {
  bl_stage_t *stage = BL_TASK_OWNER(task, work_t, task)->stage;
  const bl_executor_plan_request_t *request = &stage->plan_request;
  bl_error_t *err = &stage->prepare.err;
  stage->preparing = false;
  if (!bl_driver_id_equal(stage->plan_driver, stage->step.driver)) {
    // Another driver has taken over meanwhile and was told what is prepared here: that must not change behind its back.
    retire(stage, &stage->made_plan);
    (void)refuse(err, BL_EXHAUSTED, "the driver that asked for this plan was replaced: ask again");
  } else if (err->status == BL_OK) {
    drop_plan(stage, stage->plan_replaces);
    bl_prepared_t **place = free_place(stage);
    if (place == NULL) {
      (void)refuse(err, BL_INTERNAL, "more plans are kept than the step protocol allows");
      bl_prepared_destroy(stage->made_plan);
    } else {
      *place = stage->made_plan;
      bl_plan_record_t record = {.version = request->version,
                                 .digest = request->digest,
                                 .policy = request->policy,
                                 .follows = request->follows};
      bl_stage_step_plan_installed(&stage->step, request->kind, record);
      drop_forgotten(stage);
    }
    stage->made_plan = NULL;
  } else {
    bl_log(BL_LOG_WARNING, "plan %lu: %s", request->version, err->text);
    bl_stage_step_plan_refused(&stage->step, request->version);
  }
  free((char *)(uintptr_t)stage->plan_request.csv);
  stage->plan_request.csv = NULL;
  if (stage->options.observer.prepared != NULL) {
    stage->options.observer.prepared(stage->options.observer.context, err);
  }
}

bl_stage_decision_t bl_stage_prepare(bl_stage_t *stage, bl_driver_id_t driver, const bl_executor_plan_request_t *plan,
                                     bl_error_t *err) {
  driven(stage);
  uint64_t replaces = 0;
  bl_plan_record_t record = {
      .version = plan->version, .digest = plan->digest, .policy = plan->policy, .follows = plan->follows};
  bl_stage_decision_t decision = bl_stage_step_plan(&stage->step, driver, plan->kind, record, &replaces, err);
  if (decision != BL_STAGE_BEGIN) {
    return decision;
  }
  if (stage->preparing) {
    const bl_executor_plan_request_t *now = &stage->plan_request;
    bool same = now->version == plan->version && now->digest == plan->digest && now->kind == plan->kind;
    return same ? BL_STAGE_WAIT : refuse(err, BL_EXHAUSTED, "another plan is being prepared: ask again");
  }
  char *csv = strndup(plan->csv, plan->csv_bytes);
  if (csv == NULL) {
    return refuse(err, BL_EXHAUSTED, "no memory for a plan");
  }
  stage->plan_request = *plan;
  stage->plan_request.csv = csv;
  stage->plan_replaces = replaces;
  stage->plan_driver = driver;
  stage->preparing = true;
  bl_worker_submit(stage->worker, &stage->prepare.task);
  return BL_STAGE_BEGIN;
}

// ---- runs

static void run_work(bl_task_t *task) {
  bl_stage_t *stage = BL_TASK_OWNER(task, work_t, task)->stage;
  bl_error_clear(&stage->run.err);
  bury_retired(stage);
  bl_prepared_use(stage->running_plan, stage->engine);
  bl_status_t status =
      bl_executor_run(stage->engine, &stage->run_request, &stage->progress, &stage->vote, &stage->run.err);
  stage->run.err.status = status;
  bl_store_parking_t *parking = stage->running_plan->parking;
  stage->vote.device_count = parking != NULL ? stage->engine->training.stage_count : 0;
  for (uint32_t d = 0; d < stage->vote.device_count; d++) {
    stage->vote.leased_peaks[d] = bl_store_parking_peak(parking, d);
  }
  if (parking != NULL) {
    bl_store_parking_moved(parking, &stage->vote.counters.moved_bytes, &stage->vote.counters.moved_ns);
  }
}

static void run_done(bl_task_t *task) {
  bl_stage_t *stage = BL_TASK_OWNER(task, work_t, task)->stage;
  const bl_error_t *err = &stage->run.err;
  bl_stage_outcome_t outcome = bl_stage_step_run_ended(&stage->step, err->status == BL_OK);
  if (outcome == BL_STAGE_FAILED) {
    bl_log(BL_LOG_ERROR, "the attempt failed: %s", err->text);
  }
  if (stage->options.observer.ran != NULL) {
    stage->options.observer.ran(stage->options.observer.context, outcome, err);
  }
}

// Whether what the stage is configured for can run this; the step machine asks whether it may.
static bl_status_t check_run(const bl_stage_t *stage, const bl_stage_run_request_t *request, bl_error_t *err) {
  if (stage->engine == NULL) {
    return BL_OK; // the step machine refuses
  }
  if (stage->step.phase != BL_STAGE_RUNNING && !stage->connected && bl_engine_peers(stage->engine, NULL, 0) > 0) {
    return bl_error_set(err, BL_PRECONDITION, "not connected to its peers");
  }
  if (stage->preparing) {
    return bl_error_set(err, BL_EXHAUSTED, "a plan is being prepared: ask again");
  }
  uint32_t seq = stage->engine->training.model.seq;
  if (request->token_count > seq) {
    return bl_error_set(err, BL_INVALID, "a context of %u tokens, the model takes %u", request->token_count, seq);
  }
  return BL_OK;
}

bl_stage_decision_t bl_stage_run(bl_stage_t *stage, bl_driver_id_t driver, const bl_stage_run_request_t *request,
                                 bl_error_t *err) {
  driven(stage);
  // An older driver is told that first: it must end, not repair the stage.
  if (bl_stage_check(stage, driver, err) == BL_STAGE_REFUSE || check_run(stage, request, err) != BL_OK) {
    return BL_STAGE_REFUSE;
  }
  bl_stage_decision_t decision = bl_stage_step_run(&stage->step, driver, &request->id, err);
  if (decision != BL_STAGE_BEGIN) {
    return decision;
  }
  if (request->token_count > 0) {
    memcpy(stage->context, request->tokens, request->token_count * sizeof *stage->context);
  }
  drop_forgotten(stage);
  stage->running_plan = *find_plan(stage, request->id.plan_version);
  bl_store_parking_t *parking = stage->running_plan->parking;
  stage->engine->parking = parking != NULL ? bl_store_parking_seam(parking) : NULL;
  if (parking != NULL) {
    bl_store_parking_set_step(parking, request->id.step);
  }
  stage->run_request = (bl_run_t){.plan = stage->running_plan->plan,
                                  .id = request->id,
                                  .first_window = request->first_window,
                                  .tokens = stage->context,
                                  .token_count = request->token_count,
                                  .draw_seed = request->draw_seed,
                                  .temperature = request->temperature};
  bl_log_step(request->id.step, request->id.attempt);
  atomic_store(&stage->progress.done, 0);
  atomic_store(&stage->progress.slots, 0);
  atomic_store(&stage->progress.waiting_ns, 0);
  atomic_store(&stage->progress.cancelled, false);
  bl_worker_submit(stage->worker, &stage->run.task);
  return BL_STAGE_BEGIN;
}

static void commit_work(bl_task_t *task) {
  bl_stage_t *stage = BL_TASK_OWNER(task, work_t, task)->stage;
  const bl_commit_t *commit = &stage->step.last_commit; // fixed while it is being applied
  bl_error_clear(&stage->commit.err);
  stage->commit.err.status =
      bl_executor_update(stage->engine, commit->step, commit->scale, commit->learning_rate, &stage->commit.err);
}

static void commit_done(bl_task_t *task) {
  bl_stage_t *stage = BL_TASK_OWNER(task, work_t, task)->stage;
  if (stage->commit.err.status != BL_OK) {
    // A commit that was decided cannot be taken back, and these weights are no longer those of the other stages.
    bl_log(BL_LOG_ERROR, "step %lu could not be applied, ending: %s", stage->step.last_commit.step,
           stage->commit.err.text);
    exit(bl_status_exit_code(BL_INTERNAL));
  }
  bl_stage_step_commit_ended(&stage->step);
  if (stage->options.observer.committed != NULL) {
    stage->options.observer.committed(stage->options.observer.context);
  }
}

bl_stage_decision_t bl_stage_commit(bl_stage_t *stage, bl_driver_id_t driver, const bl_commit_t *commit,
                                    bl_error_t *err) {
  driven(stage);
  bl_stage_decision_t decision = bl_stage_step_commit(&stage->step, driver, commit, err);
  if (decision == BL_STAGE_BEGIN) {
    bl_vote_t kept = stage->commit_vote;
    stage->commit_vote = stage->vote;
    stage->vote = kept;
    bl_worker_submit(stage->worker, &stage->commit.task);
  }
  return decision;
}

bl_stage_decision_t bl_stage_abort(bl_stage_t *stage, bl_driver_id_t driver, uint64_t next, uint64_t attempt,
                                   bl_error_t *err) {
  driven(stage);
  bool dropped;
  bl_stage_decision_t decision = bl_stage_step_abort(&stage->step, driver, next, attempt, &dropped, err);
  if (decision == BL_STAGE_BEGIN) {
    bl_executor_interrupt(stage->engine, &stage->progress);
  }
  return decision;
}

// ---- checkpoints

bl_stage_decision_t bl_stage_snapshot(bl_stage_t *stage, bl_driver_id_t driver, uint64_t step, bl_error_t *err) {
  bl_stage_decision_t decision = bl_stage_step_snapshot(&stage->step, driver, step, err);
  if (decision != BL_STAGE_ANSWER) {
    return decision;
  }
  if (stage->engine->snapshot == NULL) {
    return refuse(err, BL_PRECONDITION, "the job has no checkpoint.folder, so no memory is planned for checkpoints");
  }
  return bl_saver_copy(stage->saver, stage->engine->snapshot, step, err);
}

bl_stage_decision_t bl_stage_write(bl_stage_t *stage, bl_driver_id_t driver, const bl_saver_request_t *request,
                                   bl_error_t *err) {
  bl_stage_decision_t decision = bl_stage_step_check(&stage->step, driver, err);
  return decision == BL_STAGE_ANSWER ? bl_saver_write(stage->saver, request, err) : decision;
}

// ---- looking at it

bool bl_stage_has_refused(const bl_stage_t *stage, uint64_t version) {
  bool kept = false;
  for (size_t i = 0; i < PLANS; i++) {
    kept = kept || stage->step.plans[i / BL_STAGE_PLANS][i % BL_STAGE_PLANS].version == version;
  }
  return version <= stage->step.plan_version && !kept;
}

uint64_t bl_stage_resumed(const bl_stage_t *stage) {
  return stage->step.configured != 0 ? stage->resume_digest : 0;
}

const bl_saver_t *bl_stage_saver(const bl_stage_t *stage) {
  return stage->saver;
}

const bl_stage_step_t *bl_stage_step(const bl_stage_t *stage) {
  return &stage->step;
}

uint64_t bl_stage_incarnation(const bl_stage_t *stage) {
  return stage->incarnation;
}

const bl_engine_t *bl_stage_engine(const bl_stage_t *stage) {
  return stage->step.phase == BL_STAGE_CONFIGURING ? NULL : stage->engine;
}

bool bl_stage_is_connected(const bl_stage_t *stage) {
  return stage->connected;
}

const bl_vote_t *bl_stage_vote(const bl_stage_t *stage) {
  return &stage->vote;
}

const bl_vote_t *bl_stage_commit_vote(const bl_stage_t *stage) {
  return &stage->commit_vote;
}

const bl_run_progress_t *bl_stage_progress(const bl_stage_t *stage) {
  return &stage->progress;
}

const bl_executor_plan_t *bl_stage_running_plan(const bl_stage_t *stage) {
  return stage->running_plan != NULL ? stage->running_plan->plan : NULL;
}
