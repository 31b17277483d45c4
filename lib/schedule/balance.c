// SPDX-License-Identifier: Apache-2.0
#include "schedule/balance.h"

#include "schedule/eviction.h"
#include "schedule/peaks.h"
#include "schedule/reservation.h"

#include <stdlib.h>
#include <string.h>

// The fewest own slots with which the stage gets through, more than `own`; as many as it has blocks always do.
static uint32_t fewest_own(const bl_schedule_t *schedule, uint32_t stage, uint32_t own, bl_balance_mode_t mode) {
  uint32_t low = own,
           high = (uint32_t)(bl_schedule_block_count(schedule) / schedule->virtual_stages * schedule->chunks);
  while (high - low > 1) { // `high` works, `low` does not
    uint32_t middle = low + (high - low) / 2, failed_at;
    bl__evictions_t evictions;
    bl_status_t status = bl__evictions_plan(schedule, stage, middle, mode, &evictions, &failed_at);
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
                          uint32_t failed_at, bl_error_t *err) {
  char cell[BL_OP_TEXT];
  bl_op_t op = schedule->lists[stage].ops[failed_at];
  uint32_t fewest = fewest_own(schedule, stage, request->own[stage], request->mode);
  return bl_error_set(
      err, BL_EXHAUSTED,
      "stage %u, operation %u (%s): no slot is free among the stage's own %u and no block can be evicted "
      "in time; %u own slots work",
      stage, failed_at, bl_op_format(op, cell), request->own[stage], fewest);
}

// Copies the list of a stage with its transfers between, each to a store with a reserved slot left.
static bl_status_t weave(const bl_schedule_t *schedule, uint32_t stage, const bl__evictions_t *evictions,
                         const bl_balance_request_t *request, const uint32_t *reserved, uint16_t *store_of,
                         uint16_t *stores, uint32_t *parked, bl_schedule_t *made) {
  const bl_op_list_t *list = &schedule->lists[stage];
  size_t next = 0;
  uint32_t count = 0; // of the stores that keep slots for the stage
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
      if (op.verb == BL_VERB_E) {
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
    if (bl_schedule_append(made, stage, list->ops[i]) != BL_OK) {
      return BL_EXHAUSTED;
    }
  }
  return BL_OK;
}

static bl_status_t check_request(const bl_schedule_t *schedule, const bl_balance_request_t *request, bl_error_t *err) {
  for (size_t i = 0; i < (size_t)schedule->stages * request->reach_count; i++) {
    if (request->reach[i] != BL_STORE_NONE && request->reach[i] >= request->stores) {
      return bl_error_set(err, BL_INVALID, "stage %zu reaches store %u, but there are %u stores",
                          i / request->reach_count, request->reach[i], request->stores);
    }
  }
  for (uint32_t s = 0; s < schedule->stages; s++) {
    for (size_t i = 0; i < schedule->lists[s].count; i++) {
      if (!bl_verb_computes((bl_verb_t)schedule->lists[s].ops[i].verb)) {
        return bl_error_set(err, BL_INVALID, "schedule %s: stage %u has evictions already", schedule->name, s);
      }
    }
  }
  return BL_OK;
}

// All that a pass holds.
typedef struct pass {
  bl__evictions_t *evictions; // [stages]
  uint16_t *store_of;         // [blocks]
  uint16_t *stores;           // [stores reached] those that keep slots for a stage
  uint32_t *parked;           // [stores]
  bl_balance_result_t result;
} pass_t;

static bl_status_t pass_init(pass_t *pass, const bl_schedule_t *schedule, const bl_balance_request_t *request,
                             bl_error_t *err) {
  *pass = (pass_t){.result = {.stages = schedule->stages, .stores = request->stores}};
  bl_balance_result_t *result = &pass->result;
  pass->evictions = calloc(schedule->stages, sizeof pass->evictions[0]);
  pass->store_of = calloc(bl_schedule_block_count(schedule), sizeof pass->store_of[0]);
  pass->stores = calloc(request->reach_count + 1, sizeof pass->stores[0]);
  pass->parked = calloc(request->stores + 1, sizeof pass->parked[0]);
  result->evictions = calloc(schedule->stages, sizeof result->evictions[0]);
  result->parked_peak = calloc(schedule->stages, sizeof result->parked_peak[0]);
  result->reserved = calloc((size_t)schedule->stages * request->stores + 1, sizeof result->reserved[0]);
  if (pass->evictions == NULL || pass->store_of == NULL || pass->stores == NULL || pass->parked == NULL ||
      result->evictions == NULL || result->parked_peak == NULL || result->reserved == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "out of memory for balancing schedule %s", schedule->name);
  }
  bl_status_t status = bl_schedule_create(schedule->name, BL_PLACEMENT_OTHER, schedule->stages, schedule->chunks,
                                          schedule->micro_batches, &result->schedule, err);
  if (status == BL_OK) {
    bl_schedule_t *made = result->schedule;
    uint16_t *stage_of = made->stage_of;
    bl_op_list_t *lists = made->lists;
    memcpy(stage_of, schedule->stage_of, schedule->virtual_stages * sizeof *stage_of);
    *made = *schedule;
    made->stage_of = stage_of;
    made->lists = lists;
    made->transfers = request->mode == BL_BALANCE_OVERLAP ? BL_TRANSFER_OVERLAP : BL_TRANSFER_SERIAL;
  }
  return status;
}

static void pass_cleanup(pass_t *pass, uint32_t stages) {
  for (uint32_t s = 0; pass->evictions != NULL && s < stages; s++) {
    bl__evictions_cleanup(&pass->evictions[s]);
  }
  free(pass->evictions);
  free(pass->store_of);
  free(pass->stores);
  free(pass->parked);
}

bl_status_t bl_balance(const bl_schedule_t *schedule, const bl_balance_request_t *request, bl_balance_result_t *result,
                       bl_error_t *err) {
  pass_t pass = {0};
  bl_status_t status = check_request(schedule, request, err);
  if (status == BL_OK) {
    status = pass_init(&pass, schedule, request, err);
  }
  for (uint32_t s = 0; s < schedule->stages && status == BL_OK; s++) {
    uint32_t failed_at;
    status = bl__evictions_plan(schedule, s, request->own[s], request->mode, &pass.evictions[s], &failed_at);
    if (status == BL_EXHAUSTED) {
      status = refuse(schedule, request, s, failed_at, err);
    } else if (status != BL_OK) {
      status = bl_error_set(err, BL_EXHAUSTED, "out of memory for balancing stage %u", s);
    }
    pass.result.evictions[s] = pass.evictions[s].evicted;
    pass.result.parked_peak[s] = pass.evictions[s].parked_peak;
  }
  if (status == BL_OK) {
    status = bl__reserve(request, schedule->stages, pass.result.parked_peak, pass.result.reserved, err);
  }
  for (uint32_t s = 0; s < schedule->stages && status == BL_OK; s++) {
    status = weave(schedule, s, &pass.evictions[s], request, pass.result.reserved + (size_t)s * request->stores,
                   pass.store_of, pass.stores, pass.parked, pass.result.schedule);
    if (status != BL_OK) {
      status = bl_error_set(err, status, "out of memory for the balanced list of stage %u", s);
    }
  }
  pass_cleanup(&pass, schedule->stages);
  if (status != BL_OK) {
    bl_balance_result_cleanup(&pass.result);
    return status;
  }
  *result = pass.result;
  return BL_OK;
}

void bl_balance_result_cleanup(bl_balance_result_t *result) {
  bl_schedule_destroy(result->schedule);
  free(result->evictions);
  free(result->parked_peak);
  free(result->reserved);
  memset(result, 0, sizeof *result);
}
