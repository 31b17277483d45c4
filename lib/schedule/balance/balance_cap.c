// SPDX-License-Identifier: Apache-2.0
#include "base/words.h"
#include "schedule/balance/balance.h"
#include "schedule/ir/peaks.h"

#include <stdlib.h>

// Budgets of all devices under one cap: heavy stages use all of it, light ones lend what they do not need.
typedef struct budget {
  const bl_balance_cap_t *cap;
  uint32_t *own, *peaks; // [stages]
  uint32_t *lent;        // [stores]
  uint16_t *reach;       // [stages * reach_count]
  double *copies;        // [stages * stores], or NULL
  bl_balance_request_t request;
} budget_t;

// Fills the rows of `reach`: first the mirror image of the stage (BPipe's pair), then all other stages, last its host
// store.
static void fill_reach(budget_t *b, uint32_t stages) {
  const bl_balance_cap_t *cap = b->cap;
  const bool with_host = cap->hosts > 0;
  const uint32_t devices = b->request.reach_count - with_host;
  for (uint32_t s = 0; s < stages; s++) {
    uint16_t *row = b->reach + (size_t)s * b->request.reach_count;
    uint32_t mirror = stages - 1 - s, used = 0;
    if (mirror != s && devices > 0) {
      row[used++] = (uint16_t)mirror;
    }
    const bool has_no_pair = cap->pairs_only && mirror == s && with_host;
    for (uint32_t other = has_no_pair ? 0 : stages; used < devices && other-- > 0;) {
      if (other != s && other != mirror) {
        row[used++] = (uint16_t)other;
      }
    }
    if (with_host) {
      row[used++] = (uint16_t)(stages + (cap->host_of != NULL ? cap->host_of[s] : 0));
    }
    while (used < b->request.reach_count) {
      row[used++] = BL_STORE_NONE;
    }
  }
}

// Sets the copy times to those of the cap. A copy to a host takes twice as long as the longest between devices.
static bl_status_t fill_copies(budget_t *b, uint32_t stages) {
  const uint32_t stores = b->request.stores;
  double farthest = 0;
  if (b->cap->copies == NULL) {
    return BL_OK;
  }
  b->copies = malloc((size_t)stages * stores * sizeof *b->copies);
  if (b->copies == NULL) {
    return BL_EXHAUSTED;
  }
  for (size_t i = 0; i < (size_t)stages * stages; i++) {
    farthest = b->cap->copies[i] > farthest ? b->cap->copies[i] : farthest;
  }
  for (uint32_t s = 0; s < stages; s++) {
    for (uint32_t d = 0; d < stores; d++) {
      b->copies[(size_t)s * stores + d] = d < stages ? b->cap->copies[(size_t)s * stages + d] : 2 * farthest;
    }
  }
  b->request.copies = b->copies;
  return BL_OK;
}

static void set_cap(budget_t *b, uint32_t stages, uint32_t slots) {
  const uint64_t lenders = b->cap->lenders;
  for (uint32_t s = 0; s < stages; s++) {
    b->own[s] = b->peaks[s] < slots ? b->peaks[s] : slots;
    bool lends = !b->cap->host_only && (lenders == 0 || (s < 64 && (lenders >> s & 1) != 0));
    b->lent[s] = lends ? slots - b->own[s] : 0;
  }
  for (uint32_t h = 0; h < b->cap->hosts; h++) {
    b->lent[stages + h] = b->cap->host_slots;
  }
}

static bl_status_t try_cap(const bl_schedule_t *schedule, budget_t *b, uint32_t cap) {
  bl_balance_result_t result;
  set_cap(b, schedule->stages, cap);
  bl_status_t status = bl_balance(schedule, &b->request, &result, NULL);
  if (status == BL_OK) {
    bl_balance_result_cleanup(&result);
  }
  return status;
}

// Returns the smallest cap above `cap`, which does not work, that does.
static uint32_t find_smallest(const bl_schedule_t *schedule, budget_t *b, uint32_t cap) {
  uint32_t low = cap, high = cap;
  for (uint32_t s = 0; s < schedule->stages; s++) {
    high = b->peaks[s] > high ? b->peaks[s] : high;
  }
  while (high - low > 1) { // `high` works, `low` does not
    uint32_t middle = low + (high - low) / 2;
    if (try_cap(schedule, b, middle) == BL_OK) {
      high = middle;
    } else {
      low = middle;
    }
  }
  return high;
}

bl_status_t bl_balance_cap(const bl_schedule_t *schedule, uint32_t cap_slots, bool pairs_only, bl_balance_mode_t mode,
                           bl_balance_result_t *result, bl_error_t *err) {
  const bl_balance_cap_t cap = {.slots = cap_slots, .pairs_only = pairs_only, .mode = mode};
  return bl_balance_within(schedule, &cap, result, err);
}

// Balances within the cap. `smallest` (may be NULL): set where the cap is too small.
static bl_status_t balance(const bl_schedule_t *schedule, const bl_balance_cap_t *cap, bl_balance_result_t *result,
                           uint32_t *smallest, bl_error_t *err) {
  uint32_t stages = schedule->stages;
  const uint32_t devices = cap->host_only ? 0 : cap->pairs_only ? 1 : stages;
  budget_t b = {.cap = cap,
                .request = {.mode = cap->mode,
                            .stores = stages + cap->hosts,
                            .reach_count = devices + (cap->hosts > 0),
                            .copy = cap->copy,
                            .parks = cap->parks}};
  b.own = malloc((3 * (size_t)stages + cap->hosts) * sizeof *b.own);
  b.reach = malloc(((size_t)stages * b.request.reach_count + 1) * sizeof *b.reach);
  bl_status_t status = BL_EXHAUSTED;
  if (b.own == NULL || b.reach == NULL || fill_copies(&b, stages) != BL_OK) {
    (void)bl_error_set(err, status, "out of memory for the budgets of %u stages", stages);
    goto free_budget;
  }
  b.peaks = b.own + stages;
  b.lent = b.peaks + stages;
  b.request.own = b.own;
  b.request.lent = b.lent;
  b.request.reach = b.reach;
  fill_reach(&b, stages);
  status = bl_schedule_peak_slots(schedule, b.peaks);
  if (status != BL_OK) {
    (void)bl_error_set(err, status, "out of memory for the peaks of %u stages", stages);
    goto free_budget;
  }
  set_cap(&b, stages, cap->slots);
  status = bl_balance(schedule, &b.request, result, err);
  if (status == BL_EXHAUSTED && smallest != NULL) {
    *smallest = find_smallest(schedule, &b, cap->slots);
  }
free_budget:
  free(b.copies);
  free(b.reach);
  free(b.own);
  return status;
}

bl_status_t bl_balance_within(const bl_schedule_t *schedule, const bl_balance_cap_t *cap, bl_balance_result_t *result,
                              bl_error_t *err) {
  uint32_t smallest = 0;
  bl_status_t status = balance(schedule, cap, result, err != NULL ? &smallest : NULL, err);
  if (smallest > 0) {
    (void)bl_error_prefix(err,
                          "a cap of %u slot%s a device is too small for schedule %s (the smallest that works is %u)",
                          cap->slots, bl_plural(cap->slots), schedule->name, smallest);
  }
  return status;
}

uint32_t bl_balance_bpipe_default(const bl_schedule_t *schedule, const bl_balance_cap_t *cap) {
  bl_balance_cap_t tried = *cap;
  bl_balance_result_t result;
  tried.slots = bl_balance_bpipe_slots(schedule);
  uint32_t least = tried.slots;
  if (balance(schedule, &tried, &result, &least, NULL) == BL_OK) {
    bl_balance_result_cleanup(&result);
  }
  return least;
}
