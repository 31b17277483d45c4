// SPDX-License-Identifier: Apache-2.0
#include "schedule/balance/balance.h"

#include "schedule/balance/acceptors.h"
#include "schedule/balance/eviction.h"
#include "schedule/ir/peaks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// Returns the minimum of own slots that the stage can run with. It is more than `own`; one slot per block always works.
static uint32_t fewest_own(const bl_schedule_t *schedule, uint32_t stage, uint32_t own, bl_balance_mode_t mode,
                           bl__mix_t *mix) {
  uint32_t low = own,
           high = (uint32_t)(bl_schedule_block_count(schedule) / schedule->virtual_stages * schedule->chunks);
  while (high - low > 1) { // `high` works, `low` does not
    uint32_t middle = low + (high - low) / 2, failed_at;
    bl__evictions_t evictions;
    if (mix != NULL) {
      bl__mix_begin(mix, stage, mix->most);
    }
    bl_status_t status = bl__evictions_plan(schedule, stage, middle, mode, mix, &evictions, &failed_at);
    bl__evictions_cleanup(&evictions);
    if (status == BL_OK) {
      high = middle;
    } else {
      low = middle;
    }
  }
  return high;
}

static bl_status_t refuse(const bl_schedule_t *schedule, const bl_balance_request_t *request, uint32_t stage,
                          bl__mix_t *mix, uint32_t failed_at, bl_error_t *err) {
  char cell[BL_OP_TEXT];
  bl_op_t op = schedule->lists[stage].ops[failed_at];
  uint32_t fewest = fewest_own(schedule, stage, request->own[stage], request->mode, mix);
  return bl_error_set(
      err, BL_EXHAUSTED,
      "stage %u, operation %u (%s): no slot is free among the stage's own %u and no block can be evicted "
      "in time; this stage alone needs %u",
      stage, failed_at, bl_op_format(op, cell), request->own[stage], fewest);
}

// State of the balancing of one schedule.
typedef struct balancing {
  bl__evictions_t *evictions; // [stages]
  uint16_t *store_of;         // [blocks]
  uint16_t *stores;           // [stores reached] stores at which a stage has slots
  uint16_t *reach;            // [stages * reach_count] of the request, nearest first
  uint32_t *parked;           // [stores]
  bl__mix_t mix;              // if the request has `copy`
  bl__mix_t *mixes;           // [stages] copies of `mix` if stages share links; NULL: they do not
  double *links;              // [stores] when the link to each is free
  bl_balance_result_t result;
} balancing_t;

static bool is_dropped(const balancing_t *balancing, const bl_schedule_t *schedule, bl_op_t op) {
  return balancing->mix.given_up != NULL && balancing->mix.given_up[bl_schedule_block(schedule, op)] != 0;
}

// Copies the list of a stage and inserts its transfers, each to or from a store with a reserved slot, and an R before
// the backward of every dropped block.
static bl_status_t weave(balancing_t *balancing, const bl_schedule_t *schedule, uint32_t stage,
                         const bl_balance_request_t *request) {
  const bl_op_list_t *list = &schedule->lists[stage];
  const bl__evictions_t *evictions = &balancing->evictions[stage];
  const uint32_t *reserved = balancing->result.reserved + (size_t)stage * request->stores;
  uint16_t *store_of = balancing->store_of, *stores = balancing->stores;
  uint32_t *parked = balancing->parked;
  bl_schedule_t *made = balancing->result.schedule;
  size_t next = 0;
  uint32_t count = 0; // stores at which the stage has slots
  memset(parked, 0, request->stores * sizeof *parked);
  for (uint32_t r = 0; r < request->reach_count; r++) {
    uint16_t store = request->reach[(size_t)stage * request->reach_count + r];
    if (store != BL_STORE_NONE && reserved[store] > 0) {
      stores[count++] = store;
    }
  }
  for (uint32_t i = 0; i < list->count; i++) {
    for (; next < evictions->count && evictions->transfers[next].before == i; next++) {
      bl_op_t op = evictions->transfers[next].op;
      size_t block = bl_schedule_block(schedule, op);
      if (op.type == BL_OP_E) {
        for (uint32_t r = 0; r < count; r++) {
          if (parked[stores[r]] < reserved[stores[r]]) {
            store_of[block] = stores[r];
            parked[stores[r]]++;
            break;
          }
        }
      } else {
        parked[store_of[block]]--;
      }
      op.store = store_of[block];
      if (bl_schedule_append(made, stage, op) != BL_OK) {
        return BL_EXHAUSTED;
      }
    }
    bl_op_t recompute = list->ops[i];
    recompute.type = BL_OP_R;
    if (bl_op_type_starts_backward((bl_op_type_t)list->ops[i].type) && is_dropped(balancing, schedule, recompute)) {
      made->forward_slots = true;
      if (bl_schedule_append(made, stage, recompute) != BL_OK) {
        return BL_EXHAUSTED;
      }
    }
    if (bl_schedule_append(made, stage, list->ops[i]) != BL_OK) {
      return BL_EXHAUSTED;
    }
  }
  return BL_OK;
}

// Returns the request with the nearest stores of each stage first.
static bl_balance_request_t nearest_first(balancing_t *balancing, uint32_t stages,
                                          const bl_balance_request_t *request) {
  bl_balance_request_t sorted = *request;
  if (request->copies != NULL) {
    bl__acceptors_sort(request, stages, balancing->reach);
    sorted.reach = balancing->reach;
  }
  return sorted;
}

static bl_status_t reserve(balancing_t *balancing, uint32_t stages, const bl_balance_request_t *request,
                           bl_error_t *err) {
  bl_balance_result_t *result = &balancing->result;
  bl_status_t status = bl__reserve(request, stages, result->parked_peak, result->reserved, NULL, err);
  if (status != BL_OK) {
    return status;
  }
  status = bl__acceptors_improve(request, stages, result->parked_peak, result->evictions, result->reserved);
  return status == BL_OK ? BL_OK : bl_error_set(err, status, "out of memory for the acceptors of %u stages", stages);
}

static bl_status_t check_request(const bl_schedule_t *schedule, const bl_balance_request_t *request, bl_error_t *err) {
  if (!isfinite(request->copy) || request->copy < 0) {
    return bl_error_set(err, BL_INVALID, "the time of a copy must be a number of forwards from 0 on, is %g",
                        request->copy);
  }
  for (size_t i = 0; i < (size_t)schedule->stages * request->reach_count; i++) {
    if (request->reach[i] != BL_STORE_NONE && request->reach[i] >= request->stores) {
      return bl_error_set(err, BL_INVALID, "stage %zu reaches store %u, but there are %u stores",
                          i / request->reach_count, request->reach[i], request->stores);
    }
  }
  bl_status_t status = bl__acceptors_check(request, schedule->stages, err);
  if (status != BL_OK) {
    return status;
  }
  for (uint32_t s = 0; s < schedule->stages; s++) {
    for (size_t i = 0; i < schedule->lists[s].count; i++) {
      if (!bl_op_type_computes((bl_op_type_t)schedule->lists[s].ops[i].type)) {
        return bl_error_set(err, BL_INVALID, "schedule %s: stage %u has evictions already", schedule->name, s);
      }
    }
  }
  return BL_OK;
}

static bl_status_t balancing_init(balancing_t *balancing, const bl_schedule_t *schedule,
                                  const bl_balance_request_t *request, bl_error_t *err) {
  *balancing = (balancing_t){.result = {.stages = schedule->stages, .stores = request->stores}};
  bl_balance_result_t *result = &balancing->result;
  balancing->evictions = calloc(schedule->stages, sizeof balancing->evictions[0]);
  balancing->store_of = calloc(bl_schedule_block_count(schedule), sizeof balancing->store_of[0]);
  balancing->stores = calloc(request->reach_count + 1, sizeof balancing->stores[0]);
  balancing->parked = calloc(request->stores + 1, sizeof balancing->parked[0]);
  balancing->reach = calloc((size_t)schedule->stages * request->reach_count + 1, sizeof balancing->reach[0]);
  result->evictions = calloc(schedule->stages, sizeof result->evictions[0]);
  result->late = calloc(schedule->stages, sizeof result->late[0]);
  result->parked_peak = calloc(schedule->stages, sizeof result->parked_peak[0]);
  result->dropped = calloc(schedule->stages, sizeof result->dropped[0]);
  result->reserved = calloc((size_t)schedule->stages * request->stores + 1, sizeof result->reserved[0]);
  if (balancing->evictions == NULL || balancing->store_of == NULL || balancing->stores == NULL ||
      balancing->parked == NULL || balancing->reach == NULL || result->evictions == NULL || result->late == NULL ||
      result->parked_peak == NULL || result->dropped == NULL || result->reserved == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "out of memory for balancing schedule %s", schedule->name);
  }
  bl_status_t status = bl_schedule_create_like(schedule, &result->schedule, err);
  if (status == BL_OK) {
    result->schedule->transfers = request->mode == BL_BALANCE_OVERLAP ? BL_TRANSFER_OVERLAP : BL_TRANSFER_SERIAL;
    result->schedule->hosts = request->stores > schedule->stages ? request->stores - schedule->stages : 0;
  }
  return status;
}

// Returns whether each stage reaches at most one store and it is a host's: all copies then use that host's link.
static bool share_links(const bl_schedule_t *schedule, const bl_balance_request_t *request) {
  bool share = request->copy > 0 && request->reach_count == 1;
  for (uint32_t s = 0; share && s < schedule->stages; s++) {
    share = request->reach[s] == BL_STORE_NONE || request->reach[s] >= schedule->stages;
  }
  return share;
}

static bl_status_t mix_init(balancing_t *balancing, const bl_schedule_t *schedule, const bl_balance_request_t *request,
                            bl_error_t *err) {
  bl_status_t status = bl__mix_init(&balancing->mix, schedule, request->mode, request->copy, err);
  balancing->mix.parks = request->parks > 0 ? request->parks : UINT32_MAX;
  if (status != BL_OK || !share_links(schedule, request)) {
    return status;
  }
  balancing->mixes = calloc(schedule->stages, sizeof *balancing->mixes);
  balancing->links = calloc(request->stores + 1, sizeof *balancing->links);
  return balancing->mixes != NULL && balancing->links != NULL
             ? BL_OK
             : bl_error_set(err, BL_EXHAUSTED, "out of memory for the links of %u stages", schedule->stages);
}

static void balancing_cleanup(balancing_t *balancing, uint32_t stages) {
  for (uint32_t s = 0; balancing->evictions != NULL && s < stages; s++) {
    bl__evictions_cleanup(&balancing->evictions[s]);
  }
  bl__mix_cleanup(&balancing->mix);
  free(balancing->mixes);
  free(balancing->links);
  free(balancing->evictions);
  free(balancing->store_of);
  free(balancing->stores);
  free(balancing->parked);
  free(balancing->reach);
}

static void count(balancing_t *balancing, uint32_t stage) {
  const bl__evictions_t *evictions = &balancing->evictions[stage];
  balancing->result.dropped[stage] = evictions->given_up;
  balancing->result.evictions[stage] = evictions->evicted;
  balancing->result.late[stage] = evictions->late;
  balancing->result.parked_peak[stage] = evictions->parked_peak;
}

// Plans which blocks a stage parks, at most `most` at once, and which it drops.
static bl_status_t plan_stage(balancing_t *balancing, const bl_schedule_t *schedule, uint32_t stage,
                              const bl_balance_request_t *request, uint32_t most, bl_error_t *err) {
  bl__evictions_t *evictions = &balancing->evictions[stage];
  bl__mix_t *mix = request->copy > 0 ? &balancing->mix : NULL;
  uint32_t failed_at;
  bl__evictions_cleanup(evictions);
  if (mix != NULL) {
    bl__mix_begin(mix, stage, most);
  }
  bl_status_t status =
      bl__evictions_plan(schedule, stage, request->own[stage], request->mode, mix, evictions, &failed_at);
  if (status == BL_EXHAUSTED) {
    return refuse(schedule, request, stage, mix, failed_at, err);
  }
  if (status != BL_OK) {
    return bl_error_set(err, BL_EXHAUSTED, "out of memory for balancing stage %u", stage);
  }
  count(balancing, stage);
  return BL_OK;
}

// Plans all stages together, each with at most most[stage] blocks evicted at once. NULL: no limit.
static bl_status_t plan_together(balancing_t *balancing, const bl_schedule_t *schedule,
                                 const bl_balance_request_t *request, const uint32_t *most, bl_error_t *err) {
  uint32_t failed_stage, failed_at;
  memset(balancing->links, 0, request->stores * sizeof *balancing->links);
  for (uint32_t s = 0; s < schedule->stages; s++) {
    bl__evictions_cleanup(&balancing->evictions[s]);
    balancing->mixes[s] = balancing->mix;
    bl__mix_begin(&balancing->mixes[s], s, most != NULL ? most[s] : UINT32_MAX);
    balancing->mixes[s].link = request->reach[s] != BL_STORE_NONE ? &balancing->links[request->reach[s]] : NULL;
  }
  bl_status_t status = bl__evictions_plan_together(schedule, request->own, request->mode, balancing->mixes,
                                                   balancing->evictions, &failed_stage, &failed_at);
  if (status == BL_EXHAUSTED) {
    return refuse(schedule, request, failed_stage, &balancing->mix, failed_at, err);
  }
  for (uint32_t s = 0; s < schedule->stages && status == BL_OK; s++) {
    count(balancing, s);
  }
  return status == BL_OK ? BL_OK : bl_error_set(err, BL_EXHAUSTED, "out of memory for balancing %s", schedule->name);
}

// Plans the stages whose peak exceeds `most` once more, or all stages if `most` is NULL or stages share links.
static bl_status_t plan_stages(balancing_t *balancing, const bl_schedule_t *schedule,
                               const bl_balance_request_t *request, const uint32_t *most, bl_error_t *err) {
  bl_status_t status = BL_OK;
  bool fits = most != NULL;
  for (uint32_t s = 0; fits && s < schedule->stages; s++) {
    fits = balancing->result.parked_peak[s] <= most[s];
  }
  if (fits || balancing->mixes != NULL) {
    return fits ? BL_OK : plan_together(balancing, schedule, request, most, err);
  }
  for (uint32_t s = 0; s < schedule->stages && status == BL_OK; s++) {
    if (most == NULL || most[s] < balancing->result.parked_peak[s]) {
      status = plan_stage(balancing, schedule, s, request, most != NULL ? most[s] : UINT32_MAX, err);
    }
  }
  return status;
}

// Returns the stage of `among`, or of all if NULL, that loses a slot: the stage with the largest `most`, and of several
// the one from which the fewest blocks leave.
static uint32_t richest(const bl_balance_result_t *result, const uint32_t *most, const bool *among) {
  uint32_t found = UINT32_MAX;
  for (uint32_t s = 0; s < result->stages; s++) {
    if (among != NULL && !among[s]) {
      continue;
    }
    if (found == UINT32_MAX) {
      found = s;
      continue;
    }
    uint32_t leave = result->evictions[s] + result->dropped[s],
             others = result->evictions[found] + result->dropped[found];
    found = most[s] > most[found] || (most[s] == most[found] && leave < others) ? s : found;
  }
  return found;
}

// Lowers `most` until all stages find their slots at the stores that they reach, if some stages reach fewer stores than
// others, for example only their own host's.
static bl_status_t fit_within_reach(const balancing_t *balancing, const bl_balance_request_t *request, uint32_t *most) {
  const uint32_t stages = balancing->result.stages;
  const size_t cells = (size_t)stages * request->stores;
  uint32_t *reserved = malloc((cells + 1) * sizeof *reserved);
  bool *rivals = malloc(stages * sizeof *rivals);
  bl_status_t status = BL_EXHAUSTED;
  for (bool fits = false; reserved != NULL && rivals != NULL && !fits;) {
    memset(reserved, 0, cells * sizeof *reserved);
    memset(rivals, 0, stages * sizeof *rivals);
    fits = bl__reserve(request, stages, most, reserved, rivals, NULL) == BL_OK;
    const uint32_t less = fits ? UINT32_MAX : richest(&balancing->result, most, rivals);
    if (!fits && (less == UINT32_MAX || most[less] == 0)) {
      break; // no memory: a stage that lacks slots has most > 0
    }
    if (!fits) {
      most[less]--;
    }
    status = fits ? BL_OK : status;
  }
  free(rivals);
  free(reserved);
  return status;
}

// If the stores have fewer slots than the stages want, gives fewer to the stages that want the most and drops the rest.
static bl_status_t fit_into_stores(balancing_t *balancing, const bl_schedule_t *schedule,
                                   const bl_balance_request_t *request, bl_error_t *err) {
  uint64_t lent = 0, wanted = 0;
  uint32_t *most = calloc(schedule->stages, sizeof *most);
  if (most == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "out of memory for the slots of %u stages", schedule->stages);
  }
  for (uint32_t store = 0; store < request->stores; store++) {
    lent += request->lent[store];
  }
  for (uint32_t s = 0; s < schedule->stages; s++) {
    most[s] = balancing->result.parked_peak[s];
    wanted += most[s];
  }
  for (; wanted > lent; wanted--) {
    most[richest(&balancing->result, most, NULL)]--;
  }
  bl_status_t status = fit_within_reach(balancing, request, most);
  status = status == BL_OK ? plan_stages(balancing, schedule, request, most, err) : status;
  free(most);
  return status;
}

bl_status_t bl_balance(const bl_schedule_t *schedule, const bl_balance_request_t *request, bl_balance_result_t *result,
                       bl_error_t *err) {
  balancing_t balancing = {0};
  bl_status_t status = check_request(schedule, request, err);
  if (status == BL_OK) {
    status = balancing_init(&balancing, schedule, request, err);
  }
  if (status == BL_OK && request->copy > 0) {
    status = mix_init(&balancing, schedule, request, err);
  }
  status = status == BL_OK ? plan_stages(&balancing, schedule, request, NULL, err) : status;
  if (status == BL_OK && request->copy > 0) {
    status = fit_into_stores(&balancing, schedule, request, err);
  }
  bl_balance_request_t nearest = *request;
  if (status == BL_OK) {
    nearest = nearest_first(&balancing, schedule->stages, request);
    status = reserve(&balancing, schedule->stages, &nearest, err);
  }
  for (uint32_t s = 0; s < schedule->stages && status == BL_OK; s++) {
    status = weave(&balancing, schedule, s, &nearest);
    if (status != BL_OK) {
      status = bl_error_set(err, status, "out of memory for the balanced list of stage %u", s);
    }
  }
  balancing_cleanup(&balancing, schedule->stages);
  if (status != BL_OK) {
    bl_balance_result_cleanup(&balancing.result);
    return status;
  }
  *result = balancing.result;
  return BL_OK;
}

void bl_balance_result_cleanup(bl_balance_result_t *result) {
  bl_schedule_destroy(result->schedule);
  free(result->evictions);
  free(result->late);
  free(result->parked_peak);
  free(result->dropped);
  free(result->reserved);
  memset(result, 0, sizeof *result);
}
