// SPDX-License-Identifier: Apache-2.0
#include "driver/driver_world.h"

#include "job/rate.h"

#include "rank_vote.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void require(bl_status_t status, const bl_error_t *err) {
  if (status != BL_OK) {
    fprintf(stderr, "driver world: %s\n", err->text);
    abort();
  }
}

static void too_long(bl_timer_t *timer, void *context) {
  (void)timer;
  const driver_world_t *world = context;
  bl_driver_view_t view = {.phase = "no driver"};
  if (world->driver != NULL) {
    view = bl_driver_look(world->driver);
  }
  fprintf(stderr, "driver world: nothing after %d ms; phase %s, step %lu, waiting for %s\n", WORLD_LIMIT_MS, view.phase,
          (unsigned long)view.step, view.waiting_for);
  abort();
}

static void read_job(driver_world_t *world, unsigned steps, const char *extra) {
  char text[4096];
  int length =
      snprintf(text, sizeof text,
               "model: {family: gpt2, layers: 2, hidden: 8, heads: 2, vocab: 256, seq: 8}\n"
               "data: {train: %s/tests/golden/make_golden.py, format: text, validation: 0.1}\n"
               "train: {steps: %u, micro_batch: 2, micro_batches: 4, lr: 0.01, clip: 1.0, %s}\n"
               "pipeline: {stages: %d, schedule: 1f1b}\n"
               "services: {stages: ['%s', '%s']}\n",
               BALLAST_SOURCE_DIR, steps, extra, WORLD_STAGES, world->stages[0].address, world->stages[1].address);
  bl_job_source_t source = {.file = {.name = "job.yaml", .bytes = text, .size_bytes = (size_t)length, .folder = "/"}};
  bl_error_t err;
  require(bl_job_parse(&world->job, &source, &err), &err);
  require(bl_training_init(&world->training, &world->job, &err), &err);
}

void world_open(driver_world_t *world, unsigned steps, const char *extra) {
  *world = (driver_world_t){0};
  bl_error_t err;
  require(bl_loop_create(&world->loop, &err), &err);
  require(bl_rpc_create(world->loop, &world->rpc, &err), &err);
  require(bl_timer_create(world->loop, too_long, world, &world->limit, &err), &err);
  for (uint32_t i = 0; i < WORLD_STAGES; i++) {
    fake_stage_start(&world->stages[i], world->rpc, &world->training, i, "127.0.0.1:0");
  }
  read_job(world, steps, extra);
}

void world_close(driver_world_t *world) {
  bl_driver_destroy(world->driver);
  for (uint32_t i = 0; i < WORLD_STAGES; i++) {
    fake_stage_kill(&world->stages[i]);
  }
  bl_timer_destroy(world->limit);
  bl_rpc_destroy(world->rpc);
  bl_loop_destroy(world->loop);
  bl_training_cleanup(&world->training);
  bl_job_cleanup(&world->job);
}

// ---- the driver ----------------------------------------------------------------------------------------------------

static void note_step(driver_world_t *world, const bl_step_event_t *event) {
  if (event->step > FAKE_STEPS_MAX) {
    world->contradiction = true;
    return;
  }
  told_step_t *told = &world->steps[event->step];
  world->contradiction =
      world->contradiction || (told->times > 0 && (told->loss != event->loss || told->grad_norm != event->grad_norm ||
                                                   told->policy != event->ran_under.version));
  *told = (told_step_t){.times = told->times + 1,
                        .loss = event->loss,
                        .grad_norm = event->grad_norm,
                        .policy = event->ran_under.version,
                        .unplanned_recomputes = event->unplanned_recomputes};
}

static void changed(void *context) {
  driver_world_t *world = context;
  const bl_event_t *event;
  while (world->driver != NULL &&
         (event = bl_run_journal_after(bl_driver_journal(world->driver), world->seen)) != NULL) {
    world->seen = event->revision;
    if (event->kind == BL_EVENT_STEP) {
      note_step(world, &event->step);
    } else if (event->kind == BL_EVENT_VALIDATION) {
      world->validations[world->validation_count++ % FAKE_STEPS_MAX] = event->validation;
    } else if (event->kind == BL_EVENT_PHASE) {
      snprintf(world->phase, sizeof world->phase, "%s", event->phase->phase);
      snprintf(world->error, sizeof world->error, "%s", event->phase->error);
    }
  }
}

static bool may_commit(void *context, uint64_t *recorder) {
  const driver_world_t *world = context;
  *recorder = 0;
  return world->hold_step == 0 || bl_driver_look(world->driver).step + 1 != world->hold_step;
}

static void ended(int exit_code, void *context) {
  driver_world_t *world = context;
  changed(world);
  world->ended = true;
  world->exit_code = exit_code;
  bl_loop_stop(world->loop);
}

void world_start_driver(driver_world_t *world) {
  bl_driver_options_t options = {
      .rpc = world->rpc,
      .job = &world->job,
      .training = &world->training,
      .own_stages = world->own_stages,
      .linger = world->linger,
      .observer = {.context = world, .changed = changed, .may_commit = may_commit, .ended = ended}};
  bl_error_t err;
  require(bl_driver_create(&options, &world->driver, &err), &err);
  world->seen = 0;
  world->ended = false;
  bl_driver_start(world->driver, "");
}

void world_kill_driver(driver_world_t *world) {
  changed(world);
  bl_driver_destroy(world->driver);
  world->driver = NULL;
}

void world_wait_end(driver_world_t *world) {
  bl_timer_start(world->limit, WORLD_LIMIT_MS, 0);
  while (!world->ended) {
    bl_loop_run(world->loop);
  }
  bl_timer_stop(world->limit);
}

typedef struct waiting {
  driver_world_t *world;
  bool (*holds)(driver_world_t *world);
} waiting_t;

static void look(bl_timer_t *timer, void *context) {
  (void)timer;
  const waiting_t *waiting = context;
  if (waiting->holds(waiting->world)) {
    bl_loop_stop(waiting->world->loop);
  }
}

void world_wait(driver_world_t *world, bool (*holds)(driver_world_t *world)) {
  waiting_t waiting = {world, holds};
  bl_timer_t *poll;
  bl_error_t err;
  require(bl_timer_create(world->loop, look, &waiting, &poll, &err), &err);
  bl_timer_start(poll, 1, 1);
  bl_timer_start(world->limit, WORLD_LIMIT_MS, 0);
  while (!holds(world)) {
    bl_loop_run(world->loop);
  }
  bl_timer_stop(world->limit);
  bl_timer_destroy(poll);
}

void world_assert_complete(const driver_world_t *world) {
  uint64_t steps = (uint64_t)world->job.train.steps;
  assert_false(world->contradiction);
  for (uint64_t step = 1; step <= steps; step++) {
    const told_step_t *told = &world->steps[step];
    double norm = fake_grad_norm(&world->training, step);
    assert_true(told->times >= 1);
    assert_true(told->loss == fake_loss(&world->training, step));
    assert_true(told->grad_norm == norm);
    for (uint32_t s = 0; s < WORLD_STAGES; s++) {
      assert_int_equal(world->stages[s].applied_policy[step - 1], told->policy);
    }
    bl_commit_t expected = {.step = step,
                            .scale = bl_clip_scale(world->job.train.clip, norm),
                            .learning_rate = bl_rate_of_step(&world->job, step)};
    for (uint32_t s = 0; s < WORLD_STAGES; s++) {
      assert_int_equal(world->stages[s].applied_count, steps);
      expected.attempt = world->stages[0].applied[step - 1].attempt;
      assert_true(bl_commit_equal(&world->stages[s].applied[step - 1], &expected));
    }
  }
}
