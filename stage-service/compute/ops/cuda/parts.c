// SPDX-License-Identifier: Apache-2.0
// Operations that layers in parts need in addition to those of whole layers (model/layer_parts.h).
#include "compute/ops/cuda/compute.h"

#include <inttypes.h>

_Static_assert(BL__PARTS_MAX == BL_LAYER_PARTS_MAX && BL__STATISTICS == BL_SOFTMAX_STATISTICS, "kernels.h");

static bool are_parts(bl_compute_t *compute, uint32_t parts, uint32_t least, const char *name) {
  const bool are = parts >= least && parts <= BL__PARTS_MAX && (parts & (parts - 1)) == 0;
  if (!are) {
    bl__cuda_fail(compute, "%s: %" PRIu32 " parts; a GPU takes powers of two from %" PRIu32 " to %d", name, parts,
                  least, BL__PARTS_MAX);
  }
  return are;
}

void bl__cuda_sum_parts(bl_compute_t *compute, uint64_t rows, uint64_t width, bl_compute_dtype_t dtype, uint32_t count,
                        const void *const *parts, const float *bias, const void *residual, void *y) {
  if (!are_parts(compute, count, 2, "sum of parts")) {
    return;
  }
  bl__parts_table_t table = {.count = count, .elements = rows * width};
  for (uint32_t i = 0; i < count; i++) {
    table.entries[i] = parts[i];
  }
  bl__cuda_launched(compute,
                    bl__launch_sum_parts(compute->stream, bl__is_bf16(dtype), rows, width, &table, bias, residual, y),
                    "sum of parts");
}

static bl__embedding_t embedding_of(const bl_embedding_part_t *part) {
  return (bl__embedding_t){.batch = part->batch,
                           .seq = part->seq,
                           .start = part->start,
                           .width = part->width,
                           .first_token = part->first_token,
                           .tokens = part->tokens,
                           .first_position = part->first_position,
                           .positions = part->positions,
                           .scale = part->scale};
}

void bl__cuda_embedding_part_forward(bl_compute_t *compute, const bl_embedding_part_t *part, const int32_t *tokens,
                                     const float *wte, const float *wpe, void *x) {
  const bl__embedding_t here = embedding_of(part);
  bl__cuda_launched(compute,
                    bl__launch_embedding_forward(compute->stream, bl__is_bf16(part->dtype), &here, tokens, wte, wpe, x,
                                                 compute->scratch),
                    "embedding forward of a part");
}

void bl__cuda_embedding_part_backward(bl_compute_t *compute, const bl_embedding_part_t *part, const int32_t *tokens,
                                      const void *dx, float *dwte, float *dwpe) {
  const bl__embedding_t here = embedding_of(part);
  bl__cuda_launched(compute,
                    bl__launch_embedding_backward(compute->stream, bl__is_bf16(part->dtype), &here, tokens, dx, dwte,
                                                  dwpe, compute->scratch),
                    "embedding backward of a part");
}

void bl__cuda_softmax_statistics(bl_compute_t *compute, uint64_t rows, uint64_t vocab, uint64_t stride, uint64_t first,
                                 const int32_t *labels, const float *logits, float *statistics) {
  bl__cuda_launched(
      compute, bl__launch_softmax_statistics(compute->stream, rows, vocab, stride, first, labels, logits, statistics),
      "softmax statistics");
}

void bl__cuda_cross_entropy_part(bl_compute_t *compute, uint64_t rows, uint64_t vocab, uint64_t stride, uint64_t first,
                                 bl_compute_dtype_t dtype, const int32_t *labels, float scale, float softcap,
                                 uint32_t parts, const float *statistics, float *logits, double *row_losses) {
  if (are_parts(compute, parts, 1, "cross entropy of a part")) {
    bl__cuda_launched(compute,
                      bl__launch_cross_entropy_part(compute->stream, bl__is_bf16(dtype), rows, vocab, stride, first,
                                                    labels, scale, softcap, parts, statistics, logits, row_losses),
                      "cross entropy of a part");
  }
}
