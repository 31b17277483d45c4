// SPDX-License-Identifier: Apache-2.0
#include "simulate/automatic.h"

#include "base/words.h"
#include "schedule/balance/drop.h"
#include "schedule/ir/peaks.h"
#include "schedule/ir/recompute.h"
#include "simulate/host_order.h"
#include "simulate/simulate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const bl_automatic_option_t all_options[BL_AUTOMATIC_OPTIONS] = {
    {.kind = BL_POLICY_NONE},
    {.kind = BL_POLICY_BPIPE, .mode = BL_BALANCE_OVERLAP},
    {.kind = BL_POLICY_BPIPE, .mode = BL_BALANCE_FEWEST},
    {.kind = BL_POLICY_CAP, .mode = BL_BALANCE_OVERLAP},
    {.kind = BL_POLICY_CAP, .mode = BL_BALANCE_FEWEST},
    {.kind = BL_POLICY_OFFLOAD, .mode = BL_BALANCE_OVERLAP},
    {.kind = BL_POLICY_OFFLOAD, .mode = BL_BALANCE_FEWEST},
    {.kind = BL_POLICY_DROP},
    {.kind = BL_POLICY_MIX, .mode = BL_BALANCE_OVERLAP},
    {.kind = BL_POLICY_MIX, .mode = BL_BALANCE_FEWEST},
};

_Static_assert(BL_AUTOMATIC_OPTIONS <= BL_MEASUREMENTS_PLANS, "predictions of all options are kept");

// A mix is tried with copies of these multiples of the measured time.
#define MIX_COPY_MAX 1e6 // in hundredths of a forward; longer copies park nothing
static const double copies[] = {1, 0.25, 0.5, 0.75, 1.5, 2};

// The inputs that all options share.
typedef struct weighing {
  const bl_automatic_request_t *request;
  bl_balance_cap_t lenders;
  uint32_t *needed;   // [stages] slots without evictions
  uint32_t most;      // maximum of these
  double *paths;      // [stages] seconds of one copy
  double *host_paths; // [stages] the same with the host store
} weighing_t;

// Computes the seconds of one copy for every stage at these rates.
static bl_status_t fill_paths(const bl_automatic_request_t *request, const double *rates, double *paths,
                              bl_error_t *err) {
  for (uint32_t s = 0; rates != NULL && s < request->schedule->stages; s++) {
    paths[s] = request->block_bytes[s] / rates[s];
    if (!(rates[s] > 0) || !isfinite(paths[s])) {
      return bl_error_set(err, BL_INVALID, "path of stage %u: must have a rate above 0, has %g bytes/s", s, rates[s]);
    }
  }
  return BL_OK;
}

static bl_status_t prepare(const bl_automatic_request_t *request, weighing_t *w, bl_error_t *err) {
  uint32_t stages = request->schedule->stages;
  *w = (weighing_t){.request = request,
                    .lenders = request->lenders != NULL ? *request->lenders : (bl_balance_cap_t){0},
                    .needed = calloc(stages, sizeof *w->needed),
                    .paths = calloc(2 * stages, sizeof *w->paths)};
  if (w->needed == NULL || w->paths == NULL || bl_schedule_peak_slots(request->schedule, w->needed) != BL_OK) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory to weigh policies of %u stages", stages);
  }
  for (uint32_t s = 0; s < stages; s++) {
    w->most = w->needed[s] > w->most ? w->needed[s] : w->most;
  }
  w->host_paths = w->paths + stages;
  bl_status_t status = fill_paths(request, request->path_rates, w->paths, err);
  const double *host_rates = request->host_rates != NULL ? request->host_rates : request->path_rates;
  return status == BL_OK ? fill_paths(request, host_rates, w->host_paths, err) : status;
}

static void finish(weighing_t *w) {
  free(w->needed);
  free(w->paths);
}

static bl_status_t simulate(const weighing_t *w, const bl_schedule_t *schedule, bl_simulation_t *result,
                            bl_error_t *err) {
  bl_machine_t machine = {.cores = w->request->cores,
                          .handover = w->request->handover,
                          .early_gradient = true,
                          .paths = w->paths,
                          .host_paths = w->host_paths,
                          .evict_calls = w->request->evict_calls,
                          .shared_stores = true};
  return bl_simulate_on(schedule, w->request->costs, &machine, result, err);
}

// The schedule after an option is applied.
typedef struct made {
  bl_schedule_t *schedule;
  const bl_schedule_t *order;    // that the option was applied to
  uint32_t *parked, *recomputed; // [stages] parked blocks and recomputed blocks
} made_t;

static void unmake(made_t *made) {
  bl_schedule_destroy(made->schedule);
  free(made->parked);
  free(made->recomputed);
}

static bl_status_t make_drop(const weighing_t *w, made_t *made, bl_error_t *err) {
  const bl_schedule_t *schedule = w->request->schedule;
  made->parked = calloc(schedule->stages, sizeof *made->parked);
  made->recomputed = calloc(schedule->stages, sizeof *made->recomputed);
  bl_status_t status = made->parked != NULL && made->recomputed != NULL
                           ? bl_schedule_drop(schedule, w->request->budget, &made->schedule, made->recomputed, err)
                           : bl_error_set(err, BL_EXHAUSTED, "no memory to weigh policies");
  if (status != BL_OK) {
    unmake(made);
    *made = (made_t){0};
  }
  made->order = schedule;
  return status;
}

static bl_status_t make(const weighing_t *w, const bl_automatic_option_t *option, made_t *made, bl_error_t *err) {
  const bl_automatic_request_t *request = w->request;
  *made = (made_t){0};
  if (option->kind == BL_POLICY_DROP) {
    return make_drop(w, made, err);
  }
  bl_balance_cap_t cap = w->lenders;
  cap.slots = request->budget;
  cap.pairs_only = option->kind == BL_POLICY_BPIPE;
  cap.mode = option->mode;
  cap.copy = option->copy / 100.0;
  cap.host_only = cap.host_only || option->kind == BL_POLICY_OFFLOAD;
  bl_balance_result_t result;
  bool pools;
  bl_status_t status = bl_host_order_balance(option->kind, request->schedule, request->pooled, request->hosted, &cap,
                                             &result, &pools, err);
  if (status == BL_OK) {
    *made = (made_t){.order = pools ? request->pooled : request->schedule,
                     .schedule = result.schedule,
                     .parked = result.evictions,
                     .recomputed = result.dropped};
    result.schedule = NULL;
    result.evictions = result.dropped = NULL;
    bl_balance_result_cleanup(&result);
  }
  return status;
}

static bool may_fit(const weighing_t *w, bl_policy_kind_t kind) {
  bool all_stay = w->most <= w->request->budget;
  bool possible = kind == BL_POLICY_DROP ||
                  (w->request->path_rates != NULL &&
                   (kind == BL_POLICY_OFFLOAD ? w->lenders.hosts > 0 : kind == BL_POLICY_MIX || !w->lenders.host_only));
  return kind == BL_POLICY_NONE ? all_stay : !all_stay && possible;
}

static double forward_of(const bl_automatic_request_t *request, uint32_t stage) {
  double least = INFINITY;
  for (uint32_t v = 0; v < request->schedule->virtual_stages; v++) {
    if (request->schedule->stage_of[v] == stage) {
      least = fmin(least, bl_costs_chunk(request->costs, v)->forward);
    }
  }
  return least;
}

static void count_blocks(const weighing_t *w, const made_t *made, bl_automatic_option_t *option) {
  option->evictions = option->dropped = 0;
  for (uint32_t s = 0; made->schedule != NULL && s < w->request->schedule->stages; s++) {
    option->evictions += made->parked[s];
    option->dropped += made->recomputed[s];
  }
}

// Sets the simulated step of the option. It does not fit if it cannot be applied.
static bl_status_t weigh_one(const weighing_t *w, bl_automatic_option_t *option, bl_error_t *err) {
  made_t made = {0};
  option->fits = false;
  bool stays = option->kind == BL_POLICY_NONE;
  if (!may_fit(w, option->kind) || (!stays && make(w, option, &made, NULL) != BL_OK)) {
    return BL_OK; // not within the budget
  }
  bl_simulation_t result;
  bl_status_t status = BL_OK;
  count_blocks(w, &made, option);
  if (option->kind != BL_POLICY_MIX || (option->evictions > 0 && option->dropped > 0)) {
    status = simulate(w, stays ? w->request->schedule : made.schedule, &result, err);
    if (status == BL_OK) {
      option->fits = true;
      option->step = result.t_end + w->request->overhead;
      bl_simulation_cleanup(&result);
    }
  }
  unmake(&made);
  return status;
}

// Returns the longest copy of a stage, in forwards of that stage.
static double measured_copy(const weighing_t *w) {
  const double *paths = w->lenders.host_only ? w->host_paths : w->paths;
  double most = 0;
  for (uint32_t s = 0; s < w->request->schedule->stages; s++) {
    double forward = forward_of(w->request, s);
    most = forward > 0 && isfinite(forward) ? fmax(most, paths[s] / forward) : most;
  }
  return most;
}

// Finds the best mix. Keeps the mix in force unless another one gains enough.
static bl_status_t weigh_mix(const weighing_t *w, bl_automatic_option_t *option, bl_error_t *err) {
  const bl_automatic_option_t *in_force = w->request->in_force;
  const double measured = 100 * measured_copy(w);
  bl_automatic_option_t kept = *option;
  bl_status_t status = BL_OK;
  for (size_t i = 0; i < sizeof copies / sizeof copies[0] && status == BL_OK; i++) {
    bl_automatic_option_t tried = kept;
    tried.copy = (uint32_t)fmin(fmax(1, measured * copies[i]), MIX_COPY_MAX);
    status = weigh_one(w, &tried, err);
    if (tried.fits && (!option->fits || tried.step < option->step)) {
      *option = tried;
    }
  }
  if (status == BL_OK && in_force != NULL && in_force->kind == BL_POLICY_MIX && in_force->mode == option->mode) {
    kept.copy = in_force->copy;
    status = weigh_one(w, &kept, err);
    if (kept.fits && (!option->fits || kept.step <= option->step * (1 + BL_AUTOMATIC_GAIN))) {
      *option = kept;
    }
  }
  return status;
}

static bl_status_t weigh(const weighing_t *w, bl_automatic_option_t *option, bl_error_t *err) {
  return option->kind == BL_POLICY_MIX ? weigh_mix(w, option, err) : weigh_one(w, option, err);
}

// Simulates a step of the same order with full recomputation; 0: it does not fit.
static bl_status_t weigh_recomputation(const weighing_t *w, double *step, bl_error_t *err) {
  bl_balance_result_t copy;
  bl_simulation_t result;
  *step = 0;
  if (bl_balance_cap(w->request->schedule, w->most, false, BL_BALANCE_FEWEST, &copy, NULL) != BL_OK) {
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
      *step = result.t_end + w->request->overhead;
      bl_simulation_cleanup(&result);
    }
  }
  free(peaks);
  bl_balance_result_cleanup(&copy);
  return status;
}

// ---- reasons --------------------------------------------------------------------------------------------------------

static double recompute_of(const bl_automatic_request_t *request, uint32_t stage) {
  double most = 0;
  for (uint32_t v = 0; v < request->schedule->virtual_stages; v++) {
    if (request->schedule->stage_of[v] == stage) {
      most = fmax(most, bl_costs_chunk(request->costs, v)->recompute);
    }
  }
  return most;
}

static void explain_still(const weighing_t *w, uint32_t s, char text[BL_AUTOMATIC_REASON]) {
  if (w->request->budget == UINT32_MAX) {
    snprintf(text, BL_AUTOMATIC_REASON, "needs %u slot%s, and they have no limit: nothing moves", w->needed[s],
             bl_plural(w->needed[s]));
  } else {
    snprintf(text, BL_AUTOMATIC_REASON, "needs %u of %u slot%s: nothing moves", w->needed[s], w->request->budget,
             bl_plural(w->request->budget));
  }
}

static void explain_drop(const weighing_t *w, uint32_t s, uint32_t dropped, char text[BL_AUTOMATIC_REASON]) {
  const bl_automatic_request_t *request = w->request;
  int used = snprintf(text, BL_AUTOMATIC_REASON,
                      "recomputes %u of its blocks: %u are needed, %u fit; that takes %.3g ms a block", dropped,
                      w->needed[s], request->budget, 1e3 * recompute_of(request, s));
  if (request->path_rates != NULL && used > 0 && used < BL_AUTOMATIC_REASON) {
    snprintf(text + used, BL_AUTOMATIC_REASON - (size_t)used,
             ", to a store and back %.3g ms at %.3g MB/s, which does not hide", 2e3 * w->paths[s],
             1e-6 * request->path_rates[s]);
  }
}

static void explain_eviction(const weighing_t *w, uint32_t s, uint32_t evictions, double share, bool at_host,
                             char text[BL_AUTOMATIC_REASON]) {
  const bl_automatic_request_t *request = w->request;
  const double copy = at_host ? w->host_paths[s] : w->paths[s];
  snprintf(text, BL_AUTOMATIC_REASON,
           "parks %u of its blocks%s: %u are needed, %u fit; a copy takes %.3g ms at %.3g MB/s, a forward %.3g ms, "
           "waits for "
           "copies %.2g %% of the step: %s",
           evictions, at_host ? " at the host" : "", w->needed[s], request->budget, 1e3 * copy,
           1e-6 * request->block_bytes[s] / copy, 1e3 * forward_of(request, s), share,
           share < 1 ? "hidden behind compute" : "not all hidden, and no other policy within the budget is faster");
}

static void explain_mix(const weighing_t *w, uint32_t s, const made_t *made, char text[BL_AUTOMATIC_REASON]) {
  const bl_automatic_request_t *request = w->request;
  snprintf(text, BL_AUTOMATIC_REASON,
           "parks %u of its blocks and recomputes %u: %u are needed, %u fit; a copy takes %.3g ms at %.3g MB/s, a "
           "forward %.3g ms, recomputing a block %.3g ms: it parks what hides and fits at a store",
           made->parked[s], made->recomputed[s], w->needed[s], request->budget, 1e3 * w->paths[s],
           1e-6 * request->path_rates[s], 1e3 * forward_of(request, s), 1e3 * recompute_of(request, s));
}

static bl_status_t explain(const weighing_t *w, bl_automatic_t *found, bl_error_t *err) {
  const bl_automatic_option_t *best = &found->options[found->best];
  made_t made = {0};
  bl_simulation_t result;
  bl_status_t status = BL_OK;
  found->stages = w->request->schedule->stages;
  found->reasons = calloc(found->stages, sizeof *found->reasons);
  if (found->reasons == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory to explain a policy");
  }
  bool stays = best->kind == BL_POLICY_NONE;
  if (!stays) {
    status = make(w, best, &made, err);
  }
  if (status == BL_OK && bl_schedule_peak_slots(stays ? w->request->schedule : made.order, w->needed) != BL_OK) {
    status = bl_error_set(err, BL_EXHAUSTED, "no memory to explain a policy"); // of the option's order
  }
  if (status == BL_OK) {
    status = simulate(w, stays ? w->request->schedule : made.schedule, &result, err);
  }
  if (status == BL_OK) {
    for (uint32_t s = 0; s < found->stages; s++) {
      double waited = result.stalls[s][BL_STALL_LOAD] + result.stalls[s][BL_STALL_SLOT];
      if (stays || made.parked[s] + made.recomputed[s] == 0) {
        explain_still(w, s, found->reasons[s]);
      } else if (best->kind == BL_POLICY_DROP) {
        explain_drop(w, s, made.recomputed[s], found->reasons[s]);
      } else if (best->kind == BL_POLICY_MIX) {
        explain_mix(w, s, &made, found->reasons[s]);
      } else {
        explain_eviction(w, s, made.parked[s], 100 * waited / best->step, best->kind == BL_POLICY_OFFLOAD,
                         found->reasons[s]);
      }
    }
    bl_simulation_cleanup(&result);
  }
  unmake(&made);
  return status;
}

// ---- deciding -------------------------------------------------------------------------------------------------------

// Returns the index among all options; BL_AUTOMATIC_OPTIONS: none is in force.
static size_t index_of(const bl_automatic_option_t *in_force) {
  size_t i = in_force != NULL ? 0 : BL_AUTOMATIC_OPTIONS;
  while (i < BL_AUTOMATIC_OPTIONS && (all_options[i].kind != in_force->kind ||
                                      (all_options[i].mode != in_force->mode && bl_policy_copies(in_force->kind)))) {
    i++;
  }
  return i;
}

// Compares measured steps under the option in force with a simulation of exactly that option.
static bl_status_t learn(const weighing_t *w, size_t in_force, bl_error_t *err) {
  const bl_automatic_request_t *request = w->request;
  if (request->measurements == NULL || in_force == BL_AUTOMATIC_OPTIONS) {
    return BL_OK;
  }
  bl_automatic_option_t now = *request->in_force;
  bl_status_t status = weigh_one(w, &now, err);
  if (status == BL_OK && now.fits) {
    bl_measurements_compare(request->measurements, in_force, now.step, request->measured);
  }
  return status;
}

static double ratio_of(const weighing_t *w, size_t option, size_t in_force) {
  return w->request->measurements != NULL ? bl_measurements_ratio(w->request->measurements, option, in_force) : 1;
}

static bl_status_t choose(const weighing_t *w, bl_automatic_t *found, bl_error_t *err) {
  double fastest = INFINITY;
  const size_t in_force = index_of(w->request->in_force);
  bl_status_t status = learn(w, in_force, err);
  for (size_t i = 0; i < BL_AUTOMATIC_OPTIONS && status == BL_OK; i++) {
    bl_automatic_option_t *option = &found->options[i];
    *option = all_options[i];
    status = weigh(w, option, err);
    option->step *= ratio_of(w, i, in_force);
    option->ratio = w->request->measurements != NULL ? w->request->measurements->ratios[i] : 0;
    fastest = option->fits ? fmin(fastest, option->step) : fastest;
  }
  if (status != BL_OK) {
    return status;
  }
  if (fastest == INFINITY) {
    made_t made;
    bl_automatic_option_t least = {.kind = BL_POLICY_DROP};
    return make(w, &least, &made, err); // the message has the smallest budget that works
  }
  while (!found->options[found->best].fits || found->options[found->best].step > fastest * (1 + BL_AUTOMATIC_EQUAL)) {
    found->best++;
  }
  const bl_automatic_option_t *kept = in_force < BL_AUTOMATIC_OPTIONS ? &found->options[in_force] : NULL;
  if (kept != NULL && kept->fits && kept->step <= fastest * (1 + BL_AUTOMATIC_GAIN)) {
    found->best = in_force;
  }
  status = weigh_recomputation(w, &found->recomputed, err);
  found->recomputed *= ratio_of(w, BL_AUTOMATIC_OPTIONS, in_force);
  return status;
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

bl_status_t bl_automatic_foresee(const bl_automatic_request_t *request, const bl_automatic_option_t *start,
                                 bl_automatic_start_t *found, bl_error_t *err) {
  weighing_t w;
  bl_automatic_option_t parked = *start, recomputed = {.kind = BL_POLICY_DROP};
  bl_status_t status = prepare(request, &w, err);
  if (status == BL_OK) {
    status = bl_costs_check(request->costs, request->schedule->virtual_stages, err);
  }
  if (status == BL_OK) {
    status = weigh_one(&w, &parked, err);
  }
  if (status == BL_OK) {
    status = weigh_one(&w, &recomputed, err);
  }
  finish(&w);
  if (status == BL_OK) {
    *found = (bl_automatic_start_t){.parked = parked.fits ? parked.step : 0,
                                    .recomputed = recomputed.fits ? recomputed.step : 0,
                                    .slow = parked.fits && recomputed.fits &&
                                            parked.step > BL_AUTOMATIC_SLOWER * recomputed.step};
  }
  return status;
}

const bl_automatic_option_t *bl_automatic_untried(const bl_automatic_t *found) {
  const bl_automatic_option_t *fastest = NULL;
  for (size_t i = 0; found->options[found->best].kind == BL_POLICY_DROP && i < BL_AUTOMATIC_OPTIONS; i++) {
    const bl_automatic_option_t *option = &found->options[i];
    if (bl_policy_copies(option->kind) && option->fits && (fastest == NULL || option->step < fastest->step)) {
      fastest = option;
    }
  }
  return fastest;
}

uint64_t bl_automatic_untried_for(const bl_automatic_t *found, double share) {
  const bl_automatic_option_t *option = bl_automatic_untried(found);
  double now = found->options[found->best].step;
  if (option == NULL || !(share > 0) || !(now > 0)) {
    return UINT64_MAX;
  }
  double steps = ceil(BL_AUTOMATIC_TRIAL * fmax(0, option->step - now) / (share * now));
  return steps < 1e15 ? (uint64_t)steps : UINT64_MAX;
}

void bl_automatic_cleanup(bl_automatic_t *found) {
  free(found->reasons);
  *found = (bl_automatic_t){0};
}
