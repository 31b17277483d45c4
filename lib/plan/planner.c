// SPDX-License-Identifier: Apache-2.0
#include "plan/planner.h"

#include "base/bytes.h"
#include "base/words.h"
#include "plan/exploring.h"
#include "plan/rejection.h"
#include "plan/why.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Ways whose orders are searched again with more effort: so many, and of small ones, which do not take long, all that
// the first search finds so near to the best.
#define LEADERS      6
#define LEADERS_MOST 12
#define NEAR         1.02
#define SMALL        2048 // operations
// Of the search for the smallest limit: how much larger the next one is, or how much smaller, and when to stop.
#define SMALLEST_GROWTH 1.15
#define SMALLEST_STEP   1e-3
#define SMALLEST_TRIES  60

const char *bl_plan_policy_name(bl_plan_policy_t policy) {
  static const char *const names[] = {"none", "bpipe", "cap", "drop", "auto"};
  return names[policy];
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
static void attempt_twin(bl__exploration_t *s) {
  for (uint32_t i = 0; i < s->plan->fitting; i++) {
    if (s->plan->candidates[i].policy == BL_PLAN_BPIPE) {
      bl_plan_candidate_t twin = bl__candidate_choice(&s->plan->candidates[i]);
      twin.policy = BL_PLAN_CAP;
      (void)bl__explore_way(s, twin);
      return;
    }
  }
}

// The same way with some blocks parked and some made again, where that is faster; false otherwise.
static bool attempt_mix(bl__exploration_t *s, const bl_plan_candidate_t *candidate, bl_plan_candidate_t *mixed) {
  const int last = bl__explore_order_matters(s, candidate) ? BL_NODES_PAIR_ADJACENT : BL_NODES_SEQUENTIAL;
  bool found = false;
  for (int order = BL_NODES_SEQUENTIAL; order <= last; order++) {
    bl_plan_candidate_t tried = bl__candidate_choice(candidate);
    tried.policy = BL_PLAN_AUTO;
    tried.order = (bl_node_order_t)order;
    bool better =
        bl__explore_exactly(s, &tried) == BL_OK && tried.fits && tried.step < (found ? mixed->step : candidate->step);
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
  copy->memory_of_stage = malloc(from->stages * sizeof *copy->memory_of_stage);
  if (copy->layers == NULL || copy->costs == NULL || copy->memory_of_stage == NULL) {
    bl__candidate_cleanup(copy);
    return BL_EXHAUSTED;
  }
  memcpy(copy->layers, from->layers, chunks * sizeof *copy->layers);
  memcpy(copy->costs, from->costs, chunks * sizeof *copy->costs);
  memcpy(copy->memory_of_stage, from->memory_of_stage, from->stages * sizeof *copy->memory_of_stage);
  return BL_OK;
}

// The policy auto beside the best that it would choose. Under it a job with memory.slots has another order.
static void add_automatic(bl__exploration_t *s) {
  for (uint32_t i = 0; i < s->plan->fitting && s->status == BL_OK; i++) {
    const bl_plan_candidate_t *candidate = &s->plan->candidates[i];
    bl_plan_candidate_t twin;
    if (candidate->policy == BL_PLAN_NONE || candidate->limit == BL_PLAN_LIMIT_FITTING) {
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
    if (!bl__explore_keep(s, &twin)) {
      bl__candidate_cleanup(&twin);
    }
    return;
  }
}

// Makes a candidate again, for just its costs. One that does not fit any more, as this order keeps more, is followed by
// those that make do with less.
static void settle(bl__exploration_t *s, uint32_t index) {
  bl_plan_candidate_t again = bl__candidate_choice(&s->plan->candidates[index]);
  bl_status_t status = bl__explore_exactly(s, &again);
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
  if (!again.fits && again.policy == BL_PLAN_NONE && again.limit == BL_PLAN_LIMIT_OWN) {
    bl__explore_less(s, bl__candidate_choice(&again));
  }
}

static bool is_small(const bl_plan_candidate_t *c) {
  return 3ull * c->stages * c->chunks * c->micro_batches <= SMALL;
}

// Whether none before it in the ranking has its schedule.
static bool is_first(const bl_plan_t *plan, uint32_t index) {
  for (uint32_t i = 0; i < index; i++) {
    if (strcmp(plan->candidates[i].schedule, plan->candidates[index].schedule) == 0) {
      return false;
    }
  }
  return true;
}

// The best of every schedule, which is what they are compared by: where a longer search finds a better order.
static void improve_families(bl__exploration_t *s) {
  for (uint32_t i = 0; i < s->plan->fitting && s->status == BL_OK; i++) {
    bl_plan_candidate_t *hurried = &s->plan->candidates[i];
    if (!is_first(s->plan, i)) {
      continue;
    }
    bl_plan_candidate_t again = bl__candidate_choice(hurried);
    bl_status_t status = bl__explore_further(s, &again);
    const bool better = status == BL_OK && again.fits && again.step < hurried->step;
    bl__candidate_cleanup(better ? hurried : &again);
    *hurried = better ? again : *hurried;
    s->status = status == BL_EXHAUSTED ? status : s->status;
  }
  rank(s->plan);
}

static uint32_t count_leaders(const bl_plan_t *plan) {
  uint32_t count = plan->fitting < LEADERS ? plan->fitting : LEADERS;
  while (count < plan->fitting && count < LEADERS_MOST) {
    const bl_plan_candidate_t *c = &plan->candidates[count];
    if (c->step > NEAR * plan->candidates[0].step || !is_small(c)) {
      break;
    }
    count++;
  }
  return count;
}

// Leaders again with more effort; their ranking may change, until the first is what a job's run would make.
static void improve_leaders(bl__exploration_t *s) {
  attempt_twin(s);
  rank(s->plan);
  improve_families(s);
  const uint32_t leaders = count_leaders(s->plan);
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
  bl__exploration_t s = {.request = request, .plan = plan, .all = true};
  bl__explore(&s);
  bl__explore_cleanup(&s);
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
static void explain_nothing(const bl_plan_request_t *r, const bl_plan_t *plan, char *text, size_t bytes) {
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
  } else if (plan->rejection_count > 0) {
    snprintf(text, bytes, "%s %s: %s", plan->rejections[0].kind, plan->rejections[0].value, plan->rejections[0].why);
  } else {
    snprintf(text, bytes, "a batch of %u sequence%s, %u layer%s and the given shapes leave no choice", r->batch,
             bl_plural(r->batch), r->model->layers, bl_plural(r->model->layers));
  }
}

static bl_status_t refuse(bl_plan_t *plan, const bl_plan_request_t *request, bl_error_t *err) {
  char limit[BL_BYTES_TEXT], needed[BL_BYTES_TEXT], name[200] = "";
  double bytes = 0;
  if (plan->count > 0 && find_smallest(request, plan, &bytes, name, sizeof name) != BL_OK) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory to plan");
  }
  if (bytes <= 0) {
    char why[BL_PLAN_WHY + 80];
    if (bl__rejections_find(request, plan) != BL_OK) {
      return bl_error_set(err, BL_EXHAUSTED, "no memory to plan");
    }
    explain_nothing(request, plan, why, sizeof why);
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
  bl__exploration_t s = {.request = request, .plan = plan, .exact_cache = {.exact = true}};
  bl__explore(&s);
  rank(plan);
  bl_status_t status = s.status;
  if (status != BL_OK) {
    status = bl_error_set(err, status, "no memory to plan");
  } else if (plan->fitting == 0) {
    status = refuse(plan, request, err);
  } else {
    improve_leaders(&s);
    s.status = s.status == BL_OK ? bl__rejections_find(request, plan) : s.status;
    status = s.status == BL_OK ? BL_OK : bl_error_set(err, s.status, "no memory to plan");
  }
  if (status == BL_OK && plan->fitting == 0) {
    status = refuse_nearest(plan, request, err);
  } else if (status == BL_OK) {
    bl__plan_tell_why(request, plan);
  }
  bl__explore_cleanup(&s);
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
  free(plan->rejections);
  *plan = (bl_plan_t){0};
}
