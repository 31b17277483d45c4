// SPDX-License-Identifier: Apache-2.0
#include "ops_kernels.h"

#define HEAD_DIM    64
#define NAIVE_HEADS 64 // of one sequence: scores far larger than the L2 cache, which a product has left dirty
#define NARROW      64 // columns of x in the product that runs with the sums of dy's columns

static uint64_t naive_heads(const bl_ops_kernels_t *k) {
  return k->hidden / HEAD_DIM < NAIVE_HEADS ? k->hidden / HEAD_DIM : NAIVE_HEADS;
}

static uint64_t flash_heads(const bl_ops_kernels_t *k) { // a quarter: its scores in workspace are large
  return k->hidden / HEAD_DIM < 4 ? 1 : k->hidden / HEAD_DIM / 4;
}

static uint64_t element(const bl_ops_kernels_t *k) {
  return k->dtype == BL_COMPUTE_BF16 ? 2 : 4;
}

bl_status_t bl_ops_kernels_plan(bl_ops_kernels_t *k, bl_device_t *device, bl_error_t *err) {
  const bl_linear_shape_t columns = {
      .rows = k->batch * k->seq, .in = NARROW, .out = 4 * k->hidden, .uses = BL_LINEAR_WEIGHT, .dtype = k->dtype};
  const uint64_t heads[] = {naive_heads(k), flash_heads(k)};
  const bl_attention_shape_t naive = {
      .batch = 1, .seq = k->seq, .heads = heads[0], .kv_heads = heads[0], .head_dim = HEAD_DIM, .dtype = k->dtype};
  bl_attention_shape_t flash = naive;
  flash.batch = k->batch;
  flash.heads = flash.kv_heads = heads[1];
  flash.flash = true;
  bl_status_t status = k->ops->linear_plan(k->compute, &columns, &k->linear, err);
  status = status == BL_OK ? k->ops->attention_plan(k->compute, &naive, &k->naive, err) : status;
  status = status == BL_OK ? k->ops->attention_plan(k->compute, &flash, &k->flash, err) : status;
  if (status != BL_OK) {
    return status;
  }
  const uint64_t scores = heads[0] * k->seq * k->seq * element(k), sums = k->batch * heads[1] * k->seq * sizeof(float);
  return bl_arena_create(device, NULL, BL_MEMORY_DATA, BL_ARENA_PRIVATE, scores > sums ? scores : sums, &k->saved, err);
}

static void sum_columns(void *kernels) {
  bl_ops_kernels_t *k = kernels;
  const bl_column_sum_t sum = {k->batch * k->seq, 4 * k->hidden, k->dtype, k->block[1], k->vector[1]};
  k->ops->add_columns(k->compute, 1, &sum);
}

static void naive_forward(void *kernels) {
  bl_ops_kernels_t *k = kernels;
  k->ops->attention_forward(k->naive, k->block[0], k->block[1], k->saved.base);
}

static void naive_backward(void *kernels) {
  bl_ops_kernels_t *k = kernels;
  naive_forward(k); // produces the probabilities
  k->ops->attention_backward(k->naive, k->block[2], k->block[0], k->block[1], k->saved.base, k->block[3]);
}

static void flash_backward(void *kernels) {
  bl_ops_kernels_t *k = kernels;
  k->ops->attention_forward(k->flash, k->block[0], k->block[1], k->saved.base);
  k->ops->attention_backward(k->flash, k->block[2], k->block[0], k->block[1], k->saved.base, k->block[3]);
}

// Causality excludes half of the pairs from reading; all pairs are written.
void bl_ops_kernels_list(const bl_ops_kernels_t *k, bl_ops_kernel_t list[BL_OPS_KERNELS]) {
  const double size = (double)element(k), tokens = (double)k->batch * (double)k->seq;
  const double pairs = (double)naive_heads(k) * (double)k->seq * (double)k->seq;
  list[0] = (bl_ops_kernel_t){"column sums", "column_", sum_columns, tokens * 4 * (double)k->hidden * size};
  list[1] = (bl_ops_kernel_t){"softmax forward", "softmax_forward", naive_forward, pairs * (4.0 / 2 + size)};
  list[2] = (bl_ops_kernel_t){"softmax backward", "softmax_backward", naive_backward, pairs * ((4 + size) / 2 + size)};
  // Gradients of queries, keys and values.
  list[3] = (bl_ops_kernel_t){"heads into rows", "scatter_heads", flash_backward,
                              3 * tokens * (double)flash_heads(k) * HEAD_DIM * 2 * size};
}
