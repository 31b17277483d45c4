// SPDX-License-Identifier: Apache-2.0
// An order that does not fit as it is: blocks parked or made again, or an order that is searched within fewer.
#include "plan/candidate/trying.h"

#include "base/bytes.h"
#include "base/minmax.h"
#include "base/words.h"
#include "schedule/balance/drop.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t most_peak(const bl__trying_t *a) {
  uint32_t most = 0;
  for (uint32_t s = 0; s < a->c->stages; s++) {
    most = a->peaks[s] > most ? a->peaks[s] : most;
  }
  return most;
}

// Slots of a device: as many as fit on every one, and as many as fit where fewer do than `needed` [stages].
typedef struct room {
  uint32_t least, most;
} room_t;

static bl_status_t find_room(const bl__trying_t *a, const uint32_t *needed, room_t *room) {
  *room = (room_t){UINT32_MAX, UINT32_MAX};
  for (uint32_t s = 0; s < a->c->stages; s++) {
    bl_footprint_t footprint;
    bl_status_t status = bl__trying_footprint(a, s, 0, &footprint);
    if (status != BL_OK) {
      return status;
    }
    double left = (a->request->memory - bl_footprint_total(&footprint)) / footprint.slot_bytes;
    uint32_t slots = (uint32_t)fmin(UINT32_MAX, floor(fmax(0, left)));
    slots = a->request->memory > 0 ? slots : UINT32_MAX;
    room->least = slots < room->least ? slots : room->least;
    room->most = slots < needed[s] && slots < room->most ? slots : room->most;
  }
  return BL_OK;
}

// Of the stage that has least room.
static bl_status_t tell_no_room(bl__trying_t *a) {
  char block[BL_BYTES_TEXT], rest[BL_BYTES_TEXT], limit[BL_BYTES_TEXT];
  double least = INFINITY;
  for (uint32_t s = 0; s < a->c->stages; s++) {
    bl_footprint_t footprint;
    bl_status_t status = bl__trying_footprint(a, s, 0, &footprint);
    if (status != BL_OK) {
      return status;
    }
    const double left = a->request->memory - bl_footprint_total(&footprint);
    if (left < footprint.slot_bytes && left < least) {
      least = left;
      snprintf(
          a->c->why, sizeof a->c->why,
          "not one activation block of %s fits beside %s of weights, gradients, optimizer and buffers on stage %u: a "
          "device has %s",
          bl_bytes_format((uint64_t)footprint.slot_bytes, block),
          bl_bytes_format((uint64_t)bl_footprint_total(&footprint), rest), s,
          bl_bytes_format((uint64_t)a->request->memory, limit));
    }
  }
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

// What is parked on the fullest machine.
static void count_host(bl__trying_t *a) {
  const uint32_t stages = a->c->stages, stores = a->balanced.stores;
  a->c->host_bytes = 0;
  for (uint32_t h = stages; h < stores; h++) {
    uint32_t blocks = 0;
    for (uint32_t s = 0; s < stages; s++) {
      blocks += a->balanced.reserved[(size_t)s * stores + h];
    }
    a->c->host_bytes = fmax(a->c->host_bytes, (double)blocks * a->host.planes * a->c->block_bytes);
  }
}

// Whether devices take no blocks although they may: then the policy is offload under another name.
static bool lends_nothing(const bl__trying_t *a) {
  const uint32_t stages = a->c->stages, stores = a->balanced.stores;
  uint32_t lent = 0;
  for (uint32_t i = 0; i < stages * stores; i++) {
    lent += i % stores < stages ? a->balanced.reserved[i] : 0;
  }
  return a->c->policy != BL_POLICY_OFFLOAD && stores > stages && lent == 0 && a->c->evictions > 0;
}

#define ROOM_BYTES 65536 // our executor's stores lend multiples of this

// Which memory of hosts stages reach, and for how many blocks.
static bl_status_t find_host(bl__trying_t *a) {
  const bl_plan_request_t *r = a->request;
  if (r->host.bytes <= 0 || !(bl_policy_copies(a->c->policy) || a->c->policy == BL_POLICY_AUTO) || a->host.count > 0) {
    return BL_OK;
  }
  bl_status_t status = bl_host_places_init(&a->host, &r->host, &r->cluster, a->c->order, a->c->stages, a->c->parallel);
  double most = 0;
  for (uint32_t s = 0; s < a->c->stages && status == BL_OK; s++) {
    bl_footprint_t footprint;
    status = bl__trying_footprint(a, s, 0, &footprint);
    most = fmax(most, status == BL_OK ? footprint.evict_bytes : 0);
  }
  if (status == BL_OK) {
    a->c->block_bytes = bl__trying_on_cluster(a) ? most : ROOM_BYTES * ceil(most / ROOM_BYTES);
    a->host_slots = bl_host_slots(&r->host, &a->host, a->c->block_bytes);
  }
  return status;
}

static void lend_host(const bl__trying_t *a, bl_balance_cap_t *cap) {
  cap->hosts = a->host_slots > 0 ? a->host.count : 0;
  cap->host_of = a->host.of;
  cap->host_slots = a->host_slots;
  cap->host_only = a->c->policy == BL_POLICY_OFFLOAD;
}

// Inside a node copies are shorter.
static bl_status_t measure_copies(bl__trying_t *a) {
  const uint32_t stages = a->c->stages;
  bl_nodes_t nodes;
  if (!bl__trying_on_cluster(a) || a->copies != NULL) {
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
  bl_balance_cap_t cap = {.slots = a->c->cap, .mode = a->request->mode, .copies = a->copies, .copy = copy};
  const bl_parallel_t parallel = a->c->parallel;
  lend_host(a, &cap);
  bl_balance_result_cleanup(&a->balanced);
  bl_status_t status = bl_balance_within(a->schedule, &cap, &a->balanced, NULL);
  if (status != BL_OK) {
    return status;
  }
  count_slots(a);
  count_host(a);
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

static void tell_no_parking(bl__trying_t *a) {
  const char *blocks = bl_plural(a->c->cap), *fit = bl_one_or_many(a->c->cap, "s", "");
  if (a->c->policy == BL_POLICY_OFFLOAD) {
    char block[BL_BYTES_TEXT];
    snprintf(
        a->c->why, sizeof a->c->why,
        "%u block%s fit%s on a device, and the host has room for %u of %s each: the order needs more of one of them",
        a->c->cap, blocks, fit, a->host_slots, bl_bytes_format((uint64_t)a->c->block_bytes, block));
  } else {
    snprintf(a->c->why, sizeof a->c->why, "%u block%s fit%s on a device, and balancing needs more", a->c->cap, blocks,
             fit);
  }
}

// At c->cap.
static bl_status_t park(bl__trying_t *a) {
  bl_balance_cap_t cap = {
      .slots = a->c->cap, .pairs_only = a->c->policy == BL_POLICY_BPIPE, .mode = a->request->mode, .copies = a->copies};
  lend_host(a, &cap);
  bl_balance_result_cleanup(&a->balanced);
  bl_status_t status = bl_balance_within(a->schedule, &cap, &a->balanced, NULL);
  if (status == BL_EXHAUSTED) {
    a->c->fits = false;
    memset(a->slots, 0, a->c->stages * sizeof *a->slots);
    tell_no_parking(a);
    return BL_OK;
  }
  if (status != BL_OK) {
    return status;
  }
  count_slots(a);
  count_host(a);
  if (lends_nothing(a)) {
    a->c->fits = false;
    a->c->host_bytes = 0;
    snprintf(a->c->why, sizeof a->c->why, "no device has room for blocks of others: all would be parked at the host");
    return BL_OK;
  }
  return bl__trying_measure(a);
}

// Lent slots count, too: at the largest cap with which those of every device fit.
static bl_status_t park_at_largest(bl__trying_t *a, room_t room) {
  a->c->cap = room.most;
  bl_status_t status = park(a);
  while (status == BL_OK && !a->c->fits && a->c->cap > room.least && a->c->cap > 1) {
    a->c->cap--;
    status = park(a);
  }
  return status;
}

bl_status_t bl__squeeze_balance(bl__trying_t *a) {
  room_t room;
  bl_status_t status = find_room(a, a->peaks, &room);
  if (status == BL_OK && room.most == 0) {
    return tell_no_room(a);
  }
  if (status == BL_OK) {
    status = measure_copies(a);
  }
  if (status == BL_OK) {
    status = find_host(a);
  }
  if (status != BL_OK) {
    return status;
  }
  room.most = room.most == UINT32_MAX ? most_peak(a) : room.most; // an order made for balancing may fit as it is
  a->c->cap = room.most;
  return a->c->policy == BL_POLICY_DROP ? drop(a) : a->c->policy == BL_POLICY_AUTO ? mix(a) : park_at_largest(a, room);
}

// ---- orders within other limits than the schedule's own

static bl_status_t refuse(bl__trying_t *a, const char *why) {
  a->c->fits = false;
  snprintf(a->c->why, sizeof a->c->why, "%s", why);
  return BL_OK;
}

// A stage takes what its order needs of memory.slots.
static bl_status_t keep_within(bl__trying_t *a) {
  for (uint32_t s = 0; s < a->c->stages; s++) {
    if (a->peaks[s] > a->c->slots) {
      a->c->fits = false;
      memset(a->slots, 0, a->c->stages * sizeof *a->slots);
      snprintf(a->c->why, sizeof a->c->why, "no order was found that keeps %u block%s a device", a->c->slots,
               bl_plural(a->c->slots));
      return BL_OK;
    }
    a->slots[s] = a->peaks[s];
  }
  return bl__trying_measure(a);
}

static bl_status_t search_within(bl__trying_t *a, uint32_t slots) {
  a->c->slots = slots;
  bl_status_t status = bl__trying_order(a);
  if (status != BL_OK || a->c->policy == BL_POLICY_NONE) {
    return status == BL_OK ? keep_within(a) : status;
  }
  a->c->cap = slots;
  return park(a);
}

// With `slots`, or fewer down to `least`: as many as the devices have that the order before asked too much of, or one
// fewer where that was not why.
static bl_status_t search_down(bl__trying_t *a, uint32_t slots, uint32_t least) {
  bl_status_t status = search_within(a, slots);
  while (status == BL_OK && !a->c->fits && slots > least) {
    room_t room;
    status = find_room(a, a->slots, &room);
    slots = bl_min_u32(slots - 1, room.most);
    slots = slots > least ? slots : least;
    status = status == BL_OK ? search_within(a, slots) : status;
  }
  return status;
}

// Boundary buffers and kept inputs are the order's own: the order before allows for other slots than the one that is
// made for them, mostly for fewer.
static bl_status_t search_fitting(bl__trying_t *a) {
  const uint32_t least = a->options.recompute == BL_RECOMPUTE_FULL ? 1 : a->c->chunks;
  const uint32_t most = a->c->micro_batches * a->c->chunks;
  room_t room;
  bl_status_t status = find_room(a, a->peaks, &room);
  if (status == BL_OK && a->c->policy != BL_POLICY_NONE) {
    status = measure_copies(a);
  }
  if (status == BL_OK) {
    status = find_host(a);
  }
  if (status != BL_OK) {
    return status;
  }
  uint32_t slots = bl_min_u32(room.most, most);
  status = search_down(a, slots > least ? slots : least, least);
  if (status == BL_OK && a->c->fits) {
    slots = a->c->slots;
    status = find_room(a, a->peaks, &room);
    const uint32_t more = bl_min_u32(room.most != UINT32_MAX ? room.most : room.least, most);
    if (status == BL_OK && more > slots) {
      status = search_down(a, more, slots);
    }
  } else if (status == BL_OK && a->c->policy == BL_POLICY_NONE && a->c->chunks == 1) {
    status = bl__trying_move_layers(a);
  }
  if (status == BL_OK && a->c->fits && a->c->policy != BL_POLICY_NONE && a->c->evictions == 0) {
    a->c->fits = false;
    snprintf(a->c->why, sizeof a->c->why, "the order found for %u block%s a device parks none", a->c->slots,
             bl_plural(a->c->slots));
  }
  return status;
}

// Twice its own at most: what more would be for has been warmed up by then.
static bl_status_t search_larger(bl__trying_t *a) {
  const uint32_t own = most_peak(a), most = a->c->micro_batches * a->c->chunks;
  room_t room;
  bl_status_t status = find_room(a, a->peaks, &room);
  uint32_t slots = bl_min_u32(bl_min_u32(room.least, most), 2 * own);
  if (status != BL_OK || slots <= own) {
    return status == BL_OK ? refuse(a, "no more slots than the schedule's own limit fit, or are of use") : status;
  }
  return search_down(a, slots, own + 1);
}

static bl_status_t squeeze_within(bl__trying_t *a, uint32_t slots) {
  a->c->slots = slots;
  a->c->fits = false;
  bl_status_t status = bl__trying_order(a);
  return status == BL_OK ? bl__squeeze_balance(a) : status;
}

// A quarter of the way from what fits to the schedule's own limit, or half of it: whichever is faster.
static bl_status_t search_between(bl__trying_t *a) {
  static const double shares[] = {0.125, 0.25, 0.5};
  const uint32_t own = most_peak(a);
  room_t room;
  double best = INFINITY;
  uint32_t of_best = 0, before = 0;
  bl_status_t status = find_room(a, a->peaks, &room);
  if (status == BL_OK && room.most >= own) {
    return refuse(a, "nothing lies between what fits and the schedule's own limit");
  }
  for (size_t i = 0; i < sizeof shares / sizeof shares[0] && status == BL_OK; i++) {
    const uint32_t slots = room.most + (uint32_t)ceil(shares[i] * (own - room.most));
    if (slots >= own || slots == before || slots < a->c->chunks) {
      continue;
    }
    before = slots;
    status = squeeze_within(a, slots);
    if (status == BL_OK && a->c->fits) {
      status = bl__trying_time(a);
    }
    if (status == BL_OK && a->c->fits && a->c->step < best) {
      best = a->c->step;
      of_best = slots;
    }
  }
  if (status != BL_OK || isinf(best)) {
    return status == BL_OK && a->c->why[0] == '\0'
               ? refuse(a, "nothing lies between what fits and the schedule's own limit")
               : status;
  }
  return squeeze_within(a, of_best);
}

bl_status_t bl__squeeze_limit(bl__trying_t *a) {
  return a->c->limit == BL_PLAN_LIMIT_FITTING  ? search_fitting(a)
         : a->c->limit == BL_PLAN_LIMIT_LARGER ? search_larger(a)
                                               : search_between(a);
}
