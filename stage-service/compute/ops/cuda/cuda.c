// SPDX-License-Identifier: Apache-2.0
// The CUDA back end's context and table.
#include "compute/ops/cuda/compute.h"

#include <stdio.h>
#include <stdlib.h>

static void attach(bl_compute_t *compute) {
  bl_error_t err = {0};
  if (compute->gpu && bl__gpu_attach(compute->gpu, &err) != BL_OK) {
    bl__cuda_fail(compute, "attach: %s", err.text);
  }
}

static void destroy(bl_compute_t *compute) {
  if (!compute) {
    return;
  }
  // This thread may not be the compute thread, and the libraries free their memory on the current device.
  attach(compute);
  bl__cuda_linear_destroy_all(compute);
  bl__cuda_attention_destroy_all(compute);
  bl__cuda_rope_destroy_all(compute);
  bl__flash_engine_destroy(compute->flash);
  bl__matmul_engine_destroy(compute->matmuls);
  if (compute->gpu) {
    bl__gpu_free(compute->gpu, compute->scratch);
  }
  bl__gpu_destroy(compute->gpu);
  free(compute);
}

static bl_status_t create(const bl_compute_options_t *options, bl_compute_t **compute, bl_error_t *err) {
  bl_compute_t *made = calloc(1, sizeof *made);
  if (!made) {
    return bl_error_set(err, BL_EXHAUSTED, "compute context: out of memory");
  }
  void *scratch = NULL;
  bl_status_t status = bl__gpu_create(options->device, &made->gpu, err);
  if (status == BL_OK) {
    status = bl__gpu_allocate(made->gpu, BL__SCRATCH_BYTES, &scratch, err);
  }
  if (status == BL_OK) {
    made->scratch = scratch;
    made->held_bytes = BL__SCRATCH_BYTES;
    made->stream = bl__gpu_stream(made->gpu);
    status = bl__matmul_engine_create(made->gpu, &made->matmuls, err);
  }
  if (status == BL_OK) {
    status = bl__flash_engine_create(made->gpu, &made->flash, err);
  }
  if (status != BL_OK) {
    destroy(made);
    return status;
  }
  char matmuls[64], flash[64];
  bl__matmul_describe(matmuls, sizeof matmuls);
  bl__flash_describe(flash, sizeof flash);
  snprintf(made->description, sizeof made->description, "%s, %s, %s", bl__gpu_name(made->gpu), matmuls, flash);
  *compute = made;
  return BL_OK;
}

static const char *describe(const bl_compute_t *compute) {
  return compute->description;
}

static size_t workspace_bytes(const bl_compute_t *compute) {
  return compute->workspace_wanted;
}

// The workspace of the caller is 64-byte aligned; the libraries need more.
static void use_workspace(bl_compute_t *compute, void *workspace, size_t bytes) {
  const size_t skipped = bl_align_up((uintptr_t)workspace, BL__WORKSPACE_ALIGNMENT) - (uintptr_t)workspace;
  compute->workspace = (char *)workspace + skipped;
  compute->workspace_bytes = bytes > skipped ? bytes - skipped : 0;
}

static bl_status_t kept_status(const bl_compute_t *compute, bl_error_t *err) {
  if (compute->error.status != BL_OK) {
    return bl_error_set(err, compute->error.status, "%s", compute->error.text);
  }
  const int error = bl__gpu_error(compute->gpu);
  if (error != 0) {
    return bl_error_set(err, BL_INTERNAL, "the GPU failed in an earlier operation: %s (%d)", bl__gpu_error_text(error),
                        error);
  }
  return BL_OK;
}

static bl_device_stream_t *stream(bl_compute_t *compute) {
  return bl__gpu_device_stream(compute->gpu);
}

static size_t held_bytes(const bl_compute_t *compute) {
  return compute->held_bytes;
}

static const bl_ops_choice_t *choices(const bl_compute_t *compute, size_t *count) {
  return bl__matmul_choices(compute->matmuls, count);
}

static const bl_ops_t cuda_ops = {.name = "cuda",
                                  .norm_width_max = BL__NORM_WIDTH_MAX,
                                  .logits = BL_LOGITS_GPU,
                                  .create = create,
                                  .destroy = destroy,
                                  .attach = attach,
                                  .describe = describe,
                                  .workspace_bytes = workspace_bytes,
                                  .use_workspace = use_workspace,
                                  .status = kept_status,
                                  .stream = stream,
                                  .held_bytes = held_bytes,
                                  .adamw_packs = true,
                                  .choices = choices,
#define X(name) .name = bl__cuda_##name,
                                  BL__CUDA_OPERATIONS(X)
#undef X
};

const bl_ops_t *bl__ops_cuda(void) {
  return &cuda_ops;
}
