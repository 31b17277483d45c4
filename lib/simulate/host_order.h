// SPDX-License-Identifier: Apache-2.0
// Which order of a job a policy balances: the one for none, or the one that is made for parking. If that one is made for
// memory of the host, its stages are all heavier than the slots of a device (bl_schedule_request_t.hosted), and it is
// taken where it ends earlier once it is balanced.
//
//   status = bl_host_order_balance(BL_POLICY_OFFLOAD, plain, hosted, &costs, &cap, &result, &takes, &err);
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

// Balances the order that a policy of this kind takes, and sets *takes_pooled to which it is. `pooled` is the order made
// for parking, NULL or `plain`: there is one order. Pairs and any devices take it. With `hosted` it is made for memory
// of the host: then offload takes the order that ends earlier, `plain` if both end at once, and pairs and devices take
// `plain` where `pooled` does not fit. `hosted` are the costs of its search, where `path` is a copy between a device and
// its host, on a link of its own. The errors are those of bl_balance_within for `plain`, if neither fits.
BL_MUST_USE bl_status_t bl_host_order_balance(bl_policy_kind_t kind, const bl_schedule_t *plain,
                                              const bl_schedule_t *pooled, const bl_costs_t *hosted,
                                              const bl_balance_cap_t *cap, bl_balance_result_t *result,
                                              bool *takes_pooled, bl_error_t *err);

#endif
