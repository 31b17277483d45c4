// SPDX-License-Identifier: Apache-2.0
#include "plan/evaluate/offload.h"

#include "plan/evaluate/footprint.h"

#include <math.h>

// AdamW in fp32 reads gradient, weight and both moments, and writes all but the gradient.
#define UPDATE_BYTES 28.0

// Returns the bytes of a chunk's gradients, which are those of its weights.
static double bytes_in(const bl_offload_request_t *r, bl_chunk_span_t span) {
  const double parameters = bl_footprint_parameters(r->model, span) / r->parallel.tensor;
  return parameters / (r->parallel.shard ? r->parallel.data : 1) * sizeof(float);
}
static double bytes_of(const bl_offload_request_t *r, uint32_t chunk) {
  return bytes_in(r, r->spans[chunk]);
}

// Returns the part of these bytes that belongs to layers.
static double bytes_of_layers(const bl_offload_request_t *r, uint32_t chunk) {
  bl_chunk_span_t layers = r->spans[chunk];
  layers.embedding = layers.head = false;
  return bytes_in(r, layers);
}

static uint32_t layers_of(const bl_offload_request_t *r, uint32_t chunk) {
  return r->spans[chunk].layer_count > 0 ? r->spans[chunk].layer_count : 1;
}

// Returns when all gradients of a stage are on the host. The last W of a chunk completes its gradients layer by layer,
// and they cross the link one after the other. Those of embedding and head follow them; tied ones follow the stage's
// last operation.
static double landed_at(const bl_offload_request_t *r, uint32_t stage) {
  const bl_op_list_t *list = &r->schedule->lists[stage];
  double at = 0, tied = 0;
  for (size_t i = 0; i < list->count; i++) {
    const bl_op_t op = list->ops[i];
    const bool adds = op.type == BL_OP_W || op.type == BL_OP_B;
    if (!adds || op.micro_batch + 1u != r->schedule->micro_batches) {
      continue;
    }
    const bl_span_t span = r->simulation->spans[stage][i];
    const double start = span.start + (op.type == BL_OP_B ? r->costs[op.virtual_stage].input : 0);
    const double layers = bytes_of_layers(r, op.virtual_stage) / r->hardware->host_rate,
                 ends = bytes_of(r, op.virtual_stage) / r->hardware->host_rate - layers;
    at = fmax(at, fmin(start, span.end)) + layers;
    at = fmax(at, span.end + layers / layers_of(r, op.virtual_stage));
    at += r->model->tied ? 0 : ends;
    tied += r->model->tied ? ends : 0;
  }
  return tied > 0 ? fmax(at, r->simulation->end[stage]) + tied : at;
}

static double update_rate(const bl_offload_request_t *r) {
  const double threads = r->threads > 0 ? r->threads : 1;
  return fmin(threads * BL_HARDWARE_THREAD_RATE, r->hardware->host_memory_rate);
}

bl_offload_t bl_offload_of(const bl_offload_request_t *request) {
  bl_offload_t slowest = {0};
  for (uint32_t s = 0; s < request->schedule->stages; s++) {
    double bytes = 0;
    uint32_t layers = 0;
    for (uint32_t v = 0; v < request->schedule->virtual_stages; v++) {
      const bool here = request->schedule->stage_of[v] == s;
      bytes += here ? bytes_of(request, v) : 0;
      layers += here ? layers_of(request, v) : 0;
    }
    const double back = bytes / request->hardware->host_rate,
                 adamw = bytes / sizeof(float) * UPDATE_BYTES / update_rate(request);
    const bl_offload_t one = {.landing = fmax(0, landed_at(request, s) - request->simulation->t_end),
                              .update = fmax(adamw, back) + fmin(adamw, back) / (layers > 0 ? layers : 1),
                              .link_bytes = 2 * bytes,
                              .stage = s};
    slowest = s == 0 || one.landing + one.update > slowest.landing + slowest.update ? one : slowest;
  }
  return slowest;
}
