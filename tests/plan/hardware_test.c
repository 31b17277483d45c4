// SPDX-License-Identifier: Apache-2.0
// Verifies the device models and the footprints against published figures: layer times of Korthikanti et al. (arXiv
// 2205.05198, table 4), their formulas of activation bytes, and parameter counts.
#include "plan/evaluate/footprint.h"
#include "plan/evaluate/hardware.h"
#include "plan/evaluate/sharing.h"
#include "schedule/generate.h"

#include "models.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

static void assert_share(const char *what, double value, double expected, double share) {
  printf("%-44s %12.6g published %12.6g (%+.1f %%)\n", what, value, expected, 100 * (value / expected - 1));
  if (!(fabs(value / expected - 1) <= share)) {
    fail_msg("%s: %.6g, expected %.6g within %.0f %%", what, value, expected, 100 * share);
  }
}

// One layer of the 22B model, t = 8, micro-batch 4: milliseconds forward and backward.
static void layer_times_are_near_the_published_ones(void **state) {
  (void)state;
  static const struct {
    const char *name;
    bool sequence;
    bl_recompute_t recompute;
    double forward, backward;
  } rows[] = {{"tensor parallel", false, BL_RECOMPUTE_NONE, 7.7, 11.9},
              {"with sequence parallelism", true, BL_RECOMPUTE_NONE, 7.2, 11.8},
              {"attention recomputed", false, BL_RECOMPUTE_ATTENTION, 7.7, 13.2},
              {"attention recomputed, sequence", true, BL_RECOMPUTE_ATTENTION, 7.2, 13.1},
              {"all recomputed", false, BL_RECOMPUTE_FULL, 7.7, 19.5}};
  const bl_hardware_t *a100 = bl_hardware_find("a100-80g");
  bl_model_t model = gpt(48, 6144, 64);
  bl_chunk_span_t layer = {.first_layer = 1, .layer_count = 1};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    bl_layout_options_t options = {.micro_batch = 4, .recompute = rows[i].recompute};
    bl_parallel_t parallel = {.tensor = 8, .data = 1, .sequence = rows[i].sequence};
    bl_chunk_costs_t costs = bl_hardware_costs(a100, &model, layer, options, parallel);
    double backward = costs.input + costs.weight;
    backward += rows[i].recompute == BL_RECOMPUTE_FULL ? costs.forward : 0; // theirs makes the last product, too
    assert_true(costs.recompute < 0.75 * costs.forward && costs.recompute > 0.6 * costs.forward);
    assert_share(rows[i].name, 1e3 * costs.forward, rows[i].forward, 0.15);
    assert_share("  backward", 1e3 * backward, rows[i].backward, 0.20);
  }
}

static void layer_bytes_follow_the_formulas(void **state) {
  (void)state;
  bl_model_t model = gpt(96, 12288, 96);
  const double s = 2048, b = 1, h = 12288, a = 96, t = 8;
  bl_layout_options_t none = {.micro_batch = 1}, attention = {.micro_batch = 1, .recompute = BL_RECOMPUTE_ATTENTION},
                      full = {.micro_batch = 1, .recompute = BL_RECOMPUTE_FULL},
                      flash = {.micro_batch = 1, .attention = BL_ATTENTION_FLASH};
  bl_parallel_t alone = BL_PARALLEL_NONE, tensor = {.tensor = 8, .data = 1},
                both = {.tensor = 8, .data = 1, .sequence = true};
  const struct {
    const char *name;
    double bytes, expected;
  } rows[] = {
      {"none", bl_footprint_layer_bytes(&model, none, alone), s * b * h * (34 + 5 * a * s / h)},
      {"t", bl_footprint_layer_bytes(&model, none, tensor), s * b * h * (10 + 24 / t + 5 * a * s / (h * t))},
      {"t, sequence", bl_footprint_layer_bytes(&model, none, both), s * b * h / t * (34 + 5 * a * s / h)},
      {"t, attention", bl_footprint_layer_bytes(&model, attention, tensor), s * b * h * (10 + 24 / t)},
      {"t, flash", bl_footprint_layer_bytes(&model, flash, tensor), s * b * h * (10 + 24 / t)},
      {"t, sequence, attention", bl_footprint_layer_bytes(&model, attention, both), 34 * s * b * h / t},
      {"full", bl_footprint_layer_bytes(&model, full, alone), 2 * s * b * h},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    assert_share(rows[i].name, rows[i].bytes, rows[i].expected, 1e-12);
  }
}

static void parameters_are_those_of_the_names(void **state) {
  (void)state;
  bl_model_t small = gpt(80, 9984, 104), large = gpt(88, 11264, 88), llama = llama_65b();
  assert_share("GPT-3 96B", bl_footprint_parameters(&small, bl_chunk_span_whole(&small)), 96.2e9, 0.01);
  assert_share("GPT-3 134B", bl_footprint_parameters(&large, bl_chunk_span_whole(&large)), 134.6e9, 0.01);
  assert_share("LLaMA 65B", bl_footprint_parameters(&llama, bl_chunk_span_whole(&llama)), 65.2e9, 0.01);
}

static void parameters_add_up(void **state) {
  (void)state;
  bl_model_t models[] = {gpt(4, 64, 4), llama_65b(), gpt(3, 64, 2)};
  models[1].layers = 4;
  models[1].kv_heads = 8;
  models[2].tied = false;
  models[2].positions = 4096;
  bl_chunk_span_t spans[] = {{.layer_count = 2, .embedding = true},
                             {.first_layer = 1, .layer_count = 2},
                             {.first_layer = 2, .layer_count = 1, .head = true},
                             {.layer_count = 3, .embedding = true, .head = true}};
  for (size_t m = 0; m < 3; m++) {
    for (size_t i = 0; i < 4; i++) {
      spans[3].layer_count = models[m].layers;
      double sum = 0;
      for (uint32_t k = 0; k < bl_chunk_span_parameter_count(&models[m], spans[i]); k++) {
        sum += (double)bl_parameter_get(&models[m], bl_chunk_span_parameter(&models[m], spans[i], k)).elements;
      }
      if (bl_footprint_parameters(&models[m], spans[i]) != sum) {
        fail_msg("model %zu, span %zu: %.0f, the names add up to %.0f", m, i,
                 bl_footprint_parameters(&models[m], spans[i]), sum);
      }
    }
  }
}

// The same as the sum of what every chunk lays out (lib/model), which the executor allocates.
static void the_executor_gets_what_the_layout_says(void **state) {
  (void)state;
  bl_model_t model = gpt(4, 256, 4);
  bl_chunk_span_t spans[] = {{.layer_count = 1, .embedding = true}, {.first_layer = 3, .layer_count = 1, .head = true}};
  bl_layout_options_t options = {.micro_batch = 2, .lean = true, .backward = BL_BACKWARD_FUSED};
  bl_footprint_request_t request = {
      .stage = {.model = &model, .spans = spans, .span_count = 2, .options = options}, .slots = 3, .edges = 5};
  bl_footprint_t footprint;
  bl_chunk_memory_t first, last;
  assert_int_equal(bl_footprint_of_executor(&request, &footprint), BL_OK);
  assert_int_equal(bl_chunk_memory(&model, spans[0], options, &first), BL_OK);
  assert_int_equal(bl_chunk_memory(&model, spans[1], options, &last), BL_OK);
  double slot = fmax((double)first.slot_bytes, (double)last.slot_bytes);
  assert_true(footprint.slot_bytes == slot && footprint.activations == 3 * slot);
  assert_true(footprint.weights == (double)(first.weight_bytes + last.weight_bytes));
  assert_true(footprint.edges == 5 * (double)first.edge_bytes);
}

// What replicas bring to each other. On our executor each parameter is gathered by all but one and its gradient
// received by that one: with two, what one receives is what the other gets. On a cluster it is what rings move.
static void replicas_share_what_the_shards_say(void **state) {
  (void)state;
  const bl_model_t tied = gpt(4, 256, 4);
  bl_model_t model = tied;
  model.tied = false;
  bl_error_t err;
  bl_schedule_t *schedule;
  const bl_schedule_request_t wanted = {.name = "1f1b", .stages = 2, .micro_batches = 4};
  assert_int_equal(bl_schedule_generate(&wanted, &schedule, &err), BL_OK);
  const bl_chunk_span_t spans[] = {{.layer_count = 2, .embedding = true},
                                   {.first_layer = 2, .layer_count = 2, .head = true}};
  bl_sharing_t gathered[2], reduced[2];
  bl_sharing_request_t request = {
      .schedule = schedule, .model = &model, .spans = spans, .parallel = {1, false, 1, true}};
  assert_int_equal(bl_sharing_count(&request, gathered, reduced), BL_OK);
  assert_true(gathered[0].bytes == 0 && reduced[1].bytes == 0);
  for (uint32_t d = 2; d <= 4; d++) {
    request.parallel.data = d;
    assert_int_equal(bl_sharing_count(&request, gathered, reduced), BL_OK);
    for (size_t v = 0; v < 2; v++) {
      const double all = 4 * bl_footprint_parameters(&model, spans[v]);
      assert_true(gathered[v].bytes >= all * (d - 1) / d && gathered[v].bytes < all);
      assert_true(reduced[v].bytes >= all * (d - 1) / d && reduced[v].bytes < all * (d - 1));
      assert_true(d > 2 || reduced[v].bytes == gathered[v].bytes);
      assert_true(gathered[v].messages == (v == 0 ? 3 : 2) * (d - 1)); // two tables or the head, and the layers
      assert_true(reduced[v].messages == gathered[v].messages);
    }
  }
  // The whole of a tied model in one chunk has a second gradient of its embedding.
  const bl_chunk_span_t whole = {.layer_count = 4, .embedding = true, .head = true};
  bl_schedule_t *alone;
  const bl_schedule_request_t one = {.name = "1f1b", .stages = 1, .micro_batches = 4};
  assert_int_equal(bl_schedule_generate(&one, &alone, &err), BL_OK);
  request = (bl_sharing_request_t){.schedule = alone, .model = &tied, .spans = &whole, .parallel = {1, false, 2, true}};
  assert_int_equal(bl_sharing_count(&request, gathered, reduced), BL_OK);
  assert_true(reduced[0].bytes == gathered[0].bytes + 4.0 * tied.vocab * tied.hidden / 2);

  request = (bl_sharing_request_t){.schedule = schedule,
                                   .model = &model,
                                   .spans = spans,
                                   .hardware = bl_hardware_find("a100-80g"),
                                   .parallel = {.tensor = 2, .data = 4, .shard = true}};
  const double moved = bl_footprint_parameters(&model, spans[1]) / 2 * 3 / 4;
  assert_int_equal(bl_sharing_count(&request, gathered, reduced), BL_OK);
  assert_true(gathered[1].bytes == 2 * moved && reduced[1].bytes == 4 * moved);
  assert_true(gathered[1].messages == 3 && reduced[1].messages == 3);
  request.parallel.shard = false;
  assert_int_equal(bl_sharing_count(&request, gathered, reduced), BL_OK);
  assert_true(gathered[1].bytes == 0 && reduced[1].bytes == 8 * moved);
  assert_true(gathered[1].messages == 0 && reduced[1].messages == 6);
  bl_schedule_destroy(schedule);
  bl_schedule_destroy(alone);
}

// A device in the other dtype has that one's peak and bytes, and back again those of the table.
static void dtypes_have_their_peaks(void **state) {
  (void)state;
  const bl_model_t model = {.family = BL_FAMILY_GPT2,
                            .layers = 4,
                            .hidden = 256,
                            .heads = 4,
                            .kv_heads = 4,
                            .head_dim = 64,
                            .ffn = 1024,
                            .vocab = 512,
                            .seq = 128};
  const bl_chunk_span_t span = {.layer_count = 4};
  size_t count;
  const bl_hardware_t *all = bl_hardware_all(&count);
  for (size_t i = 0; i < count; i++) {
    const bl_hardware_t fp32 = bl_hardware_in(&all[i], BL_DTYPE_FP32), bf16 = bl_hardware_in(&all[i], BL_DTYPE_BF16);
    const bl_hardware_t recompute_share = bl_hardware_in(&fp32, BL_DTYPE_BF16);
    assert_int_equal(fp32.value_bytes, 4);
    assert_int_equal(bf16.value_bytes, 2);
    assert_true(bf16.peak_flops > fp32.peak_flops && recompute_share.peak_flops == bf16.peak_flops);
    assert_int_equal(fp32.state_bytes + fp32.moment_bytes, 16);
    assert_int_equal(recompute_share.state_bytes + recompute_share.moment_bytes, 18);
    const bl_layout_options_t options = {.micro_batch = 2, .attention = BL_ATTENTION_FLASH};
    assert_true(bl_hardware_costs(&bf16, &model, span, options, BL_PARALLEL_NONE).forward <
                bl_hardware_costs(&fp32, &model, span, options, BL_PARALLEL_NONE).forward);
  }
}

// Four all-gathers of W in a layer, if ranks share rows; each brings a rank what the others have.
static void gradients_of_weights_gather_their_rows(void **state) {
  (void)state;
  bl_hardware_t device = *bl_hardware_find("h100");
  const bl_model_t model = llama_65b();
  const bl_chunk_span_t span = {.first_layer = 3, .layer_count = 5};
  const bl_layout_options_t options = {.micro_batch = 2, .attention = BL_ATTENTION_FLASH};
  const bl_parallel_t alone = {.tensor = 4, .data = 1}, rows = {.tensor = 4, .data = 1, .sequence = true};
  const double with = bl_hardware_costs(&device, &model, span, options, rows).weight,
               without = bl_hardware_costs(&device, &model, span, options, alone).weight;
  const double bytes = 5 * 4 * (3.0 / 4) * 2 * 2048 * 8192 * 2; // layers, gathers, from others, rows, hidden, bf16
  assert_share("gathers of W", with - without, bytes / (device.link * device.intra_rate), 1e-9);
  const bl_parallel_t one = {.tensor = 1, .data = 1, .sequence = true};
  assert_true(bl_hardware_costs(&device, &model, span, options, one).weight ==
              bl_hardware_costs(&device, &model, span, options, BL_PARALLEL_NONE).weight);
}

// A model whose layers have a window has no more useful work than a window of keys for every query.
static void utilisation_counts_windows(void **state) {
  (void)state;
  const bl_hardware_t *device = bl_hardware_find("h100");
  bl_model_t model = llama_65b(), uncut = model;
  model.seq = uncut.seq = 32768;
  model.window = 1024;
  model.window_first = 0;
  const bl_chunk_span_t whole = bl_chunk_span_whole(&model);
  const bl_layout_options_t options = {.micro_batch = 1, .attention = BL_ATTENTION_FLASH};
  const bl_chunk_costs_t costs = bl_hardware_costs(device, &model, whole, options, BL_PARALLEL_NONE);
  const double seconds = costs.forward + costs.input + costs.weight,
               cut = bl_hardware_mfu(device, &model, 1, 1, seconds),
               square = bl_hardware_mfu(device, &uncut, 1, 1, seconds);
  printf("utilisation: %.3f with windows, %.3f if all keys counted\n", cut, square);
  assert_true(cut > 0.5 && cut < device->matmul && square > 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(layer_times_are_near_the_published_ones),
      cmocka_unit_test(layer_bytes_follow_the_formulas),
      cmocka_unit_test(parameters_are_those_of_the_names),
      cmocka_unit_test(parameters_add_up),
      cmocka_unit_test(the_executor_gets_what_the_layout_says),
      cmocka_unit_test(dtypes_have_their_peaks),
      cmocka_unit_test(replicas_share_what_the_shards_say),
      cmocka_unit_test(gradients_of_weights_gather_their_rows),
      cmocka_unit_test(utilisation_counts_windows),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
