// SPDX-License-Identifier: Apache-2.0
// Verifies that layers in T parts give the same bits however many ranks share them. It runs two steps on t threads,
// each of which is one rank, and compares losses, the norm of the gradients and all weights with those of one rank
// that has all parts. Barriers take the place of the communication between ranks.
#include "compute/properties.h"
#include "compute/trainer.h"
#include "instrumented.h"
#include "model/exchange_buffers.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>

#define STEPS         2
#define MICRO_BATCHES 3
#define MICRO_BATCH   2
#define MOST_RANKS    4

typedef struct {
  const char *name;
  bl_layout_options_t layout;
  trainer_order_t order;
  uint32_t chunks;
} variant_t;

typedef struct {
  double losses[STEPS][MICRO_BATCHES];
  double norms[STEPS];
  float *weights; // all parameters in canonical order
} outcome_t;

// ---- ranks that are threads

typedef struct team team_t;

typedef struct {
  bl_group_t group; // first: the transport finds the member by it
  team_t *team;
  uint8_t *memory;
} member_t;

struct team {
  const bl_model_t *model;
  const variant_t *variant;
  uint32_t ranks;
  pthread_barrier_t barrier;
  member_t members[MOST_RANKS];
  double *squares; // [parameters * parts]
  outcome_t *outcome;
};

static member_t *member_of(bl_group_t *group) {
  return (member_t *)(void *)group;
}

// A rank that acquires a buffer no longer reads what the others wrote into it before.
static bl_status_t acquire(bl_group_t *group, uint32_t window, bl_error_t *err) {
  (void)window;
  (void)err;
  pthread_barrier_wait(&member_of(group)->team->barrier);
  return BL_OK;
}

static bl_status_t gather(bl_group_t *group, uint32_t window, uint64_t block_bytes, bl_error_t *err) {
  (void)err;
  team_t *team = member_of(group)->team;
  pthread_barrier_wait(&team->barrier);
  for (uint32_t rank = 0; rank < team->ranks; rank++) {
    if (rank != group->rank) {
      memcpy(group->windows[window] + rank * block_bytes,
             team->members[rank].group.windows[window] + rank * block_bytes, block_bytes);
    }
  }
  return BL_OK;
}

static bl_status_t exchange(bl_group_t *group, uint32_t window, uint64_t block_bytes, const void **blocks,
                            bl_error_t *err) {
  (void)err;
  team_t *team = member_of(group)->team;
  const uint32_t here = group->parts / group->ranks;
  pthread_barrier_wait(&team->barrier);
  for (uint32_t part = 0; part < group->parts; part++) {
    const bl_group_t *owner = &team->members[part / here].group;
    blocks[part] = owner->windows[window] + ((uint64_t)(part % here) * group->ranks + group->rank) * block_bytes;
  }
  return BL_OK;
}

static const bl_group_transport_t threads = {.acquire = acquire, .gather = gather, .exchange = exchange};

static void make_member(team_t *team, uint32_t rank) {
  member_t *member = &team->members[rank];
  const bl_layout_options_t layout = team->variant->layout;
  const bl_exchange_buffers_t windows = bl_exchange_buffers_plan(team->model, layout, true);
  member->team = team;
  member->memory = aligned_alloc(64, windows.bytes);
  assert_non_null(member->memory);
  memset(member->memory, 0xff, windows.bytes);
  member->group = (bl_group_t){.parts = layout.layer_parts.count,
                               .ranks = team->ranks,
                               .rank = rank,
                               .transport = team->ranks > 1 ? &threads : NULL};
  for (int i = 0; i < BL_EXCHANGE_BUFFERS; i++) {
    member->group.windows[i] = member->memory + windows.offset_bytes[i];
  }
}

// ---- training

static void collect_weights(trainer_t *trainer, const team_t *team) {
  const uint32_t chunks = team->variant->chunks;
  for (uint32_t c = 0; c < chunks; c++) {
    bl_chunk_t *chunk = trainer_chunk(trainer, c);
    for (uint32_t i = 0; i < bl_chunk_parameter_count(chunk); i++) {
      const bl_chunk_parameter_t p = bl_chunk_parameter(chunk, i);
      uint64_t at = 0;
      for (uint32_t k = 0; k < p.parameter.index; k++) {
        at += bl_parameter_get(team->model, k).elements;
      }
      if (p.owned) {
        trainer_read_parameter(trainer, &p, team->outcome->weights + at);
      }
    }
  }
}

static void train_rank(team_t *team, uint32_t rank) {
  const variant_t *variant = team->variant;
  trainer_options_t options = {.model = *team->model,
                               .chunks = variant->chunks,
                               .micro_batches = MICRO_BATCHES,
                               .layout = variant->layout,
                               .prepack = true,
                               .seed = 17,
                               .group = team->ranks > 1 ? &team->members[rank].group : NULL};
  options.layout.layer_parts.rank = rank;
  options.layout.layer_parts.ranks = team->ranks;
  options.layout.micro_batch = MICRO_BATCH;
  trainer_t *trainer = trainer_create(&options);
  const uint64_t count = (uint64_t)MICRO_BATCHES * MICRO_BATCH * team->model->seq;
  int32_t *tokens = malloc(count * sizeof *tokens), *labels = malloc(count * sizeof *labels);
  trainer_op_t ops[TRAINER_OPS_MAX];
  const size_t op_count = trainer_make_order(variant->order, variant->chunks, MICRO_BATCHES, ops);
  const bl_adamw_settings_t settings = {.beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1};
  double losses[STEPS][MICRO_BATCHES];
  for (int step = 0; step < STEPS; step++) {
    trainer_random_tokens(team->model, (uint64_t)step, count, tokens, labels);
    trainer_run(trainer, tokens, labels, ops, op_count, losses[step]);
    trainer_squares(trainer, team->squares); // each rank those of its parts, the first rank also those of whole tensors
    pthread_barrier_wait(&team->barrier);
    const double norm = trainer_norm_of(trainer, team->squares);
    pthread_barrier_wait(&team->barrier);
    if (rank == 0) {
      team->outcome->norms[step] = norm;
    }
    trainer_update(trainer, &settings, (uint64_t)step + 1, 1e-2, 1.0, norm);
  }
  if (rank == team->ranks - 1) { // any rank: all have the same losses
    memcpy(team->outcome->losses, losses, sizeof losses);
  }
  for (uint32_t round = 0; round < team->ranks; round++) { // one after the other: all write the whole tensors
    if (round == rank) {
      collect_weights(trainer, team);
    }
    pthread_barrier_wait(&team->barrier);
  }
  free(tokens);
  free(labels);
  trainer_destroy(trainer);
}

typedef struct {
  team_t *team;
  uint32_t rank;
} start_t;

static void *run_rank(void *argument) {
  const start_t *start = argument;
  train_rank(start->team, start->rank);
  return NULL;
}

static void train(const bl_model_t *model, variant_t variant, uint32_t ranks, outcome_t *outcome) {
  variant.layout.micro_batch = MICRO_BATCH;
  variant.layout.layer_parts.ranks = ranks;
  team_t team = {.model = model, .variant = &variant, .ranks = ranks, .outcome = outcome};
  pthread_t handles[MOST_RANKS];
  start_t starts[MOST_RANKS];
  team.squares = calloc((size_t)bl_parameter_count(model) * variant.layout.layer_parts.count, sizeof *team.squares);
  outcome->weights = calloc(bl_model_parameter_elements(model), sizeof(float));
  assert_true(team.squares != NULL && outcome->weights != NULL);
  assert_int_equal(pthread_barrier_init(&team.barrier, NULL, ranks), 0);
  for (uint32_t rank = 0; rank < ranks; rank++) {
    make_member(&team, rank);
  }
  for (uint32_t rank = 0; rank < ranks; rank++) {
    starts[rank] = (start_t){&team, rank};
    assert_int_equal(pthread_create(&handles[rank], NULL, run_rank, &starts[rank]), 0);
  }
  for (uint32_t rank = 0; rank < ranks; rank++) {
    pthread_join(handles[rank], NULL);
    assert_int_equal(bl_group_status(&team.members[rank].group, NULL), BL_OK);
    free(team.members[rank].memory);
  }
  pthread_barrier_destroy(&team.barrier);
  free(team.squares);
}

static void expect_equal(const bl_model_t *model, const outcome_t *expected, const outcome_t *found, const char *what) {
  for (int step = 0; step < STEPS; step++) {
    for (int i = 0; i < MICRO_BATCHES; i++) {
      if (expected->losses[step][i] != found->losses[step][i]) {
        fail_msg("%s: loss of step %d, micro-batch %d is %.17g, expected %.17g", what, step, i, found->losses[step][i],
                 expected->losses[step][i]);
      }
    }
    if (expected->norms[step] != found->norms[step]) {
      fail_msg("%s: gradient norm of step %d is %.17g, expected %.17g", what, step, found->norms[step],
               expected->norms[step]);
    }
  }
  const uint64_t elements = bl_model_parameter_elements(model);
  for (uint64_t i = 0; i < elements; i++) {
    if (expected->weights[i] != found->weights[i]) { // NaN is different, too
      fail_msg("%s: weight %llu is %.9g, expected %.9g", what, (unsigned long long)i, (double)found->weights[i],
               (double)expected->weights[i]);
    }
  }
}

static void compare(const bl_model_t *model, variant_t variant, uint32_t parts) {
  variant.layout.layer_parts.count = parts;
  outcome_t alone;
  train(model, variant, 1, &alone);
  for (uint32_t ranks = FEW_OR_ALL(parts, 2); ranks <= parts; ranks *= 2) {
    outcome_t shared;
    char what[160];
    snprintf(what, sizeof what, "%s %s in %u parts on %u ranks", bl_family_name(model->family), variant.name, parts,
             ranks);
    train(model, variant, ranks, &shared);
    expect_equal(model, &alone, &shared, what);
    free(shared.weights);
  }
  free(alone.weights);
}

static const variant_t variants[] = {
    {"naive", {.attention = BL_ATTENTION_NAIVE}, {0}, 1},
    {"flash, lean, fused",
     {.attention = BL_ATTENTION_FLASH, .backward = BL_BACKWARD_FUSED, .lean = true},
     {.one_forward_one_backward = true},
     2},
    {"split, lean",
     {.attention = BL_ATTENTION_FLASH, .lean = true},
     {.one_forward_one_backward = true, .split = true, .delay = 1},
     2},
    {"everything recomputed",
     {.attention = BL_ATTENTION_FLASH, .recompute = BL_RECOMPUTE_FULL},
     {.one_forward_one_backward = true, .recompute = true, .gradient_first = true},
     1},
    {"attention recomputed",
     {.attention = BL_ATTENTION_NAIVE, .recompute = BL_RECOMPUTE_ATTENTION, .backward = BL_BACKWARD_FUSED},
     {.one_forward_one_backward = true},
     1},
    {"bf16", {.attention = BL_ATTENTION_FLASH, .dtype = BL_DTYPE_BF16}, {0}, 2},
};

static void compare_all(const bl_model_t *model) {
  for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++) {
    compare(model, variants[i], 4);
  }
  compare(model, variants[0], 2);
  variant_t sliced = {"in slices",
                      {.attention = BL_ATTENTION_FLASH, .backward = BL_BACKWARD_FUSED, .lean = true},
                      {.one_forward_one_backward = true},
                      2};
  sliced.layout.slices = sliced.order.slices = model->seq % 5 == 0 ? 5 : 3;
  compare(model, sliced, 4);
}

// Heads, widths and tables that do not divide evenly into cache lines; the last part of a table is shorter.
static void gpt2_has_the_same_bits(void **state) {
  (void)state;
  compare_all(&(bl_model_t){.family = BL_FAMILY_GPT2,
                            .layers = 2,
                            .hidden = 40,
                            .heads = 4,
                            .kv_heads = 4,
                            .head_dim = 10,
                            .ffn = 100,
                            .vocab = 83,
                            .seq = 10,
                            .positions = 14,
                            .tied = true,
                            .norm_epsilon = 1e-5,
                            .rope.theta = 10000});
}

static const bl_model_t llama = {.family = BL_FAMILY_LLAMA,
                                 .layers = 2,
                                 .hidden = 48,
                                 .heads = 8,
                                 .kv_heads = 4,
                                 .head_dim = 8,
                                 .ffn = 116,
                                 .vocab = 301,
                                 .seq = 12,
                                 .norm_epsilon = 1e-5,
                                 .rope.theta = 10000};

static void llama_has_the_same_bits(void **state) {
  (void)state;
  compare_all(&llama);
}

static void norms_softcaps_and_windows_have_the_same_bits(void **state) {
  (void)state;
  const bl_model_t model = with_norms_softcaps_and_windows(llama);
  compare_all(&model);
}

static void fused_projections_have_the_same_bits(void **state) {
  (void)state;
  const bl_model_t model = fused_with_a_window(llama);
  compare_all(&model);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(gpt2_has_the_same_bits),
      cmocka_unit_test(llama_has_the_same_bits),
      cmocka_unit_test(norms_softcaps_and_windows_have_the_same_bits),
      cmocka_unit_test(fused_projections_have_the_same_bits),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
