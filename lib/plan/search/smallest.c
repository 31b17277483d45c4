// SPDX-License-Identifier: Apache-2.0
#include "plan/search/smallest.h"

#include "base/words.h"
#include "plan/search/explore.h"

#include <math.h>
#include <stdio.h>

// For the search with quick orders: growth of the next limit, step by which it shrinks, and maximum number of tries.
#define HURRIED_GROWTH 1.15
#define STEP           1e-3
#define HURRIED_TRIES  60
// For the search with exact orders, which takes long: numbers of limits to try upwards, and downwards from one that
// works. If no candidate reports how much it needs, the distance to the next limit grows.
#define EXACT_TRIES     12
#define EXACT_STEP      1e-5
#define EXACT_GROWTH_OF 6 // of the step

void bl__smallest_name(const bl_plan_candidate_t *candidate, char name[BL__SMALLEST_NAME]) {
  const uint32_t tensor = candidate->parallel.tensor, data = candidate->parallel.data;
  char slots[48] = "", slices[24] = "", shape[64] = "";
  if (tensor > 1 || data > 1) { // more devices than stages
    snprintf(shape, sizeof shape, " (t %u, p %u, d %u)", tensor, candidate->stages, data);
  }
  if (candidate->slices > 1) {
    snprintf(slices, sizeof slices, ", %u slices", candidate->slices);
  }
  if (candidate->slots > 0) {
    snprintf(slots, sizeof slots, ", memory.slots %u", candidate->slots);
  }
  snprintf(name, BL__SMALLEST_NAME, "%s on %u stage%s%s, micro-batch %u%s, recompute %s, policy %s%s",
           candidate->schedule, candidate->stages, bl_plural(candidate->stages), shape, candidate->micro_batch, slices,
           bl_recompute_name(candidate->recompute), bl_policy_kind_name(candidate->policy), slots);
}

const bl_plan_candidate_t *bl__smallest_of(const bl_plan_t *plan, bool fitting) {
  const bl_plan_candidate_t *least = NULL;
  for (uint32_t i = 0; i < plan->count; i++) {
    const bl_plan_candidate_t *c = &plan->candidates[i];
    least = (c->fits || !fitting) && c->memory > 0 && (least == NULL || c->memory < least->memory) ? c : least;
  }
  return least;
}

// Increases the limit from a bound until something fits, then decreases it until a slightly smaller limit does not
// work. *bytes 0: nothing fits.
static bl_status_t find_hurried(const bl_plan_request_t *request, double bound, double *bytes) {
  bl_plan_request_t tried = *request;
  bl_status_t status = BL_OK;
  tried.memory = bound;
  *bytes = 0;
  for (int i = 0; i < HURRIED_TRIES && tried.memory > 0 && status == BL_OK; i++) {
    bl_plan_t plan = {0};
    bl__exploration_t s = {.request = &tried, .plan = &plan, .all = true};
    bl__explore(&s);
    status = s.status;
    const bl_plan_candidate_t *least = status == BL_OK ? bl__smallest_of(&plan, true) : NULL;
    if (least != NULL) {
      *bytes = least->memory;
      tried.memory = *bytes * (1 - STEP);
    } else {
      tried.memory = *bytes > 0 ? 0 : tried.memory * HURRIED_GROWTH;
    }
    bl__explore_cleanup(&s);
    bl_plan_cleanup(&plan);
  }
  return status;
}

// Evaluates fitting candidates exactly, the smallest first, until one fits with the order that runs. A full search may
// find another candidate first, but it finds one if this does.
static bl_status_t check_smallest(bl__exploration_t *s, const bl_plan_candidate_t **found) {
  *found = NULL;
  while (s->status == BL_OK) {
    uint32_t least = UINT32_MAX;
    for (uint32_t i = 0; i < s->plan->count; i++) {
      const bl_plan_candidate_t *c = &s->plan->candidates[i];
      if (c->fits && (least == UINT32_MAX || c->memory < s->plan->candidates[least].memory)) {
        least = i;
      }
    }
    if (least == UINT32_MAX) {
      return BL_OK;
    }
    const bl_plan_candidate_t *c = &s->plan->candidates[least];
    if (c->exact || !bl__runs_as_job(s->request, c)) {
      *found = c;
      return BL_OK;
    }
    bl__explore_leader(s, least);
  }
  return s->status;
}

// Checks whether a search within `bytes` finds a candidate; if so, sets the smallest. *next: the limit to try after
// that. It is smaller if the search succeeded, else a limit that may work (INFINITY: no candidate reports how much it
// needs).
static bl_status_t check(const bl_plan_request_t *request, double bytes, bl__order_cache_t *cache,
                         bl__smallest_t *smallest, double *next) {
  bl_plan_request_t tried = *request;
  bl_plan_t plan = {0};
  bl__exploration_t s = {.request = &tried, .plan = &plan, .exact_cache = *cache};
  const bl_plan_candidate_t *found;
  tried.memory = bytes;
  bl__explore(&s);
  bl_status_t status = check_smallest(&s, &found);
  *next = INFINITY;
  if (status == BL_OK && found != NULL) {
    smallest->bytes = bytes;
    bl__smallest_name(found, smallest->name);
    *next = fmin(ceil(found->memory), bytes - 1);
  }
  for (uint32_t i = 0; i < plan.count && found == NULL; i++) {
    const bl_plan_candidate_t *c = &plan.candidates[i];
    *next = c->exact && c->memory > bytes ? fmin(*next, ceil(c->memory)) : *next;
  }
  *cache = s.exact_cache; // its orders are valid for the next limit, too
  s.exact_cache = (bl__order_cache_t){0};
  bl__explore_cleanup(&s);
  bl_plan_cleanup(&plan);
  return status;
}

bl_status_t bl__smallest_find(const bl_plan_request_t *request, const bl_plan_t *failed, bl__smallest_t *smallest) {
  const bl_plan_candidate_t *bound = bl__smallest_of(failed, false);
  bl__order_cache_t cache = {.exact = true};
  double bytes = 0, next = INFINITY, step = EXACT_STEP;
  *smallest = (bl__smallest_t){0};
  if (bound == NULL) {
    return BL_OK;
  }
  bl_status_t status = find_hurried(request, fmax(bound->memory, request->memory), &bytes);
  bytes = bytes > 0 ? fmax(ceil(bytes), request->memory + 1) : 0; // the request's own limit is known to fail
  for (int i = 0; i < EXACT_TRIES && bytes > 0 && status == BL_OK && smallest->bytes <= 0; i++) {
    status = check(request, bytes, &cache, smallest, &next);
    bytes = ceil(isfinite(next) ? next : bytes * (1 + step));
    step *= isfinite(next) ? 1 : EXACT_GROWTH_OF;
  }
  for (int i = 0;
       i < EXACT_TRIES && smallest->bytes > 0 && next < smallest->bytes && next > request->memory && status == BL_OK;
       i++) {
    status = check(request, next, &cache, smallest, &next);
  }
  bl__order_cache_cleanup(&cache);
  return status;
}
