// SPDX-License-Identifier: Apache-2.0
// Ways to make an order fit: park or drop blocks, or search an order within fewer slots.
#include "plan/candidate/evaluation.h"

#include "base/bytes.h"
#include "base/minmax.h"
#include "base/words.h"
#include "lease/granule.h"
#include "schedule/balance/drop.h"
#include "simulate/host_order.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t most_peak(const bl__evaluation_t *eval) {
  uint32_t most = 0;
  for (uint32_t s = 0; s < eval->c->stages; s++) {
    most = eval->peaks[s] > most ? eval->peaks[s] : most;
  }
  return most;
}

// Slots per device. min_slots: fit on every device. short_slots: fit on every device on which fewer than `needed`
// [stages] fit; UINT32_MAX: there is none.
typedef struct slot_range {
  uint32_t min_slots, short_slots;
} slot_range_t;

static bl_status_t find_range(const bl__evaluation_t *eval, const uint32_t *needed, slot_range_t *range) {
  *range = (slot_range_t){UINT32_MAX, UINT32_MAX};
  for (uint32_t s = 0; s < eval->c->stages; s++) {
    bl_footprint_t footprint;
    bl_status_t status = bl__evaluation_footprint(eval, s, 0, &footprint);
    if (status != BL_OK) {
      return status;
    }
    double left = (eval->request->memory - bl_footprint_total(&footprint)) / footprint.slot_bytes;
    uint32_t slots = (uint32_t)fmin(UINT32_MAX, floor(fmax(0, left)));
    slots = eval->request->memory > 0 ? slots : UINT32_MAX;
    range->min_slots = slots < range->min_slots ? slots : range->min_slots;
    range->short_slots = slots < needed[s] && slots < range->short_slots ? slots : range->short_slots;
  }
  return BL_OK;
}

// Reports the stage with the least free memory.
static bl_status_t tell_no_room(bl__evaluation_t *eval) {
  char block[BL_BYTES_TEXT], rest[BL_BYTES_TEXT], limit[BL_BYTES_TEXT];
  double least = INFINITY;
  for (uint32_t s = 0; s < eval->c->stages; s++) {
    bl_footprint_t footprint;
    bl_status_t status = bl__evaluation_footprint(eval, s, 0, &footprint);
    if (status != BL_OK) {
      return status;
    }
    const double left = eval->request->memory - bl_footprint_total(&footprint);
    if (left < footprint.slot_bytes && left < least) {
      least = left;
      snprintf(eval->c->why, sizeof eval->c->why,
               "not one activation block of %s fits in addition to %s of weights, gradients, optimizer and buffers on "
               "stage %u: a "
               "device has %s",
               bl_bytes_format((uint64_t)footprint.slot_bytes, block),
               bl_bytes_format((uint64_t)bl_footprint_total(&footprint), rest), s,
               bl_bytes_format((uint64_t)eval->request->memory, limit));
    }
  }
  return BL_OK;
}

// Drops the blocks above the cap. `edges` [stages]: boundary buffers without the inputs that are kept for
// recomputation.
static bl_status_t drop_at_cap(bl__evaluation_t *eval, const uint32_t *edges, uint32_t *dropped) {
  const bl_parallel_t parallel = eval->c->parallel;
  bl_schedule_destroy(eval->balanced.schedule);
  eval->balanced.schedule = NULL;
  bl_status_t status = bl_schedule_drop(eval->schedule, eval->c->cap, &eval->balanced.schedule, dropped, NULL);
  eval->c->dropped = 0;
  for (uint32_t s = 0; s < eval->c->stages && status == BL_OK; s++) {
    uint32_t gone = eval->peaks[s] > eval->c->cap ? eval->peaks[s] - eval->c->cap : 0;
    eval->c->dropped += dropped[s];
    eval->slots[s] = eval->peaks[s] - gone;
    // On our executor the order already counts kept inputs as edges. On a cluster, tensor parallelism alone does not
    // split them.
    eval->edges[s] =
        edges[s] + (bl__evaluation_on_cluster(eval) ? gone * (parallel.sequence ? 1 : parallel.tensor) : 0);
  }
  return status == BL_OK ? bl__evaluation_measure(eval) : status;
}

// Recomputes blocks above the cap from their kept inputs, which need memory, too. Nothing moves.
static bl_status_t drop(bl__evaluation_t *eval) {
  uint32_t *dropped = eval->max_layers + eval->chunks, *edges = dropped + eval->c->stages;
  memcpy(edges, eval->edges, eval->c->stages * sizeof *edges);
  bl_status_t status = drop_at_cap(eval, edges, dropped);
  while (status == BL_OK && !eval->c->fits && eval->c->cap > 1) {
    eval->c->cap--;
    status = drop_at_cap(eval, edges, dropped);
  }
  if (status == BL_EXHAUSTED) {
    eval->c->fits = false;
    snprintf(eval->c->why, sizeof eval->c->why, "%u block%s fit%s on a device, and giving up the rest needs more",
             eval->c->cap, bl_plural(eval->c->cap), bl_one_or_many(eval->c->cap, "s", ""));
    return BL_OK;
  }
  return status;
}

// Counts own and lent slots of every device under the cap.
static void count_slots(bl__evaluation_t *eval) {
  eval->c->evictions = eval->c->dropped = 0;
  for (uint32_t s = 0; s < eval->c->stages; s++) {
    eval->c->evictions += eval->balanced.evictions[s];
    eval->c->dropped += eval->balanced.dropped[s];
    uint32_t own = eval->peaks[s] < eval->c->cap ? eval->peaks[s] : eval->c->cap, lent = 0;
    for (uint32_t other = 0; other < eval->c->stages; other++) {
      lent += eval->balanced.reserved[(size_t)other * eval->balanced.stores + s];
    }
    eval->slots[s] = own + lent;
  }
}

// Sets the bytes parked on the fullest machine.
static void count_host(bl__evaluation_t *eval) {
  const uint32_t stages = eval->c->stages, stores = eval->balanced.stores;
  eval->c->host_bytes = 0;
  for (uint32_t h = stages; h < stores; h++) {
    uint32_t blocks = 0;
    for (uint32_t s = 0; s < stages; s++) {
      blocks += eval->balanced.reserved[(size_t)s * stores + h];
    }
    eval->c->host_bytes = fmax(eval->c->host_bytes, (double)blocks * eval->host.planes * eval->c->block_bytes);
  }
}

// Returns whether no device lends slots although it may. Then the policy is the same as offload.
static bool lends_nothing(const bl__evaluation_t *eval) {
  const uint32_t stages = eval->c->stages, stores = eval->balanced.stores;
  uint32_t lent = 0;
  for (uint32_t i = 0; i < stages * stores; i++) {
    lent += i % stores < stages ? eval->balanced.reserved[i] : 0;
  }
  return eval->c->policy != BL_POLICY_OFFLOAD && stores > stages && lent == 0 && eval->c->evictions > 0;
}

// Finds the host memory that stages reach, and how many blocks it holds.
static bl_status_t find_host(bl__evaluation_t *eval) {
  const bl_plan_request_t *r = eval->request;
  if (r->host.bytes <= 0 || !(bl_policy_copies(eval->c->policy) || eval->c->policy == BL_POLICY_AUTO) ||
      eval->host.count > 0) {
    return BL_OK;
  }
  bl_status_t status =
      bl_host_places_init(&eval->host, &r->host, &r->cluster, eval->c->order, eval->c->stages, eval->c->parallel);
  double most = 0;
  for (uint32_t s = 0; s < eval->c->stages && status == BL_OK; s++) {
    bl_footprint_t footprint;
    status = bl__evaluation_footprint(eval, s, 0, &footprint);
    most = fmax(most, status == BL_OK ? footprint.evict_bytes : 0);
  }
  if (status == BL_OK) {
    eval->c->block_bytes =
        bl__evaluation_on_cluster(eval) ? most : BL_LEASE_GRANULE_BYTES * ceil(most / BL_LEASE_GRANULE_BYTES);
    eval->host_slots = bl_host_slots(&r->host, &eval->host, eval->c->block_bytes);
  }
  return status;
}

static void lend_host(const bl__evaluation_t *eval, bl_balance_cap_t *cap) {
  cap->hosts = eval->host_slots > 0 ? eval->host.count : 0;
  cap->host_of = eval->host.of;
  cap->host_slots = eval->host_slots;
  cap->host_only = eval->c->policy == BL_POLICY_OFFLOAD;
}

// Sets the relative times of copies, which are shorter within a node.
static bl_status_t measure_copies(bl__evaluation_t *eval) {
  const uint32_t stages = eval->c->stages;
  bl_nodes_t nodes;
  if (!bl__evaluation_on_cluster(eval) || eval->copies != NULL) {
    return BL_OK;
  }
  bl_status_t status = bl_nodes_init(&nodes, &eval->request->cluster, eval->c->order, stages, eval->c->parallel.tensor);
  if (status != BL_OK) {
    return status;
  }
  if (bl_nodes_spread(&nodes)) {
    eval->copies = malloc((size_t)stages * stages * sizeof *eval->copies);
    status = eval->copies != NULL ? BL_OK : BL_EXHAUSTED;
  }
  for (uint32_t s = 0; eval->copies != NULL && s < stages; s++) {
    for (uint32_t d = 0; d < stages; d++) {
      eval->copies[(size_t)s * stages + d] = bl_nodes_copy(&nodes, s, d);
    }
  }
  bl_nodes_cleanup(&nodes);
  return status;
}

static bl_status_t mix_at_cap(bl__evaluation_t *eval, const uint32_t *edges, double copy) {
  bl_balance_cap_t cap = {.slots = eval->c->cap, .mode = eval->request->mode, .copies = eval->copies, .copy = copy};
  const bl_parallel_t parallel = eval->c->parallel;
  lend_host(eval, &cap);
  bl_balance_result_cleanup(&eval->balanced);
  bl_status_t status = bl_balance_within(eval->schedule, &cap, &eval->balanced, NULL);
  if (status != BL_OK) {
    return status;
  }
  count_slots(eval);
  count_host(eval);
  for (uint32_t s = 0; s < eval->c->stages; s++) { // kept inputs as in drop_at_cap, including those of parked blocks
    uint32_t gone = eval->peaks[s] > eval->c->cap && eval->balanced.dropped[s] > 0 ? eval->peaks[s] - eval->c->cap : 0;
    eval->edges[s] =
        edges[s] + (bl__evaluation_on_cluster(eval) ? gone * (parallel.sequence ? 1 : parallel.tensor) : 0);
  }
  return bl__evaluation_measure(eval);
}

// Mixes at the largest cap that leaves memory for kept inputs.
static bl_status_t mix_at_largest(bl__evaluation_t *eval, const uint32_t *edges, double copy, uint32_t largest) {
  eval->c->cap = largest;
  bl_status_t status = mix_at_cap(eval, edges, copy);
  while (status == BL_OK && !eval->c->fits && eval->c->cap > 1) {
    eval->c->cap--;
    status = mix_at_cap(eval, edges, copy);
  }
  return status;
}

// Parks some blocks and drops others. Assumes several lengths of a copy, in forwards, and takes the best result.
static bl_status_t mix(bl__evaluation_t *eval) {
  static const double copies[] = {0.25, 0.5, 1, 2};
  uint32_t *edges = eval->max_layers + eval->chunks + eval->c->stages, largest = eval->c->cap;
  double best = INFINITY, of_best = 0;
  memcpy(edges, eval->edges, eval->c->stages * sizeof *edges);
  for (size_t i = 0; i < sizeof copies / sizeof copies[0]; i++) {
    bl_status_t status = mix_at_largest(eval, edges, copies[i], largest);
    bool both = status == BL_OK && eval->c->fits && eval->c->evictions > 0 && eval->c->dropped > 0;
    status = both ? bl__evaluation_time(eval) : status == BL_EXHAUSTED ? BL_OK : status;
    if (status != BL_OK) {
      return status;
    }
    if (both && eval->c->step < best) {
      best = eval->c->step;
      of_best = copies[i];
    }
  }
  if (isinf(best)) {
    eval->c->fits = false;
    snprintf(eval->c->why, sizeof eval->c->why,
             "at %u block%s a device all blocks above the cap are parked, or all are recomputed", largest,
             bl_plural(largest));
    return BL_OK;
  }
  return mix_at_largest(eval, edges, of_best, largest);
}

static void tell_no_parking(bl__evaluation_t *eval) {
  const char *blocks = bl_plural(eval->c->cap), *fit = bl_one_or_many(eval->c->cap, "s", "");
  if (eval->c->policy == BL_POLICY_OFFLOAD) {
    char block[BL_BYTES_TEXT];
    snprintf(
        eval->c->why, sizeof eval->c->why,
        "%u block%s fit%s on a device, and the host has room for %u of %s each: the order needs more of one of them",
        eval->c->cap, blocks, fit, eval->host_slots, bl_bytes_format((uint64_t)eval->c->block_bytes, block));
  } else {
    snprintf(eval->c->why, sizeof eval->c->why, "%u block%s fit%s on a device, and balancing needs more", eval->c->cap,
             blocks, fit);
  }
}

// Parks blocks at c->cap.
static bl_status_t park(bl__evaluation_t *eval) {
  bl_balance_cap_t cap = {.slots = eval->c->cap,
                          .pairs_only = eval->c->policy == BL_POLICY_BPIPE,
                          .mode = eval->request->mode,
                          .copies = eval->copies};
  const bl_costs_t costs = bl__evaluation_costs(eval);
  bool takes_hosted;
  lend_host(eval, &cap);
  bl_balance_result_cleanup(&eval->balanced);
  bl_status_t status = bl_host_order_balance(eval->c->policy, eval->schedule, eval->hosted, &costs, &cap,
                                             &eval->balanced, &takes_hosted, NULL);
  if (status == BL_OK && eval->hosted != NULL) {
    status = bl__evaluation_count(eval, takes_hosted ? eval->hosted : eval->schedule);
  }
  if (status == BL_EXHAUSTED) {
    eval->c->fits = false;
    memset(eval->slots, 0, eval->c->stages * sizeof *eval->slots);
    tell_no_parking(eval);
    return BL_OK;
  }
  if (status != BL_OK) {
    return status;
  }
  count_slots(eval);
  count_host(eval);
  if (lends_nothing(eval)) {
    eval->c->fits = false;
    eval->c->host_bytes = 0;
    snprintf(eval->c->why, sizeof eval->c->why,
             "no device has room for blocks of others: all would be parked at the host");
    return BL_OK;
  }
  return bl__evaluation_measure(eval);
}

// Parks at the largest cap at which own and lent slots of every device fit.
static bl_status_t park_at_largest(bl__evaluation_t *eval, slot_range_t range) {
  eval->c->cap = range.short_slots;
  bl_status_t status = park(eval);
  while (status == BL_OK && !eval->c->fits && eval->c->cap > range.min_slots && eval->c->cap > 1) {
    eval->c->cap--;
    status = park(eval);
  }
  return status;
}

bl_status_t bl__fit_balance(bl__evaluation_t *eval) {
  slot_range_t range;
  bl_status_t status = find_range(eval, eval->peaks, &range);
  if (status == BL_OK && range.short_slots == 0) {
    return tell_no_room(eval);
  }
  if (status == BL_OK) {
    status = measure_copies(eval);
  }
  if (status == BL_OK) {
    status = find_host(eval);
  }
  if (status != BL_OK) {
    return status;
  }
  // An order searched for balancing may fit as it is.
  range.short_slots = range.short_slots == UINT32_MAX ? most_peak(eval) : range.short_slots;
  eval->c->cap = range.short_slots;
  return eval->c->policy == BL_POLICY_DROP   ? drop(eval)
         : eval->c->policy == BL_POLICY_AUTO ? mix(eval)
                                             : park_at_largest(eval, range);
}

// ---- orders within other limits than the schedule's own

static bl_status_t refuse(bl__evaluation_t *eval, const char *why) {
  eval->c->fits = false;
  snprintf(eval->c->why, sizeof eval->c->why, "%s", why);
  return BL_OK;
}

// Measures an order that was searched within memory.slots; each stage takes what its order needs.
static bl_status_t keep_within(bl__evaluation_t *eval) {
  for (uint32_t s = 0; s < eval->c->stages; s++) {
    if (eval->peaks[s] > eval->c->slots) {
      eval->c->fits = false;
      memset(eval->slots, 0, eval->c->stages * sizeof *eval->slots);
      snprintf(eval->c->why, sizeof eval->c->why, "no order was found that keeps %u block%s a device", eval->c->slots,
               bl_plural(eval->c->slots));
      return BL_OK;
    }
    eval->slots[s] = eval->peaks[s];
  }
  return bl__evaluation_measure(eval);
}

static bl_status_t search_within(bl__evaluation_t *eval, uint32_t slots) {
  eval->c->slots = slots;
  bl_status_t status = bl__evaluation_order(eval);
  if (status != BL_OK || eval->c->policy == BL_POLICY_NONE) {
    return status == BL_OK ? keep_within(eval) : status;
  }
  eval->c->cap = slots;
  return park(eval);
}

// Searches with `slots`, or fewer down to `least`. Each next search uses the slots of the devices that the former order
// overfilled, or one slot fewer if none did.
static bl_status_t search_down(bl__evaluation_t *eval, uint32_t slots, uint32_t least) {
  bl_status_t status = search_within(eval, slots);
  while (status == BL_OK && !eval->c->fits && slots > least) {
    slot_range_t range;
    status = find_range(eval, eval->slots, &range);
    slots = bl_min_u32(slots - 1, range.short_slots);
    slots = slots > least ? slots : least;
    status = status == BL_OK ? search_within(eval, slots) : status;
  }
  return status;
}

// Boundary buffers and kept inputs depend on the order. Those of the former order are for another number of slots than
// the order that is searched with them, usually a smaller number.
static bl_status_t search_fitting(bl__evaluation_t *eval) {
  const uint32_t blocks = bl__candidate_blocks(eval->c);
  const uint32_t least = eval->options.recompute == BL_RECOMPUTE_FULL ? 1 : blocks;
  const uint32_t max_slots = eval->c->micro_batches * blocks;
  slot_range_t range;
  bl_status_t status = find_range(eval, eval->peaks, &range);
  if (status == BL_OK && eval->c->policy != BL_POLICY_NONE) {
    status = measure_copies(eval);
  }
  if (status == BL_OK) {
    status = find_host(eval);
  }
  if (status != BL_OK) {
    return status;
  }
  uint32_t slots = bl_min_u32(range.short_slots, max_slots);
  status = search_down(eval, slots > least ? slots : least, least);
  if (status == BL_OK && eval->c->fits) {
    slots = eval->c->slots;
    status = find_range(eval, eval->peaks, &range);
    const uint32_t more = bl_min_u32(range.short_slots != UINT32_MAX ? range.short_slots : range.min_slots, max_slots);
    if (status == BL_OK && more > slots) {
      status = search_down(eval, more, slots);
    }
  } else if (status == BL_OK && eval->c->policy == BL_POLICY_NONE && eval->c->chunks == 1) {
    status = bl__evaluation_move_layers(eval);
  }
  if (status == BL_OK && eval->c->fits && eval->c->policy != BL_POLICY_NONE && eval->c->evictions == 0) {
    eval->c->fits = false;
    snprintf(eval->c->why, sizeof eval->c->why, "the order found for %u block%s a device parks none", eval->c->slots,
             bl_plural(eval->c->slots));
  }
  return status;
}

// Tries at most twice the schedule's own limit. By then the warm-up is as long as more slots could make it.
static bl_status_t search_larger(bl__evaluation_t *eval) {
  const uint32_t own = most_peak(eval), max_slots = eval->c->micro_batches * bl__candidate_blocks(eval->c);
  slot_range_t range;
  bl_status_t status = find_range(eval, eval->peaks, &range);
  uint32_t slots = bl_min_u32(bl_min_u32(range.min_slots, max_slots), 2 * own);
  if (status != BL_OK || slots <= own) {
    return status == BL_OK ? refuse(eval, "no more slots than the schedule's own limit fit, or are of use") : status;
  }
  return search_down(eval, slots, own + 1);
}

static bl_status_t squeeze_within(bl__evaluation_t *eval, uint32_t slots) {
  eval->c->slots = slots;
  eval->c->fits = false;
  bl_status_t status = bl__evaluation_order(eval);
  return status == BL_OK ? bl__fit_balance(eval) : status;
}

// Tries an eighth, a quarter and half of the way from what fits to the schedule's own limit, and takes the fastest.
static bl_status_t search_between(bl__evaluation_t *eval) {
  static const double shares[] = {0.125, 0.25, 0.5};
  const uint32_t own = most_peak(eval);
  slot_range_t range;
  double best = INFINITY;
  uint32_t of_best = 0, before = 0;
  bl_status_t status = find_range(eval, eval->peaks, &range);
  if (status == BL_OK) { // what an order made for the host is judged by
    status = measure_copies(eval);
  }
  if (status == BL_OK) {
    status = find_host(eval);
  }
  if (status == BL_OK && range.short_slots >= own) {
    return refuse(eval, "nothing lies between what fits and the schedule's own limit");
  }
  for (size_t i = 0; i < sizeof shares / sizeof shares[0] && status == BL_OK; i++) {
    const uint32_t slots = range.short_slots + (uint32_t)ceil(shares[i] * (own - range.short_slots));
    if (slots >= own || slots == before || slots < bl__candidate_blocks(eval->c)) {
      continue;
    }
    before = slots;
    status = squeeze_within(eval, slots);
    if (status == BL_OK && eval->c->fits) {
      status = bl__evaluation_time(eval);
    }
    if (status == BL_OK && eval->c->fits && eval->c->step < best) {
      best = eval->c->step;
      of_best = slots;
    }
  }
  if (status != BL_OK || isinf(best)) {
    return status == BL_OK && eval->c->why[0] == '\0'
               ? refuse(eval, "nothing lies between what fits and the schedule's own limit")
               : status;
  }
  return squeeze_within(eval, of_best);
}

bl_status_t bl__fit_limit(bl__evaluation_t *eval) {
  return eval->c->limit == BL_PLAN_LIMIT_FITTING  ? search_fitting(eval)
         : eval->c->limit == BL_PLAN_LIMIT_LARGER ? search_larger(eval)
                                                  : search_between(eval);
}
