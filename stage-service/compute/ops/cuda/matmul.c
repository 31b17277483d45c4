// SPDX-License-Identifier: Apache-2.0
#include "compute/ops/cuda/matmul.h"

#include "device/cuda/verdict.h"

#include <cublasLt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// NVIDIA's recommendation for Hopper. Plans request what their algorithm uses, which is usually less.
#define WORKSPACE_MAX_BYTES ((uint64_t)32 << 20)

struct bl__matmul_engine {
  bl__gpu_t *gpu;
  cublasLtHandle_t handle;
  bl_ops_choice_t *choices; // [choice_capacity]
  size_t choice_count, choice_capacity;
};

struct bl__matmul {
  bl__matmul_engine_t *engine;
  bl__matmul_shape_t shape;
  cublasLtMatmulDesc_t operation;
  cublasLtMatrixLayout_t a, b, d;
  cublasLtMatmulAlgo_t algorithm;
  size_t workspace_bytes;
};

static bl_status_t fail(bl_error_t *err, const char *call, cublasStatus_t status) {
  const bl_status_t kind = status == CUBLAS_STATUS_ALLOC_FAILED    ? BL_EXHAUSTED
                           : status == CUBLAS_STATUS_NOT_SUPPORTED ? BL_UNIMPLEMENTED
                                                                   : BL_INTERNAL;
  return bl_error_set(err, kind, "%s: %s", call, cublasLtGetStatusString(status));
}

// Leaves the function through `label`, with `result` set, if a call of the library fails.
#define CHECK(result, err, label, call)                                                                                \
  do {                                                                                                                 \
    const cublasStatus_t check_status = (call);                                                                        \
    if (check_status != CUBLAS_STATUS_SUCCESS) {                                                                       \
      (result) = fail(err, #call, check_status);                                                                       \
      goto label;                                                                                                      \
    }                                                                                                                  \
  } while (0)

// The library encodes 13.0.2 as 130002.
static void found_version(int *major, int *minor, int *patch) {
  const int version = (int)cublasLtGetVersion();
  *major = version / 10000;
  *minor = version / 100 % 100;
  *patch = version % 100;
}

void bl__matmul_describe(char *text, size_t bytes) {
  int major, minor, patch;
  found_version(&major, &minor, &patch);
  snprintf(text, bytes, "cuBLASLt %d.%d.%d", major, minor, patch);
}

bl_status_t bl__matmul_engine_create(bl__gpu_t *gpu, bl__matmul_engine_t **engine, bl_error_t *err) {
  int major, minor, patch;
  found_version(&major, &minor, &patch);
  bl_status_t result = bl_cuda_verdict_library("cuBLASLt", CUBLAS_VER_MAJOR, CUBLAS_VER_MINOR, major, minor, err);
  if (result != BL_OK) {
    return result;
  }
  bl__matmul_engine_t *made = calloc(1, sizeof *made);
  if (!made) {
    return bl_error_set(err, BL_EXHAUSTED, "matrix products: out of memory");
  }
  made->gpu = gpu;
  CHECK(result, err, failed, cublasLtCreate(&made->handle));
  *engine = made;
  return BL_OK;
failed:
  free(made);
  return result;
}

void bl__matmul_engine_destroy(bl__matmul_engine_t *engine) {
  if (engine) {
    cublasLtDestroy(engine->handle);
    free(engine->choices);
    free(engine);
  }
}

static cublasStatus_t layout_create(cublasLtMatrixLayout_t *layout, cudaDataType_t type, uint64_t rows,
                                    uint64_t columns, uint64_t ld, uint64_t batch, uint64_t stride) {
  cublasStatus_t status = cublasLtMatrixLayoutCreate(layout, type, rows, columns, (int64_t)ld);
  if (status == CUBLAS_STATUS_SUCCESS && batch > 1) {
    const int32_t count = (int32_t)batch;
    const int64_t offset = (int64_t)stride;
    status = cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count);
    if (status == CUBLAS_STATUS_SUCCESS) {
      status = cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &offset,
                                                sizeof offset);
    }
  }
  return status;
}

static cublasStatus_t set_operation(cublasLtMatmulDesc_t operation, const bl__matmul_shape_t *shape,
                                    cudaDataType_t d_type) {
  const int32_t a = shape->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N, b = shape->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
  cublasStatus_t status = cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSA, &a, sizeof a);
  if (status == CUBLAS_STATUS_SUCCESS) {
    status = cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSB, &b, sizeof b);
  }
  if (status == CUBLAS_STATUS_SUCCESS && shape->bias) {
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    const int32_t type = (int32_t)d_type;
    const void *aligned =
        (const void *)(uintptr_t)256; // the selection may look at the alignment; each run passes the real address
    status = cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    if (status == CUBLAS_STATUS_SUCCESS) {
      status = cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof type);
    }
    if (status == CUBLAS_STATUS_SUCCESS) {
      status = cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &aligned, sizeof aligned);
    }
  }
  return status;
}

static cublasStatus_t prefer(cublasLtMatmulPreference_t preference, const bl__matmul_shape_t *shape) {
  // No product is split along k, because the library guarantees a fixed order of sums only without a split. Only small
  // outputs with long sums would gain from one.
  const uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_NONE;
  const uint64_t workspace = WORKSPACE_MAX_BYTES;
  static const cublasLtMatmulPreferenceAttributes_t alignments[] = {
      CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
      CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
  cublasStatus_t status = cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                               &workspace, sizeof workspace);
  if (status == CUBLAS_STATUS_SUCCESS) {
    status = cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes,
                                                  sizeof schemes);
  }
  for (size_t i = 0; status == CUBLAS_STATUS_SUCCESS && i < sizeof alignments / sizeof alignments[0]; i++) {
    status = cublasLtMatmulPreferenceSetAttribute(preference, alignments[i], &shape->alignment_bytes,
                                                  sizeof shape->alignment_bytes);
  }
  return status;
}

// ---- the algorithms that were chosen

static uint32_t configured(const cublasLtMatmulAlgo_t *algorithm, cublasLtMatmulAlgoConfigAttributes_t which) {
  const bool is_short = which == CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID || which == CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID;
  uint16_t half = 0;
  uint32_t value = 0;
  size_t written;
  const cublasStatus_t status =
      is_short ? cublasLtMatmulAlgoConfigGetAttribute(algorithm, which, &half, sizeof half, &written)
               : cublasLtMatmulAlgoConfigGetAttribute(algorithm, which, &value, sizeof value, &written);
  return status != CUBLAS_STATUS_SUCCESS ? 0 : is_short ? half : value; // the algorithm has no such attribute
}

static void describe_choice(const bl__matmul_shape_t *s, const cublasLtMatmulAlgo_t *algorithm,
                            bl_ops_choice_t *choice) {
  typedef unsigned long long number_t; // for %llu
  char batch[96] = "";
  if (s->batch > 1) {
    snprintf(batch, sizeof batch, " batch %llu by %llu %llu %llu", (number_t)s->batch, (number_t)s->a_stride,
             (number_t)s->b_stride, (number_t)s->d_stride);
  }
  char aligned[24] = "";
  if (s->alignment_bytes != 16) {
    snprintf(aligned, sizeof aligned, " aligned %u", s->alignment_bytes);
  }
  snprintf(choice->shape, sizeof choice->shape, "%llu x %llu x %llu %c%c %s%s ld %llu %llu %llu%s%s%s%s",
           (number_t)s->m, (number_t)s->n, (number_t)s->k, s->transpose_a ? 'T' : 'N', s->transpose_b ? 'T' : 'N',
           s->bf16 ? "bf16" : "fp32", s->float_d ? " to fp32" : "", (number_t)s->a_ld, (number_t)s->b_ld,
           (number_t)s->d_ld, batch, s->add ? " + C" : "", s->bias ? " + bias" : "", aligned);
  snprintf(choice->algorithm, sizeof choice->algorithm,
           "algorithm %u tile %u stages %u split-k %u reduction %u swizzle %u custom %u inner %u cluster %u",
           configured(algorithm, CUBLASLT_ALGO_CONFIG_ID), configured(algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID),
           configured(algorithm, CUBLASLT_ALGO_CONFIG_STAGES_ID),
           configured(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM),
           configured(algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME),
           configured(algorithm, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING),
           configured(algorithm, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION),
           configured(algorithm, CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID),
           configured(algorithm, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID));
}

static bl_status_t keep_choice(bl__matmul_engine_t *engine, const bl__matmul_t *matmul, bl_error_t *err) {
  bl_ops_choice_t choice;
  describe_choice(&matmul->shape, &matmul->algorithm, &choice);
  for (size_t i = 0; i < engine->choice_count; i++) {
    if (strcmp(engine->choices[i].shape, choice.shape) == 0) {
      return BL_OK;
    }
  }
  if (engine->choice_count == engine->choice_capacity) {
    const size_t capacity = 2 * engine->choice_capacity + 16;
    bl_ops_choice_t *more = realloc(engine->choices, capacity * sizeof *more);
    if (more == NULL) {
      return bl_error_set(err, BL_EXHAUSTED, "out of memory");
    }
    engine->choices = more;
    engine->choice_capacity = capacity;
  }
  engine->choices[engine->choice_count++] = choice;
  return BL_OK;
}

const bl_ops_choice_t *bl__matmul_choices(const bl__matmul_engine_t *engine, size_t *count) {
  *count = engine->choice_count;
  return engine->choices;
}

// ---- products

bl_status_t bl__matmul_create(bl__matmul_engine_t *engine, const bl__matmul_shape_t *shape, bl__matmul_t **matmul,
                              bl_error_t *err) {
  bl_status_t result = BL_OK;
  cublasLtMatmulPreference_t preference = NULL;
  cublasLtMatmulHeuristicResult_t choice = {0};
  int choices = 0;
  bl__matmul_t *made = calloc(1, sizeof *made);
  if (!made) {
    return bl_error_set(err, BL_EXHAUSTED, "matrix product: out of memory");
  }
  made->engine = engine;
  made->shape = *shape;
  const cudaDataType_t type = shape->bf16 ? CUDA_R_16BF : CUDA_R_32F, d_type = shape->float_d ? CUDA_R_32F : type;
  CHECK(result, err, done, cublasLtMatmulDescCreate(&made->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  CHECK(result, err, done, set_operation(made->operation, shape, d_type));
  CHECK(result, err, done,
        layout_create(&made->a, type, shape->transpose_a ? shape->k : shape->m,
                      shape->transpose_a ? shape->m : shape->k, shape->a_ld, shape->batch, shape->a_stride));
  CHECK(result, err, done,
        layout_create(&made->b, type, shape->transpose_b ? shape->n : shape->k,
                      shape->transpose_b ? shape->k : shape->n, shape->b_ld, shape->batch, shape->b_stride));
  CHECK(result, err, done,
        layout_create(&made->d, d_type, shape->m, shape->n, shape->d_ld, shape->batch, shape->d_stride));
  CHECK(result, err, done, cublasLtMatmulPreferenceCreate(&preference));
  CHECK(result, err, done, prefer(preference, shape));
  CHECK(result, err, done,
        cublasLtMatmulAlgoGetHeuristic(engine->handle, made->operation, made->a, made->b, made->d, made->d, preference,
                                       1, &choice, &choices));
  if (choices == 0) {
    result = bl_error_set(err, BL_UNIMPLEMENTED, "cuBLASLt has no algorithm");
    goto done;
  }
  CHECK(result, err, done, choice.state);
  made->algorithm = choice.algo;
  made->workspace_bytes = choice.workspaceSize;
  result = keep_choice(engine, made, err);
done:
  if (preference) {
    cublasLtMatmulPreferenceDestroy(preference);
  }
  if (result != BL_OK) {
    bl__matmul_destroy(made);
    return bl_error_prefix(err, "matrix product of %llu x %llu x %llu in %s", (unsigned long long)shape->m,
                           (unsigned long long)shape->n, (unsigned long long)shape->k, shape->bf16 ? "bf16" : "fp32");
  }
  *matmul = made;
  return BL_OK;
}

void bl__matmul_destroy(bl__matmul_t *matmul) {
  if (!matmul) {
    return;
  }
  const cublasLtMatrixLayout_t layouts[] = {matmul->a, matmul->b, matmul->d};
  for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
    if (layouts[i]) {
      cublasLtMatrixLayoutDestroy(layouts[i]);
    }
  }
  if (matmul->operation) {
    cublasLtMatmulDescDestroy(matmul->operation);
  }
  free(matmul);
}

size_t bl__matmul_workspace_bytes(const bl__matmul_t *matmul) {
  return matmul->workspace_bytes;
}

const char *bl__matmul_execute(bl__matmul_t *matmul, float alpha, const void *a, const void *b, const void *c,
                               const void *bias, void *d, void *workspace) {
  const bl__matmul_shape_t *shape = &matmul->shape;
  const float beta = shape->add ? 1.0f : 0.0f;
  const uintptr_t all = (uintptr_t)a | (uintptr_t)b | (uintptr_t)(shape->add ? c : NULL) |
                        (uintptr_t)(shape->bias ? bias : NULL) | (uintptr_t)d;
  if (all % shape->alignment_bytes != 0) {
    return "a tensor is not 16-byte aligned"; // the algorithm was chosen for aligned tensors
  }
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
  if (shape->bias) {
    status = cublasLtMatmulDescSetAttribute(matmul->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
  }
  if (status == CUBLAS_STATUS_SUCCESS) {
    status = cublasLtMatmul(matmul->engine->handle, matmul->operation, &alpha, a, matmul->a, b, matmul->b, &beta,
                            shape->add ? c : d, matmul->d, d, matmul->d, &matmul->algorithm, workspace,
                            matmul->workspace_bytes, bl__gpu_stream(matmul->engine->gpu));
  }
  return status == CUBLAS_STATUS_SUCCESS ? NULL : cublasLtGetStatusString(status);
}
