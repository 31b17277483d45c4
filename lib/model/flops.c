// SPDX-License-Identifier: Apache-2.0
#include "model/flops.h"

bl_flops_t bl_flops_matmul(const bl_model_t *model, bl_chunk_span_t span, uint32_t micro_batch) {
  const double rows = (double)micro_batch * model->seq;
  const double hidden = model->hidden;
  const double weights = hidden * bl_model_qkv_width(model) + hidden * bl_model_query_width(model) +
                         hidden * bl_model_pre_width(model) + hidden * model->ffn;
  const double layers = 2 * rows * weights * span.layer_count;
  bl_flops_t flops = {.forward = layers, .backward_input = layers, .backward_weight = layers};
  if (span.head) {
    flops.head = 3 * 2 * rows * hidden * model->vocab;
  }
  return flops;
}

// Returns the average number of keys that a query of a sequence sees.
static double keys_seen(const bl_model_t *model, bool window, bool causal) {
  const double seq = model->seq, first = bl_model_keys(model, window); // queries that see less than the window
  if (!causal) {
    return seq;
  }
  return (first * (first + 1) / 2 + (seq - first) * first) / seq;
}

// Returns the FLOPs of queries that see so many keys, the sum over layers of their averages.
static bl_flops_t attention_of(const bl_model_t *model, uint32_t micro_batch, double keys, bool flash) {
  const double product = 2.0 * micro_batch * model->seq * keys * bl_model_query_width(model);
  // Forward: scores, values. Backward: dprobabilities, dq, dk, dv; flash also recomputes the scores.
  return (bl_flops_t){.forward = 2 * product, .backward_input = (flash ? 5 : 4) * product};
}

bl_flops_t bl_flops_attention(const bl_model_t *model, bl_chunk_span_t span, uint32_t micro_batch,
                              bl_attention_t attention, bool causal) {
  double keys = 0;
  for (uint32_t layer = span.first_layer; layer < span.first_layer + span.layer_count; layer++) {
    keys += keys_seen(model, bl_model_has_window(model, layer), causal);
  }
  return attention_of(model, micro_batch, keys, attention == BL_ATTENTION_FLASH);
}

bl_flops_t bl_flops_attention_published(const bl_model_t *model, bl_chunk_span_t span, uint32_t micro_batch) {
  double keys = 0;
  for (uint32_t layer = span.first_layer; layer < span.first_layer + span.layer_count; layer++) {
    keys += bl_model_keys(model, bl_model_has_window(model, layer));
  }
  return attention_of(model, micro_batch, keys, false);
}

double bl_flops_recompute_share(const bl_model_t *model, bl_chunk_span_t span, bl_attention_t attention) {
  const double rows = model->seq, last = 2 * rows * model->hidden * model->ffn;
  double forward =
      bl_flops_matmul(model, span, 1).forward + bl_flops_attention(model, span, 1, attention, true).forward;
  return forward > 0 && !model->post_norm ? 1 - last / forward : 1;
}

// Returns the keys seen by the queries [0, end) together.
static double keys_before(double end, double window) {
  const double first = end < window ? end : window;
  return first * (first + 1) / 2 + (end - first) * window;
}

double bl_flops_slice_share(const bl_model_t *model, bl_chunk_span_t span, uint32_t slices, uint32_t slice) {
  const double seq = model->seq, count = seq / slices;
  double seen = 0, all = 0;
  for (uint32_t layer = span.first_layer; layer < span.first_layer + span.layer_count; layer++) {
    const double window = bl_model_keys(model, bl_model_has_window(model, layer));
    seen += keys_before((slice + 1) * count, window) - keys_before(slice * count, window);
    all += keys_before(seq, window);
  }
  return all > 0 ? seen / all : 1.0 / slices;
}

double bl_flops_total(bl_flops_t flops) {
  return flops.forward + flops.backward_input + flops.backward_weight + flops.head;
}
