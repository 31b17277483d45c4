// SPDX-License-Identifier: Apache-2.0
#include "executor/rig.h"

#include "schedule/csv/csv.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define MICRO_BATCHES_MAX 16
#define PARAMETERS_MAX    256
#define FAULT_AT_LOAD     3 // of stage 0, counted from 1

// One training run: a thread per stage, in lockstep by the barrier.
typedef struct {
  rig_setting_t setting;
  char folder[64];
  char job[1024];
  uint32_t micro_batches;
  pthread_barrier_t barrier;
  bl_engine_t *engines[RIG_STAGES_MAX];
  bl_vote_t votes[RIG_STAGES_MAX];
  bl_run_progress_t progress[RIG_STAGES_MAX];
  arena_parking_t *parkings[RIG_STAGES_MAX];
  bool armed;     // the fault is still to come; stage 0's
  uint32_t loads; // of stage 0 since then
  double scale;
  rig_outcome_t outcome;
} rig_t;

typedef struct {
  rig_t *rig;
  uint32_t stage;
} rig_stage_t;

static void check(rig_t *rig, bl_status_t status, const bl_error_t *err, const char *what) {
  if (status != BL_OK) {
    fprintf(stderr, "%s of %u stages, %s: %s: %s\n", what, rig->setting.stages, rig->setting.schedule,
            bl_status_name(status), err->text);
    abort(); // the other threads would wait for ever
  }
}

// The checks of the stages' threads, where a test library's asserts would only end the process.
static void expect(const rig_t *rig, uint32_t stage, const char *what, uint64_t found, uint64_t wanted) {
  if (found != wanted) {
    fprintf(stderr, "stage %u of %u, %s: %s: found %lu, expected %lu\n", stage, rig->setting.stages,
            rig->setting.schedule, what, found, wanted);
    abort();
  }
}

static void connect(rig_t *rig, uint32_t stage) {
  bl_transport_peer_t peers[RIG_STAGES_MAX];
  size_t count = 0;
  for (uint32_t i = 0; i < rig->setting.stages; i++) {
    if (i == stage) {
      continue;
    }
    const bl_transport_t *transport = rig->engines[i]->transport;
    peers[count] = (bl_transport_peer_t){.stage = (int32_t)i,
                                         .unix_address = bl_transport_unix_address(transport),
                                         .tcp_address = bl_transport_tcp_address(transport),
                                         .machine = bl_transport_machine(transport)};
    memcpy(peers[count++].token, bl_transport_token(transport), BL_TRANSPORT_TOKEN_BYTES);
  }
  bl_error_t err = {0};
  check(rig,
        bl_transport_connect_wait(rig->engines[stage]->transport, peers, count, rig->setting.path, UINT64_MAX, &err),
        &err, "connect");
}

static bl_executor_plan_t *make_plan(rig_t *rig, const bl_engine_t *engine) {
  char *csv;
  size_t csv_bytes;
  bl_error_t err = {0};
  const bl_balance_result_t *balanced = rig->setting.balanced;
  const bl_schedule_t *schedule = balanced != NULL ? balanced->schedule : engine->training.schedule;
  check(rig, bl_csv_write(schedule, &csv, &csv_bytes), &err, "csv");
  bl_executor_plan_request_t request = {.version = 1,
                                        .digest = 1,
                                        .kind = BL_RUN_TRAIN,
                                        .csv = csv,
                                        .csv_bytes = csv_bytes,
                                        .stage = engine->coords.stage,
                                        .configured = engine->training.schedule,
                                        .slots = balanced != NULL ? rig->setting.cap : engine->slot_count,
                                        .edges = engine->edge_count,
                                        .parks = engine->parking != NULL,
                                        .recomputes = engine->training.layout.recompute == BL_RECOMPUTE_FULL};
  bl_executor_plan_t *plan;
  check(rig, bl_executor_plan_create(&request, &plan, &err), &err, "plan");
  free(csv);
  return plan;
}

// The driver's part: loss and norm of the step from all votes, in canonical orders.
static void decide(rig_t *rig, int step) {
  double squares[PARAMETERS_MAX] = {0}, sum = 0, loss = 0;
  for (uint32_t s = 0; s < rig->setting.stages; s++) {
    const bl_vote_t *vote = &rig->votes[s];
    for (uint32_t i = 0; i < vote->square_count; i++) {
      squares[vote->parameter_indices[i]] = vote->squares[i];
    }
    for (uint32_t i = 0; i < vote->loss_count; i++) {
      loss += vote->losses[i];
    }
  }
  for (int i = 0; i < PARAMETERS_MAX; i++) {
    sum += squares[i];
  }
  rig->outcome.losses[step] = loss / rig->micro_batches;
  rig->outcome.norms[step] = sqrt(sum);
  rig->scale = fmin(1, 0.5 / (sqrt(sum) + 1e-6));
}

static void interrupt_all(rig_t *rig) {
  for (uint32_t s = 0; s < rig->setting.stages; s++) {
    bl_executor_interrupt(rig->engines[s], &rig->progress[s]);
  }
}

// Stage 0, on its compute thread, in the middle of a step.
static void at_load(void *user, const bl_parked_block_t *block) {
  rig_t *rig = user;
  if (!rig->armed || ++rig->loads < FAULT_AT_LOAD) {
    return;
  }
  rig->armed = false;
  if (rig->setting.fault == RIG_CANCEL_LOAD) {
    interrupt_all(rig);
    return;
  }
  const bl_engine_t *engine = rig->engines[0];
  uint32_t *x = (uint32_t *)(void *)bl_engine_edge(engine, engine->blocks[block->key.micro_batch].input);
  x[1] ^= 1u << 22;
}

// Runs the second step into its fault. The status of the other stages is that they were interrupted.
static void run_into_fault(rig_t *rig, uint32_t stage, bl_run_t *run) {
  rig_fault_t fault = rig->setting.fault;
  if (stage == 0) {
    rig->armed = fault == RIG_CANCEL_LOAD || fault == RIG_FLIP_INPUT;
    rig->loads = 0;
  }
  atomic_store(&rig->progress[stage].cancelled, fault == RIG_CANCEL_FIRST);
  pthread_barrier_wait(&rig->barrier);
  bl_error_t err = {0};
  bl_status_t status = bl_executor_run(rig->engines[stage], run, &rig->progress[stage], &rig->votes[stage], &err);
  bool finds = stage == 0 && fault == RIG_FLIP_INPUT;
  const bool changed = fault == RIG_CHANGED && rig->votes[stage].counters.loaded > 0;
  expect(rig, stage, "status of the step that is given up", status,
         finds || changed       ? BL_DATA_LOSS
         : fault == RIG_CHANGED ? BL_OK
                                : BL_CANCELLED);
  if (changed && strstr(err.text, "came back changed from the") == NULL) {
    check(rig, BL_INTERNAL, &err, "what is said of a block that came back changed");
  }
  if (finds) {
    interrupt_all(rig);
  }
  if (rig->parkings[stage] != NULL) {
    expect(rig, stage, "blocks kept after a step that was given up", arena_parking_kept(rig->parkings[stage]), 0);
  }
  pthread_barrier_wait(&rig->barrier);
}

// What every finished step owes, whatever was lost in it.
static void check_counters(rig_t *rig, uint32_t stage, const bl_executor_plan_t *plan) {
  const bl_stage_counters_t *counters = &rig->votes[stage].counters;
  const bl_balance_result_t *balanced = rig->setting.balanced;
  uint32_t given_up = balanced != NULL ? balanced->dropped[stage] : 0; // by the plan
  uint32_t planned = balanced != NULL ? balanced->evictions[stage] + given_up : 0;
  expect(rig, stage, "evicted + dropped", counters->evicted + counters->dropped, planned);
  expect(rig, stage, "loaded + recomputed", counters->loaded + counters->recomputed, planned);
  expect(rig, stage, "recomputed", counters->recomputed, counters->lost + counters->dropped);
  expect(rig, stage, "peak_slot_bytes", counters->peak_slot_bytes,
         counters->peak_slots * rig->engines[stage]->slot_bytes);
  if (counters->dropped == given_up ||
      counters->peak_slots > plan->stage.slots) { // a dropped block's slot is free at once
    expect(rig, stage, "peak_slots", counters->peak_slots, plan->stage.slots);
  }
  bl_stage_counters_t *sums = &rig->outcome.counters[stage];
  sums->evicted += counters->evicted;
  sums->loaded += counters->loaded;
  sums->lost += counters->lost;
  sums->dropped += counters->dropped;
  sums->recomputed += counters->recomputed;
  rig->outcome.peak_slots[stage] = counters->peak_slots;
}

static void run_step(rig_t *rig, uint32_t stage, const bl_executor_plan_t *plan, int step, uint64_t *attempt) {
  bl_engine_t *engine = rig->engines[stage];
  bl_error_t err = {0};
  bl_run_t run = {.plan = plan, .id = {.kind = BL_RUN_TRAIN, .step = (uint64_t)step + 1, .plan_version = 1}};
  if (rig->setting.fault != RIG_NONE && step == 1) {
    run.id.attempt = ++*attempt;
    run_into_fault(rig, stage, &run);
  }
  run.id.attempt = ++*attempt;
  atomic_store(&rig->progress[stage].cancelled, false);
  const uint64_t drains = engine->drains;
  check(rig, bl_executor_run(engine, &run, &rig->progress[stage], &rig->votes[stage], &err), &err, "run");
  rig->outcome.drains[stage] = engine->drains - drains;
  check_counters(rig, stage, plan);
  pthread_barrier_wait(&rig->barrier);
  if (stage == 0) {
    decide(rig, step);
  }
  pthread_barrier_wait(&rig->barrier);
  check(rig, bl_executor_update(engine, run.id.step, rig->scale, 1e-3, &err), &err, "update");
}

static void attach_parking(rig_t *rig, uint32_t stage) {
  bl_engine_t *engine = rig->engines[stage];
  arena_parking_options_t options = rig->setting.parking;
  options.store_slots = rig->setting.balanced->parked_peak[stage];
  options.store_slot_bytes = engine->slot_bytes;
  options.virtual_stages = engine->training.schedule->virtual_stages;
  options.micro_batches = rig->micro_batches;
  for (uint32_t slot = 0; slot < engine->slots.count; slot++) { // what a slot held before, and between segments
    bl_error_t err = {0};
    check(rig,
          bl_device_fill(engine->device, NULL, bl_engine_slot(engine, slot), (uint8_t)(0x11 * (slot + 1)),
                         engine->slot_bytes, &err),
          &err, "slots");
  }
  options.device = engine->device->host_memory ? NULL : engine->device;
  if (options.twins) {
    bl_error_t err = {0};
    check(rig, bl_engine_allocate_slot_twins(engine, &err), &err, "twins");
  }
  options.on_load = stage == 0 ? at_load : NULL;
  options.user = rig;
  rig->parkings[stage] = arena_parking_create(&options);
  engine->parking = arena_parking_seam(rig->parkings[stage]);
}

static void *run_stage(void *argument) {
  rig_stage_t *own = argument;
  rig_t *rig = own->rig;
  char path[96];
  snprintf(path, sizeof path, "%s/%u.data", rig->folder, own->stage);
  bl_engine_options_t options = {.job = rig->job,
                                 .job_bytes = strlen(rig->job),
                                 .rank = own->stage,
                                 .gpu = -1,
                                 .first_core = -1,
                                 .unix_path = path,
                                 .tcp_host = "127.0.0.1"};
  bl_error_t err = {0};
  check(rig, bl_engine_create(&options, &rig->engines[own->stage], &err), &err, "engine");
  bl_engine_t *engine = rig->engines[own->stage];
  if (rig->setting.balanced != NULL) {
    attach_parking(rig, own->stage);
  }
  check(rig, bl_vote_init(&rig->votes[own->stage], MICRO_BATCHES_MAX, engine->square_count, 0), &err, "vote");
  pthread_barrier_wait(&rig->barrier);
  connect(rig, own->stage);
  bl_executor_plan_t *plan = make_plan(rig, engine);
  uint64_t attempt = 0;
  for (int step = 0; step < RIG_STEPS; step++) {
    run_step(rig, own->stage, plan, step, &attempt);
  }
  if (rig->parkings[own->stage] != NULL) {
    expect(rig, own->stage, "blocks kept at the end", arena_parking_kept(rig->parkings[own->stage]), 0);
    rig->outcome.parking[own->stage] = arena_parking_count(rig->parkings[own->stage]);
  }
  if (own->stage == 0) {
    rig->outcome.slot_bytes = engine->training.stages[0].slot_bytes;
    for (int tag = 0; tag < BL_MEMORY_TAGS; tag++) {
      rig->outcome.memory[tag] = bl_memory_usage(&engine->account, (bl_memory_tag_t)tag);
    }
    rig->outcome.arena_bytes = engine->slots.count * engine->slots.bytes;
  }
  pthread_barrier_wait(&rig->barrier);
  bl_executor_plan_destroy(plan);
  bl_vote_cleanup(&rig->votes[own->stage]);
  bl_engine_destroy(engine);
  arena_parking_destroy(rig->parkings[own->stage]);
  return NULL;
}

static const char *given(const char *text) {
  return text != NULL ? text : "";
}

static void write_job(rig_t *rig) {
  const rig_setting_t *setting = &rig->setting;
  const char *golden = setting->model != NULL ? setting->model : "gpt2";
  char model[512];
  if (setting->model != NULL) {
    snprintf(model, sizeof model, "init: '%s/tests/golden/%s', seq: 16", BALLAST_SOURCE_DIR, setting->model);
  } else {
    snprintf(model, sizeof model, "family: gpt2, layers: 8, hidden: 36, heads: 2, vocab: 101, seq: 15");
  }
  snprintf(rig->job, sizeof rig->job,
           "model: {%s}\n"
           "data: {train: '%s/tests/golden/%s/tokens.bin', format: bin, order: sequential}\n"
           "train: {steps: 3, micro_batch: 2, micro_batches: %u, lr: 1.0e-3%s}\n"
           "pipeline: {stages: %u, schedule: %s, attention: %s, recompute: %s, threads: 1%s}\n%s",
           model, BALLAST_SOURCE_DIR, golden, rig->micro_batches, given(setting->train), setting->stages,
           setting->schedule, setting->attention, setting->recompute, given(setting->pipeline), given(setting->more));
}

rig_outcome_t rig_train(rig_setting_t setting) {
  rig_t *rig = calloc(1, sizeof *rig);
  assert_non_null(rig);
  rig->setting = setting;
  rig->micro_batches = setting.micro_batches != 0 ? setting.micro_batches : 4;
  assert_in_range(rig->micro_batches, 1, MICRO_BATCHES_MAX);
  snprintf(rig->folder, sizeof rig->folder, "/tmp/ballast-run-test-XXXXXX");
  assert_non_null(mkdtemp(rig->folder));
  write_job(rig);
  pthread_barrier_init(&rig->barrier, NULL, setting.stages);
  pthread_t threads[RIG_STAGES_MAX];
  rig_stage_t stages[RIG_STAGES_MAX];
  for (uint32_t i = 0; i < setting.stages; i++) {
    stages[i] = (rig_stage_t){.rig = rig, .stage = i};
    assert_int_equal(pthread_create(&threads[i], NULL, run_stage, &stages[i]), 0);
  }
  for (uint32_t i = 0; i < setting.stages; i++) {
    pthread_join(threads[i], NULL);
  }
  pthread_barrier_destroy(&rig->barrier);
  assert_int_equal(rmdir(rig->folder), 0); // sockets are gone
  rig_outcome_t outcome = rig->outcome;
  free(rig);
  return outcome;
}

void rig_expect_same(const rig_setting_t *setting, const rig_outcome_t *expected, const rig_outcome_t *found) {
  for (int step = 0; step < RIG_STEPS; step++) {
    if (found->losses[step] != expected->losses[step] || found->norms[step] != expected->norms[step]) {
      fail_msg("%s, %u stages, %s, %s, %s, recompute %s, step %d: loss %.17g and norm %.17g, expected %.17g and %.17g",
               setting->model != NULL ? setting->model : "gpt2 of 8 layers", setting->stages, setting->schedule,
               bl_path_name(setting->path), setting->attention, setting->recompute, step + 1, found->losses[step],
               found->norms[step], expected->losses[step], expected->norms[step]);
    }
  }
}
