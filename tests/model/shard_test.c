// SPDX-License-Identifier: Apache-2.0
// Verifies who updates what: every element has one owner, who has one range of a chunk's layers and an even part of its
// tables; ranges are even over all chunks of a stage, and their shares the same for any number of copies; both ends of
// a tied embedding are the first pipe's; and the memory that is planned for moments and received gradients is what the
// ranges take.
#include "model/shard.h"

#include "base/bytes.h"
#include "model/memory.h"
#include "model/models.h"
#include "model/resident.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#define MOST_CHUNKS 4

static uint64_t line(uint64_t bytes) {
  return bl_align_up(bytes, BL_CACHE_LINE_BYTES);
}

#define PARTS 4 // of a step's gradient, times the copies

// The chunks of a stage: their places and who updates them.
typedef struct stage {
  const bl_model_t *model;
  const bl_chunk_span_t *spans;
  uint32_t chunks;
  bl_copies_t copies;
  bl_layer_parts_t layer_parts;
  bl_parameter_place_t *places[MOST_CHUNKS];
  uint32_t counts[MOST_CHUNKS];
  bl_ownership_t owners[MOST_CHUNKS];
} stage_t;

static void init_stage(stage_t *stage) {
  bl_ownership_t ownership = {.copies = stage->copies};
  assert_in_range(stage->chunks, 1, MOST_CHUNKS);
  for (uint32_t c = 0; c < stage->chunks; c++) {
    stage->counts[c] = bl_chunk_span_place_count(stage->model, stage->spans[c], stage->layer_parts);
    stage->places[c] = calloc(stage->counts[c], sizeof *stage->places[c]);
    assert_non_null(stage->places[c]);
    (void)bl_chunk_span_places(stage->model, stage->spans[c], stage->layer_parts, stage->places[c]);
    bl_shard_cut(&ownership, stage->places[c], stage->counts[c]);
    stage->owners[c] = ownership;
  }
}

static void free_stage(stage_t *stage) {
  for (uint32_t c = 0; c < stage->chunks; c++) {
    free(stage->places[c]);
  }
}

// What one replica of a stage has.
typedef struct load {
  uint64_t moment_bytes, received_bytes; // of each moment; from each other copy
} load_t;

// Counts what a replica has, place by place. The plan of its memory agrees.
static load_t load_of(const stage_t *stage, uint32_t replica) {
  load_t load = {0};
  for (uint32_t c = 0; c < stage->chunks; c++) {
    const bool two = bl_chunk_span_two_gradients(stage->model, stage->spans[c]);
    for (uint32_t i = 0; i < stage->counts[c]; i++) {
      const bl_parameter_place_t *place = &stage->places[c][i];
      const uint64_t message = bl_shard_message(&stage->owners[c], stage->places[c], i, replica).count;
      load.moment_bytes += line(bl_shard_range(&stage->owners[c], place, replica).count * sizeof(float));
      load.received_bytes += line(message * sizeof(float)) * (two && place->tied ? 2 : 1);
    }
  }
  const bl_stage_memory_request_t request = {.model = stage->model,
                                             .spans = stage->spans,
                                             .span_count = stage->chunks,
                                             .options = {.micro_batch = 1,
                                                         .attention = BL_ATTENTION_FLASH,
                                                         .backward = BL_BACKWARD_FUSED,
                                                         .layer_parts = stage->layer_parts},
                                             .micro_batches = 4,
                                             .copies = stage->copies,
                                             .replica = replica};
  bl_stage_memory_t memory;
  assert_int_equal(bl_stage_memory(&request, &memory), BL_OK);
  assert_int_equal(memory.optimizer_bytes, 2 * load.moment_bytes);
  assert_int_equal(memory.reduce_bytes, (stage->copies.replicas - 1) * load.received_bytes);
  assert_int_equal(memory.fold_bytes, 2 * memory.gradient_bytes);
  return load;
}

// What a copy owns of a place lies in the message that is said to hold it, and nobody else owns it.
static void check_chunk(const stage_t *stage, uint32_t c) {
  const bl_parameter_place_t *places = stage->places[c];
  const bl_ownership_t *ownership = &stage->owners[c];
  uint32_t layers = 0; // the number of their message
  while (places[layers].table) {
    layers++;
  }
  for (uint32_t i = 0; i < stage->counts[c]; i++) { // ranges follow each other
    const bl_parameter_place_t *place = &places[i];
    uint64_t end = 0;
    for (uint32_t r = 0; r < stage->copies.replicas; r++) {
      const bl_shard_range_t range = bl_shard_range(ownership, place, r),
                             message = bl_shard_message(ownership, places, place->table ? i : layers, r);
      if (range.count == 0) {
        continue;
      }
      assert_true(range.first == end);
      end += range.count;
      assert_true(place->offset_elements + range.first >= message.first);
      assert_true(place->offset_elements + end <= message.first + message.count);
      assert_true(place->unit > 0 || range.count == place->elements); // a vector is not cut
      const bool sums = end == place->elements && range.first == 0;   // a norm's sums of all parts go with it
      assert_true(!sums || place->offset_elements + place->reserved_elements <= message.first + message.count);
    }
    assert_true(end == place->elements);
    assert_true(place->unit % (BL_CACHE_LINE_BYTES / sizeof(float)) == 0);
  }
  for (uint32_t i = 0; i < stage->counts[c]; i++) { // one message for all layers
    assert_true(places[i].table || i == layers || bl_shard_message(ownership, places, i, 0).count == 0);
  }
}

static void check_stage(stage_t *stage) {
  init_stage(stage);
  uint64_t all = 0, largest = 0, lines = 0;
  for (uint32_t c = 0; c < stage->chunks; c++) {
    check_chunk(stage, c);
    for (uint32_t i = 0; i < stage->counts[c]; i++) {
      const bl_parameter_place_t *place = &stage->places[c][i];
      const uint32_t shares = place->unit == 0 ? 1 : bl_grid_shares(bl_copies_parts(stage->copies));
      all += place->elements;
      lines += BL_CACHE_LINE_BYTES + (place->reserved_elements - place->elements) * sizeof(float);
      lines += place->table ? place->unit * sizeof(float) : 0; // a table is cut between its rows
      const uint64_t share = place->table ? 0 : place->elements / shares + place->unit;
      largest = share > largest ? share : largest;
    }
  }
  uint64_t most = 0;
  for (uint32_t r = 0; r < stage->copies.replicas; r++) {
    const load_t load = load_of(stage, r);
    most = load.moment_bytes > most ? load.moment_bytes : most;
  }
  // The largest share, however many chunks; and what lies between places.
  assert_true(most <= (all / stage->copies.replicas + largest) * sizeof(float) + lines);
  free_stage(stage);
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
      stage_t stage = {.model = model, .spans = &spans[s], .chunks = 1};
      for (uint32_t replicas = 2; replicas <= BL_GRID_REPLICAS_MAX; replicas *= 2) {
        stage.copies = (bl_copies_t){.replicas = replicas, .parts = PARTS * replicas};
        check_stage(&stage);
      }
      stage.copies = (bl_copies_t){.replicas = 3, .parts = PARTS * 3};
      check_stage(&stage);
    }
  }
}

// Of few layers in many chunks, also if a rank has several parts of them.
static void many_chunks_are_as_even_as_one(void **state) {
  (void)state;
  const bl_model_t models[] = {gpt2_small(), tiny_llama()};
  for (size_t m = 0; m < 2; m++) {
    const bl_chunk_span_t spans[MOST_CHUNKS] = {{.first_layer = 0, .layer_count = 1, .embedding = true},
                                                {.first_layer = 2, .layer_count = 1},
                                                {.first_layer = 4, .layer_count = 1},
                                                {.first_layer = 5, .layer_count = 1, .head = true}};
    for (uint32_t replicas = 2; replicas <= 64; replicas *= 2) {
      for (uint32_t parts = 1; parts <= 4; parts *= 4) {
        stage_t stage = {.model = &models[m],
                         .spans = spans,
                         .chunks = MOST_CHUNKS,
                         .copies = {.replicas = replicas, .parts = PARTS * replicas},
                         .layer_parts = {.count = parts}};
        check_stage(&stage);
      }
    }
  }
}

// Of chunks that are smaller than what their stage is uneven by, after one that is not.
static void small_chunks_have_no_overlaps(void **state) {
  (void)state;
  bl_model_t model = tiny_llama();
  const bl_chunk_span_t spans[MOST_CHUNKS] = {{.first_layer = 0, .layer_count = 1},
                                              {.first_layer = 1, .layer_count = 1},
                                              {.first_layer = 2, .layer_count = 0, .head = true},
                                              {.first_layer = 2, .layer_count = 0, .embedding = true}};
  for (uint32_t replicas = 2; replicas <= BL_GRID_REPLICAS_MAX; replicas++) {
    stage_t stage = {.model = &model, .spans = spans, .chunks = MOST_CHUNKS, .copies = {.replicas = replicas}};
    init_stage(&stage);
    for (uint32_t c = 0; c + 1 < MOST_CHUNKS; c++) {
      check_chunk(&stage, c);
    }
    assert_true(stage.owners[3].cuts[0] == 0 && stage.owners[3].cuts[replicas] == 0); // tables only
    free_stage(&stage);
  }
}

// GPT-2's embedding is most of a first stage.
static void two_replicas_have_half_each(void **state) {
  (void)state;
  const bl_model_t model = gpt2_small();
  const bl_chunk_span_t span = {.first_layer = 0, .layer_count = 4, .embedding = true};
  stage_t stage = {.model = &model, .spans = &span, .chunks = 1, .copies = {.replicas = 2, .parts = 2 * PARTS}};
  init_stage(&stage);
  const load_t first = load_of(&stage, 0), second = load_of(&stage, 1);
  const double both = (double)(first.moment_bytes + second.moment_bytes), more = (double)first.moment_bytes * 2 - both;
  assert_true(more < both / 500 && more > -both / 500);
  free_stage(&stage);
}

// Shares depend on the number of parts; copies have consecutive ones.
static void shares_do_not_depend_on_copies(void **state) {
  (void)state;
  const bl_model_t model = tiny_llama();
  const bl_chunk_span_t span = {.first_layer = 4, .layer_count = 1};
  const uint32_t parts[] = {1, 2, 3, 8, 12, 64}, shares[] = {1, 16, 18, 16, 24, 64};
  for (size_t p = 0; p < sizeof parts / sizeof parts[0]; p++) {
    stage_t alone = {.model = &model, .spans = &span, .chunks = 1, .copies = {.parts = parts[p]}};
    init_stage(&alone);
    for (uint32_t replicas = 1; replicas <= parts[p]; replicas += 1) {
      if (parts[p] % replicas != 0) {
        continue;
      }
      stage_t stage = {
          .model = &model, .spans = &span, .chunks = 1, .copies = {.replicas = replicas, .parts = parts[p]}};
      init_stage(&stage);
      uint32_t squares = 0, all_squares = 0;
      for (uint32_t i = 0; i < stage.counts[0]; i++) {
        const bl_shard_shares_t all = bl_shard_shares(&alone.owners[0], &stage.places[0][i], 0);
        uint32_t next = 0;
        assert_int_equal(all.count, stage.places[0][i].unit > 0 ? shares[p] : 1);
        assert_int_equal(all.of, all.count);
        for (uint32_t r = 0; r < replicas; r++) {
          const bl_shard_shares_t some = bl_shard_shares(&stage.owners[0], &stage.places[0][i], r);
          assert_int_equal(some.of, all.of);
          assert_true(some.count == 0 || some.first == next);
          next += some.count;
        }
        assert_int_equal(next, all.count);
        all_squares += all.count;
      }
      for (uint32_t r = 0; r < replicas; r++) {
        squares += bl_shard_squares(&stage.owners[0], stage.places[0], stage.counts[0], r);
      }
      assert_int_equal(squares, all_squares);
      free_stage(&stage);
    }
    free_stage(&alone);
  }
}

// Two pipes: both stages that have copies of two chunks agree on who updates what, whichever chunk is whose first.
static void both_ends_of_two_pipes_agree(void **state) {
  (void)state;
  const bl_model_t model = gpt2_small();
  const uint32_t half = model.layers / 2;
  const bl_chunk_span_t first = {.first_layer = 0, .layer_count = half, .embedding = true},
                        last = {.first_layer = half, .layer_count = model.layers - half, .head = true};
  const bl_chunk_span_t spans[2][2] = {{first, last}, {last, first}};
  stage_t ends[2];
  uint64_t planned[2] = {0}, all = 0;
  for (int end = 0; end < 2; end++) {
    ends[end] =
        (stage_t){.model = &model, .spans = spans[end], .chunks = 2, .copies = {.replicas = 1, .pipes = 2, .parts = 2}};
    init_stage(&ends[end]);
    const bl_stage_memory_request_t request = {
        .model = &model,
        .spans = spans[end],
        .span_count = 2,
        .options = {.micro_batch = 1, .attention = BL_ATTENTION_FLASH, .backward = BL_BACKWARD_FUSED},
        .micro_batches = 4,
        .copies = ends[end].copies};
    bl_stage_memory_t memory;
    assert_int_equal(bl_stage_memory(&request, &memory), BL_OK);
    planned[end] = memory.optimizer_bytes;
    all = 2 * memory.gradient_bytes; // of both chunks: moments of one copy, were they all here
  }
  assert_memory_equal(ends[0].owners[0].cuts, ends[1].owners[1].cuts, sizeof ends[0].owners[0].cuts);
  assert_memory_equal(ends[0].owners[1].cuts, ends[1].owners[0].cuts, sizeof ends[0].owners[1].cuts);
  for (int chunk = 0; chunk < 2; chunk++) { // the tied embedding is the first pipe's at both of its ends
    assert_true(ends[0].places[chunk][0].tied);
    assert_true(bl_shard_range(&ends[0].owners[chunk], &ends[0].places[chunk][0], 1).count == 0);
  }
  assert_true(planned[0] + planned[1] >= all && planned[0] + planned[1] < all + 256 * BL_CACHE_LINE_BYTES);
  assert_true(planned[0] < all * 0.51 && planned[1] < all * 0.51);
  // Of two replicas, the first pipes share it.
  const bl_ownership_t ownership = {.copies = {.replicas = 2, .pipes = 2}};
  const bl_parameter_place_t table = {.elements = 768 * 50256, .unit = 768, .table = true, .tied = true};
  for (uint32_t copy = 0; copy < 4; copy++) {
    const bl_shard_range_t range = bl_shard_range(&ownership, &table, copy);
    assert_true(range.count == (copy % 2 == 0 ? table.elements / 2 : 0));
    assert_true(range.first == (copy == 2 ? table.elements / 2 : 0));
  }
  free_stage(&ends[0]);
  free_stage(&ends[1]);
}

// In bf16 d replicas have 1/d each of the masters of what products read, and all fp32 weights that are read as such.
static void masters_in_bf16_are_shared_out(void **state) {
  (void)state;
  const bl_model_t model = gpt2_small();
  const bl_chunk_span_t span = bl_chunk_span_whole(&model);
  const uint32_t count = bl_chunk_span_parameter_count(&model, span);
  bl_parameter_place_t *places = calloc(count, sizeof *places);
  uint64_t *resident = calloc(count, sizeof *resident), *offsets = calloc(count, sizeof *offsets);
  assert_true(places != NULL && resident != NULL && offsets != NULL);
  const uint64_t elements = bl_chunk_span_places(&model, span, (bl_layer_parts_t){0}, places);
  const uint64_t kept = bl_resident_weights(&model, span, BL_DTYPE_BF16, places, count, resident);
  for (uint32_t replicas = 2; replicas <= 8; replicas *= 2) {
    bl_ownership_t ownership = {.copies = {.replicas = replicas, .parts = 4 * replicas}};
    bl_shard_cut(&ownership, places, count);
    uint64_t all = 0, optimizer = 0;
    for (uint32_t r = 0; r < replicas; r++) {
      const uint64_t masters = bl_shard_masters(&ownership, places, count, r, resident, offsets);
      uint64_t end = 0, own = 0;
      for (uint32_t i = 0; i < count; i++) { // they follow each other
        const uint64_t updated = bl_shard_range(&ownership, &places[i], r).count;
        if (resident[i] == BL_RESIDENT_NOWHERE && updated > 0) {
          assert_true(offsets[i] >= end && offsets[i] % (BL_CACHE_LINE_BYTES / sizeof(float)) == 0);
          end = offsets[i] + updated;
          own += updated;
        }
      }
      assert_true(end <= masters && masters < own + count * BL_CACHE_LINE_BYTES / sizeof(float));
      all += own;
      const bl_stage_memory_request_t request = {.model = &model,
                                                 .spans = &span,
                                                 .span_count = 1,
                                                 .options = {.micro_batch = 1,
                                                             .attention = BL_ATTENTION_FLASH,
                                                             .backward = BL_BACKWARD_FUSED,
                                                             .dtype = BL_DTYPE_BF16},
                                                 .micro_batches = 4,
                                                 .post_validation = true,
                                                 .copies = ownership.copies,
                                                 .replica = r};
      bl_stage_memory_t memory;
      assert_int_equal(bl_stage_memory(&request, &memory), BL_OK);
      const uint64_t moments = bl_shard_moments(&ownership, places, count, r, NULL);
      assert_int_equal(memory.weight_bytes, kept * sizeof(float)); // nothing is packed here
      assert_int_equal(memory.optimizer_bytes, (2 * moments + masters) * sizeof(float));
      assert_int_equal(memory.shadow_bytes, memory.weight_bytes + memory.optimizer_bytes);
      assert_true(memory.even_bytes < memory.optimizer_bytes + line(1) * count);
      optimizer += memory.optimizer_bytes;
    }
    assert_true(all + kept >= elements - count * BL_CACHE_LINE_BYTES / sizeof(float) && all + kept <= elements);
    assert_true(optimizer < (3 * elements - kept + 3ull * replicas * count * BL_CACHE_LINE_BYTES) * sizeof(float));
  }
  free(places);
  free(resident);
  free(offsets);
}

static void moments_of_one_replica_lie_where_weights_do(void **state) {
  (void)state;
  const bl_model_t model = gpt2_small();
  const bl_chunk_span_t span = bl_chunk_span_whole(&model);
  const uint32_t count = bl_chunk_span_parameter_count(&model, span);
  bl_parameter_place_t *places = calloc(count, sizeof *places);
  uint64_t *offsets = calloc(count, sizeof *offsets);
  assert_true(places != NULL && offsets != NULL);
  const uint64_t elements = bl_chunk_span_places(&model, span, (bl_layer_parts_t){0}, places);
  assert_true(bl_shard_moments(&(bl_ownership_t){0}, places, count, 0, offsets) == elements);
  for (uint32_t i = 0; i < count; i++) {
    assert_true(offsets[i] == places[i].offset_elements);
  }
  free(places);
  free(offsets);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_tensor_has_an_owner),      cmocka_unit_test(many_chunks_are_as_even_as_one),
      cmocka_unit_test(small_chunks_have_no_overlaps),  cmocka_unit_test(two_replicas_have_half_each),
      cmocka_unit_test(shares_do_not_depend_on_copies), cmocka_unit_test(both_ends_of_two_pipes_agree),
      cmocka_unit_test(masters_in_bf16_are_shared_out), cmocka_unit_test(moments_of_one_replica_lie_where_weights_do),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
