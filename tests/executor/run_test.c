// SPDX-License-Identifier: Apache-2.0
// Verifies that the losses and weights of a training run have the same bits for every number of stages, schedule and
// data path, and for every kind of recomputation, with real engines, hubs and edge buffers, one thread per stage; that
// slots are used and planned as recomputation promises; and that an interrupted attempt leaves no trace in the next one.
#include "executor/executor.h"
#include "schedule/csv.h"
#include "schedule/generate.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define STEPS         3
#define MICRO_BATCHES 4
#define STAGES_MAX    3

typedef struct {
  const char *model; // folder under tests/golden
  uint32_t stages;
  const char *schedule;
  bl_path_t path;
  const char *attention;
  const char *recompute;
  bool interrupt; // the second step is begun, aborted, and run again
} setting_t;

typedef struct {
  double losses[STEPS];
  double norms[STEPS];
  uint32_t peak_slots[STAGES_MAX];
  uint64_t slot_bytes, arena_bytes; // of stage 0: one slot, all of them
} outcome_t;

// One training run: a thread per stage, in lockstep by the barrier.
typedef struct {
  setting_t setting;
  char folder[64];
  char job[1024];
  pthread_barrier_t barrier;
  bl_engine_t *engines[STAGES_MAX];
  bl_vote_t votes[STAGES_MAX];
  bl_run_progress_t progress[STAGES_MAX];
  double scale;
  outcome_t outcome;
  _Atomic int failures;
} rig_t;

typedef struct {
  rig_t *rig;
  uint32_t stage;
} seat_t;

static void check(rig_t *rig, bl_status_t status, const bl_error_t *err, const char *what) {
  if (status != BL_OK) {
    rig->failures++;
    fprintf(stderr, "%s: %s: %s\n", what, bl_status_name(status), err->text);
    abort(); // the other threads would wait for ever
  }
}

static void connect(rig_t *rig, uint32_t stage) {
  bl_hub_peer_t peers[STAGES_MAX];
  size_t count = 0;
  for (uint32_t i = 0; i < rig->setting.stages; i++) {
    if (i == stage) {
      continue;
    }
    const bl_hub_t *hub = rig->engines[i]->hub;
    peers[count] = (bl_hub_peer_t){.stage = (int32_t)i,
                                   .unix_address = bl_hub_unix_address(hub),
                                   .tcp_address = bl_hub_tcp_address(hub),
                                   .machine = bl_hub_machine(hub)};
    memcpy(peers[count++].token, bl_hub_token(hub), BL_HUB_TOKEN_BYTES);
  }
  bl_error_t err = {0};
  check(rig, bl_hub_connect_wait(rig->engines[stage]->hub, peers, count, rig->setting.path, UINT64_MAX, &err), &err,
        "connect");
}

static bl_executor_plan_t *make_plan(rig_t *rig, const bl_engine_t *engine) {
  char *csv;
  size_t csv_bytes;
  bl_error_t err = {0};
  check(rig, bl_csv_write(engine->training.schedule, &csv, &csv_bytes), &err, "csv");
  bl_executor_plan_request_t request = {.version = 1,
                                        .digest = 1,
                                        .kind = BL_RUN_TRAIN,
                                        .csv = csv,
                                        .csv_bytes = csv_bytes,
                                        .stage = engine->stage,
                                        .configured = engine->training.schedule,
                                        .slots = engine->slot_count,
                                        .edges = engine->edge_count,
                                        .recomputes = engine->training.layout.recompute == BL_RECOMPUTE_FULL};
  bl_executor_plan_t *plan;
  check(rig, bl_executor_plan_create(&request, &plan, &err), &err, "plan");
  free(csv);
  return plan;
}

// The driver's part: loss and norm of the step from all votes, in canonical orders.
static void decide(rig_t *rig, int step) {
  double squares[256] = {0}, sum = 0, loss = 0;
  for (uint32_t s = 0; s < rig->setting.stages; s++) {
    const bl_vote_t *vote = &rig->votes[s];
    for (uint32_t i = 0; i < vote->square_count; i++) {
      squares[vote->parameters[i]] = vote->squares[i];
    }
    for (uint32_t i = 0; i < vote->loss_count; i++) {
      loss += vote->losses[i];
    }
  }
  for (int i = 0; i < 256; i++) {
    sum += squares[i];
  }
  rig->outcome.losses[step] = loss / MICRO_BATCHES;
  rig->outcome.norms[step] = sqrt(sum);
  rig->scale = fmin(1, 0.5 / (sqrt(sum) + 1e-6));
}

static void run_step(rig_t *rig, uint32_t stage, const bl_executor_plan_t *plan, int step, uint64_t *attempt) {
  bl_engine_t *engine = rig->engines[stage];
  bl_error_t err = {0};
  bl_run_t run = {.plan = plan, .id = {.kind = BL_RUN_TRAIN, .step = (uint64_t)step + 1, .plan_version = 1}};
  bool interrupt = rig->setting.interrupt && step == 1;
  for (int round = interrupt ? 0 : 1; round < 2; round++) {
    run.id.attempt = ++*attempt;
    atomic_store(&rig->progress[stage].cancelled, round == 0 && stage == 0);
    bl_status_t status;
    if (round == 0 && stage > 0) { // waits for the first stage, which gives up at once, until it is interrupted too
      bl_hub_abort(engine->hub);
      atomic_store(&rig->progress[stage].cancelled, true);
    }
    status = bl_executor_run(engine, &run, &rig->progress[stage], &rig->votes[stage], &err);
    if (round == 0) {
      assert_int_equal(status, BL_CANCELLED);
      pthread_barrier_wait(&rig->barrier);
      continue;
    }
    check(rig, status, &err, "run");
  }
  pthread_barrier_wait(&rig->barrier);
  if (stage == 0) {
    decide(rig, step);
  }
  pthread_barrier_wait(&rig->barrier);
  check(rig, bl_executor_update(engine, run.id.step, rig->scale, 1e-3, &err), &err, "update");
}

static void *sit(void *argument) {
  seat_t *seat = argument;
  rig_t *rig = seat->rig;
  char path[96];
  snprintf(path, sizeof path, "%s/%u.data", rig->folder, seat->stage);
  bl_engine_options_t options = {.job = rig->job,
                                 .job_bytes = strlen(rig->job),
                                 .stage = seat->stage,
                                 .first_core = -1,
                                 .unix_path = path,
                                 .tcp_host = "127.0.0.1"};
  bl_error_t err = {0};
  check(rig, bl_engine_create(&options, &rig->engines[seat->stage], &err), &err, "engine");
  bl_engine_t *engine = rig->engines[seat->stage];
  check(rig, bl_vote_init(&rig->votes[seat->stage], MICRO_BATCHES, engine->parameter_count), &err, "vote");
  pthread_barrier_wait(&rig->barrier);
  connect(rig, seat->stage);
  bl_executor_plan_t *plan = make_plan(rig, engine);
  uint64_t attempt = 0;
  for (int step = 0; step < STEPS; step++) {
    run_step(rig, seat->stage, plan, step, &attempt);
  }
  const bl_stage_counters_t *counters = &rig->votes[seat->stage].counters;
  assert_int_equal(counters->peak_slots, plan->stage.slots);
  assert_int_equal(counters->peak_slot_bytes, plan->stage.slots * engine->slot_bytes);
  assert_int_equal(counters->lost + counters->dropped + counters->recomputed, 0); // of balancing, and there is none
  rig->outcome.peak_slots[seat->stage] = counters->peak_slots;
  if (seat->stage == 0) {
    rig->outcome.slot_bytes = engine->training.stages[0].slot_bytes;
    rig->outcome.arena_bytes = engine->slots.bytes;
  }
  pthread_barrier_wait(&rig->barrier);
  bl_executor_plan_destroy(plan);
  bl_vote_cleanup(&rig->votes[seat->stage]);
  bl_engine_destroy(engine);
  return NULL;
}

static outcome_t train(setting_t setting) {
  rig_t *rig = calloc(1, sizeof *rig);
  assert_non_null(rig);
  rig->setting = setting;
  snprintf(rig->folder, sizeof rig->folder, "/tmp/ballast-run-test-XXXXXX");
  assert_non_null(mkdtemp(rig->folder));
  snprintf(rig->job, sizeof rig->job,
           "model: {init: '%s/tests/golden/%s', seq: 16}\n"
           "data: {train: '%s/tests/golden/%s/tokens.bin', format: bin, order: sequential}\n"
           "train: {steps: 3, micro_batch: 2, micro_batches: %d, lr: 1.0e-3}\n"
           "pipeline: {stages: %u, schedule: %s, attention: %s, recompute: %s, threads: 1}\n",
           BALLAST_SOURCE_DIR, setting.model, BALLAST_SOURCE_DIR, setting.model, MICRO_BATCHES, setting.stages,
           setting.schedule, setting.attention, setting.recompute);
  pthread_barrier_init(&rig->barrier, NULL, setting.stages);
  pthread_t threads[STAGES_MAX];
  seat_t seats[STAGES_MAX];
  for (uint32_t i = 0; i < setting.stages; i++) {
    seats[i] = (seat_t){.rig = rig, .stage = i};
    assert_int_equal(pthread_create(&threads[i], NULL, sit, &seats[i]), 0);
  }
  for (uint32_t i = 0; i < setting.stages; i++) {
    pthread_join(threads[i], NULL);
  }
  pthread_barrier_destroy(&rig->barrier);
  assert_int_equal(rmdir(rig->folder), 0); // sockets are gone
  outcome_t outcome = rig->outcome;
  free(rig);
  return outcome;
}

static void expect_same(const setting_t *setting, const outcome_t *expected, const outcome_t *found) {
  for (int step = 0; step < STEPS; step++) {
    if (found->losses[step] != expected->losses[step] || found->norms[step] != expected->norms[step]) {
      fail_msg(
          "%s, %u stages, %s, %s, %s, recompute %s, step %d: loss %.17g and norm %.17g, on one stage %.17g and %.17g",
          setting->model, setting->stages, setting->schedule, bl_path_name(setting->path), setting->attention,
          setting->recompute, step + 1, found->losses[step], found->norms[step], expected->losses[step],
          expected->norms[step]);
    }
  }
}

static void compare(const char *model, const char *attention) {
  outcome_t first = train((setting_t){model, 1, "gpipe", BL_PATH_AUTO, attention, "none", false});
  assert_true(first.losses[STEPS - 1] < first.losses[0]);
  const setting_t others[] = {
      {model, 1, "1f1b", BL_PATH_AUTO, attention, "none", false},
      {model, 2, "1f1b", BL_PATH_SHM, attention, "none", false},
      {model, 2, "gpipe", BL_PATH_TCP, attention, "none", false},
      {model, 3, "1f1b", BL_PATH_TCP, attention, "none", false},
      {model, 3, "1f1b", BL_PATH_AUTO, attention, "none", true},
      {model, 3, "gpipe", BL_PATH_SHM, attention, "none", false},
      {model, 2, "zb-h1", BL_PATH_AUTO, attention, "none", false},
      {model, 3, "1f1b", BL_PATH_AUTO, attention, "full", true},
      {model, 2, "zb-h1", BL_PATH_AUTO, attention, "attention", false},
      {model, 2, "zb-h1", BL_PATH_AUTO, attention, "full", false},
  };
  for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
    outcome_t other = train(others[i]);
    expect_same(&others[i], &first, &other);
  }
}

// Both kinds of recomputation on 1 to 3 stages: the same bits in less memory.
static void recompute(const char *model, const char *attention) {
  static const char *const kinds[] = {"attention", "full"}, *const schedules[] = {"1f1b", "gpipe"};
  for (uint32_t stages = 1; stages <= STAGES_MAX; stages++) {
    for (int s = 0; s < 2; s++) {
      setting_t setting = {model, stages, schedules[s], BL_PATH_AUTO, attention, "none", false};
      outcome_t kept = train(setting);
      for (int kind = 0; kind < 2; kind++) {
        setting.recompute = kinds[kind];
        outcome_t found = train(setting);
        expect_same(&setting, &kept, &found);
        for (uint32_t i = 0; i < stages; i++) {
          assert_int_equal(found.peak_slots[i], kind == 1 ? 1 : kept.peak_slots[i]);
        }
        assert_int_equal(found.arena_bytes, found.peak_slots[0] * found.slot_bytes);
        assert_true(kind == 1 || found.slot_bytes < kept.slot_bytes);
        assert_true(found.arena_bytes <= kept.arena_bytes);
      }
    }
  }
}

static void recompute_gpt2_naive(void **state) {
  (void)state;
  recompute("gpt2", "naive");
}

static void recompute_gpt2_flash(void **state) {
  (void)state;
  recompute("gpt2", "flash");
}

static void recompute_llama_naive(void **state) {
  (void)state;
  recompute("llama", "naive");
}

static void recompute_llama_flash(void **state) {
  (void)state;
  recompute("llama", "flash");
}

static void gpt2_naive(void **state) {
  (void)state;
  compare("gpt2", "naive");
}

static void gpt2_flash(void **state) {
  (void)state;
  compare("gpt2", "flash");
}

static void llama_flash(void **state) {
  (void)state;
  compare("llama", "flash");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(gpt2_naive),
      cmocka_unit_test(gpt2_flash),
      cmocka_unit_test(llama_flash),
      cmocka_unit_test(recompute_gpt2_naive),
      cmocka_unit_test(recompute_gpt2_flash),
      cmocka_unit_test(recompute_llama_naive),
      cmocka_unit_test(recompute_llama_flash),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
