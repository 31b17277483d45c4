// SPDX-License-Identifier: Apache-2.0
// Floating-point operations of a chunk's operations for one micro-batch: throughput, model FLOP utilisation,
// and the planner's costs. One multiply-add counts 2. Only matrix products and attention are counted, as is
// usual (Chowdhery et al., PaLM, appendix B); norms and activations are left out.
//
// Pure. Thread: values, any thread.
#ifndef BALLAST_MODEL_FLOPS_H
#define BALLAST_MODEL_FLOPS_H

#include "model/chunk_span.h"
#include "model/layout.h"
#include "model/model.h"

typedef struct bl_flops {
  double forward;         // F
  double backward_input;  // I, without the head
  double backward_weight; // W, without the head
  double head;            // final product forward, its input and weight gradients; all run inside I (or B)
} bl_flops_t;

// Work of the products with weights.
bl_flops_t bl_flops_matmul(const bl_model_t *model, bl_chunk_span_t span, uint32_t micro_batch);
// Work of the score and value products. `causal`: only what the mask keeps, (seq + 1) / 2 of seq keys per
// query, less in layers with a window; otherwise the full square, the convention of published utilisation figures. I counts the backward of
// attention: 2 times the forward, plus the scores made again by flash.
bl_flops_t bl_flops_attention(const bl_model_t *model, bl_chunk_span_t span, uint32_t micro_batch,
                              bl_attention_t attention, bool causal);
// Share of F that R makes again: all but the chunk's last product, which would only make the output again. 1 without layers,
// and where that product's result is normalised and so kept.
double bl_flops_recompute_share(const bl_model_t *model, bl_chunk_span_t span, bl_attention_t attention);
// Of the keys that the queries of a sequence see, in the layers of the chunk, those that a slice's see: what it has of the
// work of attention. 1 / slices without layers.
double bl_flops_slice_share(const bl_model_t *model, bl_chunk_span_t span, uint32_t slices, uint32_t slice);
double bl_flops_total(bl_flops_t flops);

#endif
