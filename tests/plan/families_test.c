// SPDX-License-Identifier: Apache-2.0
// Verifies what a plan says beside its ranking: of every schedule and every value that was asked for either a candidate
// or what it lacks, in numbers; that all numbers of chunks are tried which were asked for, and more than one without
// asking; and that the reason of the best adds up.
#include "plan/search/planner.h"
#include "schedule/generate.h"

#include "instrumented.h"
#include "models.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const uint32_t one[] = {1}, two[] = {2}, four[] = {4};
static const bl_attention_t flash[] = {BL_ATTENTION_FLASH};

static bl_plan_request_t request_of(const bl_model_t *model, uint32_t batch, const uint32_t *stages) {
  return (bl_plan_request_t){.model = model,
                             .batch = batch,
                             .hardware = bl_hardware_find("host"),
                             .stages = stages,
                             .stage_count = 1,
                             .micro_batches = one,
                             .micro_batch_count = 1,
                             .attentions = flash,
                             .attention_count = 1};
}

static void search(const bl_plan_request_t *request, bl_plan_t *plan) {
  bl_error_t err;
  if (bl_plan_search(request, plan, &err) != BL_OK) {
    fail_msg("%s", err.text);
  }
}

static void lacks(const bl_plan_t *plan, const char *kind, const char *value, const char *why) {
  for (uint32_t i = 0; i < plan->rejection_count; i++) {
    const bl_plan_rejection_t *r = &plan->rejections[i];
    if (strcmp(r->kind, kind) == 0 && strcmp(r->value, value) == 0) {
      if (strstr(r->why, why) == NULL) {
        fail_msg("%s %s: \"%s\", not \"%s\"", kind, value, r->why, why);
      }
      return;
    }
  }
  fail_msg("%s %s is not among what was not tried", kind, value);
}

static bool is_tried(const bl_plan_t *plan, const char *schedule, uint32_t chunks) {
  for (uint32_t i = 0; i < plan->count; i++) {
    const bl_plan_candidate_t *c = &plan->candidates[i];
    if (strcmp(c->schedule, schedule) == 0 && (chunks == 0 || c->chunks == chunks)) {
      return true;
    }
  }
  return false;
}

// Four layers on four stages: nothing with two chunks a stage can be.
static void every_schedule_is_tried_or_says_what_it_lacks(void **state) {
  (void)state;
  const bl_model_t model = gpt(4, 64, 4);
  const bl_plan_request_t request = request_of(&model, FEW_OR_ALL(4, 8), four);
  bl_plan_t plan;
  search(&request, &plan);
  size_t count;
  const bl_schedule_info_t *infos = bl_schedule_infos(&count);
  for (size_t i = 0; i < count; i++) {
    if (infos[i].not_planned != NULL) {
      lacks(&plan, "schedule", infos[i].name, infos[i].not_planned);
    } else if (infos[i].default_chunks == 2) {
      lacks(&plan, "schedule", infos[i].name,
            "needs 2 chunks on each of 4 stages, 8 in all, and the model has 4 layers");
    } else {
      assert_true(is_tried(&plan, infos[i].name, 1));
    }
  }
  bl_plan_cleanup(&plan);
}

static void values_that_were_asked_for_say_what_they_lack(void **state) {
  (void)state;
  static const char *const names[] = {"dualpipe-v", "1f1b"};
  static const uint32_t stages[] = {2, 64}, micro_batches[] = {1, 2};
  const bl_model_t model = gpt(8, 64, 4);
  bl_plan_request_t request = request_of(&model, 3, stages);
  request.slices = one; // in two, there are twice as many units
  request.slice_count = 1;
  request.stage_count = 2;
  request.micro_batches = micro_batches;
  request.micro_batch_count = 2;
  request.schedules = names;
  request.schedule_count = 2;
  bl_plan_t plan;
  search(&request, &plan);
  lacks(&plan, "schedule", "dualpipe-v", "needs at least 4 micro-batches on 2 stages, not 3");
  lacks(&plan, "micro-batch", "2", "a batch of 3 sequences cannot be cut into micro-batches of 2");
  lacks(&plan, "stages", "64", "64 stages are more than the model's 8 layers");
  assert_int_equal(plan.rejection_count, 3);
  bl_plan_cleanup(&plan);
  static const uint32_t tensors[] = {1, 3, 8};
  request = request_of(&model, 4, two);
  request.schedules = &names[1];
  request.schedule_count = 1;
  request.hardware = bl_hardware_find("a100-80g");
  request.cluster = (bl_cluster_t){.nodes = 1, .devices_per_node = 8, .intra_rate = 300e9, .inter_rate = 25e9};
  request.tensors = tensors;
  request.tensor_count = 3;
  search(&request, &plan);
  lacks(&plan, "tensor", "3", "3 does not divide the 8 devices of a node");
  lacks(&plan, "tensor", "8", "8 does not divide the model's 4 heads");
  bl_plan_cleanup(&plan);
  bl_error_t err;
  request = request_of(&model, 3, two);
  request.slices = one;
  request.slice_count = 1;
  request.schedules = names;
  request.schedule_count = 1;
  assert_int_equal(bl_plan_search(&request, &plan, &err), BL_INVALID);
  assert_non_null(strstr(err.text, "schedule dualpipe-v: needs at least 4 micro-batches"));
}

static void chunks_are_for_choosing(void **state) {
  (void)state;
  static const char *const names[] = {"interleaved", "1f1b", "v-half"};
  static const uint32_t wanted[] = {3, 6, 9};
  const bl_model_t model = gpt(12, 64, 4);
  bl_plan_request_t request = request_of(&model, 4, two);
  request.schedules = names;
  request.schedule_count = 3;
  bl_plan_t plan;
  search(&request, &plan);
  for (uint32_t v = 2; v <= 8; v++) { // five do not divide six layers a stage
    assert_int_equal(is_tried(&plan, "interleaved", v), v != 5 && v <= 6);
  }
  assert_int_equal(plan.rejection_count, 0);
  bl_plan_cleanup(&plan);
  request.chunks = wanted;
  request.chunk_count = 3;
  search(&request, &plan);
  assert_true(is_tried(&plan, "interleaved", 3) && is_tried(&plan, "interleaved", 6));
  assert_false(is_tried(&plan, "interleaved", 2) || is_tried(&plan, "1f1b", 0) || is_tried(&plan, "v-half", 0));
  lacks(&plan, "schedule", "interleaved, 9 chunks", "9 chunks on each of 2 stages, 18 in all");
  lacks(&plan, "schedule", "1f1b", "has 1 chunk a stage, not 3");
  lacks(&plan, "schedule", "v-half", "has 2 chunks a stage, not 3");
  lacks(&plan, "chunks", "9", "9 chunks on each of 2 stages are 18, and the model has 12 layers");
  bl_plan_cleanup(&plan);
}

static void room_is_said_in_bytes(void **state) {
  (void)state;
  static const char *const names[] = {"1f1b"};
  static const uint32_t micro_batches[] = {1, 16};
  bl_model_t model = gpt(4, 64, 4);
  model.vocab = 256;
  bl_plan_request_t request = request_of(&model, 16, two);
  request.schedules = names;
  request.schedule_count = 1;
  request.micro_batches = micro_batches;
  request.micro_batch_count = 2;
  bl_plan_t plan;
  search(&request, &plan);
  request.memory = 1.05 * plan.candidates[0].memory;
  bl_plan_cleanup(&plan);
  search(&request, &plan);
  bool said = false;
  for (uint32_t i = plan.fitting; i < plan.count; i++) {
    const char *why = plan.candidates[i].why;
    said = said || (strstr(why, "not one activation block of ") != NULL && strstr(why, "iB of weights") != NULL);
  }
  assert_true(said);
  bl_plan_cleanup(&plan);
}

static void why_it_is_the_best_is_said(void **state) {
  (void)state;
  static const char *const names[] = {"1f1b", "gpipe"};
  bl_model_t model = gpt(8, 256, 4);
  model.vocab = 256;
  model.seq = 128;
  bl_plan_request_t request = request_of(&model, 8, four);
  request.schedules = names;
  request.schedule_count = 2;
  bl_plan_t plan;
  search(&request, &plan);
  printf("%s\n", plan.why);
  const bl_plan_candidate_t *best = &plan.candidates[0];
  char starts[64];
  snprintf(starts, sizeof starts, "%s takes %.4g s a step", best->schedule, best->step);
  assert_int_equal(strncmp(plan.why, starts, strlen(starts)), 0);
  assert_non_null(strstr(plan.why, "The best of another schedule, "));
  assert_non_null(strstr(plan.why, "What it loses most by is the bubble"));
  assert_non_null(strstr(plan.why, "memory is not limited"));
  assert_true(best->recompute_share == 0 && best->transfers == 0 && best->overhead > 0 && best->overhead < best->step);
  request.memory = 0.9 * best->memory;
  bl_plan_cleanup(&plan);
  search(&request, &plan);
  printf("%s\n", plan.why);
  assert_non_null(strstr(plan.why, "memory limits it"));
  bool recomputes = false;
  for (uint32_t i = 0; i < plan.fitting; i++) {
    recomputes = recomputes || (plan.candidates[i].recompute_share > 0 && plan.candidates[i].recompute_share < 1);
  }
  assert_true(recomputes);
  bl_plan_cleanup(&plan);
  static const char *const alike[] = {"v-half", "v-min"}; // one search on two stages: neither is behind the other
  request.schedules = alike;
  request.stages = two;
  request.memory = 0;
  search(&request, &plan);
  printf("%s\n", plan.why);
  assert_non_null(strstr(plan.why, "takes as long in as much memory: "));
  bl_plan_cleanup(&plan);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_schedule_is_tried_or_says_what_it_lacks),
      cmocka_unit_test(values_that_were_asked_for_say_what_they_lack),
      cmocka_unit_test(chunks_are_for_choosing),
      cmocka_unit_test(room_is_said_in_bytes),
      cmocka_unit_test(why_it_is_the_best_is_said),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
