// SPDX-License-Identifier: Apache-2.0
// Floating-point operations (FLOPs) of a chunk's operations for one micro-batch. They are used for throughput, model
// FLOP utilisation and the planner's costs. One multiply-add counts 2. Only matrix products and attention are counted,
// as is usual (Chowdhery et al., PaLM, appendix B); norms and activations are left out.
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

// Returns the FLOPs of the products with weights.
bl_flops_t bl_flops_matmul(const bl_model_t *model, bl_chunk_span_t span, uint32_t micro_batch);
// Returns the FLOPs of the score and value products. `causal`: counts only what the mask keeps, that is (seq + 1) / 2
// of seq keys per query, and fewer in layers with a window. Otherwise counts the full square. I includes the backward of
// attention: 2 times the forward, plus the scores that flash recomputes.
bl_flops_t bl_flops_attention(const bl_model_t *model, bl_chunk_span_t span, uint32_t micro_batch,
                              bl_attention_t attention, bool causal);
// Returns the same as published utilisation figures count it: for every query as many keys as the sequence has, in
// layers with a window as many as the window; no scores computed again.
bl_flops_t bl_flops_attention_published(const bl_model_t *model, bl_chunk_span_t span, uint32_t micro_batch);
// Returns the share of F that R recomputes: all but the chunk's last product, which would only reproduce the output.
// Returns 1 for a chunk without layers, and if that product's result is kept because it is normalised (post_norm).
double bl_flops_recompute_share(const bl_model_t *model, bl_chunk_span_t span, bl_attention_t attention);
// Returns a slice's share of the work of attention in the layers of the chunk: the keys that its queries see, divided
// by the keys that all queries of the sequence see. Returns 1 / slices for a chunk without layers.
double bl_flops_slice_share(const bl_model_t *model, bl_chunk_span_t span, uint32_t slices, uint32_t slice);
double bl_flops_total(bl_flops_t flops);

#endif
