// SPDX-License-Identifier: Apache-2.0
// Verifies what an optimizer on the host is said to cost, by hand: gradients hide behind the operations that follow
// those which complete them, AdamW and weights that go back behind each other; threads count up to the host's memory;
// and that the planner, where nothing else fits, says what it would give, and plans with it.
#include "plan/evaluate/offload.h"

#include "plan/evaluate/footprint.h"
#include "plan/evaluate/trial.h"
#include "plan/search/planner.h"
#include "schedule/generate.h"

#include "models.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void near_to(double value, double expected) {
  if (!(fabs(value - expected) <= 1e-9 * fabs(expected))) {
    fail_msg("%.12g, expected %.12g", value, expected);
  }
}

// Two stages of which the second has ended long before the first.
static void what_hides_is_not_counted(void **state) {
  (void)state;
  const bl_model_t model = gpt(4, 256, 4);
  const bl_chunk_span_t spans[] = {{.layer_count = 2, .embedding = true},
                                   {.first_layer = 2, .layer_count = 2, .head = true}};
  const bl_schedule_request_t wanted = {.name = "1f1b", .stages = 2, .micro_batches = 4};
  bl_schedule_t *schedule;
  bl_error_t err;
  assert_int_equal(bl_schedule_generate(&wanted, &schedule, &err), BL_OK);
  bl_hardware_t hardware = *bl_hardware_find("a100-80g");
  const bl_trial_request_t request = {.schedule = schedule,
                                      .model = &model,
                                      .spans = spans,
                                      .options = {.micro_batch = 1, .dtype = BL_DTYPE_BF16},
                                      .hardware = &hardware,
                                      .parallel = BL_PARALLEL_NONE,
                                      .optimizer_on_host = true,
                                      .threads = 1};
  const double bytes = bl_footprint_parameters(&model, spans[0]) * sizeof(float); // it has the positions, too
  bl_trial_t trial;
  assert_int_equal(bl_trial_run(&request, &trial, &err), BL_OK);
  assert_int_equal(trial.offload.stage, 0);
  const double link = bytes / hardware.host_rate, adamw = 7 * bytes / BL_HARDWARE_THREAD_RATE;
  const bl_op_list_t *list = &schedule->lists[0];
  const bl_span_t last = trial.simulation.spans[0][list->count - 1];
  const double begun = fmin(last.start + trial.costs[0].input, last.end), done = last.end;
  const bl_chunk_span_t inner = {.layer_count = 2};
  const double layers = bl_footprint_parameters(&model, inner) * sizeof(float) / hardware.host_rate;
  const double landed = fmax(fmax(begun + layers, done + layers / 2), trial.simulation.end[0]) + link - layers; // tied
  near_to(trial.offload.landing, landed - trial.simulation.t_end);
  near_to(trial.offload.update, fmax(adamw, link) + fmin(adamw, link) / 2);
  near_to(trial.offload.link_bytes, 2 * bytes);
  near_to(trial.overhead, trial.offload.landing + trial.offload.update);
  near_to(trial.step, trial.simulation.t_end + trial.overhead);
  bl_offload_request_t one = {.schedule = schedule,
                              .simulation = &trial.simulation,
                              .costs = trial.costs,
                              .model = &model,
                              .spans = spans,
                              .hardware = &hardware,
                              .parallel = BL_PARALLEL_NONE,
                              .threads = 64};
  const double shared = 7 * bytes / hardware.host_memory_rate; // more threads than the memory feeds
  near_to(bl_offload_of(&one).update, fmax(shared, link) + fmin(shared, link) / 2);
  hardware.host_rate = 1e18; // a link that takes no time
  assert_true(bl_offload_of(&one).landing < 1e-9);
  bl_trial_cleanup(&trial);
  bl_schedule_destroy(schedule);
}

// To the byte on our executor; a cluster's by the parameter.
static void footprints_leave_the_device(void **state) {
  (void)state;
  const bl_model_t model = gpt(4, 256, 4);
  const bl_chunk_span_t span = {.layer_count = 2, .embedding = true};
  bl_footprint_request_t request = {
      .stage = {.model = &model, .spans = &span, .span_count = 1, .options = {.micro_batch = 1}, .micro_batches = 4},
      .slots = 1,
      .edges = 2};
  bl_footprint_t device, host;
  assert_int_equal(bl_footprint_of_executor(&request, &device), BL_OK);
  request.stage.optimizer_on_host = true;
  assert_int_equal(bl_footprint_of_executor(&request, &host), BL_OK);
  near_to(bl_footprint_total(&device) - bl_footprint_total(&host), device.optimizer);
  near_to(host.host, 2 * device.optimizer); // masters and gradients that have come beside two moments
  const bl_footprint_t cluster = bl_footprint_of_cluster(&request, bl_hardware_find("h100"), BL_PARALLEL_NONE);
  near_to(cluster.host, 16 * bl_footprint_parameters(&model, span));
  assert_true(cluster.optimizer == 0);
}

static void the_planner_says_what_it_would_give(void **state) {
  (void)state;
  static const uint32_t four[] = {4}, one[] = {1};
  static const char *const schedules[] = {"1f1b"};
  static const bl_attention_t flash[] = {BL_ATTENTION_FLASH};
  const bl_model_t model = gpt(8, 1024, 16);
  const bl_hardware_t mixed = bl_hardware_in(bl_hardware_find("a100-80g"), BL_DTYPE_BF16);
  bl_plan_request_t request = {.model = &model,
                               .batch = 8,
                               .hardware = &mixed,
                               .stages = four,
                               .stage_count = 1,
                               .schedules = schedules,
                               .schedule_count = 1,
                               .micro_batches = one,
                               .micro_batch_count = 1,
                               .attentions = flash,
                               .attention_count = 1,
                               .dtype = BL_DTYPE_BF16,
                               .threads = 4};
  bl_plan_t plan;
  bl_error_t err;
  request.optimizer_on_host = true;
  assert_int_equal(bl_plan_search(&request, &plan, &err), BL_OK);
  const double needed = plan.candidates[0].memory, step = plan.candidates[0].step;
  assert_true(plan.candidates[0].offload.update > 0 && plan.candidates[0].fullest.host > 0);
  bl_plan_cleanup(&plan);
  request.optimizer_on_host = false;
  request.memory = needed;
  assert_int_equal(bl_plan_search(&request, &plan, &err), BL_EXHAUSTED);
  assert_non_null(strstr(err.text, "the smallest limit that works is"));
  assert_non_null(strstr(err.text, ". With train.optimizer_memory: host (--optimizer-memory host) it fits: 1f1b on 4"));
  request.memory = 0; // and it costs time
  assert_int_equal(bl_plan_search(&request, &plan, &err), BL_OK);
  assert_true(plan.candidates[0].step < step && plan.candidates[0].fullest.host == 0);
  bl_plan_cleanup(&plan);
  request.hardware = bl_hardware_find("host"); // of which nothing can leave
  request.memory = needed / 4;
  assert_int_equal(bl_plan_search(&request, &plan, &err), BL_EXHAUSTED);
  assert_null(strstr(err.text, "optimizer_memory"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_hides_is_not_counted),
      cmocka_unit_test(footprints_leave_the_device),
      cmocka_unit_test(the_planner_says_what_it_would_give),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
