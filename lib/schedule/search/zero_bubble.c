// SPDX-License-Identifier: Apache-2.0
// ZB-H1 and ZB-H2 (Qi et al., ICLR 2024), generalized: the fastest split-backward order found within a memory limit per
// stage, with real costs. The default limit is p device-micro-batches for zb-h1, 2p for zb-h2.
#include "base/minmax.h"
#include "schedule/generate/zero_bubble_heuristic.h"
#include "schedule/search/searched.h"
#include "schedule/search/steady_state.h"

#include <stdlib.h>

// Fills a stage with 1F1B with split backward: `in_flight` forwards ahead of the backwards, W `lag` micro-batches after
// I. Holds in_flight + lag blocks.
static bl_status_t fill_base(bl_schedule_t *base, uint32_t stage, uint32_t in_flight, uint32_t lag) {
  uint32_t m = base->micro_batches, forwards = 0, weights = 0;
  bl_status_t status = BL_OK;
  base->lists[stage].count = 0;
  for (; forwards + 1 < in_flight && forwards < m && status == BL_OK; forwards++) {
    status = bl__schedule_emit(base, BL_OP_F, stage, forwards);
  }
  for (uint32_t i = 0; i < m && status == BL_OK; i++) {
    if (forwards < m) {
      status = bl__schedule_emit(base, BL_OP_F, stage, forwards++);
    }
    if (status == BL_OK) {
      status = bl__schedule_emit(base, BL_OP_I, stage, i);
    }
    if (status == BL_OK && i >= lag) {
      status = bl__schedule_emit(base, BL_OP_W, stage, weights++);
    }
  }
  for (; weights < m && status == BL_OK; weights++) {
    status = bl__schedule_emit(base, BL_OP_W, stage, weights);
  }
  return status;
}

#define SHAPES (4 * 5) // base orders: how far F runs ahead, by how much W lags

bl_status_t bl__generate_zero_bubble(const bl_schedule_request_t *request, bl_schedule_t *schedule, bl_error_t *err) {
  uint32_t p = request->stages;
  bl__portfolio_t portfolio = {0};
  bl_schedule_t *base = NULL;
  bl_costs_t merged;
  uint32_t *limits = malloc(p * sizeof *limits);
  bl_status_t status = bl__costs_merge(request->costs, bl__recompute_options_of(request, schedule), schedule, &merged);
  if (status == BL_OK) {
    status = limits != NULL ? bl_schedule_create_like(schedule, &base, NULL) : BL_EXHAUSTED;
  }
  if (status == BL_OK) {
    bl__memory_limits(schedule, request->memory, request->memory_of_stage, limits);
    status = bl__portfolio_init(&portfolio, schedule, request->costs, limits, 8 + SHAPES + 1, request->effort);
  }
  if (status == BL_OK) {
    status = bl__memory_limits_check(request, request->memory, limits, 1, err);
  }
  bl__portfolio_recompute(&portfolio, request);
  if (status == BL_OK) {
    status = bl__portfolio_from_shorter(&portfolio, bl__generate_zero_bubble, request, base);
    bl__portfolio_renew(&portfolio, 8 + SHAPES + 1);
  }
  size_t operations = 3 * bl_schedule_block_count(schedule);
  for (int k = 0; k < 8 && status == BL_OK && bl__portfolio_wants(&portfolio, operations); k++) {
    bl__heuristic_switches_t switches = {k & 1, k & 2, k & 4};
    status = bl__zero_bubble_heuristic(&merged, limits, switches, base);
    if (status == BL_OK) {
      status = bl__portfolio_try(&portfolio, base);
    }
  }
  for (uint32_t shape = 0; shape < SHAPES && status == BL_OK && bl__portfolio_wants(&portfolio, operations); shape++) {
    uint32_t before = schedule->micro_batches; // no stage may run further ahead than the one before it
    for (uint32_t s = 0; s < p && status == BL_OK; s++) {
      uint32_t room = bl_min_u32(limits[s], schedule->micro_batches);
      uint32_t aheads[] = {p - s, p - s + 1, 3 * (p - s) / 2, 2 * (p - s)};
      uint32_t in_flight = bl_min_u32(bl_min_u32(aheads[shape % 4], room), before);
      before = in_flight;
      status = fill_base(base, s, in_flight, (room - in_flight) * (shape / 4) / 4);
    }
    if (status == BL_OK) {
      status = bl__portfolio_try(&portfolio, base);
    }
  }
  if (status == BL_OK) {
    status = bl__portfolio_refine(&portfolio, base);
  }
  status = bl__portfolio_end(&portfolio, status, schedule);
  bl__portfolio_cleanup(&portfolio);
  bl_schedule_destroy(base);
  bl__costs_merge_cleanup(request->costs, &merged);
  free(limits);
  return status;
}
