// SPDX-License-Identifier: Apache-2.0
// The host back end's context and table.
#include "compute/ops/host/compute.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

static const char *instruction_set_name(bl_instruction_set_t set) {
  static const char *const names[] = {"auto", "baseline", "avx2", "avx512"};
  return names[set];
}

static void destroy(bl_compute_t *compute) {
  if (!compute) {
    return;
  }
  bl__linear_destroy_all(compute);
  bl__attention_destroy_all(compute);
  bl__rope_destroy_all(compute);
  bl__engine_destroy(compute->engine);
  free(compute);
}

static bl_status_t create(const bl_compute_options_t *options, bl_compute_t **compute, bl_error_t *err) {
  if (options->threads == 0) {
    return bl_error_set(err, BL_INVALID, "compute threads: must be at least 1, is 0");
  }
  const bl_kernels_t *kernels = bl__kernels_select(options->instruction_set);
  if (!kernels) {
    return bl_error_set(err, BL_UNIMPLEMENTED, "instruction set %s: not on this CPU; choose auto",
                        instruction_set_name(options->instruction_set));
  }
  bl_compute_t *made = calloc(1, sizeof *made);
  if (!made) {
    return bl_error_set(err, BL_EXHAUSTED, "compute context: out of memory");
  }
  bl_status_t status = bl__engine_create(&made->engine, err);
  if (status != BL_OK) {
    free(made);
    return status;
  }
  made->threads = options->threads;
  made->kernels = kernels;
  // bf16 instructions are used only with the best kernels: a caller that asks for an older set gets only older
  // instructions.
  made->bf16_products = bl__engine_has_bf16() && kernels == bl__kernels_select(BL_ISA_AUTO);
  char engine[64];
  bl__engine_describe(engine, sizeof engine);
  snprintf(made->description, sizeof made->description, "%s, %s", kernels->name, engine);
  *compute = made;
  return BL_OK;
}

// Sets denormal operands and results to zero (EXECUTION.md 15); per thread.
static void flush_denormals(void) {
#if defined(__SSE__)
  _mm_setcsr(_mm_getcsr() | 0x8040u); // flush to zero, denormals are zero
#elif defined(__aarch64__)
  uint64_t control;
  __asm__ volatile("mrs %0, fpcr" : "=r"(control));
  __asm__ volatile("msr fpcr, %0" : : "r"(control | (1ull << 24)));
#endif
}

static void attach(bl_compute_t *compute) {
  omp_set_dynamic(0);
  omp_set_num_threads((int)compute->threads);
#pragma omp parallel num_threads(compute->threads)
  flush_denormals();
}

static const char *describe(const bl_compute_t *compute) {
  return compute->description;
}

static size_t workspace_bytes(const bl_compute_t *compute) {
  return compute->workspace_wanted;
}

static void use_workspace(bl_compute_t *compute, void *workspace, size_t bytes) {
  compute->workspace = workspace;
  compute->workspace_bytes = bytes;
}

static bl_status_t kept_status(const bl_compute_t *compute, bl_error_t *err) {
  if (compute->error.status != BL_OK) {
    return bl_error_set(err, compute->error.status, "%s", compute->error.text);
  }
  return BL_OK;
}

static const bl_ops_t host_ops = {
    .name = "host",
    .create = create,
    .destroy = destroy,
    .attach = attach,
    .describe = describe,
    .workspace_bytes = workspace_bytes,
    .use_workspace = use_workspace,
    .status = kept_status,
    .linear_plan = bl__linear_plan,
    .linear_packed_bytes = bl__linear_packed_bytes,
    .linear_pack = bl__linear_pack,
    .linear_forward = bl__linear_forward,
    .linear_backward_input = bl__linear_backward_input,
    .linear_backward_weight = bl__linear_backward_weight,
    .norm_forward = bl__norm_forward,
    .norm_backward = bl__norm_backward,
    .head_norm_forward = bl__head_norm_forward,
    .head_norm_backward = bl__head_norm_backward,
    .gelu_forward = bl__gelu_forward,
    .gelu_backward = bl__gelu_backward,
    .gated_forward = bl__gated_forward,
    .gated_backward = bl__gated_backward,
    .rope_plan = bl__rope_plan,
    .rope_forward = bl__rope_forward,
    .rope_backward = bl__rope_backward,
    .attention_plan = bl__attention_plan,
    .attention_forward = bl__attention_forward,
    .attention_backward = bl__attention_backward,
    .attention_slice_forward = bl__attention_slice_forward,
    .attention_slice_backward = bl__attention_slice_backward,
    .embedding_forward = bl__embedding_forward,
    .embedding_backward = bl__embedding_backward,
    .softcap_logits = bl__softcap_logits,
    .cross_entropy = bl__cross_entropy,
    .loss_sum = bl__loss_sum,
    .draw = bl__draw,
    .sum_parts = bl__sum_parts,
    .embedding_part_forward = bl__embedding_part_forward,
    .embedding_part_backward = bl__embedding_part_backward,
    .softmax_statistics = bl__softmax_statistics,
    .cross_entropy_part = bl__cross_entropy_part,
    .adamw = bl__adamw,
    .sum_squares = bl__sum_squares,
    .add_columns = bl__add_columns,
    .accumulate = bl__accumulate,
    .add = bl__add,
    .fill = bl__fill,
};

const bl_ops_t *bl_ops_host(void) {
  return &host_ops;
}
