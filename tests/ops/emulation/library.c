// SPDX-License-Identifier: Apache-2.0
// What the CUDA back end calls besides its kernels, without a GPU: memory is the host's, a stream is done at once, and
// products are loops over the definition in matmul.h, in double. cuDNN is absent: flash attention is composed.
#include "compute/ops/cuda/flash.h"
#include "compute/ops/cuda/matmul.h"
#include "compute/ops/cuda/runtime.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct bl__gpu {
  char unused;
};

bl_status_t bl__gpu_create(bl_device_t *device, bl__gpu_t **gpu, bl_error_t *err) {
  (void)device;
  *gpu = calloc(1, sizeof **gpu);
  return *gpu ? BL_OK : bl_error_set(err, BL_EXHAUSTED, "out of memory");
}

void bl__gpu_destroy(bl__gpu_t *gpu) {
  free(gpu);
}

bl_status_t bl__gpu_attach(bl__gpu_t *gpu, bl_error_t *err) {
  (void)gpu;
  (void)err;
  return BL_OK;
}

bl__stream_t bl__gpu_stream(const bl__gpu_t *gpu) {
  (void)gpu;
  return NULL;
}

bl_device_stream_t *bl__gpu_device_stream(const bl__gpu_t *gpu) {
  (void)gpu;
  return NULL;
}

const char *bl__gpu_name(const bl__gpu_t *gpu) {
  (void)gpu;
  return "emulated";
}

bl_status_t bl__gpu_allocate(bl__gpu_t *gpu, size_t bytes, void **memory, bl_error_t *err) {
  (void)gpu;
  *memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
  if (!*memory) {
    return bl_error_set(err, BL_EXHAUSTED, "out of memory");
  }
  memset(*memory, 0xff, bytes); // what is read before it is written shows
  return BL_OK;
}

void bl__gpu_free(bl__gpu_t *gpu, void *memory) {
  (void)gpu;
  free(memory);
}

bl_status_t bl__gpu_copy(bl__gpu_t *gpu, void *to, const void *from, size_t bytes, bl_error_t *err) {
  (void)gpu;
  (void)err;
  memcpy(to, from, bytes);
  return BL_OK;
}

int bl__gpu_error(const bl__gpu_t *gpu) {
  (void)gpu;
  return 0;
}

const char *bl__gpu_error_text(int error) {
  (void)error;
  return "the emulation refused a launch";
}

// ---- products ------------------------------------------------------------------------------------------------------

struct bl__matmul_engine {
  char unused;
};

struct bl__matmul {
  bl__matmul_shape_t shape;
};

bl_status_t bl__matmul_engine_create(bl__gpu_t *gpu, bl__matmul_engine_t **engine, bl_error_t *err) {
  (void)gpu;
  *engine = calloc(1, sizeof **engine);
  return *engine ? BL_OK : bl_error_set(err, BL_EXHAUSTED, "out of memory");
}

void bl__matmul_engine_destroy(bl__matmul_engine_t *engine) {
  free(engine);
}

void bl__matmul_describe(char *text, size_t bytes) {
  snprintf(text, bytes, "plain products");
}

const bl_ops_choice_t *bl__matmul_choices(const bl__matmul_engine_t *engine, size_t *count) {
  (void)engine;
  *count = 0;
  return NULL;
}

bl_status_t bl__matmul_create(bl__matmul_engine_t *engine, const bl__matmul_shape_t *shape, bl__matmul_t **matmul,
                              bl_error_t *err) {
  (void)engine;
  const uint64_t a_rows = shape->transpose_a ? shape->k : shape->m, b_rows = shape->transpose_b ? shape->n : shape->k;
  if (shape->a_ld < a_rows || shape->b_ld < b_rows || shape->d_ld < shape->m || shape->batch == 0) {
    return bl_error_set(err, BL_INVALID, "leading dimensions are shorter than columns");
  }
  *matmul = calloc(1, sizeof **matmul);
  if (!*matmul) {
    return bl_error_set(err, BL_EXHAUSTED, "out of memory");
  }
  (*matmul)->shape = *shape;
  return BL_OK;
}

void bl__matmul_destroy(bl__matmul_t *matmul) {
  free(matmul);
}

size_t bl__matmul_workspace_bytes(const bl__matmul_t *matmul) {
  (void)matmul;
  return 128; // like the library, some; it is overwritten
}

static float get(bool bf16, const void *x, uint64_t i) {
  if (!bf16) {
    return ((const float *)x)[i];
  }
  const uint32_t bits = (uint32_t)((const uint16_t *)x)[i] << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static void put(bool bf16, void *x, uint64_t i, float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  if (bf16) {
    ((uint16_t *)x)[i] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  } else {
    ((float *)x)[i] = value;
  }
}

// The elements of a matrix, in double and one column of `rows` after the other; (i, p) lies at i * by_row + p * by_column.
static double *widened(bool bf16, const void *x, uint64_t first, uint64_t rows, uint64_t columns, uint64_t by_row,
                       uint64_t by_column) {
  double *values = calloc(rows * columns + 1, sizeof *values);
  for (uint64_t p = 0; values != NULL && p < columns; p++) {
    for (uint64_t i = 0; i < rows; i++) {
      values[p * rows + i] = (double)get(bf16, x, first + i * by_row + p * by_column);
    }
  }
  return values;
}

const char *bl__matmul_execute(bl__matmul_t *matmul, float alpha, const void *a, const void *b, const void *c,
                               const void *bias, void *d, void *workspace) {
  const bl__matmul_shape_t *s = &matmul->shape;
  const bool bf16 = s->bf16, d_bf16 = s->bf16 && !s->float_d;
  if ((uintptr_t)workspace % 256 != 0) {
    return "the workspace is not 256-byte aligned"; // as cuBLASLt asks
  }
  memset(workspace, 0xff, 128);
  double *sums = calloc(s->m + 1, sizeof *sums);
  for (uint64_t n = 0; n < s->batch; n++) {
    double *as =
        widened(bf16, a, n * s->a_stride, s->m, s->k, s->transpose_a ? s->a_ld : 1, s->transpose_a ? 1 : s->a_ld);
    double *bs =
        widened(bf16, b, n * s->b_stride, s->k, s->n, s->transpose_b ? s->b_ld : 1, s->transpose_b ? 1 : s->b_ld);
    if (sums == NULL || as == NULL || bs == NULL) {
      abort();
    }
    for (uint64_t j = 0; j < s->n; j++) {
      memset(sums, 0, s->m * sizeof *sums);
      for (uint64_t p = 0; p < s->k; p++) { // each sum in the order of p, many of them beside each other
        for (uint64_t i = 0; i < s->m; i++) {
          sums[i] += as[p * s->m + i] * bs[j * s->k + p];
        }
      }
      for (uint64_t i = 0; i < s->m; i++) {
        const uint64_t at = n * s->d_stride + i + j * s->d_ld;
        const double sum = (double)alpha * sums[i] + (s->add ? (double)get(d_bf16, c, at) : 0);
        put(d_bf16, d, at, (float)(sum + (s->bias ? (double)get(d_bf16, bias, i) : 0)));
      }
    }
    free(as);
    free(bs);
  }
  free(sums);
  return NULL;
}

// ---- cuDNN ---------------------------------------------------------------------------------------------------------

bl_status_t bl__flash_engine_create(bl__gpu_t *gpu, bl__flash_engine_t **engine, bl_error_t *err) {
  (void)gpu;
  (void)err;
  *engine = NULL;
  return BL_OK;
}

void bl__flash_engine_destroy(bl__flash_engine_t *engine) {
  (void)engine;
}

void bl__flash_describe(char *text, size_t bytes) {
  snprintf(text, bytes, "no cuDNN");
}

bl_status_t bl__flash_create(bl__flash_engine_t *engine, const bl__flash_shape_t *shape, bl__flash_t **flash,
                             bl_error_t *err) {
  (void)engine;
  (void)shape;
  (void)flash;
  return bl_error_set(err, BL_UNIMPLEMENTED, "not here");
}

void bl__flash_destroy(bl__flash_t *flash) {
  (void)flash;
}

size_t bl__flash_workspace_bytes(const bl__flash_t *flash) {
  (void)flash;
  return 0;
}

const char *bl__flash_forward(bl__flash_t *flash, const void *qkv, const void *keys, void *att, float *lse,
                              void *workspace) {
  (void)flash;
  (void)qkv;
  (void)keys;
  (void)att;
  (void)lse;
  (void)workspace;
  return "not here";
}

const char *bl__flash_backward(bl__flash_t *flash, const void *datt, const void *qkv, const void *keys, const void *att,
                               const float *lse, void *dqkv, void *dkeys, void *workspace) {
  (void)datt;
  (void)qkv;
  (void)keys;
  (void)att;
  (void)lse;
  (void)dqkv;
  (void)dkeys;
  (void)flash;
  (void)workspace;
  return "not here";
}
