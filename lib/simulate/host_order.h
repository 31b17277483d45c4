// SPDX-License-Identifier: Apache-2.0
// The order of a job that parks blocks in memory of its host: the one for none, or one whose stages are all heavier
// than the slots of a device (bl_schedule_request_t.hosted), whichever ends earlier once it is balanced.
//
//   status = bl_host_order_balance(plain, hosted, &costs, &cap, &result, &takes_hosted, &err);
//
// This is the one place that decides it: for jobs (job/balance.h), for a run that chooses (simulate/automatic.h) and
// for plans (lib/plan). So all have the same order under the same cap.
// Pure. Thread: any.
#ifndef BALLAST_SIMULATE_HOST_ORDER_H
#define BALLAST_SIMULATE_HOST_ORDER_H

#include "schedule/balance/balance.h"
#include "schedule/ir/costs.h"

// Copies take this share of the shortest forward if nobody says how long they take: they hide.
#define BL_HOST_COPY_ASSUMED 0.5

// Returns what a copy to a host takes if it is not known.
double bl_host_copy_assumed(const bl_costs_t *costs, uint32_t virtual_stages);

// Balances `plain` and `hosted` under the cap and keeps the one that ends earlier, `plain` if both end at once. `costs`
// are those of the search, `path` is a copy between a device and its host, on a link of its own. Sets *takes_hosted.
// `hosted` NULL: balances `plain`. The errors are those of bl_balance_within for `plain`, if neither fits.
BL_MUST_USE bl_status_t bl_host_order_balance(const bl_schedule_t *plain, const bl_schedule_t *hosted,
                                              const bl_costs_t *costs, const bl_balance_cap_t *cap,
                                              bl_balance_result_t *result, bool *takes_hosted, bl_error_t *err);

#endif
