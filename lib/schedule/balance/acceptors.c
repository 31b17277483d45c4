// SPDX-License-Identifier: Apache-2.0
#include "schedule/balance/acceptors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SWEEPS         64  // maximum of sweeps over all reservations; a few are usual
#define EXCHANGE_LIMIT 128 // stages up to which slots are exchanged, which takes their number squared

typedef struct division {
  const bl_balance_request_t *request;
  uint32_t stages, stores;
  uint32_t *reserved;   // [stages * stores]
  uint32_t *free_slots; // [stores] lent and not reserved
  double *traffic;      // [stages] evictions per reserved slot
  bool *reaches;        // [stages * stores]
} division_t;

// Returns the time of one copy; infinite for BL_STORE_NONE.
static double copy_of(const bl_balance_request_t *request, uint32_t stage, uint32_t store) {
  return store >= request->stores ? INFINITY : request->copies[(size_t)stage * request->stores + store];
}

bl_status_t bl__acceptors_check(const bl_balance_request_t *request, uint32_t stages, bl_error_t *err) {
  for (uint32_t s = 0; request->copies != NULL && s < stages; s++) {
    for (uint32_t d = 0; d < request->stores; d++) {
      double copy = copy_of(request, s, d);
      if (!isfinite(copy) || copy < 0) {
        return bl_error_set(err, BL_INVALID,
                            "a copy between stage %u and store %u: must be a number from 0 upwards, is %g", s, d, copy);
      }
    }
  }
  return BL_OK;
}

void bl__acceptors_sort(const bl_balance_request_t *request, uint32_t stages, uint16_t *reach) {
  const uint32_t count = request->reach_count;
  memcpy(reach, request->reach, (size_t)stages * count * sizeof *reach);
  for (uint32_t s = 0; request->copies != NULL && s < stages; s++) {
    uint16_t *row = reach + (size_t)s * count;
    for (uint32_t i = 1; i < count; i++) {
      uint16_t store = row[i];
      uint32_t at = i;
      for (; at > 0 && copy_of(request, s, store) < copy_of(request, s, row[at - 1]); at--) {
        row[at] = row[at - 1];
      }
      row[at] = store;
    }
  }
}

// Returns whether all possible copies are equally long.
static bool all_equal(const division_t *v) {
  double first = -1;
  for (size_t i = 0; i < (size_t)v->stages * v->stores; i++) {
    if (v->reaches[i] && first < 0) {
      first = v->request->copies[i];
    }
    if (v->reaches[i] && v->request->copies[i] != first) {
      return false;
    }
  }
  return true;
}

static double load_of(const division_t *v, uint32_t stage, uint32_t store) {
  uint32_t slots = v->reserved[(size_t)stage * v->stores + store];
  return slots == 0 ? 0 : slots * v->traffic[stage] * copy_of(v->request, stage, store);
}

// Returns the cost of all copies to one store: their time, and once more the time of all but the largest user's.
static double cost_of(const division_t *v, uint32_t store) {
  double sum = 0, largest = 0;
  for (uint32_t s = 0; s < v->stages; s++) {
    double load = load_of(v, s, store);
    sum += load;
    largest = fmax(largest, load);
  }
  return 2 * sum - largest;
}

static void shift(division_t *v, uint32_t stage, uint32_t from, uint32_t to, uint32_t slots) {
  v->reserved[(size_t)stage * v->stores + from] -= slots;
  v->reserved[(size_t)stage * v->stores + to] += slots;
  v->free_slots[from] += slots;
  v->free_slots[to] -= slots; // wraps below 0 and back within an exchange
}

static bool is_less(double after, double before) {
  return after < before - 1e-9 * fmax(1e-300, fabs(before));
}

// Moves as many slots as fit, otherwise one, from one store to another, if that lowers the cost.
static bool try_move(division_t *v, uint32_t stage, uint32_t from, uint32_t to) {
  const uint32_t held = v->reserved[(size_t)stage * v->stores + from],
                 most = held < v->free_slots[to] ? held : v->free_slots[to];
  const double before = cost_of(v, from) + cost_of(v, to);
  for (uint32_t slots = most; slots > 0; slots = slots > 1 ? 1 : 0) {
    shift(v, stage, from, to, slots);
    if (is_less(cost_of(v, from) + cost_of(v, to), before)) {
      return true;
    }
    shift(v, stage, to, from, slots);
  }
  return false;
}

static bool try_exchange(division_t *v, uint32_t a, uint32_t of_a, uint32_t b, uint32_t of_b) {
  const double before = cost_of(v, of_a) + cost_of(v, of_b);
  shift(v, a, of_a, of_b, 1);
  shift(v, b, of_b, of_a, 1);
  if (is_less(cost_of(v, of_a) + cost_of(v, of_b), before)) {
    return true;
  }
  shift(v, b, of_a, of_b, 1);
  shift(v, a, of_b, of_a, 1);
  return false;
}

// Moves slots of stage `a` from store `from` to other stores, into free slots or in exchange for another stage's slot.
static bool improve_one(division_t *v, uint32_t a, uint32_t from) {
  bool better = false;
  for (uint32_t to = 0; to < v->stores && v->reserved[(size_t)a * v->stores + from] > 0; to++) {
    if (to == from || !v->reaches[(size_t)a * v->stores + to]) {
      continue;
    }
    better = (v->free_slots[to] > 0 && try_move(v, a, from, to)) || better;
    for (uint32_t b = 0; b < v->stages && v->stages <= EXCHANGE_LIMIT; b++) {
      bool can = b != a && v->reserved[(size_t)b * v->stores + to] > 0 && v->reaches[(size_t)b * v->stores + from] &&
                 v->reserved[(size_t)a * v->stores + from] > 0;
      better = (can && try_exchange(v, a, from, b, to)) || better;
    }
  }
  return better;
}

static void improve(division_t *v) {
  bool better = true;
  for (int sweep = 0; sweep < SWEEPS && better; sweep++) {
    better = false;
    for (uint32_t s = 0; s < v->stages; s++) {
      for (uint32_t d = 0; d < v->stores; d++) {
        better = (v->reserved[(size_t)s * v->stores + d] > 0 && improve_one(v, s, d)) || better;
      }
    }
  }
}

bl_status_t bl__acceptors_improve(const bl_balance_request_t *request, uint32_t stages, const uint32_t *slots,
                                  const uint32_t *moves, uint32_t *reserved) {
  if (request->copies == NULL || request->stores == 0) {
    return BL_OK;
  }
  division_t v = {.request = request, .stages = stages, .stores = request->stores};
  v.reserved = reserved;
  v.free_slots = malloc(v.stores * sizeof *v.free_slots);
  v.traffic = calloc(stages, sizeof *v.traffic);
  v.reaches = calloc((size_t)stages * v.stores, sizeof *v.reaches);
  bl_status_t status = v.free_slots != NULL && v.traffic != NULL && v.reaches != NULL ? BL_OK : BL_EXHAUSTED;
  if (status == BL_OK) {
    memcpy(v.free_slots, request->lent, v.stores * sizeof *v.free_slots);
    for (uint32_t s = 0; s < stages; s++) {
      v.traffic[s] = slots[s] > 0 ? (double)moves[s] / slots[s] : 0;
      for (uint32_t r = 0; r < request->reach_count; r++) {
        uint16_t store = request->reach[(size_t)s * request->reach_count + r];
        if (store != BL_STORE_NONE) {
          v.reaches[(size_t)s * v.stores + store] = true;
        }
      }
      for (uint32_t d = 0; d < v.stores; d++) {
        v.free_slots[d] -= reserved[(size_t)s * v.stores + d];
      }
    }
    if (!all_equal(&v)) {
      improve(&v);
    }
  }
  free(v.reaches);
  free(v.traffic);
  free(v.free_slots);
  return status;
}
