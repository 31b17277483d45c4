// SPDX-License-Identifier: Apache-2.0
// Verifies memory of hosts in plans: who shares it and its links, what fits with it alone, that a small one limits what is
// parked, and what plans say where it does not pay.
#include "plan/evaluate/host.h"
#include "plan/search/planner.h"

#include "models.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static bl_host_places_t place(bl_host_t host, const bl_cluster_t *cluster, uint32_t stages, uint32_t tensor,
                              uint32_t data) {
  bl_host_places_t places;
  const bl_parallel_t parallel = {.tensor = tensor, .data = data};
  assert_int_equal(bl_host_places_init(&places, &host, cluster, BL_NODES_SEQUENTIAL, stages, parallel), BL_OK);
  return places;
}

static void assert_links(const bl_host_places_t *places, const uint32_t *links) {
  for (uint32_t s = 0; s < places->stages; s++) {
    assert_int_equal(places->links[s], links[s]);
  }
}

static void stages_of_a_machine_share_its_memory(void **state) {
  (void)state;
  const bl_cluster_t cluster = {.nodes = 2, .devices_per_node = 8}, none = {0};
  const bl_host_t each = {.bytes = 64, .devices_per_link = 1}, pairs = {.bytes = 64, .devices_per_link = 2},
                  all = {.bytes = 64};
  bl_host_places_t places = place(each, &cluster, 8, 2, 1);
  for (uint32_t s = 0; s < 8; s++) {
    assert_int_equal(places.of[s], s / 4);
  }
  assert_true(places.count == 2 && places.planes == 2 && places.sharers == 1);
  assert_links(&places, (const uint32_t[]){0, 1, 2, 3, 4, 5, 6, 7});
  assert_int_equal(bl_host_slots(&each, &places, 4), 8); // two devices of a stage park a part of 4 bytes each
  bl_host_places_cleanup(&places);
  places = place(pairs, &cluster, 16, 1, 1); // two stages at a link
  assert_links(&places, (const uint32_t[]){0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7});
  assert_true(places.planes == 1 && places.sharers == 1);
  bl_host_places_cleanup(&places);
  places = place(pairs, &cluster, 2, 4, 2); // two devices of one stage at a link; two replicas in machines of their own
  assert_true(places.count == 1 && places.planes == 4 && places.sharers == 2);
  bl_host_places_cleanup(&places);
  places = place(all, &cluster, 2, 1, 8); // four replicas on each machine, eight devices at its link
  assert_true(places.count == 1 && places.planes == 4 && places.links == NULL && places.sharers == 4);
  bl_host_places_cleanup(&places);
  places = place(pairs, &none, 4, 1, 1);
  assert_links(&places, (const uint32_t[]){0, 0, 1, 1});
  assert_true(places.count == 1 && places.planes == 1);
  bl_host_places_cleanup(&places);
}

// ---- planner

static const uint32_t four[] = {4}, one[] = {1};
static const bl_attention_t flash[] = {BL_ATTENTION_FLASH};
static const char *const names[] = {"gpipe"};

// Every stage of gpipe keeps all blocks: no device has room for those of another.
static bl_plan_request_t request_of(const bl_model_t *model, double memory, double host_bytes, double host_rate) {
  return (bl_plan_request_t){.model = model,
                             .batch = 16,
                             .memory = memory,
                             .hardware = bl_hardware_find("host"),
                             .host = {.bytes = host_bytes, .rate = host_rate, .devices_per_link = 1},
                             .stages = four,
                             .stage_count = 1,
                             .micro_batches = one,
                             .micro_batch_count = 1,
                             .attentions = flash,
                             .attention_count = 1,
                             .schedules = names,
                             .schedule_count = 1};
}

static bl_model_t small(void) {
  bl_model_t model = gpt(8, 256, 4);
  model.vocab = 256;
  model.seq = 128;
  return model;
}

static const bl_plan_candidate_t *offloaded(const bl_plan_t *plan) {
  for (uint32_t i = 0; i < plan->count; i++) {
    if (plan->candidates[i].policy == BL_POLICY_OFFLOAD && plan->candidates[i].recompute == BL_RECOMPUTE_NONE) {
      return &plan->candidates[i];
    }
  }
  return NULL;
}

static void search(const bl_plan_request_t *request, bl_plan_t *plan) {
  bl_error_t err;
  if (bl_plan_search(request, plan, &err) != BL_OK) {
    fail_msg("%s", err.text);
  }
}

static void the_host_opens_what_fits_nowhere_else(void **state) {
  (void)state;
  const bl_model_t model = small();
  bl_plan_request_t request = request_of(&model, 0, 0, 0);
  bl_plan_t plan;
  search(&request, &plan);
  const double all = plan.candidates[0].memory, step = plan.candidates[0].step;
  bl_plan_cleanup(&plan);
  request = request_of(&model, 0, 1e9, 100e9);
  search(&request, &plan); // no limit: nothing leaves, and the list says why
  assert_null(offloaded(&plan));
  assert_string_equal(plan.rejections[plan.rejection_count - 1].kind, "policy");
  assert_non_null(strstr(plan.why, "Memory of the host is not needed"));
  bl_plan_cleanup(&plan);

  request.memory = 0.8 * all;
  search(&request, &plan);
  const bl_plan_candidate_t *best = &plan.candidates[0];
  assert_int_equal(best->policy, BL_POLICY_OFFLOAD);
  assert_true(best->fits && best->memory <= request.memory && best->evictions > 0);
  assert_true(best->host_bytes > 0 && best->host_bytes <= 1e9);
  assert_true(best->step < 1.02 * step); // on fast links copies hide
  assert_non_null(strstr(plan.why, "Without memory of the host the best, "));
  assert_non_null(strstr(plan.why, "1 combination fits with it alone") != NULL
                      ? plan.why
                      : strstr(plan.why, "hide where a step has as many of them as forwards"));
  const double needed = best->host_bytes;
  bl_plan_cleanup(&plan);

  request.host.bytes = needed / 2; // fewer blocks, or none
  search(&request, &plan);
  const bl_plan_candidate_t *less = offloaded(&plan);
  assert_non_null(less);
  assert_true(!less->fits && strstr(less->why, "the host has room for") != NULL);
  bl_plan_cleanup(&plan);
}

// Slow links cost more than recomputing blocks.
static void slow_links_do_not_pay(void **state) {
  (void)state;
  const bl_model_t model = small();
  bl_plan_request_t request = request_of(&model, 0, 0, 0);
  bl_plan_t plan;
  search(&request, &plan);
  request = request_of(&model, 0.8 * plan.candidates[0].memory, 1e9, 20e6);
  bl_plan_cleanup(&plan);
  search(&request, &plan);
  assert_true(plan.candidates[0].policy != BL_POLICY_OFFLOAD);
  assert_non_null(strstr(plan.why, "Memory of the host does not pay: the best that parks there, gpipe"));
  assert_non_null(strstr(plan.why, "copies do not all hide"));
  bl_plan_cleanup(&plan);
}

// All that devices have is taken by weights: the refusal says that the host is no help.
static void the_host_takes_blocks_alone(void **state) {
  (void)state;
  const bl_model_t model = small();
  const bl_plan_request_t request = request_of(&model, 1e6, 1e9, 0);
  bl_plan_t plan;
  bl_error_t err;
  assert_int_equal(bl_plan_search(&request, &plan, &err), BL_EXHAUSTED);
  assert_non_null(strstr(err.text, "memory of the host takes activation blocks alone: with it "));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(stages_of_a_machine_share_its_memory),
      cmocka_unit_test(the_host_opens_what_fits_nowhere_else),
      cmocka_unit_test(slow_links_do_not_pay),
      cmocka_unit_test(the_host_takes_blocks_alone),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
