// SPDX-License-Identifier: Apache-2.0
// Verifies plans with sequences in slices: that they are found where memory or the ramps ask for them, and are faster
// than whole ones; that time and memory of the best are those of its operations, counted again from the job that it
// stands for; that the bound that rules candidates out is below their steps; that no candidate has slices that a run
// refuses; and what flags, short sequences and profiles change.
#include "plan/candidate/evaluate.h"
#include "plan/evaluate/demand.h"
#include "plan/search/planner.h"
#include "schedule/generate.h"

#include "models.h"
#include "same_order.h"
#include "seed.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define MIB (1024.0 * 1024.0)

// For tests of whole searches, which sanitizers make many times slower.
static void skip_when_instrumented(void) {
#ifdef __SANITIZE_ADDRESS__
  skip();
#endif
}

static const uint32_t one[] = {1}, four[] = {4};
static const bl_attention_t flash[] = {BL_ATTENTION_FLASH};
static const char *const names[] = {"1f1b", "seq1f1b", "zb-h1", "interleaved"};

// 16,384 tokens; layers as in examples/long.yaml.
static bl_model_t long_model(uint32_t layers) {
  return (bl_model_t){.family = BL_FAMILY_LLAMA,
                      .layers = layers,
                      .hidden = 64,
                      .heads = 4,
                      .kv_heads = 1,
                      .head_dim = 16,
                      .ffn = 192,
                      .vocab = 256,
                      .seq = 16384,
                      .norm_epsilon = 1e-5,
                      .rope.theta = 10000};
}

static bl_plan_request_t request_of(const bl_model_t *model, double memory) {
  return (bl_plan_request_t){.model = model,
                             .batch = 4,
                             .memory = memory,
                             .hardware = bl_hardware_find("host"),
                             .stages = four,
                             .stage_count = 1,
                             .attentions = flash,
                             .attention_count = 1,
                             .schedules = names,
                             .schedule_count = 4};
}

static void search(const bl_plan_request_t *request, bl_plan_t *plan) {
  bl_error_t err;
  if (bl_plan_search(request, plan, &err) != BL_OK) {
    fail_msg("%s", err.text);
  }
}

static bl_plan_request_t whole(bl_plan_request_t request) {
  request.slices = one;
  request.slice_count = 1;
  return request;
}

// ---- they are found

static void slices_are_found_where_they_gain(void **state) {
  (void)state;
  skip_when_instrumented();
  const bl_model_t model = long_model(8);
  static const double limits[] = {0, 300 * MIB, 90 * MIB, 160 * MIB};
  for (size_t i = 0; i < (test_soak() ? 4 : 3); i++) {
    const bl_plan_request_t request = request_of(&model, limits[i]), of_whole = whole(request);
    bl_plan_t plan, other;
    bl_error_t err;
    search(&request, &plan);
    const bl_plan_candidate_t *best = &plan.candidates[0];
    const bl_status_t status = bl_plan_search(&of_whole, &other, &err);
    print_message("%.0f MiB: %s in %u slices, recompute %s, policy %s, %.4g s; whole: %s\n", limits[i] / MIB,
                  best->schedule, best->slices, bl_recompute_name(best->recompute), bl_policy_kind_name(best->policy),
                  best->step, status == BL_OK ? "fits" : err.text);
    assert_true(best->slices > 1);
    assert_true(limits[i] <= 0 || best->memory <= limits[i]);
    if (status == BL_OK) {
      print_message("%s whole: %.4g s\n", other.candidates[0].schedule, other.candidates[0].step);
      assert_true(best->step < 0.98 * other.candidates[0].step);
      for (uint32_t k = 0; k < other.count; k++) {
        assert_int_equal(other.candidates[k].slices, 1);
      }
      assert_non_null(strstr(plan.why, "In whole sequences the best, "));
      bl_plan_cleanup(&other);
    } else { // this limit holds slices alone
      assert_int_equal(i, 2);
      assert_non_null(strstr(err.text, "the smallest limit that works is"));
      assert_non_null(strstr(plan.why, "Whole sequences do not fit"));
    }
    bl_plan_cleanup(&plan);
  }
}

// Slices are tried with the smallest micro-batch of the list that divides the batch.
static void a_micro_batch_that_does_not_divide_hides_none(void **state) {
  (void)state;
  skip_when_instrumented();
  const bl_model_t model = long_model(4);
  static const uint32_t listed[] = {3, 4};
  bl_plan_request_t request = request_of(&model, 0);
  request.batch = 8;
  request.micro_batches = listed;
  request.micro_batch_count = 2;
  request.schedule_count = 2;
  bl_plan_t plan;
  search(&request, &plan);
  assert_true(plan.candidates[0].slices > 1);
  assert_int_equal(plan.candidates[0].micro_batch, 4);
  bl_plan_cleanup(&plan);
}

// The limit that is named in a refusal is one for slices, where they are allowed.
static void the_smallest_limit_is_one_for_slices(void **state) {
  (void)state;
  skip_when_instrumented();
  const bl_model_t model = long_model(4);
  const bl_plan_request_t request = request_of(&model, 12 * MIB), of_whole = whole(request);
  bl_plan_t plan;
  bl_error_t sliced, uncut;
  assert_int_equal(bl_plan_search(&request, &plan, &sliced), BL_EXHAUSTED);
  assert_int_equal(bl_plan_search(&of_whole, &plan, &uncut), BL_EXHAUSTED);
  print_message("%s\n%s\n", sliced.text, uncut.text);
  assert_non_null(strstr(sliced.text, " slices, recompute "));
  assert_null(strstr(uncut.text, " slices, recompute "));
  double least[2];
  const char *texts[] = {sliced.text, uncut.text};
  for (size_t i = 0; i < 2; i++) {
    const char *bytes = strchr(texts[i], '(');
    assert_non_null(bytes);
    assert_int_equal(sscanf(bytes, "(%lf bytes)", &least[i]), 1);
  }
  assert_true(least[0] < 0.5 * least[1]);
}

// ---- they are what the job does

static bl_layout_options_t options_of(const bl_plan_candidate_t *c) {
  return (bl_layout_options_t){.micro_batch = c->micro_batch,
                               .slices = c->slices,
                               .attention = c->attention,
                               .recompute = c->recompute,
                               .backward = bl_schedule_info_find(c->schedule)->splits_backward ? BL_BACKWARD_SPLIT
                                                                                               : BL_BACKWARD_FUSED,
                               .lean = c->lean};
}

static void fill_spans(const bl_plan_candidate_t *c, bl_chunk_span_t *spans) {
  const uint32_t chunks = c->stages * c->chunks;
  for (uint32_t v = 0, first = 0; v < chunks; first += c->layers[v], v++) {
    spans[v] = (bl_chunk_span_t){
        .first_layer = first, .layer_count = c->layers[v], .embedding = v == 0, .head = v + 1 == chunks};
  }
}

// Makes the order as a job with these keys does (lib/job/order.c).
static bl_schedule_t *order_of(const bl_plan_candidate_t *c) {
  const bl_costs_t costs = {.chunks = c->costs, .boundary = c->boundary};
  bl_schedule_request_t request = {.name = c->schedule,
                                   .stages = c->stages,
                                   .micro_batches = c->micro_batches,
                                   .chunks = c->chunks,
                                   .slices = c->slices,
                                   .recompute = c->recompute == BL_RECOMPUTE_FULL,
                                   .costs = &costs,
                                   .keep_placement = true};
  *(request.recompute ? &request.slots : &request.memory) = (double)c->slots / (c->chunks * c->slices);
  bl_schedule_t *made;
  bl_error_t err;
  if (bl_schedule_generate(&request, &made, &err) != BL_OK) {
    fail_msg("%s", err.text);
  }
  return made;
}

static void check_best(const bl_plan_request_t *request, const bl_plan_candidate_t *best) {
  bl_chunk_span_t spans[16];
  bl_footprint_t stages[4];
  bl_trial_t trial;
  bl_error_t err;
  fill_spans(best, spans);
  assert_int_equal(best->operations->slices, best->slices);
  const bl_demand_request_t demand = {
      .schedule = best->operations, .spans = spans, .stage = {.model = request->model, .options = options_of(best)}};
  assert_int_equal(bl_demand_of_schedule(&demand, stages, &err), BL_OK);
  double most = 0;
  for (uint32_t s = 0; s < best->stages; s++) {
    assert_true(stages[s].kv_cache > 0 && bl_footprint_total(&stages[s]) == best->memory_of_stage[s]);
    most = fmax(most, bl_footprint_total(&stages[s]));
  }
  assert_true(most == best->memory);
  const bl_trial_request_t tried = {.schedule = best->operations,
                                    .model = request->model,
                                    .spans = spans,
                                    .options = options_of(best),
                                    .hardware = request->hardware,
                                    .parallel = best->parallel};
  assert_int_equal(bl_trial_run(&tried, &trial, &err), BL_OK);
  assert_true(trial.step == best->step);
  bl_trial_cleanup(&trial);
  if (best->policy == BL_POLICY_NONE) {
    bl_schedule_t *made = order_of(best);
    assert_true(same_order(made, best->operations));
    bl_schedule_destroy(made);
  }
}

static void the_best_is_what_its_job_does(void **state) {
  (void)state;
  skip_when_instrumented();
  static const uint32_t numbers[] = {2, 4};
  static const double limits[] = {0, 120 * MIB};
  const bl_model_t model = long_model(8);
  uint32_t checked = 0, balanced = 0;
  for (size_t i = 0; i < 4 * 2 * 2; i++) {
    if (!test_soak() && (i % 4 + i / 4 + i / 8) % 2) { // of each schedule one number without and one with a limit
      continue;
    }
    bl_plan_request_t request = request_of(&model, limits[i / 8]);
    request.schedules = &names[i % 4];
    request.schedule_count = 1;
    request.slices = &numbers[i / 4 % 2];
    request.slice_count = 1;
    bl_plan_t plan;
    bl_error_t err;
    if (bl_plan_search(&request, &plan, &err) != BL_OK) {
      assert_int_equal(err.status, BL_EXHAUSTED);
      continue;
    }
    const bl_plan_candidate_t *best = &plan.candidates[0];
    assert_int_equal(best->slices, numbers[i / 4 % 2]);
    assert_string_equal(best->schedule, names[i % 4]);
    if (best->operations != NULL) {
      check_best(&request, best);
      checked++;
      balanced += best->policy != BL_POLICY_NONE;
    }
    bl_plan_cleanup(&plan);
  }
  print_message("%u checked, %u of them balanced\n", checked, balanced);
  assert_true(checked >= (test_soak() ? 12 : 6) && balanced >= (test_soak() ? 2 : 1));
}

// ---- what is ruled out

static void the_bound_is_below_the_step(void **state) {
  (void)state;
  static const char *const all[] = {"gpipe", "seq1f1b", "eager-1f1b", "zb-h1", "zb-h2", "interleaved", "zb-v"};
  const bl_model_t model = long_model(8);
  const bl_plan_request_t request = request_of(&model, 0);
  bl__order_cache_t cache = {.exact = true};
  double nearest = INFINITY;
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
    for (int k = 0; k < 9; k++) { // slices, and what is recomputed
      bl_plan_candidate_t choice = {.schedule = all[i],
                                    .stages = 4,
                                    .chunks = bl_schedule_info_find(all[i])->default_chunks,
                                    .micro_batch = 1,
                                    .micro_batches = 4,
                                    .slices = 2u << (k / 3 * 2),
                                    .parallel = BL_PARALLEL_NONE,
                                    .attention = BL_ATTENTION_FLASH,
                                    .recompute = (bl_recompute_t)(k % 3)};
      double bound;
      assert_int_equal(bl__evaluate_bound(&request, &choice, &bound), BL_OK);
      assert_int_equal(bl__evaluate(&request, 0.01, &cache, &choice), BL_OK);
      assert_true(choice.fits);
      if (!(bound <= choice.step - choice.overhead)) {
        fail_msg("%s in %u slices: the bound %.6g is above its step %.6g", all[i], choice.slices, bound, choice.step);
      }
      nearest = fmin(nearest, choice.step / bound);
      bl__candidate_cleanup(&choice);
    }
  }
  print_message("the nearest step is %.4f of its bound\n", nearest);
  assert_true(nearest < 1.1);
  bl__order_cache_cleanup(&cache);
}

// All slices together, if they are asked for, contain no faster plan than the planner finds without asking.
static void nothing_faster_is_ruled_out(void **state) {
  (void)state;
  skip_when_instrumented();
  static const uint32_t all[] = {1, 2, 4, 8, 16};
  static const struct {
    uint32_t layers;
    double limit;
  } rows[] = {{8, 0}, {4, 70 * MIB}, {4, 0}, {8, 160 * MIB}};
  uint32_t tried = 0, all_tried = 0;
  for (size_t i = 0; i < (test_soak() ? 4 : 2); i++) {
    const bl_model_t model = long_model(rows[i].layers);
    bl_plan_request_t request = request_of(&model, rows[i].limit);
    bl_plan_t found, listed;
    request.micro_batches = one;
    request.micro_batch_count = 1;
    search(&request, &found);
    request.slices = all;
    request.slice_count = 5;
    search(&request, &listed);
    print_message("%u candidates instead of %u; %.4g and %.4g s\n", found.tried, listed.tried, found.candidates[0].step,
                  listed.candidates[0].step);
    assert_true(found.candidates[0].step <= listed.candidates[0].step * (1 + 1e-9));
    tried += found.tried;
    all_tried += listed.tried;
    bl_plan_cleanup(&found);
    bl_plan_cleanup(&listed);
  }
  assert_true(tried < all_tried);
}

// ---- what a run refuses

static void no_candidate_has_slices_that_a_run_refuses(void **state) {
  (void)state;
  skip_when_instrumented();
  bl_model_t model = gpt(8, 64, 8);
  model.seq = 4104; // 2 x 2052: no 8 ranks share a slice, and no more slices are as many tokens each
  const bl_hardware_t *a100 = bl_hardware_find("a100-80g");
  bl_plan_request_t request = {
      .model = &model,
      .batch = 8,
      .hardware = a100,
      .cluster = {.nodes = 1, .devices_per_node = 8, .intra_rate = a100->intra_rate, .inter_rate = a100->inter_rate},
      .attentions = flash,
      .attention_count = 1};
  static const uint32_t two[] = {2};
  bl_plan_t plan;
  uint32_t cut = 0;
  search(&request, &plan);
  bl_plan_cleanup(&plan);
  request.slices = two;
  request.slice_count = 1;
  search(&request, &plan);
  for (uint32_t i = 0; i < plan.count; i++) {
    const bl_plan_candidate_t *c = &plan.candidates[i];
    assert_int_equal(c->micro_batch * (model.seq / c->slices) % c->parallel.tensor, 0);
    assert_true(strcmp(c->schedule, "chimera") != 0 && strcmp(c->schedule, "dualpipe") != 0);
    cut += c->parallel.tensor == 4;
  }
  assert_true(cut > 0);
  bl_plan_cleanup(&plan);
}

static void lacks(const bl_plan_t *plan, const char *kind, const char *value, const char *why) {
  for (uint32_t i = 0; i < plan->rejection_count; i++) {
    const bl_plan_rejection_t *r = &plan->rejections[i];
    if (strcmp(r->kind, kind) == 0 && strcmp(r->value, value) == 0) {
      assert_string_equal(r->why, why);
      return;
    }
  }
  fail_msg("%s %s is not among what was not tried", kind, value);
}

static void numbers_that_were_asked_for_are_tried_or_say_what_they_lack(void **state) {
  (void)state;
  static const uint32_t numbers[] = {4, 3, 300};
  bl_model_t model = long_model(4);
  bl_plan_request_t request = request_of(&model, 0);
  bl_plan_t plan;
  bl_error_t err;
  request.slices = numbers;
  request.slice_count = 3;
  search(&request, &plan);
  for (uint32_t i = 0; i < plan.count; i++) {
    assert_int_equal(plan.candidates[i].slices, 4);
    assert_string_not_equal(plan.candidates[i].schedule, "1f1b");
  }
  lacks(&plan, "slices", "3", "3 slices do not divide sequences of 16384 tokens");
  lacks(&plan, "slices", "300", "there are at most 255");
  lacks(&plan, "schedule", "1f1b", "seq1f1b is its name in slices");
  bl_plan_cleanup(&plan);
  request.schedule_count = 1; // 1f1b, without seq1f1b
  search(&request, &plan);
  assert_string_equal(plan.candidates[0].schedule, "1f1b");
  assert_int_equal(plan.candidates[0].slices, 4);
  bl_plan_cleanup(&plan);
  request.slices = &numbers[1];
  request.slice_count = 1;
  assert_int_equal(bl_plan_search(&request, &plan, &err), BL_INVALID);
  assert_non_null(strstr(err.text, "3 slices do not divide sequences of 16384 tokens"));
  request = whole(request_of(&model, 0));
  request.schedules = &names[1];
  request.schedule_count = 1;
  assert_int_equal(bl_plan_search(&request, &plan, &err), BL_INVALID);
  assert_non_null(strstr(err.text, "only whole sequences are asked for"));
}

static void short_sequences_stay_whole(void **state) {
  (void)state;
  skip_when_instrumented();
  bl_model_t model = long_model(4);
  model.seq = 2 * BL_PLAN_SLICE_LEAST - 2;
  bl_plan_request_t request = request_of(&model, 0);
  bl_plan_t plan;
  search(&request, &plan);
  for (uint32_t i = 0; i < plan.count; i++) {
    assert_int_equal(plan.candidates[i].slices, 1);
  }
  lacks(&plan, "schedule", "seq1f1b",
        "is for slices; those of 2046 tokens would have less than 1024, and are tried only if they are asked for");
  bl_plan_cleanup(&plan);
  static const uint32_t two[] = {2};
  request.slices = two;
  request.slice_count = 1;
  search(&request, &plan);
  assert_int_equal(plan.candidates[0].slices, 2);
  bl_plan_cleanup(&plan);
}

// ---- costs

// What a slice costs in addition to its share: the same work takes longer in more slices, on every device.
static void slices_are_not_free(void **state) {
  (void)state;
  const bl_model_t model = long_model(4);
  const bl_chunk_span_t span = {.layer_count = 2};
  size_t count;
  const bl_hardware_t *all = bl_hardware_all(&count);
  for (size_t i = 0; i < count; i++) {
    double before = 0;
    for (uint32_t slices = 1; slices <= 64; slices *= 2) {
      const bl_layout_options_t options = {.micro_batch = 1, .slices = slices, .attention = BL_ATTENTION_FLASH};
      const bl_chunk_costs_t c = bl_hardware_costs(&all[i], &model, span, options, BL_PARALLEL_NONE);
      const double boundary = bl_hardware_boundary(&all[i], &model, options, BL_PARALLEL_NONE, all[i].intra_rate);
      const double sequence = slices * (c.forward + c.input + c.weight), launches = slices * 2.5 * 2 * all[i].launch;
      assert_true(sequence > before && sequence > launches);
      assert_true(slices * boundary >= slices * all[i].latency);
      before = sequence;
    }
  }
  const bl_layout_options_t naive = {.micro_batch = 1, .attention = BL_ATTENTION_NAIVE},
                            cut = {.micro_batch = 1, .slices = 2, .attention = BL_ATTENTION_NAIVE};
  const double square = bl_hardware_costs(&all[0], &model, span, naive, BL_PARALLEL_NONE).forward,
               steps = 2 * bl_hardware_costs(&all[0], &model, span, cut, BL_PARALLEL_NONE).forward;
  assert_true(steps < 0.8 * square && steps > 0.74 * square); // three quarters of the scores
}

static void boundaries_of_a_profile_keep_a_message(void **state) {
  (void)state;
  const bl_profile_t profile = {.options = {.micro_batch = 2}}, sliced = {.options = {.micro_batch = 2, .slices = 4}};
  const bl_layout_options_t same = {.micro_batch = 2}, larger = {.micro_batch = 4},
                            cut = {.micro_batch = 2, .slices = 4};
  assert_true(bl_profile_boundary(&profile, 850e-6, same) == 850e-6);
  assert_true(bl_profile_boundary(&profile, 850e-6, larger) == 1700e-6);
  assert_true(fabs(bl_profile_boundary(&profile, 850e-6, cut) / 250e-6 - 1) < 1e-9);
  assert_true(fabs(bl_profile_boundary(&sliced, 250e-6, same) / 850e-6 - 1) < 1e-9);
  assert_true(bl_profile_boundary(&profile, 20e-6, cut) == 20e-6);
}

// The profile of the nearest blocks gives the costs.
static void the_nearest_profile_is_taken(void **state) {
  (void)state;
  const bl_profile_t profiles[] = {
      {.options = {.micro_batch = 1}}, {.options = {.micro_batch = 1, .slices = 8}}, {.options = {.micro_batch = 4}}};
  const bl_profile_t *const list[] = {&profiles[0], &profiles[1], &profiles[2]};
  const bl_plan_request_t request = {.profiles = list, .profile_count = 3};
  static const struct {
    uint32_t micro_batch, slices, taken;
  } rows[] = {{1, 1, 0}, {1, 2, 0}, {1, 4, 1}, {1, 16, 1}, {4, 1, 2}, {3, 1, 2}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    assert_ptr_equal(bl_plan_nearest_profile(&request, rows[i].micro_batch, rows[i].slices), list[rows[i].taken]);
  }
}

// One page of keys and values per block and one of their gradients, of a t-th of two layers.
static void devices_of_a_cluster_hold_pages(void **state) {
  (void)state;
  const bl_model_t model = llama_65b();
  const bl_chunk_span_t span = {.first_layer = 4, .layer_count = 2};
  const bl_parallel_t parallel = {.tensor = 4, .data = 1, .sequence = true};
  const bl_hardware_t *a100 = bl_hardware_find("a100-80g");
  bl_footprint_request_t request = {.stage = {.model = &model,
                                              .spans = &span,
                                              .span_count = 1,
                                              .options = {.micro_batch = 2, .attention = BL_ATTENTION_FLASH}},
                                    .slots = 3,
                                    .edges = 2};
  const bl_footprint_t uncut = bl_footprint_of_cluster(&request, a100, parallel);
  request.stage.options.slices = 4;
  request.pages = 7;
  request.page_gradients = 3;
  const bl_footprint_t cut = bl_footprint_of_cluster(&request, a100, parallel);
  const double page = 2 * 8192 * (2 * 2048 / 4) * 2 / 4.0; // values: keys and values of two layers
  assert_true(uncut.kv_cache == 0 && cut.kv_cache == 7 * 2 * page + 3 * 4 * page);
  assert_true(cut.slot_bytes == uncut.slot_bytes / 4 && cut.edges == uncut.edges / 4);
  assert_true(cut.weights == uncut.weights && cut.optimizer == uncut.optimizer);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(slices_are_found_where_they_gain),
      cmocka_unit_test(a_micro_batch_that_does_not_divide_hides_none),
      cmocka_unit_test(the_smallest_limit_is_one_for_slices),
      cmocka_unit_test(the_best_is_what_its_job_does),
      cmocka_unit_test(the_bound_is_below_the_step),
      cmocka_unit_test(nothing_faster_is_ruled_out),
      cmocka_unit_test(no_candidate_has_slices_that_a_run_refuses),
      cmocka_unit_test(numbers_that_were_asked_for_are_tried_or_say_what_they_lack),
      cmocka_unit_test(short_sequences_stay_whole),
      cmocka_unit_test(slices_are_not_free),
      cmocka_unit_test(boundaries_of_a_profile_keep_a_message),
      cmocka_unit_test(the_nearest_profile_is_taken),
      cmocka_unit_test(devices_of_a_cluster_hold_pages),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
