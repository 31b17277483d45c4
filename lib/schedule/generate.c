// SPDX-License-Identifier: Apache-2.0
#include "schedule/generate.h"

#include "schedule/generate/sliced.h"
#include "schedule/ir/recompute.h"
#include "schedule/names.h"
#include "schedule/search/cut.h"
#include "schedule/search/drain.h"
#include "schedule/search/named_sliced.h"
#include "schedule/search/pooled.h"
#include "schedule/search/search.h"
#include "schedule/search/searched.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum chunks_rule { CHUNKS_ONE, CHUNKS_TWO, CHUNKS_ANY, CHUNKS_SEVERAL } chunks_rule_t;

// One row per name (names.h): what users may ask for, and the generator that implements it.
#define LOOPED        BL_PLACEMENT_LOOPED
#define VSHAPED       BL_PLACEMENT_V
#define BIDIRECTIONAL BL_PLACEMENT_BIDIRECTIONAL
// Why the planner, which plans one copy of the model, leaves a schedule out.
#define TWO_COPIES "plans are of one copy of the model"
// Whether the order is searched, with the costs and limits of the request, or follows from the shape alone.
#define SEARCHED true
#define FIXED    false
// X(identifier, summary, placement, splits, searched, why it is not planned, chunks rule, default memory in p,
//   generator)
#define SCHEDULE_TABLE(X)                                                                                              \
  X(GPIPE, "all forwards, then all backwards", LOOPED, false, FIXED, NULL, CHUNKS_ANY, 0, bl__generate_gpipe)          \
  X(1F1B, "one forward, one backward", LOOPED, false, FIXED, NULL, CHUNKS_ONE, 0, bl__generate_1f1b)                   \
  X(EAGER_1F1B, "1f1b with twice the warm-up, which hides boundary latency", LOOPED, false, FIXED, NULL, CHUNKS_ONE,   \
    0, bl__generate_eager_1f1b)                                                                                        \
  X(INTERLEAVED, "Megatron's interleaved 1f1b over several chunks a stage", LOOPED, false, FIXED, NULL,                \
    CHUNKS_SEVERAL, 0, bl__generate_interleaved)                                                                       \
  X(GROUPED_INTERLEAVED, "interleaved by groups of micro-batches, backward split", LOOPED, true, SEARCHED, NULL,       \
    CHUNKS_SEVERAL, 0, bl__generate_grouped_interleaved)                                                               \
  X(SEQ1F1B, "1f1b over slices of sequences", LOOPED, false, FIXED, NULL, CHUNKS_ONE, 0, bl__generate_1f1b)            \
  X(ZB_H1, "zero bubble within 1f1b's memory", LOOPED, true, SEARCHED, NULL, CHUNKS_ONE, 1, bl__generate_zero_bubble)  \
  X(ZB_H2, "zero bubble with twice 1f1b's memory", LOOPED, true, SEARCHED, NULL, CHUNKS_ONE, 2,                        \
    bl__generate_zero_bubble)                                                                                          \
  X(ZB_V, "zero bubble on a V within 1f1b's memory", VSHAPED, true, SEARCHED, NULL, CHUNKS_TWO, 1, bl__generate_zb_v)  \
  X(V_MIN, "V-shaped, about a third of 1f1b's memory", VSHAPED, true, SEARCHED, NULL, CHUNKS_TWO, 0,                   \
    bl__generate_v_min)                                                                                                \
  X(V_HALF, "V-shaped, half of 1f1b's memory", VSHAPED, true, SEARCHED, NULL, CHUNKS_TWO, 0, bl__generate_v_half)      \
  X(V_ZB, "V-shaped, zero bubble from a building block", VSHAPED, true, SEARCHED, NULL, CHUNKS_TWO, 0,                 \
    bl__generate_v_zb)                                                                                                 \
  X(1F1B_V, "V-shaped with fused backward, two thirds of 1f1b's memory", VSHAPED, false, SEARCHED, NULL, CHUNKS_TWO,   \
    0, bl__generate_1f1b_v)                                                                                            \
  X(ADAPTIVE, "the fastest order of two chunks a stage found under a memory limit, on a V, side by side or in a loop", \
    VSHAPED, true, SEARCHED, NULL, CHUNKS_TWO, 1, bl__generate_adaptive)                                               \
  X(CHIMERA, "two pipes in opposite directions, each a copy of the model", BIDIRECTIONAL, false, SEARCHED, TWO_COPIES, \
    CHUNKS_TWO, 0, bl__generate_chimera)                                                                               \
  X(DUALPIPE, "two pipes, forwards of one beside backwards of the other", BIDIRECTIONAL, true, FIXED, TWO_COPIES,      \
    CHUNKS_TWO, 0, bl__generate_dualpipe)                                                                              \
  X(DUALPIPE_V, "dualpipe folded into one V", VSHAPED, true, FIXED, NULL, CHUNKS_TWO, 0, bl__generate_dualpipe_v)

static const bl_schedule_info_t infos[] = {
#define X(id, text, chunks, slices, pipes)                                                                             \
  [BL_SCHEDULE_##id].name = text, [BL_SCHEDULE_##id].default_chunks = chunks,                                          \
  [BL_SCHEDULE_##id].default_slices = slices,
    BL_SCHEDULE_NAMES(X)
#undef X
#define X(id, text, place, splits, searched, why, rule, memory, generator)                                             \
  [BL_SCHEDULE_##id].summary = text, [BL_SCHEDULE_##id].placement = place,                                             \
  [BL_SCHEDULE_##id].splits_backward = splits, [BL_SCHEDULE_##id].not_planned = why,                                   \
  [BL_SCHEDULE_##id].limited = (memory) > 0, [BL_SCHEDULE_##id].any_chunks = (rule) == CHUNKS_SEVERAL,
        SCHEDULE_TABLE(X)
#undef X
};

static const struct {
  chunks_rule_t chunks;
  double memory; // default limit in units of p; 0: accepts no limit
  bool searched;
  bl__generator_t *generate;
} rows[] = {
#define X(id, summary, placement, splits, searched, not_planned, rule, memory, generator)                              \
  [BL_SCHEDULE_##id] = {rule, memory, searched, generator},
    SCHEDULE_TABLE(X)
#undef X
};
#define X(id, ...) +1
_Static_assert(0 SCHEDULE_TABLE(X) == sizeof infos / sizeof infos[0], "a row for every name");
#undef X

const bl_schedule_info_t *bl_schedule_infos(size_t *count) {
  *count = sizeof infos / sizeof infos[0];
  return infos;
}

const bl_schedule_info_t *bl_schedule_info_find(const char *name) {
  for (size_t i = 0; i < sizeof infos / sizeof infos[0]; i++) {
    if (strcmp(infos[i].name, name) == 0) {
      return &infos[i];
    }
  }
  return NULL;
}

static void refuse_name(const char *name, bl_error_t *err) {
  char list[512];
  size_t used = 0;
  list[0] = '\0';
  for (size_t i = 0; i < sizeof infos / sizeof infos[0]; i++) {
    used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", i > 0 ? ", " : "", infos[i].name);
  }
  (void)bl_error_set(err, BL_NOT_FOUND, "schedule \"%s\": no such schedule; there are %s", name, list);
}

static bl_status_t check_chunks(const bl_schedule_request_t *request, chunks_rule_t rule, bl_error_t *err) {
  uint32_t v = request->chunks;
  if (rule == CHUNKS_ONE && v != 1) {
    return bl_error_set(err, BL_INVALID, "schedule %s: has 1 chunk a stage, not %u", request->name, v);
  }
  if (rule == CHUNKS_TWO && v != 2) {
    return bl_error_set(err, BL_INVALID, "schedule %s: has 2 chunks a stage, not %u", request->name, v);
  }
  if (rule == CHUNKS_SEVERAL && v < 2) {
    return bl_error_set(err, BL_INVALID, "schedule %s: needs at least 2 chunks a stage, not %u (1 is 1f1b)",
                        request->name, v);
  }
  return BL_OK;
}

static bl_status_t check_memory(const bl_schedule_request_t *request, bl_error_t *err) {
  for (uint32_t s = 0; request->memory_of_stage != NULL && s < request->stages; s++) {
    if (!(request->memory_of_stage[s] > 0)) {
      return bl_error_set(err, BL_INVALID, "memory of stage %u: must be above 0 device-micro-batches, is %g", s,
                          request->memory_of_stage[s]);
    }
  }
  if (!(request->slots >= 0) || isinf(request->slots)) {
    return bl_error_set(err, BL_INVALID, "slots: must be above 0 device-micro-batches, is %g", request->slots);
  }
  if (!(request->memory >= 0) || isinf(request->memory)) {
    return bl_error_set(err, BL_INVALID, "memory: must be above 0 device-micro-batches, is %g", request->memory);
  }
  return BL_OK;
}

// The minimum number of slots is that of the blocks of one micro-batch that are kept from F on.
static bl_status_t check_recomputation(const bl_schedule_request_t *request, const bl_schedule_t *shape,
                                       bl_error_t *err) {
  const bl__recompute_options_t recompute = bl__recompute_options_of(request, shape);
  const uint32_t kept = recompute.chunks > 0 ? shape->chunks - recompute.chunks : 0;
  if (recompute.slots > 0 && recompute.slots < kept) {
    return bl_error_set(err, BL_INVALID, "slots: must be at least %g where %u of %u chunks keep their blocks, is %g",
                        kept * bl_schedule_block_weight(shape), kept, shape->chunks, request->slots);
  }
  return BL_OK;
}

static bl_status_t check_slices(const bl_schedule_request_t *request, const bl_schedule_t *shape, bl_error_t *err) {
  if (request->slices > 1 && shape->pipes > 1) {
    return bl_error_set(err, BL_INVALID, "schedule %s: sequences are not cut into slices where there are two pipes",
                        request->name);
  }
  if (request->slices > BL_SLICES_MAX) {
    return bl_error_set(err, BL_INVALID, "schedule %s: sequences cannot be cut into %u slices; at most %d",
                        request->name, request->slices, BL_SLICES_MAX);
  }
  const uint64_t units = (uint64_t)request->micro_batches * request->slices + request->slices - 1;
  if (units > BL_MICRO_BATCHES_MAX || units * shape->virtual_stages > BL_SCHEDULE_OPS_MAX) {
    return bl_error_set(err, BL_INVALID, "schedule %s: %u micro-batches in %u slices are too many operations",
                        request->name, request->micro_batches, request->slices);
  }
  return BL_OK;
}

// Returns the request with the schedule's defaults in the fields that are 0.
static bl_schedule_request_t with_defaults(const bl_schedule_request_t *request, const bl_schedule_info_t *info) {
  static const bl_costs_t unit = BL_COSTS_UNIT;
  bl_schedule_request_t full = *request;
  full.name = info->name;
  full.chunks = request->chunks != 0 ? request->chunks : info->default_chunks;
  full.memory = request->memory != 0 ? request->memory : rows[info - infos].memory * request->stages;
  full.effort = request->effort > 0 ? request->effort : 1;
  full.slices = request->slices != 0 ? request->slices : info->default_slices;
  full.costs = request->costs != NULL ? request->costs : &unit;
  return full;
}

// With slices: generates the order of as many micro-batches as there are slices, and delays its backwards (sliced.c). A
// memory limit of the request applies to the sliced order; the schedule's default limit applies to the order of units.
static bl_status_t generate_units(bl__generator_t *generate, const bl_schedule_request_t *of_units, uint32_t slices,
                                  bl_schedule_t *schedule, bl_error_t *err) {
  bl_schedule_request_t request = *of_units;
  bl_schedule_t *units;
  bl_status_t status = bl__generate_with(generate, schedule->placement, &request, &units, err);
  if (status == BL_OK) {
    status = bl__schedule_cut(units, slices, schedule);
    bl_schedule_destroy(units);
  }
  if (status != BL_NOT_FOUND) {
    return status;
  }
  request.micro_batches += slices - 1;
  status = bl__generate_with(generate, schedule->placement, &request, &units, err);
  if (status == BL_OK) {
    status = bl__schedule_cut_by_units(units, slices, schedule);
    bl_schedule_destroy(units);
  }
  return status;
}

// The limit for the order of units: slices - 1 blocks of each chunk are kept in addition.
static double limit_of_units(double memory, uint32_t slices) {
  return memory * slices - (slices - 1);
}

// The limit of an order over slices whose order of units has that limit.
static double limit_of_slices(double of_units, uint32_t slices) {
  return (of_units + slices - 1) / slices;
}

// Shares of the search: for the order of units, and for the sliced order.
#define UNITS_EFFORT 0.25
#define CUT_EFFORT   0.5

// Searches once more, from the sliced order: the best order of units need not be the best once its backwards are
// delayed. The limits are the blocks that each stage holds in the sliced order and, with recomputation, the slots that
// it uses, unless the request has a limit for them. Keeps the sliced order if the new one has more blocks between I and W
// at once: an eviction cannot free those slots, so a job that parks blocks in few slots could no longer run.
static bl_status_t improve_cut(const bl_schedule_request_t *full, bl_schedule_t *schedule) {
  bl_schedule_request_t request = *full;
  bl_schedule_t *cut;
  if (bl_schedule_op_count(schedule) > BL__PORTFOLIO_LARGE) {
    return BL_OK;
  }
  bl_status_t status = bl_schedule_create_like(schedule, &cut, NULL);
  if (status != BL_OK) {
    return status;
  }
  request.effort *= CUT_EFFORT;
  if (request.recompute && request.slots == 0) {
    request.slots =
        bl__filled_most(schedule, bl__recompute_options_of(full, schedule)) * bl_schedule_block_weight(schedule);
  }
  status = bl_schedule_copy_lists(schedule, cut);
  if (status == BL_OK) {
    const uint32_t filled = bl__filled_most(schedule, (bl__recompute_options_t){0});
    status = bl__improve_within(cut, true, (bl__orders_t){&cut, 1, NULL}, &request, schedule);
    if (status == BL_OK && bl__filled_most(schedule, (bl__recompute_options_t){0}) > filled) {
      status = bl_schedule_copy_lists(cut, schedule);
    }
  }
  bl_schedule_destroy(cut);
  return status == BL_NOT_FOUND ? BL_OK : status;
}

static bl_status_t generate_slices(bl__generator_t *generate, const bl_schedule_request_t *full, bool limited,
                                   bool searched, bl_schedule_t *schedule, bl_error_t *err) {
  const uint32_t slices = full->slices;
  bl_schedule_request_t of_units = *full;
  double *limits = NULL, least = INFINITY;
  of_units.slices = 1;
  of_units.micro_batches *= slices;
  of_units.slots *= slices;
  of_units.effort *= UNITS_EFFORT;
  of_units.keep_placement = true; // the lists are cut, the placement stays
  if (limited) {
    of_units.memory = limit_of_units(full->memory, slices);
    least = of_units.memory;
  }
  if (full->memory_of_stage != NULL) {
    limits = calloc(full->stages, sizeof *limits);
    if (limits == NULL) {
      return bl_error_set(err, BL_EXHAUSTED, "out of memory for schedule %s", full->name);
    }
    for (uint32_t s = 0; s < full->stages; s++) {
      limits[s] = limit_of_units(full->memory_of_stage[s], slices);
      least = fmin(least, limits[s]);
    }
    of_units.memory_of_stage = limits;
  }
  bl_status_t status =
      least >= 1 ? generate_units(generate, &of_units, slices, schedule, err)
                 : bl_error_set(err, BL_INVALID, "memory: %g device-micro-batches hold no sequence of %u slices",
                                limit_of_slices(least, slices), slices);
  free(limits);
  if (status == BL_OK && searched) {
    status = improve_cut(full, schedule);
  }
  return status == BL_INVALID && least >= 1 ? bl_error_prefix(err, "slices count as micro-batches here") : status;
}

// The lists do not contain the R's of a request that recomputes yet; the search includes their cost.
static bl_status_t make(const bl_schedule_request_t *request, bl_schedule_t **schedule, bl_error_t *err) {
  const bl_schedule_info_t *info = bl_schedule_info_find(request->name);
  if (info == NULL) {
    refuse_name(request->name, err);
    return BL_NOT_FOUND;
  }
  size_t row = (size_t)(info - infos);
  const bl_schedule_request_t full = with_defaults(request, info);
  bl_schedule_t *made = NULL;
  bl_status_t status = check_chunks(&full, rows[row].chunks, err);
  if (status == BL_OK) {
    status = check_memory(&full, err);
  }
  if (status == BL_OK) {
    status = bl_schedule_create(info->name, info->placement, full.stages, full.chunks, full.micro_batches, &made, err);
  }
  if (status == BL_OK) {
    status = bl_costs_check(full.costs, made->virtual_stages, err);
  }
  if (status == BL_OK) {
    status = check_recomputation(&full, made, err);
  }
  if (status == BL_OK) {
    status = check_slices(&full, made, err);
  }
  if (status == BL_OK) {
    bl_error_clear(err);
    status = full.slices > 1 ? generate_slices(rows[row].generate, &full, info->limited && request->memory > 0,
                                               rows[row].searched, made, err)
                             : rows[row].generate(&full, made, err);
    if (status == BL_EXHAUSTED && (err == NULL || err->text[0] == '\0')) {
      status = bl_error_set(err, BL_EXHAUSTED, "out of memory for schedule %s", info->name);
    }
  }
  if (status != BL_OK) {
    bl_schedule_destroy(made);
    return status;
  }
  *schedule = made;
  return BL_OK;
}

// The boundary that orders are compared with if they end at once and the costs have none, as a share of a forward. Among
// equally fast orders those that cross boundaries in time are better on a machine, where tensors take some.
#define SMALL_BOUNDARY 0.05

static bl_costs_t with_small_boundary(const bl_costs_t *costs, uint32_t virtual_stages) {
  bl_costs_t with = *costs;
  double longest = 0;
  for (uint32_t v = 0; v < virtual_stages; v++) {
    longest = fmax(longest, bl_costs_chunk(costs, v)->forward);
  }
  with.boundary = costs->boundary > 0 ? costs->boundary : SMALL_BOUNDARY * longest;
  return with;
}

// Sets *earlier: `a` ends before `b`, or at once and before it with a small boundary.
static bl_status_t ends_earlier(const bl_schedule_t *a, const bl_schedule_t *b, const bl_costs_t *costs,
                                bool *earlier) {
  const bl_costs_t with = with_small_boundary(costs, a->virtual_stages);
  const bl_costs_t *const both[2] = {costs, &with};
  bl_status_t status = BL_OK;
  *earlier = false;
  for (int i = 0; i < 2 && status == BL_OK && !*earlier; i++) {
    double ends[2];
    status = bl__dispatch_end(a, both[i], (bl__recompute_options_t){0}, &ends[0]);
    if (status == BL_OK) {
      status = bl__dispatch_end(b, both[i], (bl__recompute_options_t){0}, &ends[1]);
    }
    if (status == BL_OK && ends[1] < ends[0] * (1 - 1e-12)) {
      return BL_OK;
    }
    *earlier = status == BL_OK && ends[0] < ends[1] * (1 - 1e-12);
  }
  return status;
}

// Returns whether the limit of a request is above the schedule's own one.
static bool exceeds_own(const bl_schedule_request_t *request, const bl_schedule_t *made) {
  const bl_schedule_info_t *info = bl_schedule_info_find(made->name);
  return info->limited && request->memory > rows[info - infos].memory * request->stages && request->slices <= 1 &&
         !request->recompute && request->memory_of_stage == NULL && bl_schedule_op_count(made) <= BL__PORTFOLIO_LARGE;
}

// Takes the order within the schedule's own limit if that one is better: a search with more memory may miss it.
static bl_status_t try_own_limit(const bl_schedule_request_t *request, bl_schedule_t **made) {
  const bl_costs_t unit = BL_COSTS_UNIT;
  bl_schedule_request_t own = *request;
  bl_schedule_t *other;
  bool earlier;
  own.memory = 0;
  bl_status_t status = make(&own, &other, NULL);
  if (status != BL_OK) {
    return status == BL_EXHAUSTED ? status : BL_OK;
  }
  status = ends_earlier(other, *made, request->costs != NULL ? request->costs : &unit, &earlier);
  bl_schedule_destroy(earlier ? *made : other);
  *made = earlier ? other : *made;
  return status;
}

// Makes the order of a request that is not pooled.
static bl_status_t make_alone(const bl_schedule_request_t *request, bl_schedule_t **schedule, bl_error_t *err) {
  bl_schedule_t *made;
  bl_status_t status = make(request, &made, err);
  if (status == BL_OK && exceeds_own(request, made)) {
    status = try_own_limit(request, &made);
    if (status != BL_OK) {
      bl_schedule_destroy(made);
      return bl_error_set(err, status, "out of memory for schedule %s", request->name);
    }
  }
  if (status == BL_OK) {
    *schedule = made;
  }
  return status;
}

static bool is_searched(const bl_schedule_t *made) {
  return rows[bl_schedule_info_find(made->name) - infos].searched;
}

// Sets *bound to a lower bound of the time of any order of this name, however much memory it takes; for adaptive on any
// of its placements.
static bl_status_t least_end(const bl_schedule_request_t *request, const bl_schedule_t *made, const bl_costs_t *costs,
                             double *bound) {
  if (strcmp(made->name, "adaptive") == 0 && !request->keep_placement) {
    return bl__adaptive_bound(request, costs, made, bound);
  }
  return bl__bound_within(made, costs, NULL, bl__recompute_options_of(request, made), bound);
}

// Searches without R as well, and takes that order if it ends earlier once its R's are inserted: both searches are
// limited in time and can miss it. Skipped if the first order already reaches the lower bound. Large schedules gain
// less and take too long, so the caller leaves them out.
static bl_status_t try_without(const bl_schedule_request_t *request, bl_schedule_t **made) {
  const bl_costs_t unit = BL_COSTS_UNIT, *costs = request->costs != NULL ? request->costs : &unit;
  bl_schedule_request_t plain = *request;
  bl_schedule_t *other;
  double ends[2], bound;
  plain.recompute = false;
  const bl__recompute_options_t recompute = bl__recompute_options_of(request, *made);
  bl_status_t status = bl__dispatch_end(*made, costs, recompute, &ends[0]);
  if (status == BL_OK) {
    status = least_end(request, *made, costs, &bound);
  }
  if (status != BL_OK || ends[0] <= bound * (1 + 1e-12)) {
    return status;
  }
  status = make(&plain, &other, NULL);
  if (status != BL_OK) {
    return status;
  }
  status = bl__dispatch_end(other, costs, recompute, &ends[1]);
  bool fits = recompute.slots == 0 || bl__filled_most(other, recompute) <= recompute.slots;
  bool better = status == BL_OK && fits && ends[1] < ends[0] * (1 - 1e-12);
  bl_schedule_destroy(better ? *made : other);
  *made = better ? other : *made;
  return status;
}

static bl_status_t recompute(const bl_schedule_request_t *request, bl_schedule_t **made, bl_error_t *err) {
  bl_status_t status = bl_schedule_recompute_chunks(*made, request->recompute_chunks, err);
  if (status != BL_OK || strcmp((*made)->name, "adaptive") != 0 || request->keep_placement) {
    return status;
  }
  status = bl__adaptive_take_1f1b(request, made);
  return status == BL_OK
             ? BL_OK
             : bl_error_set(err, status, "out of memory for the recomputation of schedule %s", (*made)->name);
}

// Returns whether the order is searched with limits that differ by stage. Other schedules with `pooled` know their own
// peaks.
static bool pools_limits(const bl_schedule_request_t *request) {
  const bl_schedule_info_t *info = bl_schedule_info_find(request->name);
  return request->pooled && request->slices <= 1 && !request->recompute && request->memory > 0 &&
         request->memory_of_stage == NULL && info != NULL && info->limited && request->stages > 1;
}

bool bl_schedule_pools(const bl_schedule_request_t *request) {
  bl_schedule_request_t pooled = *request;
  pooled.pooled = true;
  const bool knows_peaks = request->slices <= 1 &&
                           (strcmp(request->name, "grouped-interleaved") == 0 || strcmp(request->name, "1f1b-v") == 0);
  return pools_limits(&pooled) || (knows_peaks && !request->recompute && request->stages > 1);
}

static bl_status_t copy(const bl_schedule_t *schedule, bl_schedule_t **copied, bl_error_t *err) {
  bl_schedule_t *made;
  bl_status_t status = bl_schedule_create_like(schedule, &made, err);
  if (status != BL_OK) {
    return status;
  }
  status = bl_schedule_copy_lists(schedule, made);
  if (status != BL_OK) {
    bl_schedule_destroy(made);
    return bl_error_set(err, status, "out of memory for schedule %s", schedule->name);
  }
  *copied = made;
  return BL_OK;
}

static bl_status_t make_pooled(const bl_schedule_request_t *request, bl_schedule_t **schedule, bl_error_t *err) {
  const bl_schedule_info_t *info = bl_schedule_info_find(request->name);
  const bl_schedule_request_t full = with_defaults(request, info);
  bl_schedule_t *made;
  bl_status_t status =
      request->unpooled != NULL ? copy(request->unpooled, &made, err) : make_alone(request, &made, err);
  if (status != BL_OK) {
    return status;
  }
  status = bl__pool(rows[info - infos].generate, info->placement, &full, &made);
  if (status != BL_OK) {
    bl_schedule_destroy(made);
    return bl_error_set(err, status, "out of memory for schedule %s", request->name);
  }
  *schedule = made;
  return BL_OK;
}

// Returns whether adaptive over slices compares its order with that of a name. Left out are v-zb and seq1f1b, which make
// the orders of zb-v and 1f1b, and where one of two chunks recomputes, names with a single one.
static bool is_compared(const bl_schedule_request_t *request, const bl_schedule_info_t *info) {
  static const char *const out[] = {"adaptive", "v-zb", "seq1f1b"};
  for (size_t i = 0; i < sizeof out / sizeof out[0]; i++) {
    if (strcmp(info->name, out[i]) == 0) {
      return false;
    }
  }
  return info->placement != BIDIRECTIONAL && (info->placement == VSHAPED || !request->keep_placement) &&
         (info->default_chunks == 2 || request->recompute_chunks == 0);
}

// Returns what an order of the name keeps at most over slices; INFINITY: it has no limit of its own.
static double own_limit(const bl_schedule_info_t *info, uint32_t stages, uint32_t slices) {
  const size_t row = (size_t)(info - infos);
  const double units = rows[row].generate == bl__generate_v_half  ? bl__v_half_memory(stages)
                       : rows[row].generate == bl__generate_v_min ? bl__v_min_memory(stages)
                       : info->limited                            ? rows[row].memory * stages
                                                                  : INFINITY;
  return limit_of_slices(units, slices);
}

// Replaces *best, an order of adaptive over slices, by the order of a name over the same slices if that ends earlier
// within the limits of `full`. `whole` are the costs of the name's chunks.
static bl_status_t take_name(const bl_schedule_request_t *full, const bl_schedule_info_t *info, const bl_costs_t *whole,
                             bl_schedule_t **best) {
  bl_schedule_request_t wanted = *full;
  bl_schedule_t *named = NULL;
  bool may = false;
  wanted.name = info->name;
  wanted.chunks = info->default_chunks;
  wanted.group = 0;
  wanted.memory = 0;
  wanted.memory_of_stage = NULL;
  wanted.pooled = wanted.hosted = false;
  wanted.costs = whole;
  bl_status_t status =
      bl_schedule_create(info->name, info->placement, full->stages, wanted.chunks, full->micro_batches, &named, NULL);
  if (status == BL_OK) {
    const bl__sliced_name_t name = {
        .costs = whole, .fused = !info->splits_backward, .memory = own_limit(info, full->stages, full->slices)};
    status = bl__sliced_may_be_faster(full, &name, *best, named, &may);
    bl_schedule_destroy(named);
  }
  if (status != BL_OK || !may) {
    return status;
  }
  status = bl_schedule_generate(&wanted, &named, NULL);
  if (status != BL_OK) {
    return status == BL_EXHAUSTED ? status : BL_OK; // the name does not allow the shape
  }
  status = bl__sliced_adopt_if_faster(full, named, best);
  bl_schedule_destroy(named);
  return status;
}

// Over slices adaptive searches on a V alone. Here it takes the fastest of what the other names make over the same
// slices, as the last step: a comparison before slices or R's are there would be one of other ends. The default limit is
// that of the units, and of what slices keep in addition.
static bl_status_t take_fastest_name(const bl_schedule_request_t *request, bl_schedule_t **best) {
  bl_schedule_request_t full = with_defaults(request, bl_schedule_info_find(request->name));
  bl_chunk_costs_t *chunks = bl__cut_costs(full.costs, full.stages, full.chunks);
  bl_costs_t whole = *full.costs;
  bl_status_t status = chunks != NULL ? BL_OK : BL_EXHAUSTED;
  whole.chunks = chunks;
  full.memory = request->memory > 0 ? full.memory : limit_of_slices(full.memory, full.slices);
  for (size_t i = 0; i < sizeof infos / sizeof infos[0] && status == BL_OK; i++) {
    if (is_compared(&full, &infos[i])) {
      status = take_name(&full, &infos[i], infos[i].default_chunks == full.chunks ? full.costs : &whole, best);
    }
  }
  free(chunks);
  return status;
}

bl_status_t bl_schedule_generate(const bl_schedule_request_t *request, bl_schedule_t **schedule, bl_error_t *err) {
  bl_schedule_t *made = NULL;
  bl_status_t status = pools_limits(request) ? make_pooled(request, &made, err) : make_alone(request, &made, err);
  bool small = status == BL_OK && bl_schedule_op_count(made) <= BL__PORTFOLIO_LARGE;
  if (status == BL_OK && request->recompute && small && is_searched(made) && made->slices == 1) {
    status = try_without(request, &made);
  }
  if (status == BL_OK && request->recompute) {
    status = recompute(request, &made, err);
  }
  if (status == BL_OK && made->slices > 1 && strcmp(made->name, "adaptive") == 0) {
    status = take_fastest_name(request, &made);
    status = status == BL_OK ? BL_OK : bl_error_set(err, status, "out of memory for schedule %s", made->name);
  }
  if (status != BL_OK) {
    bl_schedule_destroy(made);
    return status;
  }
  *schedule = made;
  return BL_OK;
}

bl_status_t bl_schedule_forward(const bl_schedule_t *like, uint32_t micro_batches, bl_schedule_t **schedule,
                                bl_error_t *err) {
  bl_schedule_t *made;
  const bl_placement_t placement = like->pipes > 1 ? BL_PLACEMENT_LOOPED : like->placement;
  bl_status_t status =
      bl_schedule_create("forward", placement, like->stages, like->chunks / like->pipes, micro_batches, &made, err);
  if (status != BL_OK) {
    return status;
  }
  made->virtual_stages = bl_schedule_depth(like);
  memcpy(made->stage_of, like->stage_of, made->virtual_stages * sizeof like->stage_of[0]);
  made->forward_only = true;
  made->slices = like->slices;
  // In groups of p micro-batches (or slices), so that with several chunks a stage no stage waits while a micro-batch
  // passes the whole model.
  const uint32_t units = micro_batches * made->slices;
  for (uint32_t group = 0; group < units; group += made->stages) {
    for (uint32_t s = 0; s < made->virtual_stages; s++) {
      for (uint32_t i = group; i < group + made->stages && i < units && status == BL_OK; i++) {
        const bl_op_t op = {.type = BL_OP_F,
                            .virtual_stage = (uint16_t)s,
                            .micro_batch = i / made->slices,
                            .slice = (uint8_t)(i % made->slices)};
        status = bl_schedule_append(made, made->stage_of[s], op);
      }
    }
  }
  if (status != BL_OK) {
    bl_schedule_destroy(made);
    return bl_error_set(err, status, "out of memory for a forward-only schedule");
  }
  *schedule = made;
  return BL_OK;
}
