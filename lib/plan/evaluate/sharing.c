// SPDX-License-Identifier: Apache-2.0
#include "plan/evaluate/sharing.h"

#include "model/shard.h"
#include "plan/evaluate/footprint.h"

#include <math.h>
#include <stdlib.h>

static bl_copies_t copies_of(const bl_sharing_request_t *r) {
  return (bl_copies_t){.replicas = r->parallel.data, .pipes = r->schedule->pipes};
}

static void count_rings(const bl_sharing_request_t *r, bl_sharing_t *gathered, bl_sharing_t *reduced) {
  const double copies = bl_copies_count(copies_of(r)), hops = copies - 1, passes = r->parallel.shard ? 1 : 2;
  for (uint32_t v = 0; v < r->schedule->virtual_stages; v++) {
    const double moved = hops / copies * bl_footprint_parameters(r->model, r->spans[v]) / r->parallel.tensor;
    if (r->parallel.shard) {
      gathered[v] = (bl_sharing_t){.bytes = moved * r->hardware->value_bytes, .messages = hops};
    }
    reduced[v] = (bl_sharing_t){.bytes = moved * sizeof(float) * passes, .messages = hops * passes};
  }
}

static void add(bl_sharing_t *sum, bl_shard_range_t message, uint32_t times) {
  sum->bytes += (double)times * (double)message.count * sizeof(float);
  sum->messages += message.count > 0 ? times : 0;
}

static void keep_most(bl_sharing_t *most, double bytes, double messages) {
  *most = (bl_sharing_t){.bytes = fmax(most->bytes, bytes), .messages = fmax(most->messages, messages)};
}

// Goes on to the next chunk of a stage, and counts it.
static bl_status_t count_chunk(const bl_sharing_request_t *r, bl_chunk_span_t span, uint32_t pipe,
                               bl_ownership_t *ownership, bl_sharing_t *gathered, bl_sharing_t *reduced) {
  const uint32_t copies = bl_copies_count(ownership->copies), pipes = bl_copies_pipes(ownership->copies);
  const bl_layer_parts_t layer_parts = {.count = r->parallel.tensor, .ranks = r->parallel.tensor};
  const uint32_t count = bl_chunk_span_place_count(r->model, span, layer_parts);
  bl_parameter_place_t *places = calloc(count + 1u, sizeof *places);
  if (places == NULL) {
    return BL_EXHAUSTED;
  }
  (void)bl_chunk_span_places(r->model, span, layer_parts, places);
  bl_shard_cut(ownership, places, count);
  const bool two = bl_chunk_span_two_gradients(r->model, span);
  bl_sharing_t weights[BL_GRID_REPLICAS_MAX] = {{0}}, gradients[BL_GRID_REPLICAS_MAX] = {{0}}, all = {0};
  for (uint32_t i = 0; i < count; i++) {
    for (uint32_t copy = 0; copy < copies; copy++) {
      const bl_shard_range_t message = bl_shard_message(ownership, places, i, copy);
      add(&weights[copy], message, 1);
      add(&all, message, 1);
      add(&gradients[copy], message, (copies - 1) * (two && places[i].tied ? 2 : 1));
    }
  }
  for (uint32_t copy = pipe; copy < copies; copy += pipes) {
    keep_most(gathered, all.bytes - weights[copy].bytes, all.messages - weights[copy].messages);
    keep_most(reduced, gradients[copy].bytes, gradients[copy].messages);
  }
  free(places);
  return BL_OK;
}

// Counts the chunks of a stage in their order.
static bl_status_t count_stage(const bl_sharing_request_t *r, uint32_t stage, bl_sharing_t *gathered,
                               bl_sharing_t *reduced) {
  bl_ownership_t ownership = {.copies = copies_of(r)};
  bl_status_t status = BL_OK;
  for (uint32_t v = 0; v < r->schedule->virtual_stages && status == BL_OK; v++) {
    if (r->schedule->stage_of[v] == stage) {
      status = count_chunk(r, r->spans[v], bl_schedule_pipe(r->schedule, v), &ownership, &gathered[v], &reduced[v]);
    }
  }
  return status;
}

bl_status_t bl_sharing_count(const bl_sharing_request_t *request, bl_sharing_t *gathered, bl_sharing_t *reduced) {
  const bl_schedule_t *schedule = request->schedule;
  for (uint32_t v = 0; v < schedule->virtual_stages; v++) {
    gathered[v] = reduced[v] = (bl_sharing_t){0};
  }
  if (bl_copies_count(copies_of(request)) <= 1) {
    return BL_OK;
  }
  if (request->hardware != NULL) {
    count_rings(request, gathered, reduced);
    return BL_OK;
  }
  bl_status_t status = BL_OK;
  for (uint32_t s = 0; s < schedule->stages && status == BL_OK; s++) {
    status = count_stage(request, s, gathered, reduced);
  }
  return status;
}
