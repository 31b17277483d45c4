// SPDX-License-Identifier: Apache-2.0
// Verifies that an update which leaves rounded copies of the weights by itself (adamw_packs) leaves every copy that
// packing all weights would: several parameters of one weight, tied and untied heads, layers in the middle.
#include "compute/model/chunk.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

// The host's table, but for weights that are packed by rounding. Nothing is multiplied here.
#define PLANS_MAX 32
static struct {
  const bl_linear_op_t *op;
  uint64_t elements, outputs; // outputs: of a bias, 0 without
} plans[PLANS_MAX];
static size_t plan_count, updated_with_copy;

static bl_status_t linear_plan(bl_compute_t *compute, const bl_linear_shape_t *shape, bl_linear_op_t **op,
                               bl_error_t *err) {
  bl_status_t status = bl_ops_host()->linear_plan(compute, shape, op, err);
  assert_true(plan_count < PLANS_MAX);
  plans[plan_count].op = *op;
  plans[plan_count].outputs = shape->bias ? shape->out : 0;
  plans[plan_count++].elements = shape->in * shape->out;
  return status;
}

static size_t index_of(const bl_linear_op_t *op) {
  size_t i = plan_count;
  while (i-- > 0 && plans[i].op != op) {
  }
  return i;
}

static size_t bias_at(const bl_linear_op_t *op) {
  return (plans[index_of(op)].elements + 31) / 32 * 32 * sizeof(uint16_t);
}

static size_t linear_packed_bias(const bl_linear_op_t *op) {
  return plans[index_of(op)].outputs > 0 ? bias_at(op) : 0;
}

static size_t linear_packed_bytes(const bl_linear_op_t *op) {
  return bias_at(op) + plans[index_of(op)].outputs * sizeof(uint16_t);
}

static void cut(const float *w, uint64_t count, void *packed) {
  for (uint64_t i = 0; i < count; i++) {
    uint32_t bits;
    memcpy(&bits, &w[i], sizeof bits);
    ((uint16_t *)packed)[i] = (uint16_t)(bits >> 16);
  }
}

static void linear_pack(bl_linear_op_t *op, const float *w, const float *bias, void *packed) {
  cut(w, plans[index_of(op)].elements, packed);
  cut(bias, plans[index_of(op)].outputs, (char *)packed + bias_at(op));
}

static void adamw(bl_compute_t *compute, uint32_t count, const bl_adamw_tensor_t *tensors) {
  bl_ops_host()->adamw(compute, count, tensors);
  for (uint32_t i = 0; i < count; i++) {
    if (tensors[i].packed != NULL) {
      cut(tensors[i].w, tensors[i].count, tensors[i].packed);
      updated_with_copy++;
    }
  }
}

static void *block(uint64_t bytes) {
  void *made = aligned_alloc(64, (bytes + 64) / 64 * 64);
  assert_non_null(made);
  memset(made, 0, (bytes + 64) / 64 * 64);
  return made;
}

// What is updated with its copy: weights and biases of the products of each layer, and the head.
static void check(bl_model_t model, bl_chunk_span_t span, size_t expected) {
  bl_error_t err = {0};
  bl_ops_t ops = *bl_ops_host();
  ops.linear_plan = linear_plan;
  ops.linear_packed_bytes = linear_packed_bytes;
  ops.linear_pack = linear_pack;
  ops.linear_packed_bias = linear_packed_bias;
  ops.adamw = adamw;
  ops.adamw_packs = true;
  plan_count = updated_with_copy = 0;
  bl_compute_t *compute;
  assert_int_equal(ops.create(&(bl_compute_options_t){.threads = 1}, &compute, &err), BL_OK);
  ops.attach(compute);
  const bl_chunk_options_t options = {.ops = &ops,
                                      .compute = compute,
                                      .model = &model,
                                      .span = span,
                                      .layout = {.micro_batch = 1, .dtype = BL_DTYPE_BF16},
                                      .micro_batches = 1};
  bl_chunk_t *chunk;
  if (bl_chunk_create(&options, &chunk, &err) != BL_OK) {
    fail_msg("%s", err.text);
  }
  const bl_chunk_sizes_t sizes = bl_chunk_sizes(chunk);
  bl_chunk_arenas_t arenas = {.weights = block(sizes.weight_bytes),
                              .gradients = block(sizes.gradient_bytes),
                              .first_moments = block(sizes.moment_bytes),
                              .second_moments = block(sizes.moment_bytes),
                              .packed = block(sizes.packed_bytes),
                              .workspace = block(sizes.workspace_bytes)};
  void *kept = block(sizes.packed_bytes);
  bl_chunk_use_arenas(chunk, &arenas);
  assert_int_equal(bl_chunk_initialize(chunk, 3, 1, &err), BL_OK);
  for (uint64_t i = 0; i < sizes.gradient_bytes / sizeof(float); i++) {
    arenas.gradients[i] = 1.0f + (float)(i % 5);
  }
  memcpy(kept, arenas.packed, sizes.packed_bytes);
  bl_chunk_update(chunk, &(bl_adamw_settings_t){0.9, 0.95, 1e-8, 0.1, BL_DECAY_MATRICES},
                  &(bl_adamw_step_t){.step = 1, .rate = 0.1, .gradient_scale = 1});
  assert_int_equal(updated_with_copy, expected);
  assert_memory_not_equal(kept, arenas.packed, sizes.packed_bytes);
  memcpy(kept, arenas.packed, sizes.packed_bytes);
  memset(arenas.packed, 0, sizes.packed_bytes); // padding is zero
  bl_chunk_weights_changed(chunk);
  assert_memory_equal(kept, arenas.packed, sizes.packed_bytes);

  void *blocks[] = {arenas.weights,
                    arenas.gradients,
                    arenas.first_moments,
                    arenas.second_moments,
                    arenas.packed,
                    arenas.workspace,
                    kept};
  for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) {
    free(blocks[i]);
  }
  bl_chunk_destroy(chunk);
  ops.destroy(compute);
}

static const bl_model_t gpt2 = {.family = BL_FAMILY_GPT2,
                                .layers = 3,
                                .hidden = 24,
                                .heads = 2,
                                .kv_heads = 2,
                                .head_dim = 12,
                                .ffn = 50,
                                .vocab = 33,
                                .seq = 9,
                                .tied = true,
                                .norm_epsilon = 1e-5};

static void copies_are_those_of_packing(void **state) {
  (void)state;
  bl_model_t llama = gpt2;
  llama.family = BL_FAMILY_LLAMA;
  llama.kv_heads = 1;
  llama.tied = false;
  llama.rope.theta = 1e4;
  bl_model_t untied = gpt2;
  untied.tied = false;
  check(gpt2, bl_chunk_span_whole(&gpt2), 3 * 8 + 1);
  check(untied, bl_chunk_span_whole(&untied), 3 * 8 + 1);
  check(llama, bl_chunk_span_whole(&llama), 3 * 7 + 1); // q, k, v are one weight, gate and up another
  bl_model_t fused = llama;
  fused.fused = true;
  check(fused, bl_chunk_span_whole(&fused), 3 * 4 + 1);
  bl_model_t biased = llama; // three biases are one
  biased.qkv_bias = true;
  check(biased, bl_chunk_span_whole(&biased), 3 * 10 + 1);
  check(gpt2, (bl_chunk_span_t){1, 2, false, false}, 2 * 8);
  check(llama, (bl_chunk_span_t){0, 1, true, false}, 7);
  check(llama, (bl_chunk_span_t){2, 1, false, true}, 7 + 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(copies_are_those_of_packing)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
