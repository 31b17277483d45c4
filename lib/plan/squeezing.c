// SPDX-License-Identifier: Apache-2.0
// An order that does not fit as it is: blocks parked or made again, or an order that is searched within fewer.
#include "base/words.h"
#include "plan/trying.h"

#include "schedule/drop.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The slots that fit on the fullest device.
static bl_status_t largest_cap(const bl__trying_t *a, uint32_t *cap) {
  double least = UINT32_MAX;
  for (uint32_t s = 0; s < a->c->stages; s++) {
    bl_footprint_t footprint;
    bl_status_t status = bl__trying_footprint(a, s, 0, &footprint);
    if (status != BL_OK) {
      return status;
    }
    double room = (a->request->memory - bl_footprint_total(&footprint)) / footprint.slot_bytes;
    least = fmin(least, floor(fmax(0, room)));
  }
  *cap = (uint32_t)least;
  return BL_OK;
}

// Gives up what the cap has no room for. `edges` [stages]: boundary buffers without the inputs that are kept for that.
static bl_status_t drop_at_cap(bl__trying_t *a, const uint32_t *edges, uint32_t *dropped) {
  const bl_parallel_t parallel = a->c->parallel;
  bl_schedule_destroy(a->balanced.schedule);
  a->balanced.schedule = NULL;
  bl_status_t status = bl_schedule_drop(a->schedule, a->c->cap, &a->balanced.schedule, dropped, NULL);
  a->c->dropped = 0;
  for (uint32_t s = 0; s < a->c->stages && status == BL_OK; s++) {
    uint32_t gone = a->peaks[s] > a->c->cap ? a->peaks[s] - a->c->cap : 0;
    a->c->dropped += dropped[s];
    a->slots[s] = a->peaks[s] - gone;
    // Our executor's plan has them as edges already; tensor parallelism alone leaves them whole.
    a->edges[s] = edges[s] + (bl__trying_on_cluster(a) ? gone * (parallel.sequence ? 1 : parallel.tensor) : 0);
  }
  return status == BL_OK ? bl__trying_measure(a) : status;
}

// Blocks above the cap are made again from their kept inputs, which need room, too; nothing moves.
static bl_status_t drop(bl__trying_t *a) {
  uint32_t *dropped = a->numbers + 3 * (size_t)a->c->stages + a->chunks, *edges = dropped + a->c->stages;
  memcpy(edges, a->edges, a->c->stages * sizeof *edges);
  bl_status_t status = drop_at_cap(a, edges, dropped);
  while (status == BL_OK && !a->c->fits && a->c->cap > 1) {
    a->c->cap--;
    status = drop_at_cap(a, edges, dropped);
  }
  if (status == BL_EXHAUSTED) {
    a->c->fits = false;
    snprintf(a->c->why, sizeof a->c->why, "%u block%s fit%s on a device, and giving up the rest needs more", a->c->cap,
             bl_plural(a->c->cap), bl_one_or_many(a->c->cap, "s", ""));
    return BL_OK;
  }
  return status;
}

// Own and lent slots of every device under the cap.
static void count_slots(bl__trying_t *a) {
  a->c->evictions = a->c->dropped = 0;
  for (uint32_t s = 0; s < a->c->stages; s++) {
    a->c->evictions += a->balanced.evictions[s];
    a->c->dropped += a->balanced.dropped[s];
    uint32_t own = a->peaks[s] < a->c->cap ? a->peaks[s] : a->c->cap, lent = 0;
    for (uint32_t other = 0; other < a->c->stages; other++) {
      lent += a->balanced.reserved[(size_t)other * a->balanced.stores + s];
    }
    a->slots[s] = own + lent;
  }
}

// Inside a node copies are shorter.
static bl_status_t measure_copies(bl__trying_t *a) {
  const uint32_t stages = a->c->stages;
  bl_nodes_t nodes;
  if (!bl__trying_on_cluster(a)) {
    return BL_OK;
  }
  bl_status_t status = bl_nodes_init(&nodes, &a->request->cluster, a->c->order, stages, a->c->parallel.tensor);
  if (status != BL_OK) {
    return status;
  }
  if (bl_nodes_spread(&nodes)) {
    a->copies = malloc((size_t)stages * stages * sizeof *a->copies);
    status = a->copies != NULL ? BL_OK : BL_EXHAUSTED;
  }
  for (uint32_t s = 0; a->copies != NULL && s < stages; s++) {
    for (uint32_t d = 0; d < stages; d++) {
      a->copies[(size_t)s * stages + d] = bl_nodes_copy(&nodes, s, d);
    }
  }
  bl_nodes_cleanup(&nodes);
  return status;
}

static bl_status_t mix_at_cap(bl__trying_t *a, const uint32_t *edges, double copy) {
  const bl_balance_cap_t cap = {.slots = a->c->cap, .mode = a->request->mode, .copies = a->copies, .copy = copy};
  const bl_parallel_t parallel = a->c->parallel;
  bl_balance_result_cleanup(&a->balanced);
  bl_status_t status = bl_balance_within(a->schedule, &cap, &a->balanced, NULL);
  if (status != BL_OK) {
    return status;
  }
  count_slots(a);
  for (uint32_t s = 0; s < a->c->stages;
       s++) { // of kept inputs, as in drop_at_cap; those of parked blocks are among them
    uint32_t gone = a->peaks[s] > a->c->cap && a->balanced.dropped[s] > 0 ? a->peaks[s] - a->c->cap : 0;
    a->edges[s] = edges[s] + (bl__trying_on_cluster(a) ? gone * (parallel.sequence ? 1 : parallel.tensor) : 0);
  }
  return bl__trying_measure(a);
}

// As many slots as leave room for kept inputs.
static bl_status_t mix_at_largest(bl__trying_t *a, const uint32_t *edges, double copy, uint32_t largest) {
  a->c->cap = largest;
  bl_status_t status = mix_at_cap(a, edges, copy);
  while (status == BL_OK && !a->c->fits && a->c->cap > 1) {
    a->c->cap--;
    status = mix_at_cap(a, edges, copy);
  }
  return status;
}

// Some blocks are parked and some made again: the best of some lengths that a copy may be taken to have, in forwards.
static bl_status_t mix(bl__trying_t *a) {
  static const double copies[] = {0.25, 0.5, 1, 2};
  uint32_t *edges = a->numbers + 4 * (size_t)a->c->stages + a->chunks, largest = a->c->cap;
  double best = INFINITY, of_best = 0;
  memcpy(edges, a->edges, a->c->stages * sizeof *edges);
  for (size_t i = 0; i < sizeof copies / sizeof copies[0]; i++) {
    bl_status_t status = mix_at_largest(a, edges, copies[i], largest);
    bool both = status == BL_OK && a->c->fits && a->c->evictions > 0 && a->c->dropped > 0;
    status = both ? bl__trying_time(a) : status == BL_EXHAUSTED ? BL_OK : status;
    if (status != BL_OK) {
      return status;
    }
    if (both && a->c->step < best) {
      best = a->c->step;
      of_best = copies[i];
    }
  }
  if (isinf(best)) {
    a->c->fits = false;
    snprintf(a->c->why, sizeof a->c->why, "at %u block%s a device all that leave are parked, or all are made again",
             largest, bl_plural(largest));
    return BL_OK;
  }
  return mix_at_largest(a, edges, of_best, largest);
}

// At c->cap.
static bl_status_t park(bl__trying_t *a) {
  const bl_balance_cap_t cap = {
      .slots = a->c->cap, .pairs_only = a->c->policy == BL_PLAN_BPIPE, .mode = a->request->mode, .copies = a->copies};
  bl_balance_result_cleanup(&a->balanced);
  bl_status_t status = bl_balance_within(a->schedule, &cap, &a->balanced, NULL);
  if (status == BL_EXHAUSTED) {
    a->c->fits = false;
    snprintf(a->c->why, sizeof a->c->why, "%u block%s fit%s on a device, and balancing needs more", a->c->cap,
             bl_plural(a->c->cap), bl_one_or_many(a->c->cap, "s", ""));
    return BL_OK;
  }
  if (status != BL_OK) {
    return status;
  }
  count_slots(a);
  return bl__trying_measure(a);
}

bl_status_t bl__squeeze_balance(bl__trying_t *a) {
  bl_status_t status = largest_cap(a, &a->c->cap);
  if (status != BL_OK) {
    return status;
  }
  if (a->c->cap == 0) {
    snprintf(a->c->why, sizeof a->c->why, "not one activation block fits beside weights and optimizer");
    return BL_OK;
  }
  status = measure_copies(a);
  if (status != BL_OK) {
    return status;
  }
  if (a->c->policy == BL_PLAN_DROP || a->c->policy == BL_PLAN_AUTO) {
    return a->c->policy == BL_PLAN_DROP ? drop(a) : mix(a);
  }
  return park(a);
}

// ---- orders within fewer slots

// A run with memory.slots has as many on every device.
static bl_status_t keep_within(bl__trying_t *a) {
  for (uint32_t s = 0; s < a->c->stages; s++) {
    if (a->peaks[s] > a->c->slots) {
      a->c->fits = false;
      snprintf(a->c->why, sizeof a->c->why, "no order was found that keeps %u block%s a device", a->c->slots,
               bl_plural(a->c->slots));
      return BL_OK;
    }
    a->slots[s] = a->c->slots;
  }
  return bl__trying_measure(a);
}

static bl_status_t search_within(bl__trying_t *a, uint32_t slots) {
  a->c->slots = slots;
  bl_status_t status = bl__trying_order(a);
  if (status != BL_OK || a->c->policy == BL_PLAN_NONE) {
    return status == BL_OK ? keep_within(a) : status;
  }
  a->c->cap = slots;
  return park(a);
}

// With `slots`, or one fewer and so on down to `least`.
static bl_status_t search_down(bl__trying_t *a, uint32_t slots, uint32_t least) {
  bl_status_t status = search_within(a, slots);
  while (status == BL_OK && !a->c->fits && slots > least) {
    status = search_within(a, --slots);
  }
  return status;
}

// Boundary buffers and kept inputs are the order's own: the order before allows for other slots than the one that is
// made for them, mostly for fewer.
bl_status_t bl__squeeze_limit(bl__trying_t *a) {
  const uint32_t least = a->options.recompute == BL_RECOMPUTE_FULL ? 1 : a->c->chunks;
  const uint32_t most = a->c->micro_batches * a->c->chunks;
  uint32_t slots, more;
  bl_status_t status = largest_cap(a, &slots);
  if (status == BL_OK && a->c->policy != BL_PLAN_NONE) {
    status = measure_copies(a);
  }
  if (status != BL_OK) {
    return status;
  }
  slots = slots > most ? most : slots;
  status = search_down(a, slots > least ? slots : least, least);
  if (status == BL_OK && a->c->fits) {
    slots = a->c->slots;
    status = largest_cap(a, &more);
    more = status == BL_OK && more < most ? more : most;
    if (status == BL_OK && more > slots) {
      status = search_down(a, more, slots);
    }
  } else if (status == BL_OK && a->c->policy == BL_PLAN_NONE && a->c->chunks == 1) {
    status = bl__trying_move_layers(a);
  }
  if (status == BL_OK && a->c->fits && a->c->policy != BL_PLAN_NONE && a->c->evictions == 0) {
    a->c->fits = false;
    snprintf(a->c->why, sizeof a->c->why, "the order found for %u block%s a device parks none", a->c->slots,
             bl_plural(a->c->slots));
  }
  return status;
}
