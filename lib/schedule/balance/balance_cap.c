// SPDX-License-Identifier: Apache-2.0
#include "base/words.h"
#include "schedule/balance/balance.h"
#include "schedule/ir/peaks.h"

#include <stdlib.h>

// Budgets of all devices under one cap: heavy stages keep all of it, light ones lend what they do not need.
typedef struct budget {
  uint32_t *own, *lent, *peaks; // [stages]
  uint16_t *reach;              // [stages * reach_count]
  uint64_t lenders;             // 0: all
  bl_balance_request_t request;
} budget_t;

// Every stage reaches its mirror image first (BPipe's pair), then all others.
static void fill_reach(budget_t *b, uint32_t stages) {
  for (uint32_t s = 0; s < stages; s++) {
    uint16_t *row = b->reach + (size_t)s * b->request.reach_count;
    uint32_t mirror = stages - 1 - s, used = 0;
    if (mirror != s) {
      row[used++] = (uint16_t)mirror;
    }
    for (uint32_t other = stages; used < b->request.reach_count && other-- > 0;) {
      if (other != s && other != mirror) {
        row[used++] = (uint16_t)other;
      }
    }
    while (used < b->request.reach_count) {
      row[used++] = BL_STORE_NONE;
    }
  }
}

static void set_cap(budget_t *b, uint32_t stages, uint32_t cap) {
  for (uint32_t s = 0; s < stages; s++) {
    b->own[s] = b->peaks[s] < cap ? b->peaks[s] : cap;
    bool lends = b->lenders == 0 || (s < 64 && (b->lenders >> s & 1) != 0);
    b->lent[s] = lends ? cap - b->own[s] : 0;
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

// Says which cap works, in addition to why this one does not.
static void name_smallest(const bl_schedule_t *schedule, budget_t *b, uint32_t cap, bl_error_t *err) {
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
  (void)bl_error_prefix(err, "a cap of %u slot%s a device is too small for schedule %s (the smallest that works is %u)",
                        cap, bl_plural(cap), schedule->name, high);
}

bl_status_t bl_balance_cap(const bl_schedule_t *schedule, uint32_t cap_slots, bool pairs_only, bl_balance_mode_t mode,
                           bl_balance_result_t *result, bl_error_t *err) {
  const bl_balance_cap_t cap = {.slots = cap_slots, .pairs_only = pairs_only, .mode = mode};
  return bl_balance_within(schedule, &cap, result, err);
}

bl_status_t bl_balance_within(const bl_schedule_t *schedule, const bl_balance_cap_t *cap, bl_balance_result_t *result,
                              bl_error_t *err) {
  uint32_t stages = schedule->stages;
  budget_t b = {.lenders = cap->lenders,
                .request = {.mode = cap->mode,
                            .stores = stages,
                            .reach_count = cap->pairs_only ? 1 : stages,
                            .copies = cap->copies,
                            .copy = cap->copy,
                            .parks = cap->parks}};
  b.own = malloc(3 * (size_t)stages * sizeof *b.own);
  b.reach = malloc((size_t)stages * b.request.reach_count * sizeof *b.reach);
  bl_status_t status = BL_EXHAUSTED;
  if (b.own == NULL || b.reach == NULL) {
    (void)bl_error_set(err, status, "out of memory for the budgets of %u stages", stages);
    goto free_budget;
  }
  b.lent = b.own + stages;
  b.peaks = b.lent + stages;
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
  if (status == BL_EXHAUSTED && err != NULL) {
    name_smallest(schedule, &b, cap->slots, err);
  }
free_budget:
  free(b.reach);
  free(b.own);
  return status;
}
