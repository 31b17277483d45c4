// SPDX-License-Identifier: Apache-2.0
// Makes a profile from recorded steps.
#include "plan/profile/recording.h"

#include "base/sort.h"
#include "model/flops.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static double quantile_gap(const bl__recorded_gaps_t *gaps, double share) {
  bl_sort_f64(gaps->values, gaps->count);
  return gaps->count == 0 ? 0 : gaps->values[(size_t)(share * (double)(gaps->count - 1))];
}

// Returns the median of one double of bl__recorded_step_t over the steps that have it.
static double median_gap(const bl_recorder_t *r, size_t offset) {
  double values[BL_RECORDER_STEPS];
  size_t count = 0;
  for (uint32_t i = 0; i < r->count; i++) {
    memcpy(&values[count], (const char *)&r->steps[i] + offset, sizeof *values);
    count += isfinite(values[count]);
  }
  return count > 0 ? bl_median(values, count) : 0;
}

// Estimates the boundary from the starts of operations if no waits were recorded. If stages also share cores, most
// operations waited for a core, too, so it takes a low quantile.
static double guess_boundary(const bl__recorded_gaps_t *gaps, bool input_shows) {
  return fmax(0, quantile_gap(gaps, input_shows ? 0.5 : 0.1));
}

// Returns the median over steps of one double of bl__recorded_means_t, for one slice.
static double median_mean(const bl_recorder_t *r, uint32_t index, size_t offset) {
  double values[BL_RECORDER_STEPS];
  for (uint32_t i = 0; i < r->count; i++) {
    memcpy(&values[i], (const char *)&r->steps[i].means[index] + offset, sizeof values[i]);
  }
  return bl_median(values, r->count);
}

// Returns the mean over a virtual stage's slices that have a value.
static double median_of_chunk(const bl_recorder_t *r, uint32_t virtual_stage, size_t offset) {
  double sum = 0;
  uint32_t seen = 0;
  for (uint32_t i = 0; i < r->schedule->slices; i++) {
    const double one = median_mean(r, virtual_stage * r->schedule->slices + i, offset);
    sum += one;
    seen += one > 0;
  }
  return seen > 0 ? sum / seen : 0;
}

#define MEDIAN(r, v, member) median_of_chunk((r), (v), offsetof(bl__recorded_means_t, member))
#define SLICE(r, i, member)  median_mean((r), (i), offsetof(bl__recorded_means_t, member))

// `input`: share of I in a fused backward; `again`: R as a share of F, if no R was recorded.
static bl_chunk_costs_t costs_of(const bl_recorder_t *r, uint32_t v, double input, double again) {
  bl_chunk_costs_t costs = {.forward = MEDIAN(r, v, forward),
                            .input = MEDIAN(r, v, input),
                            .weight = MEDIAN(r, v, weight),
                            .recompute = MEDIAN(r, v, recompute)};
  double fused = MEDIAN(r, v, backward);
  costs.input += input * fused;
  costs.weight += (1 - input) * fused;
  if (costs.recompute == 0) {
    costs.recompute = again * costs.forward;
  }
  return costs;
}

// Returns the costs of a slice. W of a fused backward takes the same time in every slice.
static bl_chunk_costs_t costs_of_slice(const bl_recorder_t *r, uint32_t index, bl_chunk_costs_t mean, double again) {
  bl_chunk_costs_t costs = {.forward = SLICE(r, index, forward),
                            .input = SLICE(r, index, input),
                            .weight = SLICE(r, index, weight),
                            .recompute = SLICE(r, index, recompute)};
  const double fused = SLICE(r, index, backward);
  if (fused > 0) {
    costs.weight = fmin(mean.weight, fused / 2);
    costs.input = fused - costs.weight;
  }
  if (costs.recompute == 0) {
    costs.recompute = again * costs.forward;
  }
  return costs;
}

// Returns the share of I in a fused backward by FLOPs.
static double input_share(const bl_model_t *model, bl_chunk_span_t span, bl_attention_t attention) {
  bl_flops_t products = bl_flops_matmul(model, span, 1);
  double input =
      products.backward_input + products.head + bl_flops_attention(model, span, 1, attention, true).backward_input;
  double sum = input + products.backward_weight;
  return sum > 0 ? input / sum : 0.5;
}

static void fill_chunks(const bl_recorder_t *r, const bl_model_t *model, bl_attention_t attention, bool input_shows,
                        double boundary, bl_profile_t *p) {
  // One factor for all stages, relative to the mean by FLOPs: how much earlier gradients arrived.
  double expected = 0, seen = quantile_gap(&r->input, 0.5);
  for (uint32_t v = 1; v < p->chunk_count; v++) {
    expected += input_share(model, r->spans[v], attention) / (p->chunk_count - 1);
  }
  double last = MEDIAN(r, p->chunk_count - 1, backward);
  seen -= last > 0 ? boundary / last : 0;
  bool use = input_shows && r->input.count >= 8 && seen > 0.25 && seen < 0.9 && expected > 0;
  for (uint32_t v = 0; v < p->chunk_count; v++) {
    double share = input_share(model, r->spans[v], attention);
    share = use ? fmin(0.95, share * seen / expected) : share;
    const double again = bl_flops_recompute_share(model, r->spans[v], attention);
    p->chunks[v] = (bl_profile_chunk_t){.stage = r->schedule->stage_of[v],
                                        .span = r->spans[v],
                                        .costs = costs_of(r, v, share, again),
                                        .measured_input = use || MEDIAN(r, v, input) > 0,
                                        .measured_recompute = MEDIAN(r, v, recompute) > 0};
    const uint32_t slices = r->schedule->slices;
    if (slices > 1) {
      p->chunks[v].slices = calloc(slices, sizeof *p->chunks[v].slices);
      // Without memory only the mean is kept.
      for (uint32_t i = 0; i < slices && p->chunks[v].slices != NULL; i++) {
        p->chunks[v].slices[i] = costs_of_slice(r, v * slices + i, p->chunks[v].costs, again);
      }
    }
  }
}

// Returns the recorded step for replays: that of the median makespan.
static const bl__recorded_step_t *usual_step(const bl_recorder_t *r) {
  for (uint32_t i = 0;; i++) {
    uint32_t before = 0;
    for (uint32_t k = 0; k < r->count; k++) {
      double difference = r->steps[k].makespan - r->steps[i].makespan;
      before += difference < 0 || (difference == 0 && k < i);
    }
    if (before == (r->count - 1) / 2) {
      return &r->steps[i];
    }
  }
}

static bl_status_t fill_stages(const bl_recorder_t *r, const bl__recorded_step_t *kept, bool input_shows,
                               bl_profile_t *p) {
  for (uint32_t s = 0; s < p->stage_count; s++) {
    bl_profile_stage_t *stage = &p->stages[s];
    stage->evict = quantile_gap(&r->own[s].evict, 0.5);
    stage->load = quantile_gap(&r->own[s].load, 0.5);
    stage->boundary = !r->waits                     ? guess_boundary(&r->own[s].boundary, input_shows)
                      : r->own[s].boundary.seen > 0 ? bl__recorded_mean(&r->own[s].boundary)
                                                    : 0;
    stage->time_count = bl__recorded_count(&r->schedule->lists[s]);
    stage->times = malloc((stage->time_count + 1) * sizeof *stage->times);
    if (stage->times == NULL) {
      return BL_EXHAUSTED;
    }
    memcpy(stage->times, kept->times[s], stage->time_count * sizeof *stage->times);
    stage->step_end = kept->ends[s];
  }
  return BL_OK;
}

bl_status_t bl_recorder_fill(const bl_recorder_t *r, const bl_model_t *model, bl_attention_t attention,
                             bool input_shows, bl_profile_t *profile, bl_error_t *err) {
  const bool shows = input_shows || r->waits;
  if (r->count == 0) {
    return bl_error_set(err, BL_PRECONDITION, "no whole step was traced");
  }
  bl_profile_t p = {.model_digest = bl_profile_model_digest(model),
                    .setting.order = bl_profile_order(r->schedule),
                    .steps = r->count,
                    .micro_batches = r->schedule->micro_batches,
                    .stage_count = r->schedule->stages,
                    .chunk_count = r->schedule->virtual_stages,
                    .pipes = r->schedule->pipes};
  bl_profile_model_text(model, p.model_text);
  memcpy(p.schedule, r->schedule->name, sizeof p.schedule);
  p.stages = calloc(p.stage_count, sizeof *p.stages);
  p.chunks = calloc(p.chunk_count, sizeof *p.chunks);
  double steps[BL_RECORDER_STEPS], makespans[BL_RECORDER_STEPS], overheads[BL_RECORDER_STEPS];
  for (uint32_t i = 0; i < r->count; i++) {
    steps[i] = r->steps[i].seconds;
    makespans[i] = r->steps[i].makespan;
    overheads[i] = fmax(0, steps[i] - makespans[i] - r->steps[i].shared);
  }
  p.step = bl_median(steps, r->count);
  p.makespan = bl_median(makespans, r->count);
  p.overhead = bl_median(overheads, r->count);
  p.boundary =
      r->waits ? median_gap(r, offsetof(bl__recorded_step_t, boundary)) : guess_boundary(&r->boundary, input_shows);
  p.handover = median_gap(r, offsetof(bl__recorded_step_t, handover));
  const bl__recorded_step_t *kept = usual_step(r);
  p.replay = (bl_profile_replay_t){.makespan = kept->makespan,
                                   .boundary = r->waits && isfinite(kept->boundary) ? kept->boundary : p.boundary,
                                   .handover = isfinite(kept->handover) ? kept->handover : p.handover};
  if (p.stages == NULL || p.chunks == NULL || fill_stages(r, kept, input_shows, &p) != BL_OK) {
    bl_profile_cleanup(&p);
    return bl_error_set(err, BL_EXHAUSTED, "no memory for the profile");
  }
  fill_chunks(r, model, attention, shows, p.boundary, &p);
  *profile = p;
  return BL_OK;
}
