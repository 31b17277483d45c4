// SPDX-License-Identifier: Apache-2.0
#include "plan/search/explore.h"

#include "plan/candidate/chunks.h"
#include "plan/candidate/slices.h"
#include "plan/search/bound.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// Search budgets: to compare candidates with each other, and for those that are shown.
#define EXPLORING_EFFORT 0.01
#define FAMILY_EFFORT    0.05 // for the best of every schedule
#define LEADING_EFFORT   0.25
// Micro-batches up to this, if they divide the batch; larger ones while the largest is the best.
#define USUAL_MOST 8
// In place of a number of slices: 2, 4, 8 ...
#define SLICES_THAT_MAY_GAIN 0

bool bl__explore_keep(bl__exploration_t *e, const bl_plan_candidate_t *candidate) {
  if (e->plan->count == e->capacity) {
    uint32_t capacity = e->capacity == 0 ? 256 : 2 * e->capacity;
    bl_plan_candidate_t *grown = realloc(e->plan->candidates, capacity * sizeof *grown);
    if (grown == NULL) {
      e->status = BL_EXHAUSTED;
      return false;
    }
    e->plan->candidates = grown;
    e->capacity = capacity;
  }
  e->plan->candidates[e->plan->count++] = *candidate;
  return true;
}

// Evaluates a leader. A job's run searches with the full budget, and the prediction must be for that order.
bl_status_t bl__explore_exactly(bl__exploration_t *e, bl_plan_candidate_t *candidate) {
  const double effort = bl__runs_as_job(e->request, candidate) ? 0 : LEADING_EFFORT;
  return bl__evaluate(e->request, effort, &e->exact_cache, candidate);
}

bl_status_t bl__explore_further(bl__exploration_t *e, bl_plan_candidate_t *candidate) {
  bl_status_t status = bl__evaluate(e->request, FAMILY_EFFORT, &e->exact_cache, candidate);
  bl_schedule_destroy(candidate->operations);
  candidate->operations = NULL;
  candidate->exact = false;
  return status;
}

// Returns whether the candidate fits. *as_it_is (may be NULL): whether it fits with the layers where they make it
// fastest.
static bool explore_way(bl__exploration_t *e, bl_plan_candidate_t candidate, bool *as_it_is) {
  if (as_it_is != NULL) {
    *as_it_is = true;
  }
  if (e->status != BL_OK) {
    return true;
  }
  bl_status_t status =
      e->exact ? bl__explore_exactly(e, &candidate) : bl__evaluate(e->request, EXPLORING_EFFORT, &e->cache, &candidate);
  if (status == BL_OK && bl__explore_keep(e, &candidate)) {
    e->plan->tried++;
    if (as_it_is != NULL) {
      *as_it_is = candidate.fits && !candidate.moved;
    }
    return candidate.fits;
  }
  bl__candidate_cleanup(&candidate);
  e->status = status == BL_EXHAUSTED ? status : e->status;
  return false;
}

bool bl__explore_candidate(bl__exploration_t *e, bl_plan_candidate_t choice) {
  return explore_way(e, choice, NULL);
}

// ---- orders within other limits than the schedule's own

// Returns whether memory.slots limits, for a job with this schedule, the blocks from R on in the search.
static bool limits_again(const bl_schedule_info_t *info) {
  static const char *const searched[] = {"grouped-interleaved", "v-min", "v-half", "v-zb", "1f1b-v"};
  bool found = info->limited;
  for (size_t i = 0; i < sizeof searched / sizeof searched[0] && !found; i++) {
    found = strcmp(info->name, searched[i]) == 0;
  }
  return found;
}

// Returns whether a job can request an order within fewer slots than the schedule's own limit. On a cluster, kept
// inputs fill the slots, and no job limits those.
static bool can_be_limited(const bl__exploration_t *e, const bl_plan_candidate_t *candidate) {
  const bl_schedule_info_t *info = bl_schedule_info_find(candidate->schedule);
  if (candidate->recompute == BL_RECOMPUTE_FULL) {
    return e->request->memory > 0 && e->request->cluster.nodes == 0 && limits_again(info);
  }
  return e->request->memory > 0 && info->limited;
}

static void explore_limited(bl__exploration_t *e, bl_plan_candidate_t candidate) {
  candidate.limit = BL_PLAN_LIMIT_FITTING;
  if (can_be_limited(e, &candidate)) {
    (void)bl__explore_candidate(e, candidate);
  }
}

// Tries more than the schedule's own limit if that fits: more forwards hide slow boundaries. zb-h1 with a larger limit
// is zb-h2. With full recomputation a job limits only blocks from R on.
static void explore_larger(bl__exploration_t *e, bl_plan_candidate_t candidate) {
  candidate.limit = BL_PLAN_LIMIT_LARGER;
  if (bl_schedule_info_find(candidate.schedule)->limited && strcmp(candidate.schedule, "zb-h1") != 0 &&
      candidate.stages > 1 && candidate.recompute != BL_RECOMPUTE_FULL) {
    (void)bl__explore_candidate(e, candidate);
  }
}

// ---- balancing

bool bl__explore_order_matters(const bl__exploration_t *e, const bl_plan_candidate_t *candidate) {
  const bl_cluster_t *cluster = &e->request->cluster;
  return cluster->nodes > 0 && cluster->devices_per_node / candidate->parallel.tensor > 1 &&
         candidate->stages * candidate->parallel.tensor > cluster->devices_per_node;
}

// Tries pairs first, and any device with free slots if pairs do not fit.
static void explore_parked(bl__exploration_t *e, bl_plan_candidate_t candidate) {
  static const bl_policy_kind_t policies[] = {BL_POLICY_BPIPE, BL_POLICY_CAP};
  for (size_t i = 0; i < 2; i++) {
    candidate.policy = policies[i];
    candidate.order = BL_NODES_SEQUENTIAL;
    if (!bl__explore_candidate(e, candidate)) {
      continue;
    }
    if (bl__explore_order_matters(e, &candidate)) {
      candidate.order = BL_NODES_PAIR_ADJACENT;
      (void)bl__explore_candidate(e, candidate);
    }
    return;
  }
}

// Tries host memory, for which no device needs free slots: devices keep more of their own blocks than when they lend
// slots.
static void explore_hosted(bl__exploration_t *e, bl_plan_candidate_t candidate) {
  candidate.policy = BL_POLICY_OFFLOAD;
  if (e->request->host.bytes <= 0) {
    return;
  }
  (void)bl__explore_candidate(e, candidate);
  if (can_be_limited(e, &candidate)) {
    candidate.limit = BL_PLAN_LIMIT_BETWEEN;
    (void)bl__explore_candidate(e, candidate);
    candidate.limit = BL_PLAN_LIMIT_FITTING;
    (void)bl__explore_candidate(e, candidate);
  }
}

// Tries all policies, including drop, which needs no copies.
static void explore_balanced(bl__exploration_t *e, bl_plan_candidate_t candidate) {
  bl_plan_candidate_t drop = candidate;
  drop.policy = BL_POLICY_DROP;
  (void)bl__explore_candidate(e, drop);
  explore_hosted(e, candidate);
  explore_parked(e, candidate);
  if (can_be_limited(e, &candidate)) {
    drop.limit = BL_PLAN_LIMIT_BETWEEN;
    (void)bl__explore_candidate(e, drop);
    candidate.limit = BL_PLAN_LIMIT_FITTING;
    explore_parked(e, candidate);
  }
}

static bool balances(const bl__exploration_t *e, const bl_plan_candidate_t *candidate) {
  return candidate->recompute != BL_RECOMPUTE_FULL && candidate->stages > 1 && e->request->memory > 0;
}

// Tries smaller groups of micro-batches, which keep fewer blocks, down to the first that fits as it is.
static void explore_groups(bl__exploration_t *e, bl_plan_candidate_t candidate) {
  const uint32_t p = candidate.stages, groups[] = {(7 * p + 7) / 8, (3 * p + 3) / 4, (5 * p + 7) / 8, (p + 1) / 2};
  if (strcmp(candidate.schedule, "grouped-interleaved") != 0 || e->request->memory <= 0) {
    return;
  }
  for (size_t i = 0, before = p; i < sizeof groups / sizeof groups[0]; before = groups[i], i++) {
    candidate.group = groups[i];
    if (groups[i] == before) {
      continue;
    }
    if (bl__explore_candidate(e, candidate)) {
      return;
    }
    if (balances(e, &candidate)) {
      explore_balanced(e, candidate);
    }
  }
}

static void explore_less(bl__exploration_t *e, bl_plan_candidate_t candidate) {
  if (balances(e, &candidate)) {
    explore_balanced(e, candidate);
  }
  explore_groups(e, candidate);
}

// ---- what is kept

static double fastest(const bl_plan_t *plan) {
  double least = INFINITY;
  for (uint32_t i = 0; i < plan->count; i++) {
    least = plan->candidates[i].fits ? fmin(least, plan->candidates[i].step) : least;
  }
  return least;
}

// Slices that nobody asked for are evaluated only if they may be the best: all of them would take too long.
static bool hopeless(const bl__exploration_t *e, const bl_plan_candidate_t *candidate, double bound) {
  return e->request->slice_count == 0 && candidate->slices > 1 && bound >= fastest(e->plan);
}

static bool ruled_out(bl__exploration_t *e, const bl_plan_candidate_t *candidate) {
  double bound;
  if (e->all || e->exact || e->status != BL_OK || bl__evaluate_bound(e->request, candidate, &bound) != BL_OK) {
    return false;
  }
  const bool slower = hopeless(e, candidate, bound), out = slower || bl__bound_rules_out(e->plan, candidate, bound);
  e->plan->slices_left_out = e->plan->slices_left_out || slower;
  e->plan->ruled_out += out && !slower;
  return out;
}

// Keeps less and less, until the schedule fits as it is.
static void explore_recomputations(bl__exploration_t *e, bl_plan_candidate_t candidate, bl_recompute_t first) {
  for (int recompute = (int)first; recompute <= BL_RECOMPUTE_FULL; recompute++) {
    candidate.recompute = (bl_recompute_t)recompute;
    const bool nothing = recompute == BL_RECOMPUTE_ATTENTION && candidate.attention == BL_ATTENTION_FLASH;
    if (nothing || ruled_out(e, &candidate)) { // flash attention keeps nothing to recompute
      continue;
    }
    bool as_it_is, fits = explore_way(e, candidate, &as_it_is);
    if (as_it_is) {
      explore_larger(e, candidate);
    } else {
      explore_limited(e, candidate);
    }
    if (fits && as_it_is) { // with layers that moved a step is longer: balancing may cost less
      return;
    }
    explore_less(e, candidate);
  }
}

// Tries every way in which this choice needs less memory, exactly: fewer slots, parking, dropping, more recomputation.
static void explore_less_exactly(bl__exploration_t *e, bl_plan_candidate_t choice) {
  e->exact = true;
  explore_limited(e, choice);
  if (choice.recompute != BL_RECOMPUTE_FULL && choice.stages > 1) {
    explore_less(e, choice);
    explore_recomputations(e, choice, (bl_recompute_t)(choice.recompute + 1));
  }
  e->exact = false;
}

void bl__explore_leader(bl__exploration_t *e, uint32_t index) {
  bl_plan_candidate_t exact = bl__candidate_choice(&e->plan->candidates[index]);
  bl_status_t status = bl__explore_exactly(e, &exact);
  if (status != BL_OK) {
    bl__candidate_cleanup(&exact);
    e->status = status;
    return;
  }
  const bl_plan_candidate_t *hurried = &e->plan->candidates[index];
  if (!bl__runs_as_job(e->request, &exact) && (!exact.fits || exact.step > hurried->step)) {
    bl__candidate_cleanup(&exact); // no job can express this order: keep the better one
    return;
  }
  const bool falls_short = !exact.fits || (exact.moved && !hurried->moved);
  bl__candidate_cleanup(&e->plan->candidates[index]);
  e->plan->candidates[index] = exact;
  if (falls_short && exact.policy == BL_POLICY_NONE && exact.limit == BL_PLAN_LIMIT_OWN) {
    explore_less_exactly(e, bl__candidate_choice(&exact));
  }
}

// ---- schedules, micro-batches, attention

static uint32_t list_attentions(const bl_plan_request_t *r, const bl_attention_t **list) {
  static const bl_attention_t both[] = {BL_ATTENTION_FLASH, BL_ATTENTION_NAIVE};
  *list = r->attention_count > 0 ? r->attentions : r->profile_count > 0 ? &r->profiles[0]->options.attention : both;
  return r->attention_count > 0 ? r->attention_count : r->profile_count > 0 ? 1 : 2;
}

// Tries the most slices first: where they gain, they rule out most of the others.
static void explore_slices(bl__exploration_t *e, bl_plan_candidate_t candidate) {
  const bl_model_t *model = e->request->model;
  uint32_t slices = 1;
  while (model->seq / (2 * slices) >= BL_PLAN_SLICE_LEAST && 2 * slices <= BL_SLICES_MAX) {
    slices *= 2;
  }
  for (; slices > 1; slices /= 2) {
    candidate.slices = slices;
    if (bl__slices_possible(model, &candidate, NULL)) {
      explore_recomputations(e, candidate, BL_RECOMPUTE_NONE);
    }
  }
}

static void explore_attentions(bl__exploration_t *e, bl_plan_candidate_t candidate) {
  const bl_attention_t *list;
  const uint32_t count = list_attentions(e->request, &list);
  for (uint32_t i = 0; i < count; i++) {
    candidate.attention = list[i];
    if (candidate.slices == SLICES_THAT_MAY_GAIN) {
      explore_slices(e, candidate);
    } else {
      explore_recomputations(e, candidate, BL_RECOMPUTE_NONE);
    }
  }
}

static bool is_there(const bl_plan_t *plan, const bl_plan_candidate_t *choice) {
  for (uint32_t i = 0; i < plan->count; i++) {
    const bl_plan_candidate_t *c = &plan->candidates[i];
    if (strcmp(c->schedule, choice->schedule) == 0 && c->stages == choice->stages && c->chunks == choice->chunks &&
        c->micro_batch == choice->micro_batch && c->slices == choice->slices &&
        c->parallel.tensor == choice->parallel.tensor && c->parallel.data == choice->parallel.data &&
        c->attention == choice->attention && c->recompute == choice->recompute && c->policy == choice->policy &&
        c->limit == choice->limit && c->group == choice->group) {
      return true;
    }
  }
  return false;
}

void bl__explore_recomputations(bl__exploration_t *e, bl_plan_candidate_t choice) {
  const bl_attention_t *list;
  const uint32_t count = list_attentions(e->request, &list);
  choice.policy = BL_POLICY_NONE;
  choice.limit = BL_PLAN_LIMIT_OWN;
  choice.order = BL_NODES_SEQUENTIAL;
  for (uint32_t i = 0; i < count; i++) {
    choice.attention = list[i];
    for (int recompute = BL_RECOMPUTE_NONE + 1; recompute <= BL_RECOMPUTE_FULL; recompute++) {
      choice.recompute = (bl_recompute_t)recompute;
      const bool nothing = recompute == BL_RECOMPUTE_ATTENTION && choice.attention == BL_ATTENTION_FLASH;
      if (!nothing && !is_there(e->plan, &choice)) {
        (void)bl__explore_candidate(e, choice);
      }
    }
  }
}

static bool wanted(const bl_plan_request_t *r, const bl_schedule_info_t *info) {
  for (uint32_t i = 0; i < r->schedule_count; i++) {
    if (strcmp(r->schedules[i], info->name) == 0) {
      return true;
    }
  }
  return r->schedule_count == 0 && info->not_planned == NULL;
}

// Returns whether our executor would refuse so many copies of the model. Candidates of GPUs in mixed precision are not
// of our executor.
static bool has_too_many_copies(const bl_plan_request_t *r, const bl_schedule_info_t *info, uint32_t replicas) {
  const uint32_t pipes = info->placement == BL_PLACEMENT_BIDIRECTIONAL ? 2 : 1;
  return replicas * pipes > BL_GRID_REPLICAS_MAX && (r->hardware == NULL || r->hardware->value_bytes == sizeof(float));
}

static void explore_schedules(bl__exploration_t *e, bl_plan_candidate_t candidate) {
  size_t count;
  const bl_schedule_info_t *infos = bl_schedule_infos(&count);
  for (size_t i = 0; i < count; i++) {
    if (!wanted(e->request, &infos[i]) || !bl__slices_apply(e->request, &infos[i], candidate.slices) ||
        has_too_many_copies(e->request, &infos[i], candidate.parallel.data)) {
      continue;
    }
    candidate.schedule = infos[i].name;
    const uint32_t stages = candidate.stages;
    for (uint32_t v = bl__chunks_next(e->request, &infos[i], stages, 0); v > 0;
         v = bl__chunks_next(e->request, &infos[i], stages, v)) {
      candidate.chunks = v;
      explore_attentions(e, candidate);
    }
  }
}

static void explore_micro_batch(bl__exploration_t *e, bl_plan_candidate_t candidate, uint32_t micro_batch) {
  const uint32_t of_replica = e->request->batch / candidate.parallel.data;
  candidate.micro_batch = micro_batch;
  const bool possible =
      candidate.slices == SLICES_THAT_MAY_GAIN || bl__slices_possible(e->request->model, &candidate, NULL);
  if (of_replica % micro_batch == 0 && possible) {
    candidate.micro_batches = of_replica / micro_batch;
    explore_schedules(e, candidate);
  }
}

// ---- shapes of a cluster

typedef struct shape {
  bl_plan_candidate_t choice;
  double bound;
} shape_t;

typedef struct shapes {
  shape_t *list;
  uint32_t count;
} shapes_t;

static bool listed(const uint32_t *list, uint32_t count, uint32_t value) {
  for (uint32_t i = 0; i < count; i++) {
    if (list[i] == value) {
      return true;
    }
  }
  return count == 0;
}

// Returns a quick lower bound for the shape. Shapes with low bounds go first, since others are compared with the
// fastest.
static double bound_of(const bl__exploration_t *e, bl_plan_candidate_t choice) {
  double least = INFINITY, bound;
  choice.schedule = "1f1b";
  choice.slices = 1;
  choice.chunks = 1;
  choice.attention = BL_ATTENTION_FLASH;
  for (uint32_t b = 1; b <= USUAL_MOST && b <= e->request->batch; b *= 2) {
    choice.micro_batch = b;
    choice.micro_batches = e->request->batch / choice.parallel.data / b;
    if (bl__evaluate_bound(e->request, &choice, &bound) == BL_OK) {
      least = fmin(least, bound);
    }
  }
  return least;
}

static void add_shape(bl__exploration_t *e, shapes_t *shapes, uint32_t stages, bl_parallel_t parallel) {
  shape_t *grown = realloc(shapes->list, (shapes->count + 1) * sizeof *grown);
  if (grown == NULL) {
    e->status = BL_EXHAUSTED;
    return;
  }
  shapes->list = grown;
  const bl_plan_candidate_t choice = {.stages = stages, .parallel = parallel};
  grown[shapes->count++] = (shape_t){.choice = choice, .bound = bound_of(e, choice)};
}

static int by_bound(const void *a, const void *b) {
  const shape_t *x = a, *y = b;
  return x->bound != y->bound ? (x->bound > y->bound ? 1 : -1) : (int)x->choice.stages - (int)y->choice.stages;
}

static void list_shapes(bl__exploration_t *e, shapes_t *shapes) {
  const bl_plan_request_t *r = e->request;
  if (r->cluster.nodes == 0) {
    for (uint32_t i = 0; i < r->stage_count; i++) {
      add_shape(e, shapes, r->stages[i], BL_PARALLEL_NONE);
    }
    return;
  }
  uint32_t devices = r->cluster.nodes * r->cluster.devices_per_node;
  for (uint32_t t = 1; t <= r->cluster.devices_per_node; t++) {
    bool usual = r->tensor_count > 0 ? listed(r->tensors, r->tensor_count, t) : (t & (t - 1)) == 0 && t <= 8;
    if (!usual || r->cluster.devices_per_node % t != 0 ||
        bl_layer_parts_check(r->model, t, r->model->seq, NULL) != BL_OK) {
      continue;
    }
    for (uint32_t p = 1; p * t <= devices; p++) {
      uint32_t d = devices / (p * t);
      const bool runs = !r->optimizer_on_host || d == 1; // a job that is refused otherwise (lib/job/refuse.h)
      if (runs && p * t * d == devices && r->batch % d == 0 && p <= r->model->layers &&
          listed(r->stages, r->stage_count, p)) {
        bl_parallel_t parallel = {.tensor = t, .data = d, .shard = r->shard, .sequence = r->sequence && t > 1};
        add_shape(e, shapes, p, parallel);
      }
    }
  }
}

static uint32_t best_micro_batch(const bl_plan_t *plan) {
  const bl_plan_candidate_t *best = NULL;
  for (uint32_t i = 0; i < plan->count; i++) {
    const bl_plan_candidate_t *c = &plan->candidates[i];
    best = c->fits && (best == NULL || c->step < best->step) ? c : best;
  }
  return best != NULL ? best->micro_batch : 0;
}

static void explore_shapes(bl__exploration_t *e, const shapes_t *shapes, uint32_t micro_batch, uint32_t slices) {
  for (uint32_t i = 0; i < shapes->count; i++) {
    bl_plan_candidate_t choice = shapes->list[i].choice;
    choice.slices = slices;
    explore_micro_batch(e, choice, micro_batch);
  }
}

// Explores all shapes and micro-batches with sequences in so many slices.
static void explore_sliced(bl__exploration_t *e, const shapes_t *shapes, uint32_t slices) {
  const bl_plan_request_t *r = e->request;
  for (uint32_t s = 0; s < shapes->count; s++) { // the promising ones with all micro-batches first
    bl_plan_candidate_t choice = shapes->list[s].choice;
    choice.slices = slices;
    for (uint32_t i = 0; i < r->micro_batch_count; i++) {
      explore_micro_batch(e, choice, r->micro_batches[i]);
    }
    for (uint32_t b = 1; r->micro_batch_count == 0 && b <= USUAL_MOST; b++) {
      explore_micro_batch(e, choice, b);
    }
  }
  uint32_t largest = USUAL_MOST;
  while (largest > 1 && r->batch % largest != 0) {
    largest--;
  }
  while (r->micro_batch_count == 0 && e->status == BL_OK && best_micro_batch(e->plan) == largest &&
         largest < r->batch) {
    do {
      largest++;
    } while (r->batch % largest != 0);
    explore_shapes(e, shapes, largest, slices);
  }
}

// Returns the smallest micro-batch that is tried and divides what a replica of this shape has; 0: none does.
static uint32_t least_micro_batch(const bl_plan_request_t *r, const bl_plan_candidate_t *shape) {
  const uint32_t of_replica = r->batch / shape->parallel.data;
  uint32_t least = r->micro_batch_count > 0 ? 0 : 1;
  for (uint32_t i = 0; i < r->micro_batch_count; i++) {
    const uint32_t b = r->micro_batches[i];
    least = of_replica % b == 0 && (least == 0 || b < least) ? b : least;
  }
  return least;
}

// Tries slices that may gain. A larger micro-batch in slices has blocks of as many tokens as a smaller one in fewer
// slices, which need not wait for each other: the smallest is enough.
static void explore_gaining_slices(bl__exploration_t *e, const shapes_t *shapes) {
  for (uint32_t i = 0; i < shapes->count; i++) {
    bl_plan_candidate_t choice = shapes->list[i].choice;
    const uint32_t micro_batch = least_micro_batch(e->request, &choice);
    choice.slices = SLICES_THAT_MAY_GAIN;
    if (micro_batch > 0) {
      explore_micro_batch(e, choice, micro_batch);
    }
  }
}

void bl__explore(bl__exploration_t *e) {
  const bl_plan_request_t *r = e->request;
  shapes_t shapes = {0};
  list_shapes(e, &shapes);
  if (shapes.count > 0) {
    qsort(shapes.list, shapes.count, sizeof *shapes.list, by_bound);
  }
  for (uint32_t i = 0; i < r->slice_count; i++) {
    explore_sliced(e, &shapes, r->slices[i]);
  }
  if (r->slice_count == 0) { // whole sequences first, with whose times slices are compared
    explore_sliced(e, &shapes, 1);
    explore_gaining_slices(e, &shapes);
  }
  free(shapes.list);
}

void bl__explore_cleanup(bl__exploration_t *e) {
  bl__order_cache_cleanup(&e->cache);
  bl__order_cache_cleanup(&e->exact_cache);
}
