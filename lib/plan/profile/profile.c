// SPDX-License-Identifier: Apache-2.0
#include "plan/profile/profile.h"

#include "base/hash.h"
#include "model/flops.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Writes what changes how long operations take or what they keep. Rotary positions do not.
const char *bl_profile_model_text(const bl_model_t *m, char text[192]) {
  char window[48] = "";
  if (m->window > 0 && m->window < m->seq) {
    snprintf(window, sizeof window, ", window %u from %u by %u", m->window, m->window_first, m->window_period);
  }
  snprintf(text, 192, "%s: layers %u, hidden %u, heads %u/%u of %u, ffn %u, vocab %u, seq %u%s%s%s%s%s%s%s",
           bl_family_name(m->family), m->layers, m->hidden, m->heads, m->kv_heads, m->head_dim, m->ffn, m->vocab,
           m->seq, m->tied ? ", tied" : "", m->gate == BL_GATE_GELU ? ", geglu" : "", m->qkv_bias ? ", biases" : "",
           m->head_norm ? ", head norms" : "", m->post_norm ? ", post norms" : "",
           m->score_softcap > 0 || m->logit_softcap > 0 ? ", caps" : "", window);
  return text;
}

uint64_t bl_profile_model_digest(const bl_model_t *model) {
  char text[192];
  bl_profile_model_text(model, text);
  return bl_hash64(text, strlen(text), 0);
}

void bl_profile_cleanup(bl_profile_t *profile) {
  for (uint32_t i = 0; profile->stages != NULL && i < profile->stage_count; i++) {
    free(profile->stages[i].times);
  }
  for (uint32_t i = 0; profile->chunks != NULL && i < profile->chunk_count; i++) {
    free(profile->chunks[i].slices);
  }
  free(profile->stages);
  free(profile->chunks);
  *profile = (bl_profile_t){0};
}

uint64_t bl_profile_order(const bl_schedule_t *schedule) {
  uint64_t digest = schedule->stages;
  for (uint32_t s = 0; s < schedule->stages; s++) {
    for (size_t i = 0; i < schedule->lists[s].count; i++) {
      const bl_op_t op = schedule->lists[s].ops[i];
      const uint32_t words[] = {s, op.type, op.virtual_stage, op.micro_batch, op.slice};
      digest = bl_op_type_computes((bl_op_type_t)op.type) ? bl_hash64(words, sizeof words, digest) : digest;
    }
  }
  return digest != 0 ? digest : 1;
}

static bl_chunk_costs_t scaled(bl_chunk_costs_t costs, double factor) {
  return (bl_chunk_costs_t){costs.forward * factor, costs.input * factor, costs.weight * factor,
                            costs.recompute * factor};
}

static bl_chunk_costs_t added(bl_chunk_costs_t a, bl_chunk_costs_t b) {
  return (bl_chunk_costs_t){a.forward + b.forward, a.input + b.input, a.weight + b.weight, a.recompute + b.recompute};
}

// Returns the cost beyond that of `layers` layers.
static double surplus(double whole, double layer, uint32_t layers) {
  return fmax(0, whole - layer * layers);
}

static bl_chunk_costs_t surplus_of(bl_chunk_costs_t chunk, bl_chunk_costs_t layer, uint32_t layers) {
  return (bl_chunk_costs_t){.forward = surplus(chunk.forward, layer.forward, layers),
                            .input = surplus(chunk.input, layer.input, layers),
                            .weight = surplus(chunk.weight, layer.weight, layers),
                            .recompute = surplus(chunk.recompute, layer.recompute, layers)};
}

// Returns the costs of a recorded chunk, with an R that includes the last product, so that R's of layers can be added.
static bl_chunk_costs_t additive(const bl_profile_t *profile, const bl_model_t *model, uint32_t chunk) {
  bl_chunk_costs_t costs = profile->chunks[chunk].costs;
  costs.recompute /= bl_flops_recompute_share(model, profile->chunks[chunk].span, profile->options.attention);
  return costs;
}

typedef struct parts {
  bl_chunk_costs_t layer, embedding, head;
} parts_t;

// Divides one chunk that holds everything. The head's cost is in I, by its share of the FLOPs.
static parts_t parts_of_whole(const bl_profile_t *profile, const bl_model_t *model) {
  const bl_chunk_span_t span = profile->chunks[0].span;
  const bl_chunk_costs_t whole = additive(profile, model, 0);
  bl_flops_t products = bl_flops_matmul(model, span, 1);
  bl_flops_t attention = bl_flops_attention(model, span, 1, profile->options.attention, true);
  double layers = products.backward_input + attention.backward_input;
  double share = products.head / (products.head + layers);
  parts_t parts = {.layer = scaled(whole, 1.0 / span.layer_count), .head = {.input = whole.input * share}};
  parts.layer.input *= 1 - share;
  return parts;
}

// Takes the cost of a layer from chunks without embedding and head; with two chunks, from the cheaper one.
static parts_t parts_of(const bl_profile_t *profile, const bl_model_t *model) {
  // Number of chunks of the first pipe.
  const uint32_t depth = profile->chunk_count / (profile->pipes > 1 ? profile->pipes : 1);
  if (depth == 1) {
    return parts_of_whole(profile, model);
  }
  const uint32_t end = depth - 1;
  const uint32_t first_layers = profile->chunks[0].span.layer_count,
                 last_layers = profile->chunks[end].span.layer_count;
  const bl_chunk_costs_t first = additive(profile, model, 0), last = additive(profile, model, end);
  bl_chunk_costs_t sum = {0};
  uint32_t layers = 0;
  for (uint32_t i = 1; i < end; i++) {
    sum = added(sum, additive(profile, model, i));
    layers += profile->chunks[i].span.layer_count;
  }
  parts_t parts;
  if (layers > 0) {
    parts.layer = scaled(sum, 1.0 / layers);
  } else {
    bl_chunk_costs_t a = scaled(first, 1.0 / fmax(1, first_layers)), b = scaled(last, 1.0 / fmax(1, last_layers));
    parts.layer = (bl_chunk_costs_t){fmin(a.forward, b.forward), a.input, fmin(a.weight, b.weight),
                                     fmin(a.recompute, b.recompute)};
  }
  parts.embedding = surplus_of(first, parts.layer, first_layers);
  parts.head = surplus_of(last, parts.layer, last_layers);
  return parts;
}

static bool same_chunks(const bl_profile_t *profile, const bl_chunk_span_t *spans, uint32_t count) {
  bool same = profile->chunk_count == count;
  for (uint32_t i = 0; i < count && same; i++) {
    same = profile->chunks[i].span.first_layer == spans[i].first_layer &&
           profile->chunks[i].span.layer_count == spans[i].layer_count;
  }
  return same;
}

static double attention_share(const bl_model_t *model, bl_attention_t attention) {
  bl_chunk_span_t whole = bl_chunk_span_whole(model);
  double scores = bl_flops_attention(model, whole, 1, attention, true).forward;
  return scores / (scores + bl_flops_matmul(model, whole, 1).forward);
}

void bl_profile_costs(const bl_profile_t *profile, const bl_model_t *model, const bl_chunk_span_t *spans,
                      uint32_t count, bl_layout_options_t options, bl_chunk_costs_t *costs) {
  bool same = same_chunks(profile, spans, count);
  parts_t parts = parts_of(profile, model);
  double batch = (double)options.micro_batch / profile->options.micro_batch; // scale of a block
  batch *= (double)bl_layout_slices(profile->options) / bl_layout_slices(options);
  bool again = options.recompute == BL_RECOMPUTE_ATTENTION && profile->options.recompute != BL_RECOMPUTE_ATTENTION;
  for (uint32_t i = 0; i < count; i++) {
    bl_chunk_costs_t chunk = same ? profile->chunks[i].costs : scaled(parts.layer, spans[i].layer_count);
    if (!same && spans[i].embedding) {
      chunk = added(chunk, parts.embedding);
    }
    if (!same && spans[i].head) {
      chunk = added(chunk, parts.head);
    }
    if (!same) {
      chunk.recompute *= bl_flops_recompute_share(model, spans[i], options.attention);
    }
    if (again) {
      chunk.input += chunk.forward * attention_share(model, options.attention);
    }
    costs[i] = scaled(chunk, batch);
  }
}

// Of a message, which smaller tensors do not take less than.
#define MESSAGE_SECONDS 50e-6

double bl_profile_message(const bl_profile_t *profile) {
  return profile->boundary > 0 ? fmin(profile->boundary, MESSAGE_SECONDS) : MESSAGE_SECONDS;
}

#define CHECKSUM_BYTES_PER_SECOND 2e10

double bl_profile_evict_call(const bl_profile_t *profile, uint32_t stage, double bytes) {
  double seconds = 0, of_bytes = 0, count = 0;
  for (uint32_t s = 0; s < profile->stage_count; s++) {
    const bl_profile_stage_t *one = &profile->stages[s];
    if (s == stage && one->evict > 0) {
      seconds = one->evict, of_bytes = (double)one->slot_bytes, count = 1;
      break;
    }
    seconds += one->evict;
    of_bytes += one->evict > 0 ? (double)one->slot_bytes : 0;
    count += one->evict > 0;
  }
  return count == 0     ? bytes / CHECKSUM_BYTES_PER_SECOND
         : of_bytes > 0 ? seconds * bytes / of_bytes
                        : seconds / count; // the bytes of its blocks are not known
}

double bl_profile_boundary(const bl_profile_t *profile, double boundary, bl_layout_options_t options) {
  const double same = boundary * options.micro_batch / profile->options.micro_batch;
  const double smaller = (double)bl_layout_slices(profile->options) / bl_layout_slices(options);
  const double message = fmin(same, MESSAGE_SECONDS);
  return message + (same - message) * smaller;
}

// Returns a cost, of which `share` is attention, for a slice that sees `times` as many keys as the mean.
static double spread(double mean, double share, double times) {
  return mean * (1 - share + share * times);
}

void bl_profile_spread(const bl_model_t *model, bl_chunk_span_t span, bl_layout_options_t options,
                       bl_chunk_costs_t mean, bl_chunk_costs_t *slices) {
  const uint32_t count = bl_layout_slices(options);
  const bl_flops_t products = bl_flops_matmul(model, span, 1),
                   scores = bl_flops_attention(model, span, 1, options.attention, true);
  const double again = options.recompute == BL_RECOMPUTE_ATTENTION ? scores.forward : 0; // in I
  const double attends = scores.backward_input + again;
  const double forward = scores.forward / (scores.forward + products.forward),
               input = attends / (attends + products.backward_input + products.head);
  for (uint32_t i = 0; i < count; i++) {
    const double times = count * bl_flops_slice_share(model, span, count, i);
    slices[i] = (bl_chunk_costs_t){.forward = spread(mean.forward, forward, times),
                                   .input = spread(mean.input, input, times),
                                   .weight = mean.weight,
                                   .recompute = spread(mean.recompute, forward, times)};
  }
}

void bl_profile_slice_costs(const bl_profile_t *profile, const bl_model_t *model, const bl_chunk_span_t *spans,
                            uint32_t count, bl_layout_options_t options, const bl_chunk_costs_t *costs,
                            bl_chunk_costs_t *slices) {
  const uint32_t of_chunk = bl_layout_slices(options);
  const bool measured = same_chunks(profile, spans, count) && bl_layout_slices(profile->options) == of_chunk;
  const double batch = (double)options.micro_batch / profile->options.micro_batch;
  for (uint32_t i = 0; i < count; i++) {
    const bl_profile_chunk_t *chunk = &profile->chunks[measured ? i : 0];
    for (uint32_t k = 0; k < of_chunk && measured && chunk->slices != NULL; k++) {
      slices[i * of_chunk + k] = scaled(chunk->slices[k], batch);
    }
    if (!measured || chunk->slices == NULL) {
      bl_profile_spread(model, spans[i], options, costs[i], &slices[i * of_chunk]);
    }
  }
}
