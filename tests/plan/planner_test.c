// SPDX-License-Identifier: Apache-2.0
// Verifies nodes, by hand, and the planner: that what is ranked first is feasible and fastest, that a limit which
// the refusal names works and a smaller one does not, and that published models are planned.
#include "plan/candidate/nodes.h"
#include "plan/search/planner.h"

#include "schedule/generate.h"

#include "instrumented.h"
#include "models.h"
#include "same_order.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

// ---- nodes

static bl_nodes_t place(const bl_cluster_t *cluster, bl_node_order_t order, uint32_t stages, uint32_t tensor) {
  bl_nodes_t nodes;
  assert_int_equal(bl_nodes_init(&nodes, cluster, order, stages, tensor), BL_OK);
  return nodes;
}

static void assert_numbers(const uint32_t *numbers, const uint32_t *expected, size_t count) {
  for (size_t i = 0; i < count; i++) {
    assert_int_equal(numbers[i], expected[i]);
  }
}

static void pairs_and_neighbours_share_nodes(void **state) {
  (void)state;
  const bl_cluster_t cluster = {.nodes = 2, .devices_per_node = 8, .intra_rate = 300, .inter_rate = 25};
  bl_nodes_t neighbours = place(&cluster, BL_NODES_SEQUENTIAL, 4, 4);
  assert_numbers(neighbours.nodes, (const uint32_t[]){0, 0, 1, 1}, 4);
  assert_numbers(neighbours.nics, (const uint32_t[]){0, 1, 2, 3}, 4);
  assert_true(neighbours.near_rate == 300 && neighbours.far_rate == 25 && bl_nodes_spread(&neighbours));
  bl_nodes_t pairs = place(&cluster, BL_NODES_PAIR_ADJACENT, 4, 4);
  assert_numbers(pairs.nodes, (const uint32_t[]){0, 1, 1, 0}, 4);
  assert_numbers(pairs.nics, (const uint32_t[]){0, 2, 3, 1}, 4);
  bl_nodes_t one = place(&cluster, BL_NODES_SEQUENTIAL, 2, 4);
  assert_false(bl_nodes_spread(&one));
  bl_nodes_cleanup(&one);
  bl_nodes_cleanup(&pairs);
  bl_nodes_cleanup(&neighbours);
}

// Two NICs for eight devices: one for two stages of two devices, of which each gets half of it when nobody else sends.
static void devices_share_nics(void **state) {
  (void)state;
  bl_cluster_t cluster = {.nodes = 2, .devices_per_node = 8, .nics_per_node = 2, .intra_rate = 300, .inter_rate = 24};
  bl_nodes_t nodes = place(&cluster, BL_NODES_SEQUENTIAL, 8, 2);
  assert_numbers(nodes.nodes, (const uint32_t[]){0, 0, 0, 0, 1, 1, 1, 1}, 8);
  assert_numbers(nodes.nics, (const uint32_t[]){0, 0, 1, 1, 2, 2, 3, 3}, 8);
  assert_true(nodes.far_rate == 12);
  assert_true(bl_cluster_shared_rate(&cluster) == 6);
  bl_nodes_cleanup(&nodes);
  nodes = place(&cluster, BL_NODES_SEQUENTIAL, 2, 8); // a node each: both of its NICs
  assert_numbers(nodes.nics, (const uint32_t[]){0, 1}, 2);
  assert_true(nodes.far_rate == 6);
  bl_nodes_cleanup(&nodes);
  cluster.nics_per_node = 0; // as many as devices
  assert_true(bl_cluster_far_rate(&cluster, 4) == 24 && bl_cluster_shared_rate(&cluster) == 24);
}

// ---- planner

// For tests that look at what whole searches find; sanitizers make those many times slower and see as much in short
// ones.
static void skip_when_instrumented(void) {
  if (INSTRUMENTED) {
    skip();
  }
}

static const uint32_t four[] = {4};
static const char *const names[] = {"gpipe", "1f1b", "interleaved", "zb-h1"};

static bl_plan_request_t small_request(const bl_model_t *model, double memory) {
  return (bl_plan_request_t){.model = model,
                             .batch = 16,
                             .memory = memory,
                             .hardware = bl_hardware_find("host"),
                             .stages = four,
                             .stage_count = 1,
                             .schedules = names,
                             .schedule_count = 4};
}

// One schedule alone, on three stages.
static bl_plan_request_t request_of(const bl_model_t *model, double memory, const char *const *schedule) {
  static const uint32_t one[] = {1}, three[] = {3};
  static const bl_attention_t flash[] = {BL_ATTENTION_FLASH};
  bl_plan_request_t request = small_request(model, memory);
  request.batch = 4;
  request.stages = three;
  request.schedules = schedule;
  request.schedule_count = 1;
  request.micro_batches = one;
  request.micro_batch_count = 1;
  request.attentions = flash;
  request.attention_count = 1;
  return request;
}

static void ranking_holds(const bl_plan_t *plan, double memory) {
  for (uint32_t i = 0; i < plan->count; i++) {
    const bl_plan_candidate_t *c = &plan->candidates[i];
    assert_int_equal(c->fits, i < plan->fitting);
    if (c->fits) {
      assert_true(memory <= 0 || c->memory <= memory);
      assert_true(c->step > 0 && c->step >= plan->candidates[0].step);
    } else {
      assert_true(c->why[0] != '\0');
    }
  }
}

// Where nothing has to be made again, what it would cost is shown of the best candidate: no more than a forward for
// every backward. Before, hopeless candidates alone were tried, at several times that.
static void recomputing_costs_what_it_adds(const bl_plan_t *plan) {
  const bl_plan_candidate_t *best = &plan->candidates[0], *full = NULL;
  for (uint32_t i = 0; i < plan->count && full == NULL; i++) {
    full = plan->candidates[i].recompute == BL_RECOMPUTE_FULL ? &plan->candidates[i] : NULL;
  }
  assert_non_null(full);
  assert_true(full->step > best->step && full->step < 1.35 * best->step);
}

static void limits_decide_what_is_kept(void **state) {
  (void)state;
  bl_model_t model = gpt(8, 256, 4);
  model.vocab = 256;
  model.seq = 128;
  bl_plan_t plan;
  bl_error_t err;
  bl_plan_request_t request = small_request(&model, 0);
  request.schedule_count = 3; // the last one is searched, which takes long
  assert_int_equal(bl_plan_search(&request, &plan, &err), BL_OK);
  assert_int_equal(plan.fitting, plan.count); // nothing limits: nothing evicts
  ranking_holds(&plan, 0);
  for (uint32_t i = 0; i < plan.count; i++) {
    assert_int_equal(plan.candidates[i].policy, BL_POLICY_NONE);
  }
  assert_int_equal(plan.candidates[0].recompute, BL_RECOMPUTE_NONE);
  recomputing_costs_what_it_adds(&plan);
  bl_plan_cleanup(&plan);
  bool evicted = false, recomputed = false, dropped = false, automatic = false;
  for (double memory = 16e6; memory < 60e6; memory += FEW_OR_ALL(12e6, 4e6)) {
    request.memory = memory;
    if (bl_plan_search(&request, &plan, &err) == BL_OK) {
      ranking_holds(&plan, memory);
      for (uint32_t i = 0; i < plan.fitting; i++) {
        const bl_plan_candidate_t *c = &plan.candidates[i];
        evicted = evicted || c->evictions > 0;
        recomputed = recomputed || c->recompute == BL_RECOMPUTE_FULL;
        dropped = dropped || (c->policy == BL_POLICY_DROP && c->dropped > 0 && c->evictions == 0);
        if (c->policy == BL_POLICY_AUTO) { // the best that moves blocks or gives them up
          automatic = true;
          for (uint32_t k = 0; k < plan.fitting; k++) {
            assert_true(plan.candidates[k].policy == BL_POLICY_NONE || plan.candidates[k].step >= c->step);
          }
        }
      }
      bl_plan_cleanup(&plan);
    }
  }
  assert_true(evicted && recomputed && dropped && automatic);
}

// The order of the best is what its costs give, as a job's run makes it, with and without nodes; they are written with
// six digits; and they matter: the head makes the last stage slower.
static void the_best_is_what_its_costs_give(void **state) {
  (void)state;
  skip_when_instrumented();
  static const char *const searched[] = {"zb-h1", "adaptive"};
  static const uint32_t one[] = {1}, two[] = {2};
  bl_model_t model = gpt(11, 256, 4);
  const bl_attention_t flash = BL_ATTENTION_FLASH;
  uint32_t moved = 0;
  for (size_t k = 0; k < 4; k++) {
    bl_plan_request_t request = small_request(&model, 0);
    bl_plan_t plan;
    bl_error_t err;
    bl_schedule_t *made[2];
    request.batch = 8;
    request.schedules = &searched[k / 2];
    request.schedule_count = 1;
    request.micro_batches = two;
    request.micro_batch_count = 1;
    request.stages = two;
    request.attentions = &flash;
    request.attention_count = 1;
    if (k % 2 == 1) {
      request.hardware = bl_hardware_find("a100-80g");
      request.cluster = (bl_cluster_t){.nodes = 2, .devices_per_node = 1, .intra_rate = 300e9, .inter_rate = 3e9};
      request.tensors = one;
      request.tensor_count = 1;
    }
    if (bl_plan_search(&request, &plan, &err) != BL_OK) {
      fail_msg("%s: %s", searched[k / 2], err.text);
    }
    const bl_plan_candidate_t *best = &plan.candidates[0];
    assert_true(best->exact && best->operations != NULL && best->boundary > 0);
    for (uint32_t v = 0; v < best->stages * best->chunks; v++) {
      char text[32];
      snprintf(text, sizeof text, "%.6g", best->costs[v].forward);
      assert_true(best->costs[v].forward > 0 && strtod(text, NULL) == best->costs[v].forward);
    }
    const bl_costs_t costs = {.chunks = best->costs, .boundary = best->boundary};
    for (int known = 0; known < 2; known++) {
      bl_schedule_request_t recompute_share = {.name = best->schedule,
                                               .stages = best->stages,
                                               .micro_batches = best->micro_batches,
                                               .chunks = best->chunks,
                                               .slices = best->slices,
                                               .memory = (double)best->slots / (best->chunks * best->slices),
                                               .costs = known ? &costs : NULL,
                                               .keep_placement = true};
      assert_int_equal(bl_schedule_generate(&recompute_share, &made[known], &err), BL_OK);
    }
    assert_true(same_order(best->operations, made[1]));
    moved += !same_order(best->operations, made[0]);
    bl_schedule_destroy(made[0]);
    bl_schedule_destroy(made[1]);
    bl_plan_cleanup(&plan);
  }
  assert_true(moved >= 2);
}

// Under a limit that the schedule's own order exceeds, orders are searched within the slots that fit: faster than
// recomputing, and those that a job with memory.slots makes.
static void limits_reach_the_search(void **state) {
  (void)state;
  skip_when_instrumented();
  static const char *const searched[] = {"zb-h1", "adaptive"};
  static const uint32_t two[] = {2};
  const bl_attention_t flash = BL_ATTENTION_FLASH;
  bl_model_t model = gpt(8, 192, 6);
  bl_plan_t plan;
  bl_error_t err;
  model.vocab = 256;
  model.seq = 128;
  bl_plan_request_t request = small_request(&model, 0);
  request.batch = 10;
  request.schedules = searched;
  request.schedule_count = 1;
  request.micro_batches = two;
  request.micro_batch_count = 1;
  request.attentions = &flash;
  request.attention_count = 1;
  assert_int_equal(bl_plan_search(&request, &plan, &err), BL_OK);
  assert_int_equal(plan.candidates[0].slots, 0);
  request.memory = 0.9 * plan.candidates[0].memory;
  bl_plan_cleanup(&plan);
  assert_int_equal(bl_plan_search(&request, &plan, &err), BL_OK);
  ranking_holds(&plan, request.memory);
  assert_int_equal(plan.candidates[0].recompute, BL_RECOMPUTE_NONE);
  const bl_plan_candidate_t *alone = NULL;
  for (uint32_t i = 0; i < plan.fitting && alone == NULL; i++) {
    const bl_plan_candidate_t *c = &plan.candidates[i];
    alone = c->policy == BL_POLICY_NONE && c->recompute == BL_RECOMPUTE_NONE && c->limit == BL_PLAN_LIMIT_FITTING
                ? c
                : NULL;
  }
  assert_non_null(alone);
  assert_true(alone->exact && alone->slots > 0 && alone->slots < 4);
  const bl_costs_t costs = {.chunks = alone->costs, .boundary = alone->boundary};
  bl_schedule_request_t recompute_share = {.name = alone->schedule,
                                           .stages = alone->stages,
                                           .micro_batches = alone->micro_batches,
                                           .memory = alone->slots,
                                           .costs = &costs,
                                           .keep_placement = true};
  bl_schedule_t *made;
  assert_int_equal(bl_schedule_generate(&recompute_share, &made, &err), BL_OK);
  assert_true(same_order(alone->operations, made));
  bl_schedule_destroy(made);
  bl_plan_cleanup(&plan);
  request.memory = 1e6; // the smallest that works is that of the fewest slots
  for (size_t k = 0; k < 2; k++) {
    request.schedules = &searched[k];
    assert_int_equal(bl_plan_search(&request, &plan, &err), BL_EXHAUSTED);
    if (strstr(err.text, k == 0 ? "memory.slots 1" : "memory.slots 2") == NULL) {
      fail_msg("%s: %s", searched[k], err.text);
    }
  }
}

static bl_schedule_t *made_by_job(const bl_plan_candidate_t *c) {
  const bl_costs_t costs = {.chunks = c->costs, .boundary = c->boundary};
  const bl_schedule_request_t request = {.name = c->schedule,
                                         .stages = c->stages,
                                         .micro_batches = c->micro_batches,
                                         .chunks = c->chunks,
                                         .group = c->group,
                                         .memory = (double)c->slots / c->chunks,
                                         .costs = &costs,
                                         .pooled = c->policy == BL_POLICY_BPIPE || c->policy == BL_POLICY_CAP,
                                         .keep_placement = true};
  bl_schedule_t *made;
  bl_error_t err;
  if (bl_schedule_generate(&request, &made, &err) != BL_OK) {
    fail_msg("%s: %s", c->schedule, err.text);
  }
  return made;
}

// Room that a schedule's own limit leaves is used where that is faster, smaller groups are tried where p of them do not
// fit, and what is given up may be that of an order within more slots than fit: all as a job makes it.
static void limits_and_groups_are_chosen(void **state) {
  (void)state;
  skip_when_instrumented();
  static const char *const searched[] = {"zb-v", "grouped-interleaved"};
  bl_model_t model = gpt(8, 96, 4);
  bool seen[2] = {false}, larger = false, overhead = false;
  model.vocab = 512;
  model.seq = 256;
  for (size_t k = 0; k < 2; k++) {
    bl_plan_request_t request = request_of(&model, 0, &searched[k]);
    bl_plan_t plan;
    bl_error_t err;
    assert_int_equal(bl_plan_search(&request, &plan, &err), BL_OK);
    const bl_plan_candidate_t *best = &plan.candidates[0];
    const double full = best->memory, blocks = best->fullest.activations;
    larger = larger || best->limit == BL_PLAN_LIMIT_LARGER;
    assert_true(best->limit != BL_PLAN_LIMIT_LARGER || best->slots > 4);
    bl_plan_cleanup(&plan);
    request.memory = full - (k == 0 ? 0.5 : 0.3) * blocks;
    if (bl_plan_search(&request, &plan, &err) == BL_OK) {
      ranking_holds(&plan, request.memory);
      for (uint32_t r = 0; r < plan.fitting; r++) {
        const bl_plan_candidate_t *c = &plan.candidates[r];
        seen[0] = seen[0] || (c->group > 0 && c->group < 3);
        seen[1] = seen[1] || c->limit == BL_PLAN_LIMIT_FITTING;
        overhead = overhead || c->limit == BL_PLAN_LIMIT_BETWEEN;
        assert_true(c->limit != BL_PLAN_LIMIT_BETWEEN || (c->policy >= BL_POLICY_DROP && c->cap <= c->slots));
      }
      best = &plan.candidates[0];
      if (best->policy == BL_POLICY_NONE && best->recompute != BL_RECOMPUTE_FULL) {
        bl_schedule_t *made = made_by_job(best);
        assert_true(same_order(best->operations, made));
        bl_schedule_destroy(made);
      }
      bl_plan_cleanup(&plan);
    }
  }
  if (!seen[0] || !seen[1] || !larger || !overhead) {
    fail_msg("smaller groups %d, fewer slots %d, more slots %d, in between %d", seen[0], seen[1], larger, overhead);
  }
}

// Blocks from R on are limited of every schedule that is searched: a limit in which only few of them fit.
static void recomputed_blocks_are_limited(void **state) {
  (void)state;
  static const char *const searched[] = {"v-half"};
  bl_model_t model = gpt(6, 64, 4);
  bl_plan_t plan;
  bl_error_t err;
  model.vocab = 256;
  model.seq = 256;
  bl_plan_request_t request = request_of(&model, 1e6, searched);
  request.batch = 3;
  assert_int_equal(bl_plan_search(&request, &plan, &err), BL_EXHAUSTED);
  assert_non_null(strstr(err.text, "recompute full"));
  assert_non_null(strstr(err.text, "memory.slots 1"));
  const char *at = strstr(err.text, "(");
  assert_non_null(at);
  request.memory = strtod(at + 1, NULL);
  assert_int_equal(bl_plan_search(&request, &plan, &err), BL_OK);
  assert_true(plan.candidates[0].recompute == BL_RECOMPUTE_FULL && plan.candidates[0].slots == 1);
  bl_plan_cleanup(&plan);
}

static void the_smallest_limit_that_works_is_said(void **state) {
  (void)state;
  static const uint32_t two[] = {2};
  bl_model_t model = gpt(8, 256, 4);
  bl_plan_t plan;
  bl_error_t err;
  bl_plan_request_t request = small_request(&model, 1e6);
  request.batch = 8;
  request.schedule_count = FEW_OR_ALL(2, 4); // the last one is searched
  request.micro_batches = two;
  request.micro_batch_count = 1;
  assert_int_equal(bl_plan_search(&request, &plan, &err), BL_EXHAUSTED);
  const char *at = strstr(err.text, "(");
  assert_non_null(at);
  double smallest = strtod(at + 1, NULL);
  request.memory = smallest;
  assert_int_equal(bl_plan_search(&request, &plan, &err), BL_OK);
  bl_plan_cleanup(&plan);
  request.memory = smallest - 1;
  assert_int_equal(bl_plan_search(&request, &plan, &err), BL_EXHAUSTED);
}

// On a cluster the smallest names all of its devices.
static void the_smallest_of_a_cluster_names_its_shape(void **state) {
  (void)state;
  static const char *const schedule[] = {"1f1b"};
  static const uint32_t one[] = {1}, two[] = {2};
  const bl_model_t model = gpt(4, 256, 4);
  bl_plan_t plan;
  bl_error_t err;
  bl_plan_request_t request = {.model = &model,
                               .batch = 4,
                               .memory = 1,
                               .hardware = bl_hardware_find("a100-80g"),
                               .cluster = {.nodes = 1, .devices_per_node = 8, .intra_rate = 300e9, .inter_rate = 25e9},
                               .schedules = schedule,
                               .schedule_count = 1,
                               .stages = two,
                               .stage_count = 1,
                               .tensors = two,
                               .tensor_count = 1,
                               .micro_batches = one,
                               .micro_batch_count = 1};
  assert_int_equal(bl_plan_search(&request, &plan, &err), BL_EXHAUSTED);
  if (strstr(err.text, "1f1b on 2 stages (t 2, p 2, d 2), micro-batch 1") == NULL) {
    fail_msg("%s", err.text);
  }
}

// A candidate that is found within some limit is found within what it needs, and no smaller limit is said to be the
// smallest. One block a stage does for two chunks where the others are made again, and lean ones are smaller.
static void what_a_way_needs_is_a_limit_that_works(void **state) {
  (void)state;
  static const char *const interleaved[] = {"interleaved"};
  static const uint32_t two[] = {2};
  bl_model_t model = gpt(4, 192, 4);
  model.vocab = 256;
  model.seq = 128;
  bl_plan_request_t request = request_of(&model, 1e6, interleaved);
  bl_plan_t plan;
  bl_error_t err;
  request.stages = two;
  assert_int_equal(bl_plan_search(&request, &plan, &err), BL_EXHAUSTED);
  const char *at = strchr(err.text, '(');
  assert_non_null(at);
  const double smallest = strtod(at + 1, NULL);
  for (double limit = smallest; limit < 1.2 * smallest; limit *= 1.01) {
    request.memory = ceil(limit);
    assert_int_equal(bl_plan_search(&request, &plan, &err), BL_OK);
    const double needed = plan.candidates[0].memory;
    bl_plan_cleanup(&plan);
    assert_true(needed >= smallest);
    request.memory = needed;
    if (bl_plan_search(&request, &plan, &err) != BL_OK) {
      fail_msg("found within %.0f, not within its own %.0f: %s", limit, needed, err.text);
    }
    bl_plan_cleanup(&plan);
  }
}

// The orders that candidates are compared with may keep less than those that run, and do with less than what they say.
static void a_limit_that_is_said_works(void **state) {
  (void)state;
  skip_when_instrumented();
  static const struct {
    uint32_t hidden, seq, stages, batch;
    const char *schedule;
  } cases[] = {{64, 512, 4, 4, "interleaved"}, {256, 64, 3, 8, "interleaved"}, {256, 64, 4, 4, "interleaved"},
               {64, 64, 3, 4, "v-half"},       {128, 128, 3, 6, "1f1b"},       {64, 512, 4, 4, "1f1b-v"}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    bl_model_t model = gpt(8, cases[i].hidden, 4);
    model.vocab = 256;
    model.seq = cases[i].seq;
    bl_plan_request_t request = request_of(&model, 1e6, &cases[i].schedule);
    bl_plan_t plan;
    bl_error_t err;
    request.batch = cases[i].batch;
    request.stages = &cases[i].stages;
    request.attention_count = 0;
    assert_int_equal(bl_plan_search(&request, &plan, &err), BL_EXHAUSTED);
    const char *at = strstr(err.text, "works is"), *bytes = at != NULL ? strchr(at, '(') : NULL;
    if (bytes == NULL) {
      fail_msg("%s names no limit: %s", cases[i].schedule, err.text);
      continue;
    }
    request.memory = strtod(bytes + 1, NULL);
    if (bl_plan_search(&request, &plan, &err) != BL_OK) {
      fail_msg("%s on %u stages: the limit of %.0f bytes: %s", cases[i].schedule, cases[i].stages, request.memory,
               err.text);
    }
    assert_true(plan.candidates[0].memory <= request.memory);
    bl_plan_cleanup(&plan);
  }
}

static void impossible_shapes_are_refused(void **state) {
  (void)state;
  bl_model_t model = gpt(3, 64, 4); // 4 stages, 3 layers
  bl_plan_t plan;
  bl_error_t err;
  bl_plan_request_t request = small_request(&model, 0);
  assert_int_equal(bl_plan_search(&request, &plan, &err), BL_INVALID);
  assert_string_equal(err.text, "no candidate can run this: 4 stages are more than its 3 layers");
  static const uint32_t three[] = {3};
  model = gpt(8, 64, 4);
  request.micro_batches = three;
  request.micro_batch_count = 1;
  assert_int_equal(bl_plan_search(&request, &plan, &err), BL_INVALID);
  assert_string_equal(err.text,
                      "no candidate can run this: a batch of 16 sequences is no multiple of a micro-batch of 3");
  request = small_request(&model, 0);
  request.hardware = bl_hardware_find("a100-80g");
  request.cluster = (bl_cluster_t){.nodes = 1, .devices_per_node = 8, .intra_rate = 300e9, .inter_rate = 25e9};
  request.tensors = three;
  request.tensor_count = 1;
  assert_int_equal(bl_plan_search(&request, &plan, &err), BL_INVALID);
  assert_non_null(strstr(err.text, "3 parts of a layer cannot share model.heads, which is 4; 2 parts can"));
  request.tensors = NULL;
  request.tensor_count = 0;
  request.cluster.nodes = 13; // 104 devices and four stages: 13 or 26 replicas
  assert_int_equal(bl_plan_search(&request, &plan, &err), BL_INVALID);
  assert_non_null(strstr(err.text, "fill 13 x 8 devices exactly"));
}

// Our executor has at most 64 copies of the model.
static void no_candidate_has_too_many_replicas(void **state) {
  (void)state;
  static const uint32_t stages[] = {1, 2}, one[] = {1};
  static const char *const schedules[] = {"1f1b"};
  const bl_model_t model = gpt(4, 64, 4);
  bl_plan_t plan;
  bl_error_t err;
  bl_plan_request_t request = small_request(&model, 0);
  request.hardware = bl_hardware_find("host");
  request.cluster = (bl_cluster_t){.nodes = 128, .devices_per_node = 1, .intra_rate = 300e9, .inter_rate = 25e9};
  request.batch = 128;
  request.stages = stages;
  request.stage_count = 2;
  request.micro_batches = one;
  request.micro_batch_count = 1;
  request.schedules = schedules;
  request.schedule_count = 1;
  assert_int_equal(bl_plan_search(&request, &plan, &err), BL_OK);
  assert_true(plan.count > 0);
  for (uint32_t i = 0; i < plan.count; i++) {
    assert_true(plan.candidates[i].parallel.data == 64 && plan.candidates[i].stages == 2);
  }
  bl_plan_cleanup(&plan);
}

// On 6 nodes of 8 A100: fits, keeps the cluster busy, and pairs on one node beat pairs on two, or are as fast where all
// copies hide.
static void published_models_are_planned(void **state) {
  (void)state;
  static const char *const schedules[] = {"1f1b"};
  static const uint32_t tensors[] = {4};
  static const bl_attention_t naive[] = {BL_ATTENTION_NAIVE};
  const bl_model_t models[] = {gpt(80, 9984, 104), gpt(88, 11264, 88), llama_65b()};
  const bl_hardware_t *a100 = bl_hardware_find("a100-80g");
  for (size_t m = 0; m < 3; m++) {
    bl_plan_request_t request = {
        .model = &models[m],
        .batch = 128,
        .memory = 0.92 * a100->memory_bytes,
        .hardware = a100,
        .cluster = {.nodes = m < 2 ? 6 : 4, .devices_per_node = 8, .intra_rate = 300e9, .inter_rate = 25e9},
        .schedules = schedules,
        .schedule_count = 1,
        .tensors = tensors,
        .tensor_count = 1,
        .attentions = naive,
        .attention_count = 1};
    bl_plan_t plan;
    bl_error_t err;
    if (bl_plan_search(&request, &plan, &err) != BL_OK) {
      fail_msg("model %zu: %s", m, err.text);
    }
    ranking_holds(&plan, request.memory);
    double by_order[2] = {INFINITY, INFINITY};
    for (uint32_t i = 0; i < plan.fitting; i++) {
      const bl_plan_candidate_t *c = &plan.candidates[i];
      if (c->policy == BL_POLICY_BPIPE) {
        by_order[c->order] = fmin(by_order[c->order], c->step);
      }
    }
    const bl_plan_candidate_t *best = &plan.candidates[0];
    printf("model %zu: %.2f s, MFU %.1f %%, t %u, p %u, b %u, recompute %s, policy %s\n", m, best->step,
           100 * best->mfu, best->parallel.tensor, best->stages, best->micro_batch, bl_recompute_name(best->recompute),
           bl_policy_kind_name(best->policy));
    assert_true(best->mfu > 0.3 && best->mfu < 0.65);
    assert_true(by_order[BL_NODES_PAIR_ADJACENT] <= 1.001 * by_order[BL_NODES_SEQUENTIAL]);
    bl_plan_cleanup(&plan);
  }
}

// Stages on two nodes, blocks to their pairs on the other one: the fewer NICs, the slower.
static void fewer_nics_are_slower(void **state) {
  (void)state;
  const bl_model_t model = gpt(32, 2048, 16);
  bl_schedule_request_t wanted = {.name = "1f1b", .stages = 8, .micro_batches = 16};
  bl_schedule_t *schedule;
  bl_balance_result_t balanced;
  bl_error_t err;
  bl_chunk_span_t spans[8] = {{0}};
  for (uint32_t s = 0; s < 8; s++) {
    spans[s] = (bl_chunk_span_t){.first_layer = 4 * s, .layer_count = 4, .embedding = s == 0, .head = s == 7};
  }
  assert_int_equal(bl_schedule_generate(&wanted, &schedule, &err), BL_OK);
  assert_int_equal(bl_balance_cap(schedule, 5, true, BL_BALANCE_OVERLAP, &balanced, &err), BL_OK);
  double before = 0, own = 0, near_pairs = 0;
  for (uint32_t nics = 4; nics >= 1; nics /= 2) {
    const bl_cluster_t cluster = {
        .nodes = 2, .devices_per_node = 4, .nics_per_node = nics, .intra_rate = 300e9, .inter_rate = 10e9};
    for (int order = BL_NODES_SEQUENTIAL; order <= BL_NODES_PAIR_ADJACENT; order++) {
      bl_nodes_t nodes = place(&cluster, (bl_node_order_t)order, 8, 1);
      bl_trial_request_t request = {.schedule = balanced.schedule,
                                    .model = &model,
                                    .spans = spans,
                                    .options = {.micro_batch = 1, .attention = BL_ATTENTION_FLASH},
                                    .hardware = bl_hardware_find("a100-80g"),
                                    .nodes = &nodes};
      bl_trial_t trial;
      if (bl_trial_run(&request, &trial, &err) != BL_OK) {
        fail_msg("%s", err.text);
      }
      double waited = 0;
      for (uint32_t s = 0; s < 8; s++) {
        waited += trial.simulation.stalls[s][BL_STALL_NIC];
      }
      printf("%u cards, %s: %.4f s, %.4f s for cards\n", nics, bl_node_order_name((bl_node_order_t)order), trial.step,
             waited);
      if (order == BL_NODES_SEQUENTIAL) {
        assert_true(trial.step >= before);
        before = trial.step;
        own = own > 0 ? own : trial.step; // with a NIC for every device
      } else {
        near_pairs = trial.step;
      }
      bl_trial_cleanup(&trial);
      bl_nodes_cleanup(&nodes);
    }
  }
  assert_true(before > 1.2 * own);
  assert_true(near_pairs < before); // pairs on one node leave the NIC to tensors
  bl_balance_result_cleanup(&balanced);
  bl_schedule_destroy(schedule);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(pairs_and_neighbours_share_nodes),
      cmocka_unit_test(limits_decide_what_is_kept),
      cmocka_unit_test(the_best_is_what_its_costs_give),
      cmocka_unit_test(limits_reach_the_search),
      cmocka_unit_test(limits_and_groups_are_chosen),
      cmocka_unit_test(recomputed_blocks_are_limited),
      cmocka_unit_test(the_smallest_limit_that_works_is_said),
      cmocka_unit_test(the_smallest_of_a_cluster_names_its_shape),
      cmocka_unit_test(what_a_way_needs_is_a_limit_that_works),
      cmocka_unit_test(a_limit_that_is_said_works),
      cmocka_unit_test(impossible_shapes_are_refused),
      cmocka_unit_test(no_candidate_has_too_many_replicas),
      cmocka_unit_test(published_models_are_planned),
      cmocka_unit_test(devices_share_nics),
      cmocka_unit_test(fewer_nics_are_slower),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
