// SPDX-License-Identifier: Apache-2.0
// Verifies who updates which tensor: every one has an owner, they are even, a tied embedding is the first replica's on both
// of its stages, and the memory that is planned for moments and received gradients is what the owners' tensors take.
#include "model/shard.h"

#include "base/bytes.h"
#include "model/memory.h"
#include "model/models.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

static uint64_t line(uint64_t bytes) {
  return bl_align_up(bytes, BL_CACHE_LINE_BYTES);
}

// Moments of one replica of a stage with this one chunk, each; the plan of it agrees.
static uint64_t check_replica(const bl_model_t *model, bl_chunk_span_t span, const uint32_t *owners, uint32_t replicas,
                              uint32_t replica) {
  const uint32_t count = bl_chunk_span_parameter_count(model, span);
  uint64_t bytes = 0, second = 0;
  for (uint32_t i = 0; i < count; i++) {
    const bl_parameter_t parameter = bl_parameter_get(model, bl_chunk_span_parameter(model, span, i));
    bytes += owners[i] == replica ? line(parameter.elements * sizeof(float)) : 0;
    second += owners[i] == replica && i == 0 && bl_chunk_span_two_gradients(model, span)
                  ? line(parameter.elements * sizeof(float))
                  : 0;
  }
  const bl_stage_memory_request_t request = {
      .model = model,
      .spans = &span,
      .span_count = 1,
      .options = {.micro_batch = 1, .attention = BL_ATTENTION_FLASH, .backward = BL_BACKWARD_FUSED},
      .micro_batches = 4,
      .batches = 1,
      .replicas = replicas,
      .replica = replica,
      .fold_levels = 2};
  bl_stage_memory_t memory;
  assert_int_equal(bl_stage_memory(&request, &memory), BL_OK);
  assert_int_equal(memory.optimizer_bytes, 2 * bytes);
  assert_int_equal(memory.reduce_bytes, (replicas - 1) * (bytes + second));
  assert_int_equal(memory.fold_bytes, 2 * memory.gradient_bytes);
  return bytes;
}

static void check_stage(const bl_model_t *model, bl_chunk_span_t span, uint32_t replicas) {
  const uint32_t count = bl_chunk_span_parameter_count(model, span);
  uint32_t *owners = malloc(count * sizeof *owners);
  assert_non_null(owners);
  assert_int_equal(bl_shard_parameters(model, &span, 1), count);
  assert_int_equal(bl_shard_assign(model, &span, 1, (bl_copies_t){.replicas = replicas}, owners), BL_OK);
  uint64_t all = 0, largest = 0, most = 0, sum = 0;
  for (uint32_t i = 0; i < count; i++) {
    const uint64_t bytes =
        line(bl_parameter_get(model, bl_chunk_span_parameter(model, span, i)).elements * sizeof(float));
    assert_in_range(owners[i], 0, replicas - 1);
    all += bytes;
    largest = bytes > largest ? bytes : largest;
    if (model->tied && bl_chunk_span_parameter(model, span, i) == 0) {
      assert_int_equal(owners[i], 0);
    }
  }
  for (uint32_t r = 0; r < replicas; r++) {
    const uint64_t bytes = check_replica(model, span, owners, replicas, r);
    most = bytes > most ? bytes : most;
    sum += bytes;
  }
  assert_int_equal(sum, all);
  assert_true(most <= all / replicas + largest); // the rule of giving the largest first
  free(owners);
}

static void every_tensor_has_an_owner(void **state) {
  (void)state;
  bl_model_t models[] = {gpt2_small(), tiny_llama(), gpt2_small()};
  models[2].tied = false;
  for (size_t m = 0; m < 3; m++) {
    const bl_model_t *model = &models[m];
    const uint32_t layers = model->layers;
    const bl_chunk_span_t spans[] = {bl_chunk_span_whole(model),
                                     {.first_layer = 0, .layer_count = layers / 2, .embedding = true},
                                     {.first_layer = 2, .layer_count = 3},
                                     {.first_layer = layers / 2, .layer_count = layers - layers / 2, .head = true}};
    for (size_t s = 0; s < sizeof spans / sizeof spans[0]; s++) {
      for (uint32_t replicas = 2; replicas <= BL_GRID_MOST_REPLICAS; replicas *= 2) {
        check_stage(model, spans[s], replicas);
      }
      check_stage(model, spans[s], 3);
    }
  }
}

// The layers of a stage without embedding and head: their tensors are many and alike.
static void layers_are_shared_evenly(void **state) {
  (void)state;
  const bl_model_t model = tiny_llama();
  const bl_chunk_span_t span = {.first_layer = 4, .layer_count = 8};
  uint32_t owners[8 * 9];
  uint64_t loads[2] = {0};
  assert_int_equal(bl_shard_assign(&model, &span, 1, (bl_copies_t){.replicas = 2}, owners), BL_OK);
  for (uint32_t i = 0; i < 8 * 9; i++) {
    loads[owners[i]] += bl_parameter_get(&model, bl_chunk_span_parameter(&model, span, i)).elements;
  }
  assert_true(loads[0] == loads[1]);
}

// Two pipes: both stages that have copies of two chunks agree on who updates what, whichever chunk is whose first.
static void both_ends_of_two_pipes_agree(void **state) {
  (void)state;
  const bl_model_t model = gpt2_small();
  const uint32_t half = model.layers / 2;
  const bl_chunk_span_t first = {.first_layer = 0, .layer_count = half, .embedding = true},
                        last = {.first_layer = half, .layer_count = model.layers - half, .head = true};
  const bl_chunk_span_t here[] = {first, last}, there[] = {last, first};
  const bl_copies_t copies = {.replicas = 1, .pipes = 2};
  const uint32_t count = bl_chunk_span_parameter_count(&model, first),
                 rest = bl_chunk_span_parameter_count(&model, last);
  uint32_t owners[2][256];
  assert_in_range(count + rest, 2, 256);
  assert_int_equal(bl_shard_assign(&model, here, 2, copies, owners[0]), BL_OK);
  assert_int_equal(bl_shard_assign(&model, there, 2, copies, owners[1]), BL_OK);
  assert_memory_equal(owners[0], owners[1] + rest, count * sizeof owners[0][0]);
  assert_memory_equal(owners[0] + count, owners[1], rest * sizeof owners[0][0]);
  assert_int_equal(owners[0][0], 0);     // a tied embedding is the first pipe's
  assert_int_equal(owners[0][count], 0); // at both of its ends
  uint64_t planned[2] = {0}, all = 0;
  for (int end = 0; end < 2; end++) {
    const bl_stage_memory_request_t request = {
        .model = &model,
        .spans = end == 0 ? here : there,
        .span_count = 2,
        .options = {.micro_batch = 1, .attention = BL_ATTENTION_FLASH, .backward = BL_BACKWARD_FUSED},
        .micro_batches = 4,
        .batches = 1,
        .pipes = 2};
    bl_stage_memory_t memory;
    assert_int_equal(bl_stage_memory(&request, &memory), BL_OK);
    planned[end] = memory.optimizer_bytes;
    all = 2 * (memory.gradient_bytes); // of both chunks: moments of one copy, were they all here
  }
  assert_int_equal(planned[0] + planned[1], all);
}

static void moments_of_one_replica_lie_where_weights_do(void **state) {
  (void)state;
  const bl_model_t model = gpt2_small();
  const bl_chunk_span_t span = bl_chunk_span_whole(&model);
  const uint32_t count = bl_chunk_span_parameter_count(&model, span);
  bl_parameter_place_t *places = calloc(count, sizeof *places);
  uint64_t *offsets = calloc(count, sizeof *offsets);
  assert_true(places != NULL && offsets != NULL);
  const uint64_t elements = bl_chunk_span_places(&model, span, (bl_split_t){0}, places);
  assert_true(bl_shard_moments(places, count, NULL, 0, offsets) == elements);
  for (uint32_t i = 0; i < count; i++) {
    assert_true(offsets[i] == places[i].offset_elements);
  }
  free(places);
  free(offsets);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_tensor_has_an_owner),
      cmocka_unit_test(layers_are_shared_evenly),
      cmocka_unit_test(both_ends_of_two_pipes_agree),
      cmocka_unit_test(moments_of_one_replica_lie_where_weights_do),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
