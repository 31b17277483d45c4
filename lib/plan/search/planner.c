// SPDX-License-Identifier: Apache-2.0
#include "plan/search/planner.h"

#include "base/bytes.h"
#include "base/words.h"
#include "plan/report/report.h"
#include "plan/search/explore.h"
#include "plan/search/smallest.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Candidates whose orders are searched once more with a larger budget: so many leaders, and up to LEADERS_MOST if they
// are small, which is quick, and the first search finds them this near to the best.
#define LEADERS      6
#define LEADERS_MOST 12
#define NEAR         1.02
#define SMALL        2048 // operations

// ---- ranking

static int compare(const void *a, const void *b) {
  const bl_plan_candidate_t *x = a, *y = b;
  if (x->fits != y->fits) {
    return x->fits ? -1 : 1;
  }
  double of_x = x->fits ? x->step : x->memory, of_y = y->fits ? y->step : y->memory;
  if (of_x == of_y) { // equal times: by memory
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

// Evaluates the best candidate that parks at pairs with parking anywhere.
static void attempt_twin(bl__exploration_t *s) {
  for (uint32_t i = 0; i < s->plan->fitting; i++) {
    if (s->plan->candidates[i].policy == BL_POLICY_BPIPE) {
      bl_plan_candidate_t twin = bl__candidate_choice(&s->plan->candidates[i]);
      twin.policy = BL_POLICY_CAP;
      (void)bl__explore_candidate(s, twin);
      return;
    }
  }
}

// Evaluates the same candidate with some blocks parked and some dropped. Returns false if that is not faster.
static bool attempt_mix(bl__exploration_t *s, const bl_plan_candidate_t *candidate, bl_plan_candidate_t *mixed) {
  const int last = bl__explore_order_matters(s, candidate) ? BL_NODES_PAIR_ADJACENT : BL_NODES_SEQUENTIAL;
  bool found = false;
  for (int order = BL_NODES_SEQUENTIAL; order <= last; order++) {
    bl_plan_candidate_t tried = bl__candidate_choice(candidate);
    tried.policy = BL_POLICY_AUTO;
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

// Copies a candidate with its arrays.
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

// Adds a candidate with policy auto, based on the best one that auto would choose. Under auto a job with memory.slots
// has another order, so those are skipped.
static void add_automatic(bl__exploration_t *s) {
  for (uint32_t i = 0; i < s->plan->fitting && s->status == BL_OK; i++) {
    const bl_plan_candidate_t *candidate = &s->plan->candidates[i];
    bl_plan_candidate_t twin;
    if (candidate->policy == BL_POLICY_NONE || candidate->limit == BL_PLAN_LIMIT_FITTING) {
      continue;
    }
    const char *name = "mix";
    if (!attempt_mix(s, candidate, &twin)) {
      name = bl_policy_kind_name(candidate->policy);
      s->status = copy_candidate(candidate, &twin);
    }
    if (s->status != BL_OK) {
      return;
    }
    snprintf(twin.why, sizeof twin.why, "a run measures and chooses, by these costs %s", name);
    twin.policy = BL_POLICY_AUTO;
    bl_schedule_destroy(twin.operations);
    twin.operations = NULL;
    if (!bl__explore_keep(s, &twin)) {
      bl__candidate_cleanup(&twin);
    }
    return;
  }
}

static bool is_small(const bl_plan_candidate_t *c) {
  return 3ull * c->stages * c->chunks * c->micro_batches * c->slices <= SMALL;
}

// Returns whether no candidate before it in the ranking has its schedule.
static bool is_first(const bl_plan_t *plan, uint32_t index) {
  for (uint32_t i = 0; i < index; i++) {
    if (strcmp(plan->candidates[i].schedule, plan->candidates[index].schedule) == 0) {
      return false;
    }
  }
  return true;
}

// Searches longer for the best of every schedule, by which schedules are compared, and keeps a better order.
static void improve_families(bl__exploration_t *s) {
  for (uint32_t i = 0; i < s->plan->fitting && s->status == BL_OK; i++) {
    bl_plan_candidate_t *hurried = &s->plan->candidates[i];
    if (!is_first(s->plan, i)) {
      continue;
    }
    bl_plan_candidate_t longer = bl__candidate_choice(hurried);
    bl_status_t status = bl__explore_further(s, &longer);
    const bool better = status == BL_OK && longer.fits && longer.step < hurried->step;
    bl__candidate_cleanup(better ? hurried : &longer);
    *hurried = better ? longer : *hurried;
    s->status = status == BL_EXHAUSTED ? status : s->status;
  }
  rank(s->plan);
}

// Candidates recompute more only if memory requires it. Adds what it would cost otherwise, for the best of every
// schedule.
static void add_recomputations(bl__exploration_t *s) {
  const uint32_t fitting = s->plan->fitting;
  for (uint32_t i = 0; i < fitting && s->status == BL_OK; i++) {
    if (is_first(s->plan, i)) {
      bl__explore_recomputations(s, bl__candidate_choice(&s->plan->candidates[i]));
    }
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

// Evaluates leaders with a larger budget. Their ranking may change, so repeats until the first is the one that a job's
// run would make.
static void improve_leaders(bl__exploration_t *s) {
  attempt_twin(s);
  rank(s->plan);
  improve_families(s);
  add_recomputations(s);
  const uint32_t leaders = count_leaders(s->plan);
  for (uint32_t i = 0; i < leaders && s->status == BL_OK; i++) {
    bl__explore_leader(s, i);
  }
  rank(s->plan);
  while (s->status == BL_OK && s->plan->fitting > 0 && !s->plan->candidates[0].exact &&
         bl__runs_as_job(s->request, &s->plan->candidates[0])) {
    bl__explore_leader(s, 0);
    rank(s->plan);
  }
  add_automatic(s);
  rank(s->plan);
}

// Writes which of the given shapes leaves nothing to try.
static void explain_nothing(const bl_plan_request_t *r, const bl_plan_t *plan, char *text, size_t bytes) {
  static const uint32_t one = 1;
  uint32_t least = UINT32_MAX, shared = 0, divides = 0, cut = 0;
  bl_error_t err = {0};
  const uint32_t *micro_batches = r->micro_batch_count > 0 ? r->micro_batches : &one;
  for (uint32_t i = 0; i < r->stage_count; i++) {
    least = r->stages[i] < least ? r->stages[i] : least;
  }
  for (uint32_t i = 0; i < (r->micro_batch_count > 0 ? r->micro_batch_count : 1); i++) {
    divides += r->batch % micro_batches[i] == 0;
  }
  for (uint32_t i = 0; i < r->slice_count; i++) {
    cut += r->model->seq % r->slices[i] == 0;
  }
  for (uint32_t i = 0; i < r->tensor_count; i++) {
    const bool node = r->cluster.nodes == 0 || r->cluster.devices_per_node % r->tensors[i] == 0;
    shared += bl_layer_parts_check(r->model, r->tensors[i], r->model->seq, &err) == BL_OK && node;
  }
  if (r->stage_count > 0 && least > r->model->layers) {
    snprintf(text, bytes, "%u stages are more than its %u layer%s", least, r->model->layers,
             bl_plural(r->model->layers));
  } else if (divides == 0) {
    snprintf(text, bytes, "a batch of %u sequence%s is no multiple of a micro-batch of %u", r->batch,
             bl_plural(r->batch), micro_batches[0]);
  } else if (r->slice_count > 0 && cut == 0) {
    snprintf(text, bytes, "%u slices do not divide sequences of %u tokens", r->slices[0], r->model->seq);
  } else if (r->tensor_count > 0 && shared == 0) {
    snprintf(text, bytes, "tensor parallelism of %u does not divide the model, or not the devices of a node%s%.120s",
             r->tensors[0], err.text[0] != '\0' ? ": " : "", err.text);
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

static bl_status_t refuse_nothing(bl_plan_t *plan, const bl_plan_request_t *request, bl_error_t *err) {
  char why[BL_PLAN_WHY + 80];
  if (bl__rejections_find(request, plan) != BL_OK) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory to plan");
  }
  explain_nothing(request, plan, why, sizeof why);
  return bl_error_set(err, BL_INVALID, "no candidate can run this: %s", why);
}

// Adds to the message what the same limit allows with the optimizer's state on the host, if nothing else fits.
static void tell_host(const bl_plan_request_t *request, bl_error_t *err) {
  bl_plan_request_t asked = *request;
  bl_plan_t plan = {0};
  bl__exploration_t s = {.request = &asked, .plan = &plan, .exact_cache = {.exact = true}};
  if (request->optimizer_on_host || request->hardware == NULL || request->hardware->host_source == NULL) {
    return;
  }
  asked.optimizer_on_host = asked.asynchronous = true; // only a GPU has it there
  bl__explore(&s);
  rank(&plan);
  if (s.status == BL_OK && plan.fitting > 0) {
    improve_leaders(&s);
  }
  if (s.status == BL_OK && plan.fitting > 0) {
    const bl_plan_candidate_t *best = &plan.candidates[0];
    char name[BL__SMALLEST_NAME], device[BL_BYTES_TEXT], host[BL_BYTES_TEXT];
    const bl_error_t told = *err;
    bl__smallest_name(best, name);
    (void)bl_error_set(err, told.status,
                       "%.600s. With train.optimizer_memory: host (--optimizer-memory host) it fits: %s takes %s of a "
                       "device, %s of its host's memory and %.3g s a step, %.2g s of it for that",
                       told.text, name, bl_bytes_format((uint64_t)best->memory, device),
                       bl_bytes_format((uint64_t)best->fullest.host, host), best->step, best->overhead);
  }
  bl__explore_cleanup(&s);
  bl_plan_cleanup(&plan);
}

// Writes why parking blocks at the host does not save enough memory; "" without a host.
static void explain_host(const bl_plan_request_t *request, const bl_plan_t *plan, char *text, size_t bytes) {
  const bl_plan_candidate_t *nearest = NULL;
  for (uint32_t i = 0; i < plan->count && request->host.bytes > 0; i++) {
    const bl_plan_candidate_t *c = &plan->candidates[i];
    const double memory = c->memory > 0 ? c->memory : INFINITY; // 0: its memory is not known
    const bool nearer = nearest == NULL || nearest->memory <= 0 || memory < nearest->memory;
    nearest = c->policy == BL_POLICY_OFFLOAD && nearer ? c : nearest;
  }
  text[0] = '\0';
  if (nearest != NULL && nearest->memory > 0) {
    char needed[BL_BYTES_TEXT], state[BL_BYTES_TEXT];
    const bl_footprint_t *of = &nearest->fullest;
    snprintf(text, bytes,
             "; memory of the host takes activation blocks alone: with it stage %u needs %s at least, %s of that for "
             "weights, gradients and optimizer",
             nearest->memory_stage, bl_bytes_format((uint64_t)nearest->memory, needed),
             bl_bytes_format((uint64_t)(of->weights + of->gradients + of->optimizer), state));
  } else if (nearest != NULL) {
    snprintf(text, bytes, "; memory of the host takes activation blocks alone: with it %s", nearest->why);
  }
}

static bl_status_t refuse(bl_plan_t *plan, const bl_plan_request_t *request, bl_error_t *err) {
  char limit[BL_BYTES_TEXT], needed[BL_BYTES_TEXT], name[BL__SMALLEST_NAME];
  bl__smallest_t smallest;
  const bl_plan_candidate_t *least = bl__smallest_of(plan, false);
  if (least == NULL) {
    return refuse_nothing(plan, request, err);
  }
  if (bl__smallest_find(request, plan, &smallest) != BL_OK) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory to plan");
  }
  char host[BL_PLAN_WHY + 80];
  explain_host(request, plan, host, sizeof host);
  bl_bytes_format((uint64_t)request->memory, limit);
  if (smallest.bytes <= 0) { // no limit was found
    bl__smallest_name(least, name);
    return bl_error_set(err, BL_EXHAUSTED, "nothing fits into %s a device; the nearest is %s: %s%s", limit, name,
                        least->why, host);
  }
  return bl_error_set(err, BL_EXHAUSTED,
                      "nothing fits into %s a device; the smallest limit that works is %s (%.0f bytes): %s%s", limit,
                      bl_bytes_format((uint64_t)smallest.bytes, needed), smallest.bytes, smallest.name, host);
}

bl_status_t bl_plan_search(const bl_plan_request_t *request, bl_plan_t *plan, bl_error_t *err) {
  *plan = (bl_plan_t){0};
  bl__exploration_t s = {.request = request, .plan = plan, .exact_cache = {.exact = true}};
  bl__explore(&s);
  rank(plan);
  bl_status_t status = s.status;
  if (status != BL_OK) {
    status = bl_error_set(err, status, "no memory to plan");
  } else if (plan->fitting > 0) {
    improve_leaders(&s);
    s.status = s.status == BL_OK ? bl__rejections_find(request, plan) : s.status;
    status = s.status == BL_OK ? BL_OK : bl_error_set(err, s.status, "no memory to plan");
  }
  if (status == BL_OK && plan->fitting == 0) { // nothing fits, with quick orders or with those that run
    status = refuse(plan, request, err);
    if (status == BL_EXHAUSTED && err != NULL) {
      tell_host(request, err);
    }
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
