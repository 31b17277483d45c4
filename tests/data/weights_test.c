// SPDX-License-Identifier: Apache-2.0
// Verifies the weights a chunk starts with: the same values in every partition, drawn or read, and nothing but zeros
// between the tensors.
#include "data/weights.h"

#include "job/job_text.h"

#include <setjmp.h>
#include <stdlib.h>

#include <cmocka.h>

#define GOLDEN BALLAST_SOURCE_DIR "/tests/golden/"

static const bl_model_t gpt2 = {.family = BL_FAMILY_GPT2,
                                .layers = 3,
                                .hidden = 48,
                                .heads = 4,
                                .kv_heads = 4,
                                .head_dim = 12,
                                .ffn = 192,
                                .vocab = 101,
                                .seq = 32,
                                .tied = true,
                                .norm_epsilon = 1e-5};

typedef struct {
  bl_parameter_place_t *places;
  uint32_t count;
  float *arena;
  uint64_t elements;
} chunk_t;

static chunk_t load(const bl_job_t *job, bl_chunk_span_t span) {
  chunk_t chunk = {.count = bl_chunk_span_parameter_count(&gpt2, span)};
  chunk.places = calloc(chunk.count, sizeof *chunk.places);
  assert_non_null(chunk.places);
  chunk.elements = bl_chunk_span_places(&gpt2, span, (bl_layer_parts_t){0}, chunk.places);
  chunk.arena = malloc(chunk.elements * sizeof *chunk.arena);
  assert_non_null(chunk.arena);
  memset(chunk.arena, 0xff, chunk.elements * sizeof *chunk.arena); // NaN where nothing is written
  bl_error_t err = {0};
  const bl_chunk_start_t start = {.job = job, .model = &gpt2, .span = span, .device = bl_device_host(), .threads = 2};
  if (bl_chunk_weights_load(&start, chunk.arena, &err) != BL_OK) {
    fail_msg("%s", err.text);
  }
  return chunk;
}

static void drop(chunk_t *chunk) {
  free(chunk->places);
  free(chunk->arena);
}

static const bl_parameter_place_t *find(const chunk_t *chunk, uint32_t canonical_index) {
  for (uint32_t i = 0; i < chunk->count; i++) {
    if (chunk->places[i].canonical_index == canonical_index) {
      return &chunk->places[i];
    }
  }
  return NULL;
}

static void assert_same_in_parts(const char *sets) {
  bl_job_t job;
  bl_error_t err = {0};
  if (job_text_parse(&job, sets, &err) != BL_OK) {
    fail_msg("%s", err.text);
  }
  chunk_t whole = load(&job, bl_chunk_span_whole(&gpt2));
  chunk_t parts[2] = {load(&job, (bl_chunk_span_t){.first_layer = 0, .layer_count = 1, .embedding = true}),
                      load(&job, (bl_chunk_span_t){.first_layer = 1, .layer_count = 2, .head = true})};
  uint32_t compared = 0;
  for (int p = 0; p < 2; p++) {
    for (uint32_t i = 0; i < parts[p].count; i++, compared++) {
      const bl_parameter_place_t *there = &parts[p].places[i], *here = find(&whole, there->canonical_index);
      assert_non_null(here);
      assert_int_equal(here->elements, there->elements);
      assert_memory_equal(whole.arena + here->offset_elements, parts[p].arena + there->offset_elements,
                          here->elements * sizeof(float));
    }
    drop(&parts[p]);
  }
  assert_int_equal(compared, bl_parameter_count(&gpt2) + 1); // the tied matrix is in both parts
  drop(&whole);
  bl_job_cleanup(&job);
}

static void partitions_agree(void **state) {
  (void)state;
  assert_same_in_parts("train.seed=3");
  assert_same_in_parts("model.init=" GOLDEN "gpt2");
}

static void gaps_are_zero_and_seeds_differ(void **state) {
  (void)state;
  bl_job_t job;
  bl_error_t err = {0};
  assert_int_equal(job_text_parse(&job, "train.seed=3", &err), BL_OK);
  chunk_t chunk = load(&job, bl_chunk_span_whole(&gpt2));
  float first = chunk.arena[chunk.places[0].offset_elements];
  for (uint32_t i = 0; i < chunk.count; i++) {
    memset(chunk.arena + chunk.places[i].offset_elements, 0, chunk.places[i].elements * sizeof *chunk.arena);
  }
  for (uint64_t e = 0; e < chunk.elements; e++) {
    assert_true(chunk.arena[e] == 0.0f);
  }
  drop(&chunk);
  job.train.seed = 4;
  chunk = load(&job, bl_chunk_span_whole(&gpt2));
  assert_true(chunk.arena[chunk.places[0].offset_elements] != first);
  drop(&chunk);
  bl_job_cleanup(&job);
}

static void missing_weights_are_reported(void **state) {
  (void)state;
  bl_job_t job;
  bl_error_t err = {0};
  assert_int_equal(job_text_parse(&job, "model.init=" GOLDEN "llama", &err), BL_OK);
  float *arena = malloc(sizeof *arena * bl_model_parameter_elements(&gpt2) * 2);
  assert_non_null(arena);
  const bl_chunk_start_t start = {
      .job = &job, .model = &gpt2, .span = bl_chunk_span_whole(&gpt2), .device = bl_device_host()};
  assert_int_equal(bl_chunk_weights_load(&start, arena, &err), BL_INVALID);
  assert_non_null(strstr(err.text, "tensor 'transformer.wte.weight' of shape [101, 48] is missing"));
  free(arena);
  bl_job_cleanup(&job);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(partitions_agree),
      cmocka_unit_test(gaps_are_zero_and_seeds_differ),
      cmocka_unit_test(missing_weights_are_reported),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
