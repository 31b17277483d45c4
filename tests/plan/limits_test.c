// SPDX-License-Identifier: Apache-2.0
// Verifies that a plan of one schedule within more memory is no slower: what fits into less memory fits into more, and
// the planner finds it, whether layers move, blocks are parked, dropped or recomputed, or the order keeps fewer.
#include "plan/search/planner.h"

#include "instrumented.h"
#include "models.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const uint32_t one[] = {1};
static const bl_attention_t flash[] = {BL_ATTENTION_FLASH};

static bl_plan_request_t request_of(const bl_model_t *model, uint32_t batch, const uint32_t *stages,
                                    const char *const *schedule) {
  return (bl_plan_request_t){.model = model,
                             .batch = batch,
                             .hardware = bl_hardware_find("host"),
                             .stages = stages,
                             .stage_count = 1,
                             .schedules = schedule,
                             .schedule_count = 1,
                             .micro_batches = one,
                             .micro_batch_count = 1,
                             .attentions = flash,
                             .attention_count = 1};
}

typedef struct sweep {
  const char *schedule;
  uint32_t layers, hidden, stages, batch, limits;
} sweep_t;

// Plans within several limits, from what the plan without one needs down to LEAST of it. No plan may be slower than one
// within less.
#define LEAST 0.45
// What searched orders differ by: every limit has a search of its own.
#define MARGIN 0.005

static void more_is_no_slower(sweep_t of) {
  bl_model_t model = gpt(of.layers, of.hidden, 4);
  model.vocab = 300;
  model.seq = 256;
  bl_plan_request_t request = request_of(&model, of.batch, &of.stages, &of.schedule);
  bl_plan_t plan;
  bl_error_t err;
  if (bl_plan_search(&request, &plan, &err) != BL_OK) {
    fail_msg("%s: %s", of.schedule, err.text);
  }
  const double full = plan.candidates[0].memory;
  double slowest = plan.candidates[0].step, of_slowest = INFINITY; // of all larger limits
  bl_plan_cleanup(&plan);
  for (uint32_t i = 0; i < of.limits; i++) {
    request.memory = floor(full * (1 - (1 - LEAST) * i / of.limits));
    if (bl_plan_search(&request, &plan, &err) != BL_OK) {
      return; // nothing fits into less
    }
    const double step = plan.candidates[0].step;
    bl_plan_cleanup(&plan);
    if (step < slowest * (1 - MARGIN)) {
      fail_msg("%s on %u stages: %.6f s within %.0f bytes, %.6f s within %.0f", of.schedule, of.stages, step,
               request.memory, slowest, of_slowest);
    }
    if (step > slowest) {
      slowest = step;
      of_slowest = request.memory;
    }
  }
}

static void more_memory_is_no_slower(void **state) {
  (void)state;
  static const sweep_t sweeps[] = {
      {"1f1b", 40, 192, 8, 32, 12}, {"1f1b", 20, 192, 5, 16, 12},       {"1f1b", 12, 64, 4, 8, 12},
      {"gpipe", 20, 192, 5, 8, 12}, {"eager-1f1b", 20, 192, 5, 16, 12}, {"interleaved", 20, 192, 5, 10, 12},
      {"zb-h1", 6, 64, 3, 4, 5},    {"zb-v", 4, 64, 2, 4, 5}, // searched, which takes long
  };
  for (size_t i = 0; i < FEW_OR_ALL(2, sizeof sweeps / sizeof sweeps[0]); i++) {
    more_is_no_slower(sweeps[i]);
  }
}

// 1f1b on eight stages fits into 131 MiB a device only with other layers, which make its step 14 % longer; parking
// blocks makes it none longer.
static void parking_is_compared_with_other_layers(void **state) {
  (void)state;
  static const char *const schedule[] = {"1f1b"};
  static const uint32_t eight[] = {8};
  bl_model_t model = gpt(40, 192, 4);
  bl_plan_t plan;
  bl_error_t err;
  model.vocab = 300;
  model.seq = 256;
  bl_plan_request_t request = request_of(&model, 32, eight, schedule);
  assert_int_equal(bl_plan_search(&request, &plan, &err), BL_OK);
  const double free_step = plan.candidates[0].step, full = plan.candidates[0].memory;
  bl_plan_cleanup(&plan);
  request.memory = 0.97 * full;
  assert_int_equal(bl_plan_search(&request, &plan, &err), BL_OK);
  const bl_plan_candidate_t *best = &plan.candidates[0];
  bool moved = false;
  for (uint32_t i = 0; i < plan.fitting; i++) {
    moved = moved || (plan.candidates[i].moved && plan.candidates[i].policy == BL_POLICY_NONE);
  }
  assert_true(moved);
  assert_int_equal(best->policy, BL_POLICY_BPIPE);
  assert_true(best->step < 1.001 * free_step);
  bl_plan_cleanup(&plan);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(more_memory_is_no_slower),
      cmocka_unit_test(parking_is_compared_with_other_layers),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
