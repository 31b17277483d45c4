// SPDX-License-Identifier: Apache-2.0
#include "plan/planner.h"

#include "base/bytes.h"
#include "base/words.h"
#include "plan/attempt.h"
#include "schedule/generate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Of searched schedules: to compare ways with each other, and for those that are shown.
#define EXPLORING_EFFORT 0.01
#define LEADING_EFFORT   0.25
#define LEADERS          6
// Of the search for the smallest limit: how much larger the next one is, or how much smaller, and when to stop.
#define SMALLEST_GROWTH 1.15
#define SMALLEST_STEP   1e-3
#define SMALLEST_TRIES  60

const char *bl_plan_policy_name(bl_plan_policy_t policy) {
  static const char *const names[] = {"none", "bpipe", "cap", "drop", "auto"};
  return names[policy];
}

typedef struct search {
  const bl_plan_request_t *request;
  bl_plan_t *plan;
  uint32_t capacity;
  bl_status_t status;        // of memory
  bl__order_cache_t cache;   // while exploring
  bl__order_cache_t leaders; // exact
  bool exact;                // attempts are for just their costs, with all effort
} search_t;

// ---- candidates

static bl_plan_candidate_t *keep(search_t *s, const bl_plan_candidate_t *candidate) {
  if (s->plan->count == s->capacity) {
    uint32_t capacity = s->capacity == 0 ? 256 : 2 * s->capacity;
    bl_plan_candidate_t *grown = realloc(s->plan->candidates, capacity * sizeof *grown);
    if (grown == NULL) {
      s->status = BL_EXHAUSTED;
      return NULL;
    }
    s->plan->candidates = grown;
    s->capacity = capacity;
  }
  s->plan->candidates[s->plan->count] = *candidate;
  return &s->plan->candidates[s->plan->count++];
}

// Of leaders; a job's run makes the schedule with all effort, and this is what must be predicted.
static double leading_effort(const search_t *s, const bl_plan_candidate_t *candidate) {
  return bl__runs_as_job(s->request, candidate) ? 0 : LEADING_EFFORT;
}

static bl_status_t attempt_exactly(search_t *s, bl_plan_candidate_t *candidate) {
  return bl__attempt(s->request, leading_effort(s, candidate), &s->leaders, candidate);
}

// Whether the way fits; *as_it_is (NULL: not asked): with the layers where they make it fastest.
static bool attempt_way(search_t *s, bl_plan_candidate_t candidate, bool *as_it_is) {
  if (as_it_is != NULL) {
    *as_it_is = true;
  }
  if (s->status != BL_OK) {
    return true;
  }
  s->plan->tried++;
  bl_status_t status =
      s->exact ? attempt_exactly(s, &candidate) : bl__attempt(s->request, EXPLORING_EFFORT, &s->cache, &candidate);
  if (status == BL_OK && keep(s, &candidate) != NULL) {
    if (as_it_is != NULL) {
      *as_it_is = candidate.fits && !candidate.moved;
    }
    return candidate.fits;
  }
  bl__candidate_cleanup(&candidate);
  s->status = status == BL_EXHAUSTED ? status : s->status;
  return false;
}

static bool attempt(search_t *s, bl_plan_candidate_t candidate) {
  return attempt_way(s, candidate, NULL);
}

// Whether a job can ask for an order within fewer slots than the schedule's own limit. On a cluster kept inputs are what
// fills them, which no job limits.
static bool can_be_limited(const search_t *s, const bl_plan_candidate_t *candidate) {
  return s->request->memory > 0 && bl_schedule_info_find(candidate->schedule)->limited &&
         (s->request->cluster.nodes == 0 || candidate->recompute != BL_RECOMPUTE_FULL);
}

static void attempt_limited(search_t *s, bl_plan_candidate_t candidate) {
  candidate.limited = true;
  if (can_be_limited(s, &candidate)) {
    (void)attempt(s, candidate);
  }
}

// Nodes hold several stages: then it matters in which order.
static bool order_matters(const search_t *s, const bl_plan_candidate_t *candidate) {
  const bl_cluster_t *cluster = &s->request->cluster;
  return cluster->nodes > 0 && cluster->devices_per_node / candidate->parallel.tensor > 1 &&
         candidate->stages * candidate->parallel.tensor > cluster->devices_per_node;
}

// Pairs first; where they do not do, any device with room.
static void attempt_parked(search_t *s, bl_plan_candidate_t candidate) {
  static const bl_plan_policy_t policies[] = {BL_PLAN_BPIPE, BL_PLAN_CAP};
  for (size_t i = 0; i < 2; i++) {
    candidate.policy = policies[i];
    candidate.order = BL_NODES_SEQUENTIAL;
    if (!attempt(s, candidate)) {
      continue;
    }
    if (order_matters(s, &candidate)) {
      candidate.order = BL_NODES_PAIR_ADJACENT;
      (void)attempt(s, candidate);
    }
    return;
  }
}

// Without any copies, too.
static void attempt_balanced(search_t *s, bl_plan_candidate_t candidate) {
  bl_plan_candidate_t drop = candidate;
  drop.policy = BL_PLAN_DROP;
  (void)attempt(s, drop);
  attempt_parked(s, candidate);
  candidate.limited = true;
  if (can_be_limited(s, &candidate)) {
    attempt_parked(s, candidate);
  }
}

// With less and less kept, until the schedule fits as it is.
static void attempt_recomputations(search_t *s, bl_plan_candidate_t candidate, bl_recompute_t first) {
  for (int recompute = (int)first; recompute <= BL_RECOMPUTE_FULL; recompute++) {
    if (recompute == BL_RECOMPUTE_ATTENTION && candidate.attention == BL_ATTENTION_FLASH) {
      continue; // nothing of it is kept
    }
    candidate.recompute = (bl_recompute_t)recompute;
    bool as_it_is, fits = attempt_way(s, candidate, &as_it_is);
    if (!as_it_is) {
      attempt_limited(s, candidate);
    }
    if (fits) {
      return;
    }
    if (recompute != BL_RECOMPUTE_FULL && candidate.stages > 1 && s->request->memory > 0) {
      attempt_balanced(s, candidate);
    }
  }
}

static void attempt_attentions(search_t *s, bl_plan_candidate_t candidate) {
  static const bl_attention_t both[] = {BL_ATTENTION_FLASH, BL_ATTENTION_NAIVE};
  const bl_plan_request_t *r = s->request;
  bl_attention_t measured = r->profile_count > 0 ? r->profiles[0]->options.attention : BL_ATTENTION_NAIVE;
  const bl_attention_t *list = r->attention_count > 0 ? r->attentions : r->profile_count > 0 ? &measured : both;
  uint32_t count = r->attention_count > 0 ? r->attention_count : r->profile_count > 0 ? 1 : 2;
  for (uint32_t i = 0; i < count; i++) {
    candidate.attention = list[i];
    attempt_recomputations(s, candidate, BL_RECOMPUTE_NONE);
  }
}

static void attempt_micro_batches(search_t *s, bl_plan_candidate_t candidate) {
  static const uint32_t usual[] = {1, 2, 4, 8};
  const bl_plan_request_t *r = s->request;
  const uint32_t *list = r->micro_batch_count > 0 ? r->micro_batches : usual;
  uint32_t count = r->micro_batch_count > 0 ? r->micro_batch_count : 4, of_replica = r->batch / candidate.parallel.data;
  for (uint32_t i = 0; i < count; i++) {
    if (of_replica % list[i] == 0) {
      candidate.micro_batch = list[i];
      candidate.micro_batches = of_replica / list[i];
      attempt_attentions(s, candidate);
    }
  }
}

static bool wanted(const bl_plan_request_t *r, const bl_schedule_info_t *info) {
  for (uint32_t i = 0; i < r->schedule_count; i++) {
    if (strcmp(r->schedules[i], info->name) == 0) {
      return true;
    }
  }
  return r->schedule_count == 0 && info->runs;
}

static void attempt_schedules(search_t *s, bl_plan_candidate_t candidate) {
  size_t count;
  const bl_schedule_info_t *infos = bl_schedule_infos(&count);
  for (size_t i = 0; i < count; i++) {
    if (!wanted(s->request, &infos[i])) {
      continue;
    }
    candidate.schedule = infos[i].name;
    candidate.chunks = infos[i].default_chunks;
    attempt_micro_batches(s, candidate);
    if (strcmp(infos[i].name, "interleaved") == 0) { // the one of them whose chunks are for choosing
      candidate.chunks = 4;
      attempt_micro_batches(s, candidate);
    }
  }
}

// ---- shapes of a cluster

static bool listed(const uint32_t *list, uint32_t count, uint32_t value) {
  for (uint32_t i = 0; i < count; i++) {
    if (list[i] == value) {
      return true;
    }
  }
  return count == 0;
}

static void attempt_shapes(search_t *s) {
  const bl_plan_request_t *r = s->request;
  if (r->cluster.nodes == 0) {
    for (uint32_t i = 0; i < r->stage_count; i++) {
      attempt_schedules(s, (bl_plan_candidate_t){.stages = r->stages[i], .parallel = BL_PARALLEL_NONE});
    }
    return;
  }
  uint32_t devices = r->cluster.nodes * r->cluster.devices_per_node;
  for (uint32_t t = 1; t <= r->cluster.devices_per_node; t++) {
    bool usual = r->tensor_count > 0 ? listed(r->tensors, r->tensor_count, t) : (t & (t - 1)) == 0 && t <= 8;
    if (!usual || r->cluster.devices_per_node % t != 0 || r->model->heads % t != 0) {
      continue;
    }
    for (uint32_t p = 1; p * t <= devices; p++) {
      uint32_t d = devices / (p * t);
      if (p * t * d == devices && r->batch % d == 0 && p <= r->model->layers && listed(r->stages, r->stage_count, p)) {
        bl_parallel_t parallel = {.tensor = t, .data = d, .shard = r->shard, .sequence = r->sequence && t > 1};
        attempt_schedules(s, (bl_plan_candidate_t){.stages = p, .parallel = parallel});
      }
    }
  }
}

// ---- ranking

static int compare(const void *a, const void *b) {
  const bl_plan_candidate_t *x = a, *y = b;
  if (x->fits != y->fits) {
    return x->fits ? -1 : 1;
  }
  double of_x = x->fits ? x->step : x->memory, of_y = y->fits ? y->step : y->memory;
  if (of_x == of_y) { // the same time: the one that needs less
    of_x = x->memory;
    of_y = y->memory;
  }
  return of_x != of_y ? (of_x > of_y) - (of_x < of_y) : (int)x->policy - (int)y->policy;
}

static void rank(bl_plan_t *plan) {
  if (plan->count > 0) {
    qsort(plan->candidates, plan->count, sizeof *plan->candidates, compare);
  }
  plan->fitting = 0;
  while (plan->fitting < plan->count && plan->candidates[plan->fitting].fits) {
    plan->fitting++;
  }
}

// The best that parks at pairs, parking anywhere.
static void attempt_twin(search_t *s) {
  for (uint32_t i = 0; i < s->plan->fitting; i++) {
    if (s->plan->candidates[i].policy == BL_PLAN_BPIPE) {
      bl_plan_candidate_t twin = bl__candidate_choice(&s->plan->candidates[i]);
      twin.policy = BL_PLAN_CAP;
      (void)attempt(s, twin);
      return;
    }
  }
}

// The same way with some blocks parked and some made again, where that is faster; false otherwise.
static bool attempt_mix(search_t *s, const bl_plan_candidate_t *candidate, bl_plan_candidate_t *mixed) {
  const int last = order_matters(s, candidate) ? BL_NODES_PAIR_ADJACENT : BL_NODES_SEQUENTIAL;
  bool found = false;
  for (int order = BL_NODES_SEQUENTIAL; order <= last; order++) {
    bl_plan_candidate_t tried = bl__candidate_choice(candidate);
    tried.policy = BL_PLAN_AUTO;
    tried.order = (bl_node_order_t)order;
    bool better =
        attempt_exactly(s, &tried) == BL_OK && tried.fits && tried.step < (found ? mixed->step : candidate->step);
    if (better && found) {
      bl__candidate_cleanup(mixed);
    }
    if (better) {
      *mixed = tried;
      found = true;
    } else {
      bl__candidate_cleanup(&tried);
    }
  }
  return found;
}

// With arrays of its own.
static bl_status_t copy_candidate(const bl_plan_candidate_t *from, bl_plan_candidate_t *copy) {
  const size_t chunks = (size_t)from->stages * from->chunks;
  *copy = *from;
  copy->operations = NULL;
  copy->layers = malloc(chunks * sizeof *copy->layers);
  copy->costs = malloc(chunks * sizeof *copy->costs);
  if (copy->layers == NULL || copy->costs == NULL) {
    bl__candidate_cleanup(copy);
    return BL_EXHAUSTED;
  }
  memcpy(copy->layers, from->layers, chunks * sizeof *copy->layers);
  memcpy(copy->costs, from->costs, chunks * sizeof *copy->costs);
  return BL_OK;
}

// The policy auto beside the best that it would choose. Under it a job with memory.slots has another order.
static void add_automatic(search_t *s) {
  for (uint32_t i = 0; i < s->plan->fitting && s->status == BL_OK; i++) {
    const bl_plan_candidate_t *candidate = &s->plan->candidates[i];
    bl_plan_candidate_t twin;
    if (candidate->policy == BL_PLAN_NONE || candidate->limited) {
      continue;
    }
    const char *name = "mix";
    if (!attempt_mix(s, candidate, &twin)) {
      name = bl_plan_policy_name(candidate->policy);
      s->status = copy_candidate(candidate, &twin);
    }
    if (s->status != BL_OK) {
      return;
    }
    snprintf(twin.why, sizeof twin.why, "a run measures and chooses, by these costs %s", name);
    twin.policy = BL_PLAN_AUTO;
    bl_schedule_destroy(twin.operations);
    twin.operations = NULL;
    if (keep(s, &twin) == NULL) {
      bl__candidate_cleanup(&twin);
    }
    return;
  }
}

// Makes a candidate again, for just its costs. One that does not fit any more, as this order keeps more, is followed by
// those that make do with less.
static void settle(search_t *s, uint32_t index) {
  bl_plan_candidate_t again = bl__candidate_choice(&s->plan->candidates[index]);
  bl_status_t status = attempt_exactly(s, &again);
  if (status != BL_OK) {
    bl__candidate_cleanup(&again);
    s->status = status;
    return;
  }
  const bl_plan_candidate_t *hurried = &s->plan->candidates[index];
  if (!bl__runs_as_job(s->request, &again) && (!again.fits || again.step > hurried->step)) {
    bl__candidate_cleanup(&again); // no job will make this order: the better one will do
    return;
  }
  bl__candidate_cleanup(&s->plan->candidates[index]);
  s->plan->candidates[index] = again;
  if (!again.fits && again.policy == BL_PLAN_NONE && !again.limited) {
    bl_plan_candidate_t choice = bl__candidate_choice(&again);
    s->exact = true;
    attempt_limited(s, choice);
    if (choice.recompute != BL_RECOMPUTE_FULL && choice.stages > 1) {
      attempt_balanced(s, choice);
      attempt_recomputations(s, choice, (bl_recompute_t)(choice.recompute + 1));
    }
    s->exact = false;
  }
}

// Leaders again with more effort; their ranking may change, until the first is what a job's run would make.
static void improve_leaders(search_t *s) {
  attempt_twin(s);
  rank(s->plan);
  const uint32_t leaders = s->plan->fitting < LEADERS ? s->plan->fitting : LEADERS;
  for (uint32_t i = 0; i < leaders && s->status == BL_OK; i++) {
    settle(s, i);
  }
  rank(s->plan);
  while (s->status == BL_OK && s->plan->fitting > 0 && !s->plan->candidates[0].exact &&
         bl__runs_as_job(s->request, &s->plan->candidates[0])) {
    settle(s, 0);
    rank(s->plan);
  }
  add_automatic(s);
  rank(s->plan);
}

static void name_candidate(const bl_plan_candidate_t *c, char *text, size_t bytes) {
  char slots[48] = "";
  if (c->slots > 0) {
    snprintf(slots, sizeof slots, ", memory.slots %u", c->slots);
  }
  snprintf(text, bytes, "%s on %u stage%s, micro-batch %u, recompute %s, policy %s%s", c->schedule, c->stages,
           bl_plural(c->stages), c->micro_batch, bl_recompute_name(c->recompute), bl_plan_policy_name(c->policy),
           slots);
}

static const bl_plan_candidate_t *least_of(const bl_plan_t *plan, bool fitting) {
  const bl_plan_candidate_t *least = NULL;
  for (uint32_t i = 0; i < (fitting ? plan->fitting : plan->count); i++) {
    const bl_plan_candidate_t *c = &plan->candidates[i];
    least = c->memory > 0 && (least == NULL || c->memory < least->memory) ? c : least;
  }
  return least;
}

static bl_status_t explore(const bl_plan_request_t *request, bl_plan_t *plan) {
  search_t s = {.request = request, .plan = plan};
  attempt_shapes(&s);
  bl__order_cache_cleanup(&s.cache);
  rank(plan);
  return s.status;
}

// Under a limit other ways are tried than without one, so the smallest that works is searched for: up from a bound until
// something fits, then down until a limit that is a little smaller does not work.
static bl_status_t find_smallest(const bl_plan_request_t *request, const bl_plan_t *failed, double *bytes, char *name,
                                 size_t name_bytes) {
  const bl_plan_candidate_t *bound = least_of(failed, false);
  bl_plan_request_t tried = *request;
  bl_status_t status = BL_OK;
  tried.memory = bound != NULL ? fmax(bound->memory, request->memory) : 0;
  *bytes = 0;
  for (int i = 0; i < SMALLEST_TRIES && tried.memory > 0 && status == BL_OK; i++) {
    bl_plan_t plan = {0};
    status = explore(&tried, &plan);
    const bl_plan_candidate_t *least = status == BL_OK ? least_of(&plan, true) : NULL;
    if (least != NULL) {
      *bytes = least->memory;
      name_candidate(least, name, name_bytes);
      tried.memory = *bytes * (1 - SMALLEST_STEP);
    } else {
      tried.memory = *bytes > 0 ? 0 : tried.memory * SMALLEST_GROWTH;
    }
    bl_plan_cleanup(&plan);
  }
  return status;
}

// Which of the given shapes leaves nothing to try.
static void explain_nothing(const bl_plan_request_t *r, char *text, size_t bytes) {
  static const uint32_t one = 1;
  uint32_t least = UINT32_MAX, heads = 0, divides = 0;
  const uint32_t *micro_batches = r->micro_batch_count > 0 ? r->micro_batches : &one;
  for (uint32_t i = 0; i < r->stage_count; i++) {
    least = r->stages[i] < least ? r->stages[i] : least;
  }
  for (uint32_t i = 0; i < (r->micro_batch_count > 0 ? r->micro_batch_count : 1); i++) {
    divides += r->batch % micro_batches[i] == 0;
  }
  for (uint32_t i = 0; i < r->tensor_count; i++) {
    heads += r->model->heads % r->tensors[i] == 0 &&
             (r->cluster.nodes == 0 || r->cluster.devices_per_node % r->tensors[i] == 0);
  }
  if (r->stage_count > 0 && least > r->model->layers) {
    snprintf(text, bytes, "%u stages are more than its %u layer%s", least, r->model->layers,
             bl_plural(r->model->layers));
  } else if (divides == 0) {
    snprintf(text, bytes, "a batch of %u sequence%s is no multiple of a micro-batch of %u", r->batch,
             bl_plural(r->batch), micro_batches[0]);
  } else if (r->tensor_count > 0 && heads == 0) {
    snprintf(text, bytes,
             "tensor parallelism of %u does not divide the model's %u head%s, or not the devices of a node",
             r->tensors[0], r->model->heads, bl_plural(r->model->heads));
  } else if (r->cluster.nodes > 0) {
    snprintf(
        text, bytes,
        "no stages x tensor parallelism x replicas fill %u x %u devices exactly with at most %u stage%s and replicas "
        "that divide a batch of %u sequence%s",
        r->cluster.nodes, r->cluster.devices_per_node, r->model->layers, bl_plural(r->model->layers), r->batch,
        bl_plural(r->batch));
  } else {
    snprintf(text, bytes, "a batch of %u sequence%s, %u layer%s and the given shapes leave no choice", r->batch,
             bl_plural(r->batch), r->model->layers, bl_plural(r->model->layers));
  }
}

static bl_status_t refuse(const bl_plan_t *plan, const bl_plan_request_t *request, bl_error_t *err) {
  char limit[BL_BYTES_TEXT], needed[BL_BYTES_TEXT], name[200] = "";
  double bytes = 0;
  if (plan->count > 0 && find_smallest(request, plan, &bytes, name, sizeof name) != BL_OK) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory to plan");
  }
  if (bytes <= 0) {
    char why[256];
    explain_nothing(request, why, sizeof why);
    return bl_error_set(err, BL_INVALID, "no way to run this: %s", why);
  }
  return bl_error_set(
      err, BL_EXHAUSTED, "nothing fits into %s a device; the smallest limit that works is %s (%.0f bytes): %s",
      bl_bytes_format((uint64_t)request->memory, limit), bl_bytes_format((uint64_t)bytes, needed), bytes, name);
}

// What fitted with a hurried order does not with the one that runs.
static bl_status_t refuse_nearest(const bl_plan_t *plan, const bl_plan_request_t *request, bl_error_t *err) {
  char limit[BL_BYTES_TEXT], name[200];
  const bl_plan_candidate_t *least = least_of(plan, false);
  name_candidate(least, name, sizeof name);
  return bl_error_set(err, BL_EXHAUSTED, "nothing fits into %s a device; the nearest is %s: %s",
                      bl_bytes_format((uint64_t)request->memory, limit), name, least->why);
}

bl_status_t bl_plan_search(const bl_plan_request_t *request, bl_plan_t *plan, bl_error_t *err) {
  *plan = (bl_plan_t){0};
  search_t s = {.request = request, .plan = plan, .leaders = {.exact = true}};
  attempt_shapes(&s);
  rank(plan);
  bl_status_t status = s.status;
  if (status != BL_OK) {
    status = bl_error_set(err, status, "no memory to plan");
  } else if (plan->fitting == 0) {
    status = refuse(plan, request, err);
  } else {
    improve_leaders(&s);
    status = s.status == BL_OK ? BL_OK : bl_error_set(err, s.status, "no memory to plan");
  }
  if (status == BL_OK && plan->fitting == 0) {
    status = refuse_nearest(plan, request, err);
  }
  bl__order_cache_cleanup(&s.cache);
  bl__order_cache_cleanup(&s.leaders);
  if (status != BL_OK) {
    bl_plan_cleanup(plan);
  }
  return status;
}

void bl_plan_cleanup(bl_plan_t *plan) {
  for (uint32_t i = 0; i < plan->count; i++) {
    bl__candidate_cleanup(&plan->candidates[i]);
  }
  free(plan->candidates);
  *plan = (bl_plan_t){0};
}
