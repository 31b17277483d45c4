// SPDX-License-Identifier: Apache-2.0
// cuBLASLt as the modules call it: products are planned and given to a stream, where all memory of every matrix must be there.
#include "fake_cuda/core.h"

#include <cublasLt.h>
#include <stdlib.h>
#include <string.h>

#define WORKSPACE (UINT64_C(4) << 20) // what every algorithm here asks for, if it may

typedef struct operation {
  int32_t transpose_a, transpose_b;
  cublasLtEpilogue_t epilogue;
  const void *bias;
  cudaDataType_t bias_type;
} operation_t;

typedef struct layout {
  cudaDataType_t type;
  uint64_t rows, columns;
  int64_t ld, stride;
  int32_t batch;
} layout_t;

typedef struct preference {
  uint64_t workspace;
  uint32_t schemes, alignments[4];
} preference_t;

static uint64_t element_bytes(cudaDataType_t type) {
  return type == CUDA_R_16BF ? 2 : 4;
}

// To behind its last element.
static uint64_t matrix_bytes(const layout_t *l) {
  return ((uint64_t)(l->batch - 1) * (uint64_t)l->stride + (l->columns - 1) * (uint64_t)l->ld + l->rows) *
         element_bytes(l->type);
}

FAKE_EXPORT size_t cublasLtGetVersion(void) {
  return CUBLAS_VER_MAJOR * 10000 + CUBLAS_VER_MINOR * 100;
}

FAKE_EXPORT const char *cublasLtGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS ? "success" : "refused by a cuBLASLt that is none";
}

FAKE_EXPORT cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
  static char one;
  *handle = (cublasLtHandle_t)&one;
  return CUBLAS_STATUS_SUCCESS;
}

FAKE_EXPORT cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  (void)handle;
  return CUBLAS_STATUS_SUCCESS;
}

FAKE_EXPORT cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *made, cublasComputeType_t compute,
                                                    cudaDataType_t scale) {
  operation_t *operation = calloc(1, sizeof *operation);
  if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F || operation == NULL) {
    free(operation);
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  operation->epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  *made = (cublasLtMatmulDesc_t)operation;
  return CUBLAS_STATUS_SUCCESS;
}

FAKE_EXPORT cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) {
  free(operation);
  return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t set(void *place, size_t place_bytes, const void *value, size_t bytes) {
  if (bytes != place_bytes) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  memcpy(place, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}
#define SET(field) set(&(field), sizeof(field), value, bytes)

FAKE_EXPORT cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t handle,
                                                          cublasLtMatmulDescAttributes_t which, const void *value,
                                                          size_t bytes) {
  operation_t *operation = (operation_t *)(void *)handle;
  switch (which) {
  case CUBLASLT_MATMUL_DESC_TRANSA:
    return SET(operation->transpose_a);
  case CUBLASLT_MATMUL_DESC_TRANSB:
    return SET(operation->transpose_b);
  case CUBLASLT_MATMUL_DESC_EPILOGUE:
    return SET(operation->epilogue);
  case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
    return SET(operation->bias);
  case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
    return SET(operation->bias_type);
  default:
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

FAKE_EXPORT cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *made, cudaDataType_t type, uint64_t rows,
                                                      uint64_t columns, int64_t ld) {
  layout_t *layout = calloc(1, sizeof *layout);
  if (layout == NULL || rows == 0 || columns == 0 || ld < (int64_t)rows ||
      (type != CUDA_R_16BF && type != CUDA_R_32F)) {
    free(layout);
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  *layout = (layout_t){.type = type, .rows = rows, .columns = columns, .ld = ld, .batch = 1};
  *made = (cublasLtMatrixLayout_t)layout;
  return CUBLAS_STATUS_SUCCESS;
}

FAKE_EXPORT cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  free(layout);
  return CUBLAS_STATUS_SUCCESS;
}

FAKE_EXPORT cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t handle,
                                                            cublasLtMatrixLayoutAttribute_t which, const void *value,
                                                            size_t bytes) {
  layout_t *layout = (layout_t *)(void *)handle;
  return which == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT            ? SET(layout->batch)
         : which == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET ? SET(layout->stride)
                                                                : CUBLAS_STATUS_NOT_SUPPORTED;
}

FAKE_EXPORT cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *made) {
  *made = calloc(1, sizeof(preference_t));
  return *made != NULL ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

FAKE_EXPORT cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  free(preference);
  return CUBLAS_STATUS_SUCCESS;
}

FAKE_EXPORT cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t handle,
                                                                cublasLtMatmulPreferenceAttributes_t which,
                                                                const void *value, size_t bytes) {
  preference_t *preference = (preference_t *)(void *)handle;
  switch (which) {
  case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
    return SET(preference->workspace);
  case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
    return SET(preference->schemes);
  case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    return SET(preference->alignments[0]);
  case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    return SET(preference->alignments[1]);
  case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    return SET(preference->alignments[2]);
  case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
    return SET(preference->alignments[3]);
  default:
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

// Whether the matrices are those of one product.
static bool fits(const operation_t *o, const layout_t *a, const layout_t *b, const layout_t *d) {
  const uint64_t m = o->transpose_a ? a->columns : a->rows, k = o->transpose_a ? a->rows : a->columns;
  const uint64_t n = o->transpose_b ? b->rows : b->columns, other = o->transpose_b ? b->columns : b->rows;
  return d->rows == m && d->columns == n && k == other && a->batch == b->batch && b->batch == d->batch &&
         a->type == b->type && (d->type == a->type || d->type == CUDA_R_32F);
}

FAKE_EXPORT cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                                                          cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                                          cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                                          cublasLtMatmulPreference_t wanted, int count,
                                                          cublasLtMatmulHeuristicResult_t results[], int *found) {
  const preference_t *preference = (const preference_t *)(const void *)wanted;
  (void)handle;
  (void)count;
  if (c != d ||
      !fits((operation_t *)(void *)operation, (layout_t *)(void *)a, (layout_t *)(void *)b, (layout_t *)(void *)d)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (preference->schemes != CUBLASLT_REDUCTION_SCHEME_NONE) {
    (void)fake_broken("a product may be cut along its sum: its bits are those of a chance");
  }
  memset(results, 0, sizeof results[0]);
  results[0].state = CUBLAS_STATUS_SUCCESS;
  results[0].workspaceSize = preference->workspace < WORKSPACE ? preference->workspace : WORKSPACE;
  results[0].algo.data[0] = results[0].workspaceSize;
  results[0].algo.data[1] = preference->alignments[0];
  for (int i = 1; i < 4; i++) { // the least, so that one number holds for all
    results[0].algo.data[1] =
        preference->alignments[i] < results[0].algo.data[1] ? preference->alignments[i] : results[0].algo.data[1];
  }
  const char *chosen = getenv("FAKE_CUBLASLT_ALGORITHM"); // as another version of it, or another GPU, might choose
  results[0].algo.data[2] = chosen != NULL ? strtoull(chosen, NULL, 10) : 1;
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

FAKE_EXPORT cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algorithm,
                                                                cublasLtMatmulAlgoConfigAttributes_t which, void *value,
                                                                size_t bytes, size_t *written) {
  const uint32_t number = which == CUBLASLT_ALGO_CONFIG_ID ? (uint32_t)algorithm->data[2] : 0;
  if (bytes > sizeof number) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  memcpy(value, &number, bytes);
  *written = bytes;
  return CUBLAS_STATUS_SUCCESS;
}

FAKE_EXPORT cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t described, const void *alpha,
                                          const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                                          cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
                                          cublasLtMatrixLayout_t c_layout, void *d, cublasLtMatrixLayout_t d_layout,
                                          const cublasLtMatmulAlgo_t *algorithm, void *workspace,
                                          size_t workspace_bytes, cudaStream_t stream) {
  const operation_t *operation = (const operation_t *)(const void *)described;
  const layout_t *layouts[] = {(layout_t *)(void *)a_layout, (layout_t *)(void *)b_layout,
                               (layout_t *)(void *)d_layout};
  (void)handle;
  (void)alpha;
  fake_use_t uses[6] = {{(uint64_t)a, matrix_bytes(layouts[0]), false},
                        {(uint64_t)b, matrix_bytes(layouts[1]), false},
                        {(uint64_t)d, matrix_bytes(layouts[2]), true}};
  unsigned count = 3;
  if (*(const float *)beta != 0.0f) {
    uses[count++] = (fake_use_t){(uint64_t)c, matrix_bytes(layouts[2]), false};
  }
  if (operation->epilogue == CUBLASLT_EPILOGUE_BIAS) {
    uses[count++] =
        (fake_use_t){(uint64_t)operation->bias, layouts[2]->rows * element_bytes(operation->bias_type), false};
  }
  if (workspace_bytes > 0) {
    uses[count++] = (fake_use_t){(uint64_t)workspace, workspace_bytes, true};
  }
  fake_lock();
  CUresult result = CUDA_SUCCESS;
  for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++) {
    if (algorithm->data[1] == 0 || uses[i].address % algorithm->data[1] != 0) {
      result = fake_broken("a product: %#llx is not aligned as it was planned", (unsigned long long)uses[i].address);
    }
  }
  if (result == CUDA_SUCCESS && (algorithm->data[0] != workspace_bytes || (uint64_t)workspace % 256 != 0 ||
                                 c_layout != d_layout || !fits(operation, layouts[0], layouts[1], layouts[2]))) {
    result = fake_broken("a product: not as it was planned, or its workspace is not aligned to 256 bytes");
  }
  for (int i = 0; i < 3; i++) {
    fake_figures.odd_rows += (uint64_t)layouts[i]->ld * element_bytes(layouts[i]->type) % 16 != 0;
  }
  fake_figures.products++;
  result = result == CUDA_SUCCESS ? fake_work_launch(stream, "product", uses, count) : result;
  fake_unlock();
  return result == CUDA_SUCCESS ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}
