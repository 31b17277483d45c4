// SPDX-License-Identifier: Apache-2.0
#include "model/shard.h"

#include "base/bytes.h"
#include "base/minmax.h"
#include "model/resident.h"

#include <string.h>

#define CACHE_LINE_ELEMENTS (BL_CACHE_LINE_BYTES / sizeof(float))

static uint32_t shares_of(const bl_ownership_t *ownership, const bl_parameter_place_t *place) {
  return place->unit == 0 ? 1 : bl_grid_shares(bl_copies_parts(ownership->copies));
}

bl_shard_range_t bl_shard_share(const bl_parameter_place_t *place, uint32_t number, uint32_t of) {
  if (place->unit == 0) {
    return (bl_shard_range_t){.count = place->elements};
  }
  const uint64_t units = (place->elements + place->unit - 1) / place->unit;
  const uint64_t first = units * number / of * place->unit, end = units * (number + 1) / of * place->unit;
  return (bl_shard_range_t){.first = first, .count = bl_min_u64(end, place->elements) - first};
}

// ---- cuts of the layers

typedef struct cutting {
  bl_ownership_t *ownership;
  uint64_t first, all; // elements of the layers
  uint32_t next;       // the next cut
  uint64_t last;       // where the arena could be cut last
} cutting_t;

// Returns where the next cut would be if it could be anywhere.
static uint64_t wanted(const cutting_t *c) {
  const bl_ownership_t *o = c->ownership;
  const uint32_t copies = bl_copies_count(o->copies);
  const uint64_t below = (o->below[copies] + c->all) * c->next / copies;
  return c->first + (below > o->below[c->next] ? bl_min_u64(below - o->below[c->next], c->all) : 0);
}

// The arena can be cut at `at`: makes the cuts that are not wanted after it, there or where it could be cut before.
static void offer(cutting_t *c, uint64_t at) {
  uint64_t *cuts = c->ownership->cuts;
  for (; c->next < bl_copies_count(c->ownership->copies) && wanted(c) <= at; c->next++) {
    const uint64_t here = wanted(c), nearest = here < c->last || here - c->last < at - here ? c->last : at;
    cuts[c->next] = bl_max_u64(nearest, cuts[c->next - 1]);
  }
  c->last = at;
}

// Offers the beginnings of a place, and of its shares if a cut is wanted before the place ends.
static void offer_place(cutting_t *c, const bl_parameter_place_t *place) {
  offer(c, place->offset_elements);
  const uint32_t shares = shares_of(c->ownership, place);
  for (uint32_t k = 1; k < shares && wanted(c) < place->offset_elements + place->elements; k++) {
    offer(c, place->offset_elements + bl_shard_share(place, k, shares).first);
  }
}

void bl_shard_cut(bl_ownership_t *ownership, const bl_parameter_place_t *places, uint32_t count) {
  const uint32_t copies = bl_copies_count(ownership->copies);
  uint32_t first = 0, end = count;
  while (first < count && places[first].table) {
    first++;
  }
  while (end > first && places[end - 1].table) {
    end--;
  }
  if (bl_copies_pipes(ownership->copies) > 1) {
    memset(ownership->below, 0, sizeof ownership->below);
  }
  cutting_t c = {.ownership = ownership, .next = 1};
  if (end > first) {
    c.first = c.last = places[first].offset_elements;
    c.all = places[end - 1].offset_elements + places[end - 1].reserved_elements - c.first;
  }
  ownership->cuts[0] = c.first;
  for (uint32_t i = first; i < end; i++) {
    offer_place(&c, &places[i]);
  }
  offer(&c, c.first + c.all);
  ownership->cuts[copies] = c.first + c.all;
  for (uint32_t k = 0; k <= copies; k++) {
    ownership->below[k] += ownership->cuts[k] - c.first;
  }
}

// ---- what a copy owns

// Returns the shares of a place that begin before element `cut` of the arena.
static uint32_t shares_before(const bl_parameter_place_t *place, uint32_t of, uint64_t cut) {
  uint32_t count = cut >= place->offset_elements + place->elements ? of : 0;
  while (count < of && place->offset_elements + bl_shard_share(place, count, of).first < cut) {
    count++;
  }
  return count;
}

bl_shard_shares_t bl_shard_shares(const bl_ownership_t *ownership, const bl_parameter_place_t *place, uint32_t copy) {
  const uint32_t of = shares_of(ownership, place), copies = bl_copies_count(ownership->copies),
                 pipes = bl_copies_pipes(ownership->copies);
  if (copies == 1) {
    return (bl_shard_shares_t){.count = of, .of = of};
  }
  if (place->tied && pipes > 1) {
    const uint32_t each = of / (copies / pipes);
    return (bl_shard_shares_t){.first = copy / pipes * each, .count = copy % pipes == 0 ? each : 0, .of = of};
  }
  if (place->table) {
    return (bl_shard_shares_t){.first = of / copies * copy, .count = of / copies, .of = of};
  }
  const uint32_t first = shares_before(place, of, ownership->cuts[copy]);
  return (bl_shard_shares_t){
      .first = first, .count = shares_before(place, of, ownership->cuts[copy + 1]) - first, .of = of};
}

bl_shard_range_t bl_shard_range(const bl_ownership_t *ownership, const bl_parameter_place_t *place, uint32_t copy) {
  const bl_shard_shares_t shares = bl_shard_shares(ownership, place, copy);
  if (shares.count == 0) {
    return (bl_shard_range_t){0};
  }
  const bl_shard_range_t first = bl_shard_share(place, shares.first, shares.of),
                         last = bl_shard_share(place, shares.first + shares.count - 1, shares.of);
  return (bl_shard_range_t){.first = first.first, .count = last.first + last.count - first.first};
}

bl_shard_range_t bl_shard_message(const bl_ownership_t *ownership, const bl_parameter_place_t *places, uint32_t i,
                                  uint32_t copy) {
  if (places[i].table) {
    bl_shard_range_t range = bl_shard_range(ownership, &places[i], copy);
    range.first += places[i].offset_elements;
    return range;
  }
  if (i > 0 && !places[i - 1].table) {
    return (bl_shard_range_t){0};
  }
  const uint64_t *cuts = &ownership->cuts[copy];
  return (bl_shard_range_t){.first = cuts[0], .count = cuts[1] - cuts[0]};
}

uint32_t bl_shard_squares(const bl_ownership_t *ownership, const bl_parameter_place_t *places, uint32_t count,
                          uint32_t copy) {
  uint32_t squares = 0;
  for (uint32_t i = 0; i < count; i++) {
    squares += bl_shard_shares(ownership, &places[i], copy).count;
  }
  return squares;
}

// Places what `copy` owns of the places that are not resident (NULL: of all places).
static uint64_t place_owned(const bl_ownership_t *ownership, const bl_parameter_place_t *places, uint32_t count,
                            uint32_t copy, const uint64_t *resident, uint64_t *offsets) {
  const bool alone = bl_copies_count(ownership->copies) == 1;
  uint64_t end = 0;
  for (uint32_t i = 0; i < count; i++) {
    const bool placed = resident == NULL || resident[i] == BL_RESIDENT_NOWHERE;
    const bl_shard_range_t range =
        placed ? bl_shard_range(ownership, &places[i], copy) : (bl_shard_range_t){.count = 0};
    const uint64_t offset = alone ? places[i].offset_elements : end;
    if (range.count > 0 && offsets != NULL) {
      offsets[i] = offset;
    }
    if (range.count > 0) {
      end = alone ? offset + places[i].reserved_elements : bl_align_up(offset + range.count, CACHE_LINE_ELEMENTS);
    }
  }
  return bl_align_up(end, CACHE_LINE_ELEMENTS);
}

uint64_t bl_shard_moments(const bl_ownership_t *ownership, const bl_parameter_place_t *places, uint32_t count,
                          uint32_t copy, uint64_t *offsets) {
  return place_owned(ownership, places, count, copy, NULL, offsets);
}

uint64_t bl_shard_masters(const bl_ownership_t *ownership, const bl_parameter_place_t *places, uint32_t count,
                          uint32_t copy, const uint64_t *resident, uint64_t *offsets) {
  return place_owned(ownership, places, count, copy, resident, offsets);
}
