// SPDX-License-Identifier: Apache-2.0
#include "plan/candidate/trying.h"

#include "base/bytes.h"
#include "plan/candidate/partition.h"
#include "plan/search/bound.h"
#include "schedule/ir/peaks.h"
#include "schedule/ir/slots.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool bl__runs_as_job(const bl_plan_request_t *request, const bl_plan_candidate_t *candidate) {
  return request->cluster.nodes == 0 || (candidate->parallel.tensor == 1 && candidate->parallel.data == 1);
}

bool bl__trying_on_cluster(const bl__trying_t *a) {
  return a->request->cluster.nodes > 0;
}

static bl_status_t allocate(bl__trying_t *a) {
  uint32_t stages = a->c->stages;
  a->spans = calloc(a->chunks, sizeof *a->spans);
  a->costs = calloc(a->chunks, sizeof *a->costs);
  a->numbers = calloc(5 * (size_t)stages + a->chunks, sizeof *a->numbers);
  a->c->layers = calloc(a->chunks, sizeof *a->c->layers);
  a->c->costs = calloc(a->chunks, sizeof *a->c->costs);
  a->c->memory_of_stage = calloc(stages, sizeof *a->c->memory_of_stage);
  a->stage_of = calloc(a->chunks, sizeof *a->stage_of);
  if (a->stage_of == NULL || a->spans == NULL || a->costs == NULL || a->numbers == NULL || a->c->layers == NULL ||
      a->c->costs == NULL || a->c->memory_of_stage == NULL) {
    return BL_EXHAUSTED;
  }
  a->peaks = a->numbers;
  a->slots = a->peaks + stages;
  a->edges = a->slots + stages;
  a->most = a->edges + stages;
  return BL_OK;
}

static void clean_up(bl__trying_t *a) {
  bl_balance_result_cleanup(&a->balanced);
  bl_schedule_destroy(a->schedule);
  free(a->copies);
  bl_host_places_cleanup(&a->host);
  free(a->stage_of);
  free(a->numbers);
  free(a->costs);
  free(a->spans);
}

// ---- costs and partition

static void fill_costs(const bl__trying_t *a, const bl_chunk_span_t *spans, uint32_t count, bl_chunk_costs_t *costs) {
  if (a->profile != NULL) {
    bl_profile_costs(a->profile, a->request->model, spans, count, a->options, costs);
    return;
  }
  for (uint32_t i = 0; i < count; i++) {
    costs[i] = bl_hardware_costs(a->request->hardware, a->request->model, spans[i], a->options, a->c->parallel);
  }
}

static double seconds_of(const bl__trying_t *a, bl_chunk_span_t span) {
  bl_chunk_costs_t costs;
  fill_costs(a, &span, 1, &costs);
  double sum = costs.forward + costs.input + costs.weight;
  return a->options.recompute == BL_RECOMPUTE_FULL ? sum + costs.recompute : sum;
}

static void fill_spans(bl__trying_t *a) {
  uint32_t first = 0;
  for (uint32_t v = 0; v < a->chunks; v++) {
    a->spans[v] = (bl_chunk_span_t){
        .first_layer = first, .layer_count = a->c->layers[v], .embedding = v == 0, .head = v + 1 == a->chunks};
    first += a->c->layers[v];
  }
}

static bl_status_t partition(bl__trying_t *a, const uint32_t *most) {
  bl_chunk_span_t layer = {.layer_count = 1}, embedding = layer, head = layer;
  embedding.embedding = true;
  head.head = true;
  bl_partition_request_t request = {.layers = a->request->model->layers,
                                    .virtual_stages = a->chunks,
                                    .stages = a->c->stages,
                                    .stage_of = a->stage_of,
                                    .most = most};
  request.costs.layer = seconds_of(a, layer);
  request.costs.embedding = fmax(0, seconds_of(a, embedding) - request.costs.layer);
  request.costs.head = fmax(0, seconds_of(a, head) - request.costs.layer);
  bl_status_t status = bl_partition_layers(&request, a->c->layers);
  if (status == BL_OK) {
    fill_spans(a);
    fill_costs(a, a->spans, a->chunks, a->costs);
  }
  return status;
}

// Where chunks go is known before the order is: the partition comes first, as costs decide the order.
static bl_status_t first_partition(bl__trying_t *a) {
  bl_schedule_t *empty;
  bl_status_t status = bl_schedule_create("shape", a->info->placement, a->c->stages, a->c->chunks, 1, &empty, NULL);
  if (status == BL_OK) {
    memcpy(a->stage_of, empty->stage_of, a->chunks * sizeof *a->stage_of);
    status = partition(a, NULL);
    bl_schedule_destroy(empty);
  }
  return status;
}

// ---- schedule

// Of a tensor; of stages that are spread over nodes: between two of these.
static double boundary_of(const bl__trying_t *a) {
  const bl_plan_request_t *r = a->request;
  if (a->profile != NULL) {
    return a->profile->boundary * bl_layout_slices(a->profile->options) * a->c->micro_batch /
           a->profile->options.micro_batch;
  }
  double rate =
      bl__trying_on_cluster(a) ? bl_cluster_far_rate(&r->cluster, a->c->parallel.tensor) : r->hardware->intra_rate;
  return bl_hardware_boundary(r->hardware, r->model, (bl_layout_options_t){.micro_batch = a->c->micro_batch},
                              a->c->parallel, rate);
}

// As a job with this policy has it (bl_policy_pools of job/balance.h).
static bool pools(const bl__trying_t *a) {
  return a->c->policy == BL_POLICY_BPIPE || a->c->policy == BL_POLICY_CAP;
}

static bl_status_t find_order(bl__trying_t *a) {
  a->c->boundary = bl__order_cost(boundary_of(a));
  for (uint32_t v = 0; v < a->chunks; v++) {
    a->c->costs[v] = (bl_chunk_costs_t){.forward = bl__order_cost(a->costs[v].forward),
                                        .input = bl__order_cost(a->costs[v].input),
                                        .weight = bl__order_cost(a->costs[v].weight),
                                        .recompute = bl__order_cost(a->costs[v].recompute)};
  }
  const bl_costs_t costs = {.chunks = a->c->costs, .boundary = a->c->boundary};
  bl_schedule_request_t request = {.name = a->c->schedule,
                                   .stages = a->c->stages,
                                   .micro_batches = a->c->micro_batches,
                                   .chunks = a->c->chunks,
                                   .group = a->c->group,
                                   .costs = &costs,
                                   .recompute = a->options.recompute == BL_RECOMPUTE_FULL,
                                   .keep_placement = true, // the model is divided already
                                   .pooled = pools(a),
                                   .effort = a->effort};
  if (a->c->slots > 0) { // as a job with memory.slots has it
    *(request.recompute ? &request.slots : &request.memory) = (double)a->c->slots / (double)a->c->chunks;
  }
  bl_schedule_destroy(a->schedule);
  a->schedule = NULL;
  bl_error_t fault = {0};
  bl_status_t status = bl__order_find(a->cache, &request, a->c->parallel.tensor, &a->schedule, &fault);
  if (status == BL_INVALID) {
    snprintf(a->c->why, sizeof a->c->why, "%.*s", BL_PLAN_WHY - 1, fault.text);
  }
  return status;
}

bl_status_t bl__trying_order(bl__trying_t *a) {
  bl_status_t status = find_order(a);
  if (status == BL_OK && bl__trying_on_cluster(a)) { // kept inputs are its blocks
    bl_schedule_peak_blocks(a->schedule, a->peaks);
  } else if (status == BL_OK) { // they are edges, and R fills a slot
    status = bl_schedule_peak_slots(a->schedule, a->peaks);
  }
  if (status == BL_OK && !bl__trying_on_cluster(a)) {
    return bl_plan_counts(a->schedule, 1, NULL, a->edges, NULL, NULL);
  }
  for (uint32_t s = 0; s < a->c->stages; s++) {
    a->edges[s] = 2 * a->c->chunks;
  }
  return status;
}

static void choose_lean(bl__trying_t *a) {
  uint32_t most = 0;
  for (uint32_t s = 0; s < a->c->stages; s++) {
    most = a->peaks[s] > most ? a->peaks[s] : most;
  }
  a->c->lean = a->options.lean = most > 1 && a->options.backward == BL_BACKWARD_FUSED;
}

// ---- memory

static const bl_operation_memory_t *find_operations(const bl__trying_t *a) {
  const bl_plan_request_t *r = a->request;
  return r->operations == NULL ? NULL : r->operations(r->operations_context, a->c->micro_batch, a->c->attention);
}

bl_status_t bl__trying_footprint(const bl__trying_t *a, uint32_t stage, uint32_t slots, bl_footprint_t *footprint) {
  bl_chunk_span_t spans[64];
  uint32_t count = 0;
  for (uint32_t v = 0; v < a->chunks && count < 64; v++) {
    if (a->stage_of[v] == stage) {
      spans[count++] = a->spans[v];
    }
  }
  bl_footprint_request_t request = {.model = a->request->model,
                                    .spans = spans,
                                    .span_count = count,
                                    .slots = slots,
                                    .edges = a->edges[stage],
                                    .options = a->options,
                                    .post_validation = a->request->post_validation,
                                    .optimizer_on_host = a->request->optimizer_on_host,
                                    .micro_batches = a->c->micro_batches,
                                    .image = a->request->image};
  if (!bl__trying_on_cluster(a)) {
    request.operations = find_operations(a);
    return bl_footprint_of_executor(&request, footprint);
  }
  *footprint = bl_footprint_of_cluster(&request, a->request->hardware, a->c->parallel);
  return BL_OK;
}

bl_status_t bl__trying_measure(bl__trying_t *a) {
  a->c->memory = 0;
  for (uint32_t s = 0; s < a->c->stages; s++) {
    bl_footprint_t footprint;
    bl_status_t status = bl__trying_footprint(a, s, a->slots[s], &footprint);
    if (status != BL_OK) {
      return status;
    }
    double bytes = bl_footprint_total(&footprint);
    a->c->memory_of_stage[s] = bytes;
    if (bytes > a->c->memory) {
      a->c->memory = bytes;
      a->c->memory_stage = s;
      a->c->fullest = footprint;
    }
  }
  a->c->fits = a->request->memory <= 0 || a->c->memory <= a->request->memory;
  if (!a->c->fits) {
    char needed[BL_BYTES_TEXT], limit[BL_BYTES_TEXT];
    snprintf(a->c->why, sizeof a->c->why, "stage %u needs %s, a device has %s", a->c->memory_stage,
             bl_bytes_format((uint64_t)a->c->memory, needed), bl_bytes_format((uint64_t)a->request->memory, limit));
  }
  return BL_OK;
}

// Fewer layers where a stage is too full: only with one chunk a stage, where a layer's memory is the stage's own matter.
bl_status_t bl__trying_move_layers(bl__trying_t *a) {
  for (uint32_t v = 0; v < a->chunks; v++) {
    bl_chunk_span_t kept = a->spans[v];
    uint32_t fits = 0;
    for (uint32_t n = a->request->model->layers - a->chunks + 1; n >= 1 && fits == 0; n--) {
      bl_footprint_t footprint;
      a->spans[v].layer_count = n;
      a->spans[v].first_layer = v + 1 == a->chunks ? a->request->model->layers - n : v;
      bl_status_t status = bl__trying_footprint(a, v, a->slots[v], &footprint);
      if (status != BL_OK) {
        return status;
      }
      fits = bl_footprint_total(&footprint) <= a->request->memory ? n : 0;
    }
    a->spans[v] = kept;
    a->most[v] = fits;
    if (fits == 0) {
      return BL_OK; // not even one layer
    }
  }
  bl_status_t status = partition(a, a->most);
  a->c->moved = status == BL_OK;
  return status == BL_OK ? bl__trying_measure(a) : status == BL_PRECONDITION ? BL_OK : status;
}

// ---- time

// What the busiest stage spends on blocks that were given up or parked.
static void tell_shares(bl_plan_candidate_t *c, const bl_schedule_t *schedule, const bl_trial_t *trial) {
  const bl_simulation_t *simulation = &trial->simulation;
  uint32_t busiest = 0;
  for (uint32_t s = 1; s < simulation->stages; s++) {
    busiest = simulation->busy[s] > simulation->busy[busiest] ? s : busiest;
  }
  const bl_op_list_t *list = &schedule->lists[busiest];
  const double *stalls = simulation->stalls[busiest];
  double again = 0;
  for (size_t i = 0; i < list->count; i++) {
    const bl_span_t span = simulation->spans[busiest][i];
    again += list->ops[i].verb == BL_VERB_R ? span.end - span.start : 0;
  }
  c->between = trial->between;
  c->offload = trial->offload;
  c->again = again / simulation->t_end;
  c->transfers = (stalls[BL_STALL_LOAD] + stalls[BL_STALL_SLOT] + stalls[BL_STALL_CARD]) / simulation->t_end;
}

bl_status_t bl__trying_time(bl__trying_t *a) {
  bl_plan_candidate_t *c = a->c;
  const bl_plan_request_t *r = a->request;
  bl_trial_request_t request = {.schedule = a->balanced.schedule != NULL ? a->balanced.schedule : a->schedule,
                                .model = r->model,
                                .spans = a->spans,
                                .options = a->options,
                                .profile = a->profile,
                                .hardware = r->hardware,
                                .parallel = c->parallel,
                                .optimizer_on_host = r->optimizer_on_host,
                                .threads = r->threads};
  bl_nodes_t nodes = {0};
  bl_status_t status = BL_OK;
  if (a->host.count > 0) {
    request.host_rate = r->host.rate / a->host.sharers;
    request.host_links = a->host.links;
  }
  if (bl__trying_on_cluster(a)) {
    status = bl_nodes_init(&nodes, &r->cluster, c->order, c->stages, c->parallel.tensor);
    request.nodes = &nodes;
    request.update_rate = bl_cluster_shared_rate(&r->cluster);
  }
  bl_trial_t trial;
  if (status == BL_OK) {
    status = bl_trial_run(&request, &trial, NULL);
  }
  bl_nodes_cleanup(&nodes);
  if (status != BL_OK) {
    return status;
  }
  c->step = trial.step;
  c->bubble = trial.simulation.bubble_total;
  c->throughput = r->batch / trial.step;
  if (a->profile == NULL) {
    double devices = (double)c->stages * c->parallel.tensor * c->parallel.data;
    c->mfu = bl_hardware_mfu(r->hardware, r->model, r->batch, devices, trial.step);
  }
  tell_shares(c, request.schedule, &trial);
  c->host_copy = trial.host_copy;
  bl_trial_cleanup(&trial);
  return BL_OK;
}

// ---- all together

void bl__candidate_cleanup(bl_plan_candidate_t *candidate) {
  free(candidate->layers);
  free(candidate->costs);
  free(candidate->memory_of_stage);
  bl_schedule_destroy(candidate->operations);
  candidate->layers = NULL;
  candidate->costs = NULL;
  candidate->memory_of_stage = NULL;
  candidate->operations = NULL;
}

bl_plan_candidate_t bl__candidate_choice(const bl_plan_candidate_t *candidate) {
  return (bl_plan_candidate_t){.schedule = candidate->schedule,
                               .stages = candidate->stages,
                               .chunks = candidate->chunks,
                               .micro_batch = candidate->micro_batch,
                               .micro_batches = candidate->micro_batches,
                               .parallel = candidate->parallel,
                               .attention = candidate->attention,
                               .recompute = candidate->recompute,
                               .policy = candidate->policy,
                               .limit = candidate->limit,
                               .group = candidate->group,
                               .order = candidate->order};
}

// What runs, for who wants to see it.
static void keep_operations(bl__trying_t *a) {
  bl_schedule_t **kept = a->balanced.schedule != NULL ? &a->balanced.schedule : &a->schedule;
  a->c->operations = *kept;
  *kept = NULL;
}

const bl_profile_t *bl_plan_nearest_profile(const bl_plan_request_t *r, uint32_t micro_batch) {
  const bl_profile_t *best = NULL;
  for (uint32_t i = 0; i < r->profile_count; i++) {
    double distance = fabs(log((double)r->profiles[i]->options.micro_batch / micro_batch));
    double of_best = best == NULL ? INFINITY : fabs(log((double)best->options.micro_batch / micro_batch));
    best = distance < of_best ? r->profiles[i] : best;
  }
  return best;
}

// Weights, gradients, optimizer and one block of every chunk, or one alone where blocks are made again or parked: no order
// needs less. Lean blocks are smaller, and what they need beside may be more.
static bl_status_t measure_least(bl__trying_t *a, bool *fits) {
  const bool one = a->options.recompute == BL_RECOMPUTE_FULL || a->c->policy != BL_POLICY_NONE;
  for (uint32_t s = 0; s < a->c->stages; s++) {
    a->slots[s] = one ? 1 : a->c->chunks;
  }
  bl_status_t status = bl__trying_measure(a);
  if (status == BL_OK && !a->c->fits && a->options.backward == BL_BACKWARD_FUSED) {
    a->options.lean = true;
    status = bl__trying_measure(a);
    a->options.lean = false;
  }
  *fits = a->c->fits || a->c->chunks == 1; // layers may move to where there is room
  return status;
}

static bl_status_t evaluate(bl__trying_t *a) {
  bool fits = true;
  bl_status_t status = first_partition(a);
  if (status == BL_OK) {
    status = measure_least(a, &fits);
  }
  if (status == BL_OK && fits) {
    status = bl__trying_order(a);
  }
  if (status != BL_OK || !fits) {
    return status;
  }
  a->c->fits = false;
  a->c->memory = 0;
  a->c->why[0] = '\0';
  choose_lean(a);
  memcpy(a->slots, a->peaks, a->c->stages * sizeof *a->slots);
  if (a->c->limit != BL_PLAN_LIMIT_OWN) {
    status = bl__squeeze_limit(a);
  } else if (a->c->policy == BL_POLICY_NONE) {
    status = bl__trying_measure(a);
    if (status == BL_OK && !a->c->fits && a->c->chunks == 1) {
      status = bl__trying_move_layers(a);
    }
  } else {
    status = bl__squeeze_balance(a);
  }
  if (status != BL_OK || !a->c->fits) {
    return status;
  }
  status = bl__trying_time(a);
  if (status == BL_OK && a->c->exact) {
    keep_operations(a);
  }
  return status;
}

static bl__trying_t trying_of(const bl_plan_request_t *request, bl_plan_candidate_t *candidate) {
  bl__trying_t a = {.request = request,
                    .c = candidate,
                    .info = bl_schedule_info_find(candidate->schedule),
                    .profile = bl_plan_nearest_profile(request, candidate->micro_batch),
                    .chunks = candidate->stages * candidate->chunks};
  a.options = (bl_layout_options_t){.micro_batch = candidate->micro_batch,
                                    .attention = candidate->attention,
                                    .recompute = candidate->recompute,
                                    .backward = a.info->splits_backward ? BL_BACKWARD_SPLIT : BL_BACKWARD_FUSED,
                                    .dtype = request->dtype,
                                    .logits = request->logits};
  return a;
}

bl_status_t bl__attempt(const bl_plan_request_t *request, double effort, bl__order_cache_t *cache,
                        bl_plan_candidate_t *candidate) {
  bl__trying_t a = trying_of(request, candidate);
  a.cache = cache;
  a.effort = effort;
  if (a.chunks > request->model->layers) {
    return BL_INVALID;
  }
  candidate->exact = cache->exact;
  bl_status_t status = allocate(&a);
  if (status == BL_OK) {
    status = evaluate(&a);
  }
  clean_up(&a);
  return status;
}

bl_status_t bl__attempt_bound(const bl_plan_request_t *request, const bl_plan_candidate_t *choice, double *bound) {
  bl_plan_candidate_t candidate = bl__candidate_choice(choice);
  bl__trying_t a = trying_of(request, &candidate);
  if (a.chunks > request->model->layers) {
    return BL_INVALID;
  }
  bl_status_t status = allocate(&a);
  if (status == BL_OK) {
    status = first_partition(&a);
  }
  if (status == BL_OK) {
    *bound = bl__bound_step(&a);
  }
  clean_up(&a);
  bl__candidate_cleanup(&candidate);
  return status;
}
