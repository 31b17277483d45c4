// SPDX-License-Identifier: Apache-2.0
#include "plan/report/report.h"

#include "base/words.h"
#include "plan/candidate/chunks.h"
#include "plan/candidate/slices.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Search budget of a generator that is called only for its error.
#define HARDLY_ANY_EFFORT 1e-3

typedef struct rejecting {
  const bl_plan_request_t *request;
  bl_plan_t *plan;
  bl_status_t status;
} rejecting_t;

static bl_plan_rejection_t *add(rejecting_t *x, const char *kind, const char *value, uint32_t number) {
  bl_plan_t *plan = x->plan;
  bl_plan_rejection_t *grown = realloc(plan->rejections, (plan->rejection_count + 1) * sizeof *grown);
  if (grown == NULL) {
    x->status = BL_EXHAUSTED;
    return NULL;
  }
  plan->rejections = grown;
  grown += plan->rejection_count++;
  *grown = (bl_plan_rejection_t){.kind = kind};
  if (value != NULL && number > 0) {
    snprintf(grown->value, sizeof grown->value, "%s, %u chunk%s", value, number, bl_plural(number));
  } else if (value != NULL) {
    snprintf(grown->value, sizeof grown->value, "%s", value);
  } else {
    snprintf(grown->value, sizeof grown->value, "%u", number);
  }
  return grown;
}

// ---- what was tried

// 0 and NULL: any.
typedef struct choice {
  const char *schedule;
  uint32_t chunks, stages, tensor, micro_batch, slices;
} choice_t;

static bool tried(const bl_plan_t *plan, choice_t choice) {
  for (uint32_t i = 0; i < plan->count; i++) {
    const bl_plan_candidate_t *c = &plan->candidates[i];
    if ((choice.schedule == NULL || strcmp(c->schedule, choice.schedule) == 0) &&
        (choice.chunks == 0 || c->chunks == choice.chunks) && (choice.stages == 0 || c->stages == choice.stages) &&
        (choice.tensor == 0 || c->parallel.tensor == choice.tensor) &&
        (choice.micro_batch == 0 || c->micro_batch == choice.micro_batch) &&
        (choice.slices == 0 || c->slices == choice.slices)) {
      return true;
    }
  }
  return false;
}

// Returns whether sequences can be cut into `slices`, without tensor parallelism; if not, *why is set.
static bool cuts(const bl_plan_request_t *r, uint32_t slices, char why[BL_PLAN_WHY]) {
  const bl_plan_candidate_t choice = {.slices = slices, .micro_batch = 1, .parallel = BL_PARALLEL_NONE};
  return bl__slices_possible(r->model, &choice, why);
}

// Returns the first requested number of slices in which the schedule can be tried, else its own.
static uint32_t slices_of(const bl_plan_request_t *r, const bl_schedule_info_t *info) {
  for (uint32_t i = 0; i < r->slice_count; i++) {
    if (bl__slices_apply(r, info, r->slices[i]) && cuts(r, r->slices[i], NULL)) {
      return r->slices[i];
    }
  }
  return info->default_slices;
}

// Returns why the schedule is tried in none of the slices of the request; false: it is in some.
static bool refuses_slices(const bl_plan_request_t *r, const bl_schedule_info_t *info, char why[BL_PLAN_WHY]) {
  uint32_t applied = 0;
  for (uint32_t i = 0; i < r->slice_count; i++) {
    if (bl__slices_apply(r, info, r->slices[i])) {
      applied++;
      if (cuts(r, r->slices[i], why)) {
        return false;
      }
    }
  }
  if (r->slice_count > 0 && applied == 0) {
    snprintf(why, BL_PLAN_WHY,
             info->default_slices > 1 ? "is for slices, and only whole sequences are asked for"
                                      : "seq1f1b is its name in slices");
  } else if (r->slice_count == 0 && info->default_slices == 1) {
    return false;
  } else if (r->slice_count == 0 && r->model->seq / 2 < BL_PLAN_SLICE_LEAST) {
    snprintf(why, BL_PLAN_WHY,
             "is for slices; those of %u tokens would have less than %u, and are tried only if they are asked for",
             r->model->seq, BL_PLAN_SLICE_LEAST);
  } else if (r->slice_count == 0 && cuts(r, 2, why)) {
    snprintf(why, BL_PLAN_WHY, "in slices its compute alone takes longer than the best");
  }
  return true;
}

// Returns whether none of a schedule for slices fits, and others were left out because they can only be slower.
static bool leaves_out(const bl_plan_t *plan, const bl_schedule_info_t *info) {
  bool fits = false;
  for (uint32_t i = 0; i < plan->fitting && !fits; i++) {
    fits = strcmp(plan->candidates[i].schedule, info->name) == 0;
  }
  return info->default_slices > 1 && plan->slices_left_out && !fits;
}

// Returns why the schedule cannot run in this shape; false: it can.
static bool refuses(const rejecting_t *x, const bl_schedule_info_t *info, uint32_t chunks, uint32_t stages,
                    uint32_t micro_batches, char why[BL_PLAN_WHY]) {
  const uint32_t layers = x->request->model->layers;
  const uint64_t all = (uint64_t)stages * chunks;
  if (!bl__chunks_possible(info, chunks)) {
    snprintf(why, BL_PLAN_WHY, "has %u chunk%s a stage%s, not %u", info->default_chunks,
             bl_plural(info->default_chunks), info->any_chunks ? " or more" : "", chunks);
    return true;
  }
  if (all > layers) {
    snprintf(why, BL_PLAN_WHY, "needs %u chunk%s on each of %u stage%s, %llu in all, and the model has %u layer%s",
             chunks, bl_plural(chunks), stages, bl_plural(stages), (unsigned long long)all, layers, bl_plural(layers));
    return true;
  }
  const bl_schedule_request_t request = {.name = info->name,
                                         .stages = stages,
                                         .micro_batches = micro_batches,
                                         .chunks = chunks,
                                         .slices = slices_of(x->request, info),
                                         .effort = HARDLY_ANY_EFFORT};
  bl_schedule_t *made;
  bl_error_t err = {0};
  if (bl_schedule_generate(&request, &made, &err) == BL_OK) {
    bl_schedule_destroy(made);
    return false;
  }
  char name[64];
  snprintf(name, sizeof name, "schedule %s: ", info->name); // the row names it already
  const size_t skipped = strncmp(err.text, name, strlen(name)) == 0 ? strlen(name) : 0;
  snprintf(why, BL_PLAN_WHY, "%.*s", BL_PLAN_WHY - 1, err.text + skipped);
  return true;
}

// Returns the smallest number of stages that other candidates run on, with which chunks have the most layers. Without
// any, that of the request.
static uint32_t fewest_stages(const rejecting_t *x) {
  uint32_t least = UINT32_MAX;
  for (uint32_t i = 0; i < x->plan->count; i++) {
    least = x->plan->candidates[i].stages < least ? x->plan->candidates[i].stages : least;
  }
  for (uint32_t i = 0; i < x->request->stage_count && x->plan->count == 0; i++) {
    least = x->request->stages[i] < least ? x->request->stages[i] : least;
  }
  return least == UINT32_MAX ? 1 : least;
}

// Writes the first reason over all requested numbers of micro-batches.
static void explain(const rejecting_t *x, const bl_schedule_info_t *info, uint32_t chunks, uint32_t stages,
                    char why[BL_PLAN_WHY]) {
  static const uint32_t usual[] = {1, 2, 4, 8};
  const bl_plan_request_t *r = x->request;
  const uint32_t *list = r->micro_batch_count > 0 ? r->micro_batches : usual;
  const uint32_t count = r->micro_batch_count > 0 ? r->micro_batch_count : 4;
  bool some = false;
  if (refuses_slices(r, info, why)) {
    return;
  }
  for (uint32_t i = 0; i < count; i++) {
    if (list[i] > 0 && r->batch % list[i] == 0) {
      some = true;
      if (refuses(x, info, chunks, stages, r->batch / list[i], why)) {
        return;
      }
    }
  }
  if (!some) {
    snprintf(why, BL_PLAN_WHY, "a batch of %u sequence%s cannot be cut into any of the micro-batches", r->batch,
             bl_plural(r->batch));
  } else {
    snprintf(why, BL_PLAN_WHY, "no partition of %u layers over %u stage%s of %u chunk%s gives costs that can be timed",
             r->model->layers, stages, bl_plural(stages), chunks, bl_plural(chunks));
  }
}

// ---- kinds

static bool wanted(const bl_plan_request_t *r, const bl_schedule_info_t *info) {
  for (uint32_t i = 0; i < r->schedule_count; i++) {
    if (strcmp(r->schedules[i], info->name) == 0) {
      return true;
    }
  }
  return r->schedule_count == 0;
}

static void reject_chunks_of(rejecting_t *x, const bl_schedule_info_t *info) {
  for (uint32_t i = 0; i < x->request->chunk_count; i++) {
    const uint32_t v = x->request->chunks[i];
    bl_plan_rejection_t *row = NULL;
    if (bl__chunks_possible(info, v) && !tried(x->plan, (choice_t){.schedule = info->name, .chunks = v})) {
      row = add(x, "schedule", info->name, v);
    }
    if (row != NULL) {
      explain(x, info, v, fewest_stages(x), row->why);
    }
  }
}

static void reject_schedules(rejecting_t *x) {
  const bl_plan_request_t *r = x->request;
  size_t count;
  const bl_schedule_info_t *infos = bl_schedule_infos(&count);
  for (size_t i = 0; i < count && x->status == BL_OK; i++) {
    if (!wanted(r, &infos[i])) {
      continue;
    }
    if (tried(x->plan, (choice_t){.schedule = infos[i].name}) && !leaves_out(x->plan, &infos[i])) {
      reject_chunks_of(x, &infos[i]);
      continue;
    }
    bl_plan_rejection_t *row = add(x, "schedule", infos[i].name, 0);
    if (row != NULL && infos[i].not_planned != NULL) {
      snprintf(row->why, sizeof row->why, "%s", infos[i].not_planned);
    } else if (row != NULL) {
      uint32_t chunks = bl__chunks_next(r, &infos[i], fewest_stages(x), 0);
      chunks = chunks == 0 && r->chunk_count > 0 ? r->chunks[0] : chunks;
      explain(x, &infos[i], chunks, fewest_stages(x), row->why);
    }
  }
}

// Explains with the first requested schedule and its smallest requested number of chunks.
static void explain_by_schedule(const rejecting_t *x, uint32_t stages, uint32_t micro_batches, char why[BL_PLAN_WHY]) {
  size_t count;
  const bl_schedule_info_t *infos = bl_schedule_infos(&count);
  for (size_t i = 0; i < count; i++) {
    const uint32_t chunks = bl__chunks_next(x->request, &infos[i], stages, 0);
    char text[BL_PLAN_WHY];
    if (chunks > 0 && infos[i].not_planned == NULL && wanted(x->request, &infos[i]) &&
        refuses(x, &infos[i], chunks, stages, micro_batches, text)) {
      snprintf(why, BL_PLAN_WHY, "%s %.*s", infos[i].name, (int)(BL_PLAN_WHY - strlen(infos[i].name) - 2), text);
      return;
    }
  }
  snprintf(why, BL_PLAN_WHY, "no schedule that is asked for runs with it");
}

static void reject_chunks(rejecting_t *x) {
  const bl_plan_request_t *r = x->request;
  const uint32_t stages = fewest_stages(x);
  for (uint32_t i = 0; i < r->chunk_count; i++) {
    bl_plan_rejection_t *row =
        tried(x->plan, (choice_t){.chunks = r->chunks[i]}) ? NULL : add(x, "chunks", NULL, r->chunks[i]);
    const uint64_t all = (uint64_t)stages * r->chunks[i];
    if (row != NULL && all > r->model->layers) {
      snprintf(row->why, sizeof row->why, "%u chunk%s on each of %u stage%s are %llu, and the model has %u layer%s",
               r->chunks[i], bl_plural(r->chunks[i]), stages, bl_plural(stages), (unsigned long long)all,
               r->model->layers, bl_plural(r->model->layers));
    } else if (row != NULL) {
      snprintf(row->why, sizeof row->why, "no schedule that is asked for has %u chunk%s a stage, or they do not run so",
               r->chunks[i], bl_plural(r->chunks[i]));
    }
  }
}

static void reject_micro_batches(rejecting_t *x) {
  const bl_plan_request_t *r = x->request;
  for (uint32_t i = 0; i < r->micro_batch_count; i++) {
    const uint32_t b = r->micro_batches[i];
    bl_plan_rejection_t *row = tried(x->plan, (choice_t){.micro_batch = b}) ? NULL : add(x, "micro-batch", NULL, b);
    if (row == NULL) {
      continue;
    }
    if (r->batch % b != 0) {
      snprintf(row->why, sizeof row->why, "a batch of %u sequence%s cannot be cut into micro-batches of %u", r->batch,
               bl_plural(r->batch), b);
    } else if (r->cluster.nodes > 0) {
      snprintf(row->why, sizeof row->why,
               "no number of replicas that fills the devices cuts a batch of %u sequences into micro-batches of %u",
               r->batch, b);
    } else {
      explain_by_schedule(x, fewest_stages(x), r->batch / b, row->why);
    }
  }
}

static void reject_slices(rejecting_t *x) {
  const bl_plan_request_t *r = x->request;
  for (uint32_t i = 0; i < r->slice_count; i++) {
    const uint32_t slices = r->slices[i];
    bl_plan_rejection_t *row = tried(x->plan, (choice_t){.slices = slices}) ? NULL : add(x, "slices", NULL, slices);
    if (row != NULL && cuts(r, slices, row->why)) {
      snprintf(row->why, sizeof row->why, "no schedule that is asked for runs in %u slice%s", slices,
               bl_plural(slices));
    }
  }
}

static void reject_stages(rejecting_t *x) {
  const bl_plan_request_t *r = x->request;
  const uint32_t layers = r->model->layers, devices = r->cluster.nodes * r->cluster.devices_per_node;
  for (uint32_t i = 0; i < r->stage_count; i++) {
    const uint32_t p = r->stages[i];
    bl_plan_rejection_t *row = tried(x->plan, (choice_t){.stages = p}) ? NULL : add(x, "stages", NULL, p);
    if (row == NULL) {
      continue;
    }
    if (p > layers) {
      snprintf(row->why, sizeof row->why, "%u stages are more than the model's %u layer%s", p, layers,
               bl_plural(layers));
    } else if (devices > 0 && devices % p != 0) {
      snprintf(row->why, sizeof row->why, "%u stages do not divide %u x %u devices", p, r->cluster.nodes,
               r->cluster.devices_per_node);
    } else if (devices > 0) {
      snprintf(row->why, sizeof row->why,
               "%u devices for every stage leave no tensor parallelism and replicas that divide a node, %u heads and a "
               "batch of %u",
               devices / p, r->model->heads, r->batch);
    } else {
      explain_by_schedule(x, p, r->micro_batch_count > 0 ? r->batch / r->micro_batches[0] : r->batch, row->why);
    }
  }
}

static void reject_tensors(rejecting_t *x) {
  const bl_plan_request_t *r = x->request;
  for (uint32_t i = 0; i < r->tensor_count; i++) {
    const uint32_t t = r->tensors[i];
    bl_plan_rejection_t *row = tried(x->plan, (choice_t){.tensor = t}) ? NULL : add(x, "tensor", NULL, t);
    if (row == NULL) {
      continue;
    }
    if (r->cluster.devices_per_node % t != 0) {
      snprintf(row->why, sizeof row->why, "%u does not divide the %u device%s of a node", t,
               r->cluster.devices_per_node, bl_plural(r->cluster.devices_per_node));
    } else if (r->model->heads % t != 0) {
      snprintf(row->why, sizeof row->why, "%u does not divide the model's %u head%s", t, r->model->heads,
               bl_plural(r->model->heads));
    } else {
      snprintf(row->why, sizeof row->why, "no stages and replicas fill the other factor of %u devices: %u",
               r->cluster.nodes * r->cluster.devices_per_node, r->cluster.nodes * r->cluster.devices_per_node / t);
    }
  }
}

static void reject_host(rejecting_t *x) {
  bool parks = x->request->host.bytes <= 0;
  for (uint32_t i = 0; i < x->plan->count && !parks; i++) {
    parks = x->plan->candidates[i].policy == BL_POLICY_OFFLOAD;
  }
  bl_plan_rejection_t *row = parks ? NULL : add(x, "policy", bl_policy_kind_name(BL_POLICY_OFFLOAD), 0);
  if (row != NULL) {
    snprintf(row->why, sizeof row->why, "%s",
             x->request->memory <= 0 ? "devices have no limit that blocks would have to leave for (--memory)"
                                     : "all blocks fit where they are kept, so that none has to leave");
  }
}

bl_status_t bl__rejections_find(const bl_plan_request_t *request, bl_plan_t *plan) {
  rejecting_t x = {.request = request, .plan = plan};
  reject_schedules(&x);
  reject_chunks(&x);
  reject_micro_batches(&x);
  reject_slices(&x);
  reject_stages(&x);
  reject_tensors(&x);
  reject_host(&x);
  return x.status;
}
