// SPDX-License-Identifier: Apache-2.0
#include "simulate/automatic.h"

#include "schedule/peaks.h"
#include "schedule/recompute.h"
#include "simulate/simulate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const bl_automatic_option_t all_options[BL_AUTOMATIC_OPTIONS] = {
    {.kind = BL_AUTOMATIC_NONE},
    {.kind = BL_AUTOMATIC_PAIRS, .mode = BL_BALANCE_OVERLAP},
    {.kind = BL_AUTOMATIC_PAIRS, .mode = BL_BALANCE_FEWEST},
    {.kind = BL_AUTOMATIC_ANY, .mode = BL_BALANCE_OVERLAP},
    {.kind = BL_AUTOMATIC_ANY, .mode = BL_BALANCE_FEWEST},
};

// What the options have in common.
typedef struct weighing {
  const bl_automatic_request_t *request;
  uint32_t *needed; // [stages] slots without evictions
  uint32_t most;    // of them
  double *paths;    // [stages] seconds of one copy
} weighing_t;

static bl_status_t prepare(const bl_automatic_request_t *request, weighing_t *w, bl_error_t *err) {
  uint32_t stages = request->schedule->stages;
  *w = (weighing_t){
      .request = request, .needed = calloc(stages, sizeof *w->needed), .paths = calloc(stages, sizeof *w->paths)};
  if (w->needed == NULL || w->paths == NULL || bl_schedule_peak_slots(request->schedule, w->needed) != BL_OK) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory to weigh policies of %u stages", stages);
  }
  for (uint32_t s = 0; s < stages; s++) {
    double seconds = request->block_bytes[s] / request->path_rates[s];
    if (!(request->path_rates[s] > 0) || !isfinite(seconds)) {
      return bl_error_set(err, BL_INVALID, "path of stage %u: must have a rate above 0, has %g bytes/s", s,
                          request->path_rates[s]);
    }
    w->paths[s] = seconds;
    w->most = w->needed[s] > w->most ? w->needed[s] : w->most;
  }
  return BL_OK;
}

static void finish(weighing_t *w) {
  free(w->needed);
  free(w->paths);
}

static bl_status_t simulate(const weighing_t *w, const bl_schedule_t *schedule, bl_simulation_t *result,
                            bl_error_t *err) {
  bl_machine_t machine = {.cores = w->request->cores, .early_gradient = true, .paths = w->paths};
  return bl_simulate_on(schedule, w->request->costs, &machine, result, err);
}

static bl_status_t balance(const weighing_t *w, const bl_automatic_option_t *option, bl_balance_result_t *result,
                           bl_error_t *err) {
  return bl_balance_cap_among(w->request->schedule, w->request->budget, option->kind == BL_AUTOMATIC_PAIRS,
                              option->mode, w->request->lenders, result, err);
}

static bool may_fit(const weighing_t *w, bl_automatic_kind_t kind) {
  bool all_stay = w->most <= w->request->budget;
  return kind == BL_AUTOMATIC_NONE ? all_stay : !all_stay && !w->request->recomputes;
}

// Fills in what simulation says of the option; `fits` stays false where it cannot be.
static bl_status_t weigh(const weighing_t *w, bl_automatic_option_t *option, bl_error_t *err) {
  if (!may_fit(w, option->kind)) {
    return BL_OK;
  }
  bl_balance_result_t balanced = {0};
  bool moves = option->kind != BL_AUTOMATIC_NONE;
  if (moves) {
    bl_status_t status = balance(w, option, &balanced, NULL);
    if (status != BL_OK) {
      return BL_OK; // not within the budget
    }
  }
  bl_simulation_t result;
  bl_status_t status = simulate(w, moves ? balanced.schedule : w->request->schedule, &result, err);
  if (status == BL_OK) {
    option->fits = true;
    option->step = result.t_end + w->request->between;
    for (uint32_t s = 0; moves && s < balanced.stages; s++) {
      option->evictions += balanced.evictions[s];
    }
    bl_simulation_cleanup(&result);
  }
  if (moves) {
    bl_balance_result_cleanup(&balanced);
  }
  return status;
}

// A step of the same order with full recomputation; 0 where that does not fit either.
static bl_status_t weigh_recomputation(const weighing_t *w, double *step, bl_error_t *err) {
  bl_balance_result_t copy;
  bl_simulation_t result;
  *step = 0;
  if (w->request->recomputes ||
      bl_balance_cap(w->request->schedule, w->most, false, BL_BALANCE_FEWEST, &copy, NULL) != BL_OK) {
    return BL_OK;
  }
  uint32_t *peaks = calloc(copy.stages, sizeof *peaks);
  bl_status_t status = bl_schedule_recompute(copy.schedule, err);
  bool fits = status == BL_OK && peaks != NULL && bl_schedule_peak_slots(copy.schedule, peaks) == BL_OK;
  for (uint32_t s = 0; fits && s < copy.stages; s++) {
    fits = peaks[s] <= w->request->budget;
  }
  if (fits) {
    status = simulate(w, copy.schedule, &result, err);
    if (status == BL_OK) {
      *step = result.t_end + w->request->between;
      bl_simulation_cleanup(&result);
    }
  }
  free(peaks);
  bl_balance_result_cleanup(&copy);
  return status;
}

// ---- reasons -----------------------------------------------------------------------------------------------------------

static double forward_of(const bl_automatic_request_t *request, uint32_t stage) {
  double least = INFINITY;
  for (uint32_t v = 0; v < request->schedule->virtual_stages; v++) {
    if (request->schedule->stage_of[v] == stage) {
      least = fmin(least, bl_costs_chunk(request->costs, v)->forward);
    }
  }
  return least;
}

static void explain_stage(const weighing_t *w, uint32_t s, uint32_t evictions, double waited, double step,
                          char text[BL_AUTOMATIC_REASON]) {
  const bl_automatic_request_t *request = w->request;
  if (evictions == 0) {
    if (request->budget == UINT32_MAX) {
      snprintf(text, BL_AUTOMATIC_REASON, "needs %u slots, and they have no limit: nothing moves", w->needed[s]);
    } else {
      snprintf(text, BL_AUTOMATIC_REASON, "needs %u of %u slots: nothing moves", w->needed[s], request->budget);
    }
    return;
  }
  double forward = forward_of(request, s), share = 100 * waited / step;
  snprintf(
      text, BL_AUTOMATIC_REASON,
      "parks %u of its blocks: %u are needed, %u fit; a copy takes %.3g ms at %.3g MB/s, a forward %.3g ms, waits for "
      "copies %.2g %% of the step: %s",
      evictions, w->needed[s], request->budget, 1e3 * w->paths[s], 1e-6 * request->path_rates[s], 1e3 * forward, share,
      share < 1 ? "hidden behind compute" : "not all hidden, and no other policy within the budget is faster");
}

static bl_status_t explain(const weighing_t *w, bl_automatic_t *found, bl_error_t *err) {
  const bl_automatic_option_t *best = &found->options[found->best];
  bl_balance_result_t balanced = {0};
  bl_simulation_t result;
  bl_status_t status = BL_OK;
  found->stages = w->request->schedule->stages;
  found->reasons = calloc(found->stages, sizeof *found->reasons);
  if (found->reasons == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory to explain a policy");
  }
  bool moves = best->kind != BL_AUTOMATIC_NONE;
  if (moves) {
    status = balance(w, best, &balanced, err);
  }
  if (status == BL_OK) {
    status = simulate(w, moves ? balanced.schedule : w->request->schedule, &result, err);
  }
  if (status == BL_OK) {
    for (uint32_t s = 0; s < found->stages; s++) {
      double waited = result.stalls[s][BL_STALL_LOAD] + result.stalls[s][BL_STALL_SLOT];
      explain_stage(w, s, moves ? balanced.evictions[s] : 0, waited, best->step, found->reasons[s]);
    }
    bl_simulation_cleanup(&result);
  }
  bl_balance_result_cleanup(&balanced);
  return status;
}

// ---- deciding ----------------------------------------------------------------------------------------------------------

static bl_status_t choose(const weighing_t *w, bl_automatic_t *found, bl_error_t *err) {
  double fastest = INFINITY;
  for (size_t i = 0; i < BL_AUTOMATIC_OPTIONS; i++) {
    found->options[i] = all_options[i];
    bl_status_t status = weigh(w, &found->options[i], err);
    if (status != BL_OK) {
      return status;
    }
    fastest = found->options[i].fits ? fmin(fastest, found->options[i].step) : fastest;
  }
  if (fastest == INFINITY) {
    bl_balance_result_t balanced;
    bl_automatic_option_t widest = {.kind = BL_AUTOMATIC_ANY, .mode = BL_BALANCE_OVERLAP};
    bl_status_t status = w->request->recomputes ? BL_EXHAUSTED : balance(w, &widest, &balanced, err);
    return w->request->recomputes ? bl_error_set(err, BL_EXHAUSTED, "%u slots are needed, %u are there", w->most,
                                                 w->request->budget)
                                  : status; // says the smallest that works
  }
  while (!found->options[found->best].fits || found->options[found->best].step > fastest * (1 + BL_AUTOMATIC_EQUAL)) {
    found->best++;
  }
  const bl_automatic_option_t *kept = w->request->in_force;
  for (size_t i = 0; kept != NULL && i < BL_AUTOMATIC_OPTIONS; i++) {
    const bl_automatic_option_t *option = &found->options[i];
    bool same = option->kind == kept->kind && (option->mode == kept->mode || kept->kind == BL_AUTOMATIC_NONE);
    if (same && option->fits && option->step <= fastest * (1 + BL_AUTOMATIC_GAIN)) {
      found->best = i;
    }
  }
  return weigh_recomputation(w, &found->recomputed, err);
}

bl_status_t bl_automatic_decide(const bl_automatic_request_t *request, bl_automatic_t *found, bl_error_t *err) {
  weighing_t w;
  bl_automatic_t made = {0};
  bl_status_t status = prepare(request, &w, err);
  if (status == BL_OK) {
    status = bl_costs_check(request->costs, request->schedule->virtual_stages, err);
  }
  if (status == BL_OK) {
    status = choose(&w, &made, err);
  }
  if (status == BL_OK) {
    status = explain(&w, &made, err);
  }
  finish(&w);
  if (status != BL_OK) {
    bl_automatic_cleanup(&made);
    return status;
  }
  *found = made;
  return BL_OK;
}

void bl_automatic_cleanup(bl_automatic_t *found) {
  free(found->reasons);
  *found = (bl_automatic_t){0};
}
