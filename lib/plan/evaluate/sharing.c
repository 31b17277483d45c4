// SPDX-License-Identifier: Apache-2.0
#include "plan/evaluate/sharing.h"

#include "model/shard.h"
#include "plan/evaluate/footprint.h"

#include <math.h>
#include <stdlib.h>

static bl_copies_t copies_of(const bl_sharing_request_t *r) {
  return (bl_copies_t){.replicas = r->parallel.data, .pipes = r->schedule->pipes};
}

static void count_rings(const bl_sharing_request_t *r, double *gathered, double *reduced) {
  const uint32_t copies = bl_copies_count(copies_of(r));
  const double share = (copies - 1.0) / copies;
  for (uint32_t v = 0; v < r->schedule->virtual_stages; v++) {
    const double moved = share * bl_footprint_parameters(r->model, r->spans[v]) / r->parallel.tensor;
    gathered[v] = r->parallel.shard ? moved * r->hardware->value_bytes : 0;
    reduced[v] = moved * sizeof(float) * (r->parallel.shard ? 1 : 2);
  }
}

// Counts one chunk of a pipe; `owners` are those of its parameters.
static bl_status_t count_chunk(const bl_sharing_request_t *r, bl_chunk_span_t span, uint32_t pipe,
                               const uint32_t *owners, double *gathered, double *reduced) {
  const bl_ownership_t ownership = {.owners = owners, .copies = copies_of(r)};
  const uint32_t copies = bl_copies_count(ownership.copies);
  const bl_split_t split = {.parts = r->parallel.tensor, .ranks = r->parallel.tensor};
  const uint32_t count = bl_chunk_span_place_count(r->model, span, split);
  bl_parameter_place_t *places = calloc(count + 1u, sizeof *places);
  if (places == NULL) {
    return BL_EXHAUSTED;
  }
  (void)bl_chunk_span_places(r->model, span, split, places);
  for (uint32_t replica = 0; replica < r->parallel.data; replica++) {
    const uint32_t copy = bl_copies_number(ownership.copies, replica, pipe);
    double own = 0, others = 0, second = 0;
    for (uint32_t i = 0; i < count; i++) {
      const double bytes = (double)bl_shard_range(&ownership, &places[i], copy).count * sizeof(float);
      own += bytes;
      others += (double)places[i].elements * sizeof(float) - bytes;
      second += places[i].number == 0 && bl_chunk_span_two_gradients(r->model, span) ? bytes : 0;
    }
    *gathered = fmax(*gathered, others);
    *reduced = fmax(*reduced, (own + second) * (copies - 1));
  }
  free(places);
  return BL_OK;
}

static bl_status_t count_stage(const bl_sharing_request_t *r, uint32_t stage, bl_chunk_span_t *spans, double *gathered,
                               double *reduced) {
  uint32_t count = 0;
  for (uint32_t v = 0; v < r->schedule->virtual_stages; v++) {
    if (r->schedule->stage_of[v] == stage) {
      spans[count++] = r->spans[v];
    }
  }
  uint32_t *owners = calloc(bl_shard_parameters(r->model, spans, count) + 1u, sizeof *owners);
  bl_status_t status = owners != NULL ? bl_shard_assign(r->model, spans, count, copies_of(r), owners) : BL_EXHAUSTED;
  const uint32_t *next = owners;
  for (uint32_t v = 0; v < r->schedule->virtual_stages && status == BL_OK; v++) {
    if (r->schedule->stage_of[v] == stage) {
      status = count_chunk(r, r->spans[v], bl_schedule_pipe(r->schedule, v), next, &gathered[v], &reduced[v]);
      next += bl_chunk_span_parameter_count(r->model, r->spans[v]);
    }
  }
  free(owners);
  return status;
}

bl_status_t bl_sharing_bytes(const bl_sharing_request_t *request, double *gathered, double *reduced) {
  const bl_schedule_t *schedule = request->schedule;
  for (uint32_t v = 0; v < schedule->virtual_stages; v++) {
    gathered[v] = reduced[v] = 0;
  }
  if (bl_copies_count(copies_of(request)) <= 1) {
    return BL_OK;
  }
  if (request->hardware != NULL) {
    count_rings(request, gathered, reduced);
    return BL_OK;
  }
  bl_chunk_span_t *spans = calloc(schedule->virtual_stages, sizeof *spans);
  bl_status_t status = spans != NULL ? BL_OK : BL_EXHAUSTED;
  for (uint32_t s = 0; s < schedule->stages && status == BL_OK; s++) {
    status = count_stage(request, s, spans, gathered, reduced);
  }
  free(spans);
  return status;
}
