// SPDX-License-Identifier: Apache-2.0
#include "simulate/host_order.h"

#include "simulate/simulate.h"

#include <math.h>

double bl_host_copy_assumed(const bl_costs_t *costs, uint32_t virtual_stages) {
  double least = INFINITY;
  for (uint32_t v = 0; v < virtual_stages; v++) {
    least = fmin(least, bl_costs_chunk(costs, v)->forward);
  }
  return BL_HOST_COPY_ASSUMED * least;
}

// Balances one order and simulates it with its copies.
static bl_status_t balance(const bl_schedule_t *order, const bl_costs_t *costs, const bl_balance_cap_t *cap,
                           bl_balance_result_t *result, double *t_end, bl_error_t *err) {
  bl_simulation_t simulation;
  bl_status_t status = bl_balance_within(order, cap, result, err);
  if (status != BL_OK) {
    return status;
  }
  status = bl_simulate(result->schedule, costs, &simulation, err);
  if (status != BL_OK) {
    bl_balance_result_cleanup(result);
    return status;
  }
  *t_end = simulation.t_end;
  bl_simulation_cleanup(&simulation);
  return BL_OK;
}

// Takes the one of two orders that ends earlier.
static bl_status_t balance_both(const bl_schedule_t *plain, const bl_schedule_t *hosted, const bl_costs_t *costs,
                                const bl_balance_cap_t *cap, bl_balance_result_t *result, bool *takes_hosted,
                                bl_error_t *err) {
  bl_balance_result_t of_hosted;
  double plain_end = INFINITY, hosted_end;
  *takes_hosted = false;
  const bool hosted_fits = balance(hosted, costs, cap, &of_hosted, &hosted_end, NULL) == BL_OK;
  bl_status_t status = balance(plain, costs, cap, result, &plain_end, hosted_fits ? NULL : err);
  if (!hosted_fits) {
    return status;
  }
  if (status == BL_OK && plain_end <= hosted_end * (1 + 1e-9)) {
    bl_balance_result_cleanup(&of_hosted);
    return BL_OK;
  }
  if (status == BL_OK) {
    bl_balance_result_cleanup(result);
  }
  *result = of_hosted;
  *takes_hosted = true;
  return BL_OK;
}

bl_status_t bl_host_order_balance(bl_policy_kind_t kind, const bl_schedule_t *plain, const bl_schedule_t *pooled,
                                  const bl_costs_t *hosted, const bl_balance_cap_t *cap, bl_balance_result_t *result,
                                  bool *takes_pooled, bl_error_t *err) {
  const bool two = pooled != NULL && pooled != plain;
  if (two && hosted != NULL && kind == BL_POLICY_OFFLOAD) {
    return balance_both(plain, pooled, hosted, cap, result, takes_pooled, err);
  }
  *takes_pooled = two && bl_policy_pools(kind);
  bl_status_t status = bl_balance_within(*takes_pooled ? pooled : plain, cap, result, err);
  if (status == BL_EXHAUSTED && *takes_pooled && hosted != NULL) {
    *takes_pooled = false;
    status = bl_balance_within(plain, cap, result, err);
  }
  return status;
}
