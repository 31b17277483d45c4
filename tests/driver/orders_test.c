// SPDX-License-Identifier: Apache-2.0
// Verifies what callers are told when they ask for things in any order at any moment of a run that takes checkpoints,
// validates and is restarted: each is answered once, the run ends with a checkpoint of its last step, and nothing is
// left half written. Attempts and plans fail meanwhile, the disk is full for a while, the driver is killed.
#include "base/random.h"
#include "driver/driver_world.h"
#include "instrumented.h"
#include "seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STEPS   6
#define ACTIONS 40

static driver_world_t world;
static char folder[64];

typedef struct orders {
  bl_timer_t *timer;
  uint64_t key, drawn;
  unsigned actions;
  unsigned held, saved, policies; // not answered yet
  bool drawing, tracing, full;    // full: no room for a checkpoint at some time
  unsigned failed_runs;
  char trail[4096];
} orders_t;

static orders_t orders;

static uint64_t draw(uint64_t below) {
  return bl_random_bits(orders.key, orders.drawn++) % below;
}

static void note(const char *what) {
  snprintf(orders.trail + strlen(orders.trail), sizeof orders.trail - strlen(orders.trail), " %s", what);
}

static void held(uint64_t step, void *context) {
  (void)step;
  (void)context;
  assert_true(orders.held > 0);
  orders.held--;
}

static void saved(uint64_t step, const char *path, const bl_error_t *err, void *context) {
  const uint64_t asked_at = (uintptr_t)context;
  if (orders.saved == 0 || (err->status == BL_OK && (step < asked_at || access(path, F_OK) != 0))) {
    fail_msg("step %" PRIu64 ", asked at %" PRIu64 ", %s:%s", step, asked_at, path, orders.trail);
  }
  orders.saved--;
}

static void policy_said(const bl_policy_answer_t *answer, const bl_error_t *err, void *context) {
  (void)answer;
  (void)err;
  (void)context;
  assert_true(orders.policies > 0);
  orders.policies--;
}

static void traced(const bl_stage_trace_t *traces, size_t stages, const bl_error_t *err, void *context) {
  (void)stages;
  (void)context;
  assert_true(orders.tracing);
  orders.tracing = false;
  if (err->status == BL_OK && traces[0].count > 0) {
    assert_int_equal(traces[0].events[0].start_ns, bl_driver_look(world.driver).step);
  }
}

static void drawn(uint32_t token, void *context) {
  (void)token;
  (void)context;
  assert_true(orders.drawing);
}

static void text_done(const bl_error_t *err, void *context) {
  (void)err;
  (void)context;
  assert_true(orders.drawing);
  orders.drawing = false;
}

static void act(void) {
  bl_error_t err;
  switch (draw(orders.actions < ACTIONS ? 15 : 1)) {
  case 0:
  case 1:
    note("continue");
    orders.held++;
    bl_driver_pause(world.driver, false, held, NULL);
    if (orders.actions >= ACTIONS && strcmp(world.phase, "finished") == 0) {
      bl_driver_stop(world.driver);
    }
    break;
  case 2:
    note("pause");
    orders.held++;
    bl_driver_pause(world.driver, true, held, NULL);
    break;
  case 3:
  case 4: {
    note("save");
    const uint64_t at = bl_driver_look(world.driver).step;
    orders.saved++;
    if (bl_driver_checkpoint(world.driver, saved, (void *)(uintptr_t)at, &err) != BL_OK) {
      orders.saved--;
    }
    break;
  }
  case 5: {
    note("policy");
    const bl_policy_request_t request = {.policy = {.kind = BL_POLICY_CAP, .cap = 2 + (uint32_t)draw(3)},
                                         .rollback = draw(4) == 0,
                                         .dry_run = draw(4) == 0};
    orders.policies++;
    bl_driver_set_policy(world.driver, &request, policy_said, NULL);
    break;
  }
  case 6:
    if (!orders.tracing) {
      note("trace");
      orders.tracing = true;
      bl_driver_trace(world.driver, traced, &orders);
    } else {
      note("untrace");
      bl_driver_trace_cancel(world.driver, &orders);
      orders.tracing = false;
    }
    break;
  case 7:
  case 8:
    if (!orders.drawing) {
      const bl_sampling_t text = {
          .tokens = 1 + (uint32_t)draw(12), .drawn = drawn, .done = text_done, .context = &orders};
      note("draw");
      orders.drawing = true;
      orders.drawing = bl_driver_generate(world.driver, &text, &err) == BL_OK && orders.drawing;
    } else {
      note("undraw");
      bl_driver_generate_cancel(world.driver, &orders);
      orders.drawing = false;
    }
    break;
  case 9:
    note("fail");
    if (orders.failed_runs < 2) {
      orders.failed_runs++;
      world.stages[draw(2)].fail_runs = 1;
    }
    break;
  case 10:
    if (world.phase[0] == 'r' || world.phase[0] == 'p') { // running, paused: the first plan is not refused
      note("refuse");
      world.stages[draw(2)].refuse_plans = 1;
    }
    break;
  case 11:
    for (int i = 0; i < WORLD_STAGES; i++) {
      world.stages[i].write_ms = draw(8);
      world.stages[i].run_ms = draw(4);
    }
    break;
  case 12:
    if (draw(4) == 0) {
      note("kill");
      world_kill_driver(&world);
      world.stages[0].refuse_plans = world.stages[1].refuse_plans = 0;
      world.phase[0] = '\0';
      orders.held = orders.saved = orders.policies = 0;
      orders.drawing = orders.tracing = false;
      world_start_driver(&world);
    }
    break;
  case 13:
    note(world.stages[1].write_fails ? "room" : "full");
    world.stages[1].write_fails = !world.stages[1].write_fails;
    orders.full = true;
    break;
  default:
    if (draw(6) == 0) {
      note("stop");
      bl_driver_stop(world.driver);
    }
    break;
  }
  orders.actions++;
}

static void acts(bl_timer_t *timer, void *context) {
  (void)timer;
  (void)context;
  if (!world.ended && draw(3) == 0) {
    act();
  }
}

static void remove_folder(void) {
  char command[128];
  snprintf(command, sizeof command, "rm -rf %s", folder);
  assert_int_equal(system(command), 0);
}

static bool has(const char *part) {
  DIR *stream = opendir(folder);
  assert_non_null(stream);
  bool found = false;
  for (const struct dirent *item; (item = readdir(stream)) != NULL;) {
    found = found || strstr(item->d_name, part) != NULL;
  }
  closedir(stream);
  return found;
}

static void run_once(uint64_t seed) {
  bl_error_t err;
  snprintf(folder, sizeof folder, "/tmp/ballast-orders-XXXXXX");
  assert_non_null(mkdtemp(folder));
  orders = (orders_t){.key = bl_random_key(seed, "orders")};
  char extra[256];
  snprintf(extra, sizeof extra, "validate_every: %u, post_validation: %s}\ncheckpoint: {folder: %s, every: %u",
           (unsigned)draw(4), draw(2) == 0 ? "true" : "false", folder, (unsigned)draw(4));
  world_open(&world, STEPS, extra);
  world.linger = draw(3) == 0;
  for (int i = 0; i < WORLD_STAGES; i++) {
    world.stages[i].fail_status = BL_DATA_LOSS;
  }
  assert_int_equal(bl_timer_create(world.loop, acts, NULL, &orders.timer, &err), BL_OK);
  world_start_driver(&world);
  bl_timer_start(orders.timer, 1, 1);
  world_wait_end(&world);
  bl_timer_destroy(orders.timer);
  const unsigned applied = world.stages[0].applied_count;
  const bool all = orders.held == 0 && orders.saved == 0 && orders.policies == 0 && !orders.drawing && !orders.tracing;
  bl_driver_destroy(world.driver);
  world.driver = NULL;
  char last[32];
  snprintf(last, sizeof last, "step-%06u", applied);
  const bool saves = has(last) || applied == 0;
  bool good = all && !has("partial");
  if (world.exit_code == bl_status_exit_code(BL_EXHAUSTED)) {
    good = good && orders.full && applied == STEPS && !saves;
  } else if (world.exit_code == 0) {
    good = good && applied == STEPS && saves;
  } else {
    const bool early = strstr(world.error, "stopped before the first step") != NULL; // of the last driver
    good = good && world.exit_code == 130 && (saves || early || orders.full);
  }
  if (!good) {
    fail_msg("seed %" PRIu64
             ", exit code %d after step %u, %s, '%s'; not answered: %u held, %u saved, %u policies, text %d, "
             "traces %d; asked:%s",
             seed, world.exit_code, applied, saves ? "saved" : "not saved", world.error, orders.held, orders.saved,
             orders.policies, orders.drawing, orders.tracing, orders.trail);
  }
  world_close(&world);
  remove_folder();
}

static void test_any_order(void **state) {
  (void)state;
  const uint64_t first = test_seed(1);
  for (uint64_t i = 0; i < (test_soak() ? 1000 : FEW_OR_ALL(5, 25)); i++) {
    run_once(first + i);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_any_order)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
