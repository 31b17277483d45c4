// SPDX-License-Identifier: Apache-2.0
// Verifies who updates what: every element has one owner, ranges are even and their shares the same for any number of
// copies, both ends of a tied embedding are the first pipe's, and the memory that is planned for moments and received
// gradients is what the ranges take.
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

// A chunk's places and owners.
typedef struct chunk {
  bl_parameter_place_t *places;
  uint32_t *owners;
  uint32_t count;
} chunk_t;

static chunk_t chunk_of(const bl_model_t *model, bl_chunk_span_t span, bl_copies_t copies) {
  chunk_t chunk = {.count = bl_chunk_span_place_count(model, span, (bl_split_t){0})};
  chunk.places = calloc(chunk.count, sizeof *chunk.places);
  chunk.owners = calloc(chunk.count, sizeof *chunk.owners);
  assert_true(chunk.places != NULL && chunk.owners != NULL);
  (void)bl_chunk_span_places(model, span, (bl_split_t){0}, chunk.places);
  assert_int_equal(bl_shard_parameters(model, &span, 1), chunk.count);
  assert_int_equal(bl_shard_assign(model, &span, 1, copies, chunk.owners), BL_OK);
  return chunk;
}

static void free_chunk(chunk_t *chunk) {
  free(chunk->places);
  free(chunk->owners);
}

// Returns the bytes of one moment of one replica of a stage with this one chunk. The plan of it agrees.
static uint64_t check_replica(const bl_model_t *model, bl_chunk_span_t span, const chunk_t *chunk, uint32_t replicas,
                              uint32_t replica) {
  const bl_ownership_t ownership = {.owners = chunk->owners, .copies = {.replicas = replicas}};
  uint64_t bytes = 0, second = 0;
  for (uint32_t i = 0; i < chunk->count; i++) {
    const uint64_t own = line(bl_shard_range(&ownership, &chunk->places[i], replica).count * sizeof(float));
    bytes += own;
    second += i == 0 && bl_chunk_span_two_gradients(model, span) ? own : 0;
  }
  const bl_stage_memory_request_t request = {
      .model = model,
      .spans = &span,
      .span_count = 1,
      .options = {.micro_batch = 1, .attention = BL_ATTENTION_FLASH, .backward = BL_BACKWARD_FUSED},
      .micro_batches = 4,
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
  chunk_t chunk = chunk_of(model, span, (bl_copies_t){.replicas = replicas});
  uint64_t all = 0, rows = 0, most = 0, vector = 0;
  for (uint32_t i = 0; i < chunk.count; i++) { // every element has one owner: ranges follow each other
    const bl_ownership_t ownership = {.owners = chunk.owners, .copies = {.replicas = replicas}};
    uint64_t end = 0;
    for (uint32_t r = 0; r < replicas; r++) {
      const bl_shard_range_t range = bl_shard_range(&ownership, &chunk.places[i], r);
      assert_true(range.count == 0 || range.first == end);
      end += range.count;
    }
    assert_true(end == chunk.places[i].elements);
    assert_true(chunk.places[i].unit % (BL_CACHE_LINE_BYTES / sizeof(float)) == 0);
    all += line(end * sizeof(float));
    rows += chunk.places[i].unit * sizeof(float);
    vector = chunk.places[i].unit == 0 && end * sizeof(float) > vector ? end * sizeof(float) : vector;
  }
  for (uint32_t r = 0; r < replicas; r++) {
    const uint64_t bytes = check_replica(model, span, &chunk, replicas, r);
    most = bytes > most ? bytes : most;
  }
  // Less than a row of every matrix, and the rule of giving the largest first.
  assert_true(most <= all / replicas + rows + vector + replicas);
  free_chunk(&chunk);
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

// GPT-2's embedding is most of a first stage: to the byte.
static void two_replicas_have_half_each(void **state) {
  (void)state;
  bl_model_t model = gpt2_small();
  model.vocab = 50256;
  const bl_chunk_span_t span = {.first_layer = 0, .layer_count = 4, .embedding = true};
  chunk_t chunk = chunk_of(&model, span, (bl_copies_t){.replicas = 2});
  const uint64_t first = check_replica(&model, span, &chunk, 2, 0), second = check_replica(&model, span, &chunk, 2, 1);
  assert_true(first == second);
  free_chunk(&chunk);
}

// Shares depend on the number of parts; copies have consecutive ones.
static void shares_do_not_depend_on_copies(void **state) {
  (void)state;
  const bl_model_t model = tiny_llama();
  const bl_chunk_span_t span = {.first_layer = 4, .layer_count = 1};
  const bl_ownership_t alone = {.parts = 8};
  for (uint32_t replicas = 2; replicas <= 8; replicas *= 2) {
    chunk_t chunk = chunk_of(&model, span, (bl_copies_t){.replicas = replicas});
    const bl_ownership_t shared = {.owners = chunk.owners, .copies = {.replicas = replicas}, .parts = 8};
    for (uint32_t i = 0; i < chunk.count; i++) {
      const bl_shard_shares_t all = bl_shard_shares(&alone, &chunk.places[i], 0);
      uint32_t next = 0;
      assert_int_equal(all.count, chunk.places[i].unit > 0 ? 8 : 1);
      for (uint32_t r = 0; r < replicas; r++) {
        const bl_shard_shares_t some = bl_shard_shares(&shared, &chunk.places[i], r);
        assert_int_equal(some.of, all.of);
        assert_true(some.count == 0 || some.first == next);
        next += some.count;
      }
      assert_int_equal(next, all.count);
    }
    assert_int_equal(bl_shard_squares(&shared, chunk.places, chunk.count), 2 + 7 * 8 / replicas);
    free_chunk(&chunk);
  }
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
  assert_true(owners[0][0] == BL_SHARD_FIRST_PIPE);     // a tied embedding
  assert_true(owners[0][count] == BL_SHARD_FIRST_PIPE); // at both of its ends
  uint64_t planned[2] = {0}, all = 0;
  for (int end = 0; end < 2; end++) {
    const bl_stage_memory_request_t request = {
        .model = &model,
        .spans = end == 0 ? here : there,
        .span_count = 2,
        .options = {.micro_batch = 1, .attention = BL_ATTENTION_FLASH, .backward = BL_BACKWARD_FUSED},
        .micro_batches = 4,
        .pipes = 2};
    bl_stage_memory_t memory;
    assert_int_equal(bl_stage_memory(&request, &memory), BL_OK);
    planned[end] = memory.optimizer_bytes;
    all = 2 * (memory.gradient_bytes); // of both chunks: moments of one copy, were they all here
  }
  assert_int_equal(planned[0] + planned[1], all);
  // Of two replicas, the first pipes share it.
  const bl_ownership_t ownership = {.owners = owners[0], .copies = {.replicas = 2, .pipes = 2}};
  const bl_parameter_place_t table = {.elements = 768 * 50256, .unit = 768};
  for (uint32_t copy = 0; copy < 4; copy++) {
    const bl_shard_range_t range = bl_shard_range(&ownership, &table, copy);
    assert_true(range.count == (copy % 2 == 0 ? table.elements / 2 : 0));
    assert_true(range.first == (copy == 2 ? table.elements / 2 : 0));
  }
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
  assert_true(bl_shard_moments(&(bl_ownership_t){0}, places, count, 0, offsets) == elements);
  for (uint32_t i = 0; i < count; i++) {
    assert_true(offsets[i] == places[i].offset_elements);
  }
  free(places);
  free(offsets);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_tensor_has_an_owner),
      cmocka_unit_test(two_replicas_have_half_each),
      cmocka_unit_test(shares_do_not_depend_on_copies),
      cmocka_unit_test(both_ends_of_two_pipes_agree),
      cmocka_unit_test(moments_of_one_replica_lie_where_weights_do),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
