// SPDX-License-Identifier: Apache-2.0
#include "plan/search/bound.h"

#include <math.h>
#include <string.h>

// Number of ranking rows that are shown. A candidate with this many faster ones is not shown.
#define SHOWN 8
// Share of a ramp that remains if layers move, since fewer of them may then precede a stage.
#define MOVED_SHARE 0.9

// Costs of a micro-batch on a virtual stage: of all its slices, and the least of one. The first slice attends to the
// fewest keys, so it is the first to pass the stages and the last to come back.
typedef struct work {
  bl_chunk_costs_t all, least;
} work_t;

static work_t work_of(const bl__evaluation_t *a, uint32_t v) {
  const bl_chunk_costs_t *slices = &a->slice_costs[(size_t)v * a->c->slices];
  work_t work = {.least = slices[0]};
  for (uint32_t k = 0; k < a->c->slices; k++) {
    work.all.forward += slices[k].forward;
    work.all.input += slices[k].input;
    work.all.weight += slices[k].weight;
    work.least.forward = fmin(work.least.forward, slices[k].forward);
    work.least.input = fmin(work.least.input, slices[k].input);
    work.least.recompute = fmin(work.least.recompute, slices[k].recompute);
  }
  return work;
}

// A block whose F is directly before its backward has no R. But then its stage waits for everything between both
// (schedule/ir/recompute.h).
static double again_seconds(const bl__evaluation_t *a, uint32_t v) {
  if (a->options.recompute != BL_RECOMPUTE_FULL || v + 1 == a->chunks) {
    return 0;
  }
  const bl_chunk_costs_t next = work_of(a, v + 1).least;
  return a->c->slices * fmin(work_of(a, v).least.recompute, next.forward + next.input);
}

static double stage_bound(const bl__evaluation_t *a, uint32_t stage, double share) {
  const double m = a->c->micro_batches;
  double before = 0, after = 0, forward_input = 0, weight = 0;
  bool seen = false;
  for (uint32_t v = 0; v < a->chunks; v++) {
    const work_t work = work_of(a, v);
    if (a->stage_of[v] == stage) {
      seen = true;
      forward_input += work.all.forward + work.all.input + again_seconds(a, v);
      weight += work.all.weight;
    } else if (!seen) {
      before += work.least.forward;
      after += work.least.input;
    }
  }
  const double work = m * (forward_input + weight);
  return fmax(share * before + work, share * (before + m * forward_input + after));
}

double bl__bound_step(const bl__evaluation_t *a) {
  const bool may_move = a->request->memory > 0 && a->c->chunks == 1;
  double bound = 0;
  for (uint32_t s = 0; s < a->c->stages; s++) {
    bound = fmax(bound, stage_bound(a, s, may_move ? MOVED_SHARE : 1));
  }
  return bound;
}

static bool same_schedule(const bl_plan_candidate_t *a, const bl_plan_candidate_t *b) {
  const bool alike = a->chunks == b->chunks || (a->chunks <= 2 && b->chunks <= 2);
  return alike && strcmp(a->schedule, b->schedule) == 0;
}

static bool same_shape(const bl_plan_candidate_t *a, const bl_plan_candidate_t *b) {
  return a->stages == b->stages && a->parallel.tensor == b->parallel.tensor && a->parallel.data == b->parallel.data;
}

static void lower(double *best, double step) {
  *best = fmin(*best, step);
}

bool bl__bound_rules_out(const bl_plan_t *plan, const bl_plan_candidate_t *choice, double bound) {
  enum { SCHEDULE, MICRO_BATCH, SLICES, ATTENTION, SHAPE, RECOMPUTE, KINDS };
  double own[KINDS], recomputes[3], policies[BL_POLICY_AUTO + 1], orders[2];
  uint32_t faster = 0;
  for (size_t i = 0; i < KINDS; i++) {
    own[i] = INFINITY; // the candidate's own value must have been evaluated
  }
  memset(recomputes, 0, sizeof recomputes);
  memset(policies, 0, sizeof policies);
  memset(orders, 0, sizeof orders);
  for (uint32_t i = 0; i < plan->count; i++) {
    const bl_plan_candidate_t *c = &plan->candidates[i];
    if (!c->fits) {
      continue;
    }
    double *of[] = {&recomputes[c->recompute], &policies[c->policy], &orders[c->order]};
    for (size_t k = 0; k < 3; k++) {
      *of[k] = *of[k] > 0 ? fmin(*of[k], c->step) : c->step;
    }
    faster += c->step <= bound;
    lower(&own[SCHEDULE], same_schedule(c, choice) ? c->step : INFINITY);
    lower(&own[MICRO_BATCH], c->micro_batch == choice->micro_batch ? c->step : INFINITY);
    lower(&own[SLICES], c->slices == choice->slices ? c->step : INFINITY);
    lower(&own[ATTENTION], c->attention == choice->attention ? c->step : INFINITY);
    lower(&own[SHAPE], same_shape(c, choice) ? c->step : INFINITY);
    lower(&own[RECOMPUTE], c->recompute == choice->recompute ? c->step : INFINITY);
  }
  bool out = faster >= SHOWN;
  for (size_t i = 0; i < KINDS && out; i++) {
    out = own[i] <= bound;
  }
  for (size_t i = 0; i < 3 && out; i++) {
    out = recomputes[i] <= bound && (i > 1 || orders[i] <= bound);
  }
  for (size_t i = 0; i <= BL_POLICY_AUTO && out; i++) {
    out = policies[i] <= bound;
  }
  return out;
}
