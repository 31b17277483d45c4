// SPDX-License-Identifier: Apache-2.0
#include "simulate/simulate.h"

#include "schedule/ir/bound.h"
#include "schedule/ir/peaks.h"
#include "schedule/ir/slot_walk.h"
#include "schedule/ir/validate.h"
#include "simulate/timing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// Returns whether two stages park blocks at one store, or reach their host through one link.
static bool stores_are_shared(const bl_schedule_t *schedule, const bl_machine_t *machine, uint32_t *user) {
  for (uint32_t s = 0; s < schedule->stages; s++) {
    for (size_t i = 0; i < schedule->lists[s].count; i++) {
      bl_op_t op = schedule->lists[s].ops[i];
      if (op.type != BL_OP_E || op.store >= bl_schedule_stores(schedule)) {
        continue;
      }
      uint32_t *of_way = &user[bl__timing_way(schedule, machine, s, op.store)];
      if (*of_way != 0 && *of_way != s + 1) {
        return true;
      }
      *of_way = s + 1;
    }
  }
  return false;
}

static bl_status_t allocate(const bl_schedule_t *schedule, bl_simulation_t *r) {
  size_t stages = schedule->stages;
  r->stages = schedule->stages;
  r->busy = calloc(4 * stages, sizeof r->busy[0]);
  r->peak_slots = calloc(stages, sizeof r->peak_slots[0]);
  r->stalls = calloc(stages, sizeof r->stalls[0]);
  r->spans = calloc(stages, sizeof(bl_span_t *));
  r->causes = calloc(stages, sizeof(uint8_t *));
  r->asked = calloc(stages, sizeof(double *));
  r->host_links = calloc(stages, sizeof *r->host_links);
  bl_span_t *spans = calloc(bl_schedule_op_count(schedule) + 1, sizeof *spans);
  double *asked = calloc(bl_schedule_op_count(schedule) + 1, sizeof *asked);
  uint8_t *causes = calloc(bl_schedule_op_count(schedule) + 1, sizeof *causes);
  if (r->busy == NULL || r->peak_slots == NULL || r->spans == NULL || r->stalls == NULL || spans == NULL ||
      r->causes == NULL || causes == NULL || r->asked == NULL || asked == NULL || r->host_links == NULL) {
    free(spans);
    free(asked);
    free(causes);
    return BL_EXHAUSTED;
  }
  r->start = r->busy + stages;
  r->end = r->start + stages;
  r->peak = r->end + stages;
  for (size_t s = 0, used = 0; s < stages; s++) {
    r->spans[s] = spans + used;
    r->causes[s] = causes + used;
    r->asked[s] = asked + used;
    used += schedule->lists[s].count;
  }
  return BL_OK;
}

static bl_status_t find_bound_within(const bl__timing_t *t, bl_simulation_t *r) {
  uint32_t *limits = malloc(r->stages * sizeof *limits), most = 0;
  if (limits == NULL) {
    return BL_EXHAUSTED;
  }
  bl_schedule_peak_blocks(t->schedule, limits);
  for (uint32_t s = 0; s < r->stages; s++) {
    most = limits[s] > most ? limits[s] : most;
  }
  for (uint32_t s = 0; s < r->stages; s++) {
    limits[s] = most;
  }
  bl_status_t status =
      bl_schedule_bound_within(t->schedule, t->costs, limits, t->machine->early_gradient, &r->bound_within);
  free(limits);
  return status;
}

static bl_status_t sum_up(const bl__timing_t *t, bl_simulation_t *r) {
  const bl_schedule_t *schedule = t->schedule;
  const bl_costs_t *costs = t->costs;
  const bl_machine_t *machine = t->machine;
  double busiest = 0;
  for (uint32_t s = 0; s < r->stages; s++) {
    r->host_links[s] = !machine->shared_stores ? s : machine->host_links != NULL ? machine->host_links[s] : 0;
    r->stalls[s][BL_STALL_REDUCTION] = fmax(0, t->clocks[s].reduced - r->end[s]);
    r->t_end = fmax(r->t_end, r->end[s] + r->stalls[s][BL_STALL_REDUCTION]);
    r->max_span = fmax(r->max_span, r->end[s] - r->start[s]);
    busiest = fmax(busiest, r->busy[s]);
  }
  r->bubble_total = r->t_end > 0 ? 1 - busiest / r->t_end : 0;
  bl_status_t status = bl_schedule_peak_slots(schedule, r->peak_slots);
  for (uint32_t s = 0; s < r->stages; s++) {
    r->peak[s] = r->peak_slots[s] * bl_schedule_block_weight(schedule);
    r->stalls[s][BL_STALL_END] += r->t_end - r->end[s] - r->stalls[s][BL_STALL_REDUCTION];
  }
  if (status != BL_OK || machine->times != NULL) {
    return status;
  }
  status = machine->early_gradient ? bl_schedule_early_lower_bound(schedule, costs, &r->lower_bound)
                                   : bl_schedule_lower_bound(schedule, costs, &r->lower_bound);
  return status == BL_OK ? find_bound_within(t, r) : status;
}

static bl_status_t check_network(const bl_schedule_t *schedule, const bl_network_t *network, bl_error_t *err) {
  for (uint32_t s = 0; s < schedule->stages; s++) {
    if (!isfinite(network->far_paths[s]) || network->far_paths[s] < 0) {
      return bl_error_set(err, BL_INVALID,
                          "an evict or load of stage %u to another node: must be a number from 0 upwards, is %g", s,
                          network->far_paths[s]);
    }
    if (network->nics[s] >= schedule->stages) {
      return bl_error_set(err, BL_INVALID, "network card of stage %u: must be below %u, is %u", s, schedule->stages,
                          network->nics[s]);
    }
  }
  return network->latency >= 0 && isfinite(network->latency)
             ? BL_OK
             : bl_error_set(err, BL_INVALID, "latency of a message: must be a number from 0 upwards, is %g",
                            network->latency);
}

static bl_status_t check_machine(const bl_schedule_t *schedule, const bl_machine_t *machine, bl_error_t *err) {
  if (!isfinite(machine->handover) || machine->handover < 0) {
    return bl_error_set(err, BL_INVALID, "handover of a core: must be a number from 0 upwards, is %g",
                        machine->handover);
  }
  for (uint32_t s = 0; machine->boundaries != NULL && s < schedule->virtual_stages; s++) {
    if (!isfinite(machine->boundaries[s]) || machine->boundaries[s] < 0) {
      return bl_error_set(err, BL_INVALID, "boundary after virtual stage %u: must be a number from 0 upwards, is %g", s,
                          machine->boundaries[s]);
    }
  }
  for (uint32_t s = 0; machine->paths != NULL && s < schedule->stages; s++) {
    if (!isfinite(machine->paths[s]) || machine->paths[s] < 0) {
      return bl_error_set(err, BL_INVALID, "an evict or load of stage %u: must be a number from 0 upwards, is %g", s,
                          machine->paths[s]);
    }
  }
  for (uint32_t s = 0; machine->host_paths != NULL && s < schedule->stages; s++) {
    if (!isfinite(machine->host_paths[s]) || machine->host_paths[s] < 0) {
      return bl_error_set(err, BL_INVALID,
                          "an evict or load of stage %u at the host: must be a number from 0 upwards, is %g", s,
                          machine->host_paths[s]);
    }
  }
  for (uint32_t s = 0; machine->host_tails != NULL && s < schedule->stages; s++) {
    if (!isfinite(machine->host_tails[s]) || machine->host_tails[s] < 0) {
      return bl_error_set(err, BL_INVALID,
                          "end of an evict or load of stage %u at the host: must be a number from 0 upwards, is %g", s,
                          machine->host_tails[s]);
    }
  }
  for (uint32_t s = 0; machine->evict_calls != NULL && s < schedule->stages; s++) {
    if (!isfinite(machine->evict_calls[s]) || machine->evict_calls[s] < 0) {
      return bl_error_set(err, BL_INVALID, "call of an evict of stage %u: must be a number from 0 upwards, is %g", s,
                          machine->evict_calls[s]);
    }
  }
  for (uint32_t s = 0; machine->host_links != NULL && s < schedule->stages; s++) {
    if (machine->host_links[s] >= schedule->stages) {
      return bl_error_set(err, BL_INVALID, "link of stage %u to its host: must be below %u, is %u", s, schedule->stages,
                          machine->host_links[s]);
    }
  }
  for (uint32_t v = 0; machine->gathers != NULL && v < schedule->virtual_stages; v++) {
    const double gather = machine->gathers[v], reduction = machine->reductions[v];
    if (!isfinite(gather) || gather < 0 || !isfinite(reduction) || reduction < 0) {
      return bl_error_set(err, BL_INVALID,
                          "gather and reduction of virtual stage %u: must be numbers from 0 upwards, are %g and %g", v,
                          gather, reduction);
    }
  }
  for (size_t i = 0; machine->copies != NULL && i < (size_t)schedule->stages * schedule->stages; i++) {
    if (!isfinite(machine->copies[i]) || machine->copies[i] < 0) {
      return bl_error_set(err, BL_INVALID,
                          "an evict or load of stage %zu at store %zu: must be a number from 0 upwards, is %g",
                          i / schedule->stages, i % schedule->stages, machine->copies[i]);
    }
  }
  for (uint32_t s = 0; machine->times != NULL && s < schedule->stages; s++) {
    for (size_t i = 0; i < schedule->lists[s].count; i++) {
      if (!isfinite(machine->times[s][i]) || machine->times[s][i] < 0) {
        return bl_error_set(err, BL_INVALID, "operation %zu of stage %u: must be a number from 0 upwards, is %g", i, s,
                            machine->times[s][i]);
      }
    }
  }
  return machine->network != NULL ? check_network(schedule, machine->network, err) : BL_OK;
}

static bool allocate_replicas(const bl_schedule_t *schedule, const bl_machine_t *machine, bl__timing_t *t) {
  t->gathered = calloc(schedule->virtual_stages, sizeof *t->gathered);
  t->left = calloc(schedule->virtual_stages, sizeof *t->left);
  if (t->gathered == NULL || t->left == NULL) {
    return false;
  }
  for (uint32_t s = 0; s < schedule->stages; s++) {
    double until = 0;
    for (uint32_t v = 0; v < schedule->virtual_stages; v++) {
      if (schedule->stage_of[v] == s) {
        until += machine->gathers[v];
        t->gathered[v] = until;
      }
    }
    for (size_t i = 0; i < schedule->lists[s].count; i++) {
      const bl_op_t op = schedule->lists[s].ops[i];
      t->left[op.virtual_stage] += bl_op_type_computes((bl_op_type_t)op.type);
    }
  }
  return true;
}

// Returns the maximum number of blocks of a stage at its host store, if copies run in list order
// (balance/device_slots.h).
static uint32_t count_store_slots(const bl_schedule_t *schedule, uint32_t stage) {
  uint32_t away = 0, most = 0;
  for (size_t i = 0; i < schedule->lists[stage].count; i++) {
    const bl_op_t op = schedule->lists[stage].ops[i];
    if (!bl_op_type_computes((bl_op_type_t)op.type) && bl_schedule_is_host(schedule, op.store)) {
      away += op.type == BL_OP_E ? 1 : -1u;
      most = away > most ? away : most;
    }
  }
  return most;
}

// Allocates the free lists of slots, and of reservations at host stores, if there are evicts.
static bool allocate_slots(const bl_schedule_t *schedule, bl__timing_t *t) {
  bool evicts = false;
  size_t all = 0, next = 0;
  for (uint32_t s = 0; s < schedule->stages; s++) {
    for (size_t i = 0; i < schedule->lists[s].count && !evicts; i++) {
      evicts = schedule->lists[s].ops[i].type == BL_OP_E;
    }
  }
  if (!evicts) {
    return true;
  }
  uint32_t *peaks = calloc(schedule->stages, sizeof *peaks); // of slots; a ring has one more
  t->recomputed = calloc(bl_schedule_block_count(schedule), 1);
  if (peaks == NULL || t->recomputed == NULL || bl_schedule_peak_slots(schedule, peaks) != BL_OK) {
    free(peaks);
    return false;
  }
  for (uint32_t s = 0; s < schedule->stages; s++) {
    const uint32_t store_slots = count_store_slots(schedule, s);
    t->clocks[s].slots.capacity = peaks[s] + 1;
    t->clocks[s].store_slots = (bl__free_list_t){.capacity = store_slots + 1, .count = store_slots};
    all += (size_t)peaks[s] + store_slots + 2;
  }
  bl_schedule_mark_recomputed(schedule, t->recomputed);
  double *rings = calloc(all, sizeof *rings);
  for (uint32_t s = 0; s < schedule->stages && rings != NULL; s++) {
    t->clocks[s].slots.times = rings + next;
    t->clocks[s].store_slots.times = rings + next + t->clocks[s].slots.capacity;
    next += t->clocks[s].slots.capacity + t->clocks[s].store_slots.capacity;
  }
  free(peaks);
  return rings != NULL;
}

static bool allocate_clocks(const bl_schedule_t *schedule, const bl_machine_t *machine, bl__timing_t *t) {
  const size_t blocks = bl_schedule_block_count(schedule), stages = schedule->stages;
  const size_t ways = bl_schedule_stores(schedule) + stages;
  uint32_t *users = calloc(ways, sizeof *users);
  const bool shares = machine->shared_stores && users != NULL && stores_are_shared(schedule, machine, users);
  const bool known = users != NULL;
  free(users);
  t->forward_end = calloc(blocks, sizeof(double));
  t->backward_end = calloc(blocks, sizeof(double));
  t->clocks = calloc(stages, sizeof t->clocks[0]);
  t->core_free = machine->cores > 0 ? calloc(machine->cores, sizeof(double)) : NULL;
  t->store_free = shares ? calloc(ways, sizeof(double)) : NULL;
  bool there = known && t->forward_end != NULL && t->backward_end != NULL && t->clocks != NULL &&
               (machine->cores == 0 || t->core_free != NULL) && (!shares || t->store_free != NULL);
  if (machine->network != NULL) {
    t->late = calloc(2 * blocks, sizeof(double));
    t->out = calloc(stages, sizeof *t->out);
    t->in = calloc(stages, sizeof *t->in);
    there = there && t->late != NULL && t->out != NULL && t->in != NULL;
  }
  return there && allocate_slots(schedule, t) && (machine->gathers == NULL || allocate_replicas(schedule, machine, t));
}

static void free_clocks(bl__timing_t *t) {
  free(t->forward_end);
  free(t->backward_end);
  free(t->recomputed);
  free(t->clocks != NULL ? t->clocks[0].slots.times : NULL); // one allocation for all stages
  free(t->clocks);
  free(t->gathered);
  free(t->left);
  free(t->core_free);
  free(t->store_free);
  free(t->late);
  free(t->out);
  free(t->in);
}

static bl_status_t time_operations(bl__timing_t *t, bl_error_t *err) {
  const size_t count = bl_schedule_op_count(t->schedule);
  bl_op_ref_t *order = malloc((count + 1) * sizeof *order);
  if (order == NULL || !allocate_clocks(t->schedule, t->machine, t) || allocate(t->schedule, t->result) != BL_OK) {
    free(order);
    return bl_error_set(err, BL_EXHAUSTED, "out of memory for the timing of %zu operations", count);
  }
  bl_status_t status = bl_schedule_topological_order(t->schedule, order, err); // also fails for a cycle
  if (status == BL_OK && (t->core_free != NULL || t->store_free != NULL || t->out != NULL)) {
    status = bl__turns_run(t, count);
  } else {
    for (size_t i = 0; i < count && status == BL_OK; i++) {
      bl__timing_run(t, order[i]);
    }
  }
  free(order);
  return status;
}

bl_status_t bl_simulate_on(const bl_schedule_t *schedule, const bl_costs_t *costs, const bl_machine_t *machine,
                           bl_simulation_t *result, bl_error_t *err) {
  bl_status_t status = bl_costs_check(costs, schedule->virtual_stages, err);
  if (status == BL_OK) {
    status = check_machine(schedule, machine, err);
  }
  if (status != BL_OK) {
    return status;
  }
  bl_simulation_t made = {0};
  bl__timing_t t = {.schedule = schedule, .costs = costs, .machine = machine, .result = &made};
  status = time_operations(&t, err);
  if (status == BL_OK) {
    status = sum_up(&t, &made);
  }
  free_clocks(&t);
  if (status != BL_OK) {
    bl_simulation_cleanup(&made);
    return status;
  }
  *result = made;
  return BL_OK;
}

bl_status_t bl_simulate(const bl_schedule_t *schedule, const bl_costs_t *costs, bl_simulation_t *result,
                        bl_error_t *err) {
  return bl_simulate_on(schedule, costs, &(bl_machine_t){0}, result, err);
}

void bl_simulation_cleanup(bl_simulation_t *result) {
  if (result->spans != NULL) {
    free(result->spans[0]);
  }
  if (result->causes != NULL) {
    free(result->causes[0]);
  }
  if (result->asked != NULL) {
    free(result->asked[0]);
  }
  free(result->asked);
  free(result->host_links);
  free(result->spans);
  free(result->causes);
  free(result->stalls);
  free(result->peak_slots);
  free(result->busy);
  memset(result, 0, sizeof *result);
}
