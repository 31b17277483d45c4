// SPDX-License-Identifier: Apache-2.0
#include "plan/candidate/evaluation.h"

#include "base/bytes.h"
#include "plan/candidate/partition.h"
#include "plan/search/bound.h"
#include "schedule/ir/peaks.h"
#include "schedule/ir/stage_plan.h"
#include "simulate/host_order.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool bl__runs_as_job(const bl_plan_request_t *request, const bl_plan_candidate_t *candidate) {
  return request->cluster.nodes == 0 || (candidate->parallel.tensor == 1 && candidate->parallel.data == 1);
}

bool bl__evaluation_on_cluster(const bl__evaluation_t *eval) {
  return eval->request->cluster.nodes > 0;
}

static bl_status_t allocate(bl__evaluation_t *eval) {
  uint32_t stages = eval->c->stages;
  eval->spans = calloc(eval->chunks, sizeof *eval->spans);
  eval->costs = calloc(eval->chunks, sizeof *eval->costs);
  eval->slice_costs = calloc((size_t)eval->chunks * eval->c->slices, sizeof *eval->slice_costs);
  eval->numbers = calloc(7 * (size_t)stages + eval->chunks, sizeof *eval->numbers);
  eval->c->layers = calloc(eval->chunks, sizeof *eval->c->layers);
  eval->c->costs = calloc(eval->chunks, sizeof *eval->c->costs);
  eval->c->memory_of_stage = calloc(stages, sizeof *eval->c->memory_of_stage);
  eval->stage_of = calloc(eval->chunks, sizeof *eval->stage_of);
  if (eval->stage_of == NULL || eval->spans == NULL || eval->costs == NULL || eval->slice_costs == NULL ||
      eval->numbers == NULL || eval->c->layers == NULL || eval->c->costs == NULL || eval->c->memory_of_stage == NULL) {
    return BL_EXHAUSTED;
  }
  eval->peaks = eval->numbers;
  eval->slots = eval->peaks + stages;
  eval->edges = eval->slots + stages;
  eval->pages = eval->edges + stages;
  eval->page_gradients = eval->pages + stages;
  eval->max_layers = eval->page_gradients + stages;
  return BL_OK;
}

static void clean_up(bl__evaluation_t *eval) {
  bl_balance_result_cleanup(&eval->balanced);
  bl_schedule_destroy(eval->schedule);
  bl_schedule_destroy(eval->hosted);
  free(eval->copies);
  bl_host_places_cleanup(&eval->host);
  free(eval->stage_of);
  free(eval->numbers);
  free(eval->slice_costs);
  free(eval->costs);
  free(eval->spans);
}

// ---- costs and partition

static void fill_costs(const bl__evaluation_t *eval, const bl_chunk_span_t *spans, uint32_t count,
                       bl_chunk_costs_t *costs) {
  if (eval->profile != NULL) {
    bl_profile_costs(eval->profile, eval->request->model, spans, count, eval->options, costs);
    return;
  }
  for (uint32_t i = 0; i < count; i++) {
    costs[i] =
        bl_hardware_costs(eval->request->hardware, eval->request->model, spans[i], eval->options, eval->c->parallel);
  }
}

// Sets what every slice costs, by the same rules as a trial. Without slices, the costs of whole sequences.
static void fill_slice_costs(bl__evaluation_t *eval) {
  const bl_model_t *model = eval->request->model;
  const uint32_t slices = eval->c->slices;
  if (slices == 1) {
    memcpy(eval->slice_costs, eval->costs, eval->chunks * sizeof *eval->costs);
  } else if (eval->profile != NULL) {
    bl_profile_slice_costs(eval->profile, model, eval->spans, eval->chunks, eval->options, eval->costs,
                           eval->slice_costs);
  } else {
    for (uint32_t v = 0; v < eval->chunks; v++) {
      bl_profile_spread(model, eval->spans[v], eval->options, eval->costs[v], &eval->slice_costs[(size_t)v * slices]);
    }
  }
}

static double seconds_of(const bl__evaluation_t *eval, bl_chunk_span_t span) {
  bl_chunk_costs_t costs;
  fill_costs(eval, &span, 1, &costs);
  double sum = costs.forward + costs.input + costs.weight;
  return eval->options.recompute == BL_RECOMPUTE_FULL ? sum + costs.recompute : sum;
}

static void fill_spans(bl__evaluation_t *eval) {
  uint32_t first = 0;
  for (uint32_t v = 0; v < eval->chunks; v++) {
    eval->spans[v] = (bl_chunk_span_t){
        .first_layer = first, .layer_count = eval->c->layers[v], .embedding = v == 0, .head = v + 1 == eval->chunks};
    first += eval->c->layers[v];
  }
}

static bl_status_t partition(bl__evaluation_t *eval, const uint32_t *max_layers) {
  bl_chunk_span_t layer = {.layer_count = 1}, embedding = layer, head = layer;
  embedding.embedding = true;
  head.head = true;
  bl_partition_request_t request = {.layers = eval->request->model->layers,
                                    .virtual_stages = eval->chunks,
                                    .stages = eval->c->stages,
                                    .stage_of = eval->stage_of,
                                    .most = max_layers};
  request.costs.layer = seconds_of(eval, layer);
  request.costs.embedding = fmax(0, seconds_of(eval, embedding) - request.costs.layer);
  request.costs.head = fmax(0, seconds_of(eval, head) - request.costs.layer);
  bl_status_t status = bl_partition_layers(&request, eval->c->layers);
  if (status == BL_OK) {
    fill_spans(eval);
    fill_costs(eval, eval->spans, eval->chunks, eval->costs);
    fill_slice_costs(eval);
  }
  return status;
}

// The placement of chunks does not depend on the order, but the order search needs costs. So layers are partitioned
// first.
static bl_status_t first_partition(bl__evaluation_t *eval) {
  bl_schedule_t *empty;
  bl_status_t status =
      bl_schedule_create("shape", eval->info->placement, eval->c->stages, eval->c->chunks, 1, &empty, NULL);
  if (status == BL_OK) {
    memcpy(eval->stage_of, empty->stage_of, eval->chunks * sizeof *eval->stage_of);
    status = partition(eval, NULL);
    bl_schedule_destroy(empty);
  }
  return status;
}

// ---- schedule

// Returns the transfer time of a boundary tensor, with slices that of one of them; for stages on several nodes, of a
// transfer between nodes.
static double boundary_of(const bl__evaluation_t *eval) {
  const bl_plan_request_t *r = eval->request;
  if (eval->profile != NULL) {
    return bl_profile_boundary(eval->profile, eval->profile->boundary, eval->options);
  }
  double rate = bl__evaluation_on_cluster(eval) ? bl_cluster_far_rate(&r->cluster, eval->c->parallel.tensor)
                                                : r->hardware->intra_rate;
  return bl_hardware_boundary(r->hardware, r->model, eval->options, eval->c->parallel, rate);
}

// Returns whether the order is searched for balancing, as in a job with this policy (bl_policy_pools).
// Orders over slices are not (bl_schedule_pools).
static bool pools(const bl__evaluation_t *eval) {
  return (eval->c->policy == BL_POLICY_BPIPE || eval->c->policy == BL_POLICY_CAP) && eval->c->slices == 1;
}

// Returns whether there is an order that is made for memory of the host, too (bl_job_order_hosted).
static bool is_hosted(const bl__evaluation_t *eval, const bl_schedule_request_t *request) {
  return eval->c->policy == BL_POLICY_OFFLOAD && eval->c->slots > 0 && eval->info->limited &&
         bl_schedule_pools(request);
}

// Returns what a copy to memory of the host takes; if no rate of it is known, what a job assumes.
static double host_path_of(const bl__evaluation_t *eval) {
  const bl_plan_request_t *r = eval->request;
  const bl_costs_t costs = {.chunks = eval->c->costs};
  double rate = r->host.rate / fmax(1, eval->host.sharers), most = 0;
  rate = rate > 0 ? rate : eval->profile == NULL ? r->hardware->host_rate : 0;
  for (uint32_t s = 0; s < eval->c->stages; s++) {
    bl_footprint_t footprint;
    if (bl__evaluation_footprint(eval, s, 0, &footprint) == BL_OK) {
      most = fmax(most, footprint.evict_bytes);
    }
  }
  return bl__order_cost(rate > 0 && most > 0 ? most / rate : bl_host_copy_assumed(&costs, eval->chunks));
}

bl_costs_t bl__evaluation_costs(const bl__evaluation_t *eval) {
  return (bl_costs_t){.chunks = eval->c->costs, .boundary = eval->c->boundary, .path = eval->c->host_path};
}

static bl_status_t find_hosted(bl__evaluation_t *eval, bl_schedule_request_t request, bl_error_t *err) {
  bl_schedule_destroy(eval->hosted);
  eval->hosted = NULL;
  eval->c->host_path = 0;
  if (!is_hosted(eval, &request)) {
    return BL_OK;
  }
  eval->c->host_path = host_path_of(eval);
  const bl_costs_t costs = bl__evaluation_costs(eval);
  request.costs = &costs;
  request.pooled = request.hosted = true;
  request.unpooled = eval->schedule;
  return bl__order_find(eval->cache, &request, eval->c->parallel.tensor, &eval->hosted, err);
}

static bl_status_t find_order(bl__evaluation_t *eval) {
  eval->c->boundary = bl__order_cost(boundary_of(eval));
  for (uint32_t v = 0; v < eval->chunks; v++) {
    eval->c->costs[v] = (bl_chunk_costs_t){.forward = bl__order_cost(eval->costs[v].forward),
                                           .input = bl__order_cost(eval->costs[v].input),
                                           .weight = bl__order_cost(eval->costs[v].weight),
                                           .recompute = bl__order_cost(eval->costs[v].recompute)};
  }
  const bl_costs_t costs = {.chunks = eval->c->costs, .boundary = eval->c->boundary};
  bl_schedule_request_t request = {.name = eval->c->schedule,
                                   .stages = eval->c->stages,
                                   .micro_batches = eval->c->micro_batches,
                                   .chunks = eval->c->chunks,
                                   .group = eval->c->group,
                                   .slices = eval->c->slices,
                                   .costs = &costs,
                                   .recompute = eval->options.recompute == BL_RECOMPUTE_FULL,
                                   .keep_placement = true, // the model is divided already
                                   .pooled = pools(eval),
                                   .effort = eval->effort};
  if (eval->c->slots > 0) { // like a job with memory.slots
    *(request.recompute ? &request.slots : &request.memory) = (double)eval->c->slots / bl__candidate_blocks(eval->c);
  }
  bl_schedule_destroy(eval->schedule);
  eval->schedule = NULL;
  bl_error_t fault = {0};
  bl_status_t status = bl__order_find(eval->cache, &request, eval->c->parallel.tensor, &eval->schedule, &fault);
  if (status == BL_OK) {
    status = find_hosted(eval, request, &fault);
  }
  if (status == BL_INVALID) {
    snprintf(eval->c->why, sizeof eval->c->why, "%.*s", BL_PLAN_WHY - 1, fault.text);
  }
  return status;
}

uint32_t bl__candidate_blocks(const bl_plan_candidate_t *candidate) {
  return candidate->chunks * candidate->slices;
}

bl_status_t bl__evaluation_order(bl__evaluation_t *eval) {
  bl_status_t status = find_order(eval);
  return status == BL_OK ? bl__evaluation_count(eval, eval->schedule) : status;
}

bl_status_t bl__evaluation_count(bl__evaluation_t *eval, const bl_schedule_t *order) {
  bl_status_t status = bl_plan_pages(order, eval->pages, eval->page_gradients, NULL);
  if (status == BL_OK && bl__evaluation_on_cluster(eval)) { // kept inputs are the blocks
    bl_schedule_peak_blocks(order, eval->peaks);
  } else if (status == BL_OK) { // kept inputs are edges, and R takes a slot
    status = bl_schedule_peak_slots(order, eval->peaks);
  }
  if (status == BL_OK && !bl__evaluation_on_cluster(eval)) {
    return bl_plan_counts(order, NULL, eval->edges, NULL);
  }
  for (uint32_t s = 0; s < eval->c->stages; s++) {
    eval->edges[s] = 2 * eval->c->chunks;
  }
  return status;
}

static void choose_lean(bl__evaluation_t *eval) {
  uint32_t peak = 0;
  for (uint32_t s = 0; s < eval->c->stages; s++) {
    peak = eval->peaks[s] > peak ? eval->peaks[s] : peak;
  }
  eval->c->lean = eval->options.lean = peak > 1 && eval->options.backward == BL_BACKWARD_FUSED;
}

// ---- memory

static const bl_operation_memory_t *find_operations(const bl__evaluation_t *eval) {
  const bl_plan_request_t *r = eval->request;
  return r->operations == NULL
             ? NULL
             : r->operations(r->operations_context, eval->c->micro_batch, eval->c->slices, eval->c->attention);
}

bl_status_t bl__evaluation_footprint(const bl__evaluation_t *eval, uint32_t stage, uint32_t slots,
                                     bl_footprint_t *footprint) {
  bl_chunk_span_t spans[64];
  uint32_t count = 0;
  for (uint32_t v = 0; v < eval->chunks && count < 64; v++) {
    if (eval->stage_of[v] == stage) {
      spans[count++] = eval->spans[v];
    }
  }
  bl_footprint_request_t request = {.stage = {.model = eval->request->model,
                                              .spans = spans,
                                              .span_count = count,
                                              .options = eval->options,
                                              .micro_batches = eval->c->micro_batches,
                                              .asynchronous = eval->request->asynchronous,
                                              .post_validation = eval->request->post_validation,
                                              .optimizer_on_host = eval->request->optimizer_on_host},
                                    .slots = slots,
                                    .edges = eval->edges[stage],
                                    .pages = eval->pages[stage],
                                    .page_gradients = eval->page_gradients[stage],
                                    .image = eval->request->image};
  if (!bl__evaluation_on_cluster(eval)) {
    request.stage.operations = find_operations(eval);
    return bl_footprint_of_executor(&request, footprint);
  }
  *footprint = bl_footprint_of_cluster(&request, eval->request->hardware, eval->c->parallel);
  return BL_OK;
}

bl_status_t bl__evaluation_measure(bl__evaluation_t *eval) {
  eval->c->memory = 0;
  for (uint32_t s = 0; s < eval->c->stages; s++) {
    bl_footprint_t footprint;
    bl_status_t status = bl__evaluation_footprint(eval, s, eval->slots[s], &footprint);
    if (status != BL_OK) {
      return status;
    }
    double bytes = bl_footprint_total(&footprint);
    eval->c->memory_of_stage[s] = bytes;
    if (bytes > eval->c->memory) {
      eval->c->memory = bytes;
      eval->c->memory_stage = s;
      eval->c->fullest = footprint;
    }
  }
  eval->c->fits = eval->request->memory <= 0 || eval->c->memory <= eval->request->memory;
  if (!eval->c->fits) {
    char needed[BL_BYTES_TEXT], limit[BL_BYTES_TEXT];
    snprintf(eval->c->why, sizeof eval->c->why, "stage %u needs %s, a device has %s", eval->c->memory_stage,
             bl_bytes_format((uint64_t)eval->c->memory, needed),
             bl_bytes_format((uint64_t)eval->request->memory, limit));
  }
  return BL_OK;
}

// Moves layers away from stages that exceed the memory limit. Requires one chunk per stage, so that a stage's memory
// depends only on its own chunk.
bl_status_t bl__evaluation_move_layers(bl__evaluation_t *eval) {
  for (uint32_t v = 0; v < eval->chunks; v++) {
    bl_chunk_span_t kept = eval->spans[v];
    uint32_t fits = 0;
    for (uint32_t n = eval->request->model->layers - eval->chunks + 1; n >= 1 && fits == 0; n--) {
      bl_footprint_t footprint;
      eval->spans[v].layer_count = n;
      eval->spans[v].first_layer = v + 1 == eval->chunks ? eval->request->model->layers - n : v;
      bl_status_t status = bl__evaluation_footprint(eval, v, eval->slots[v], &footprint);
      if (status != BL_OK) {
        return status;
      }
      fits = bl_footprint_total(&footprint) <= eval->request->memory ? n : 0;
    }
    eval->spans[v] = kept;
    eval->max_layers[v] = fits;
    if (fits == 0) {
      return BL_OK; // not even one layer fits
    }
  }
  bl_status_t status = partition(eval, eval->max_layers);
  eval->c->moved = status == BL_OK;
  return status == BL_OK ? bl__evaluation_measure(eval) : status == BL_PRECONDITION ? BL_OK : status;
}

// ---- time

// Sets the fractions of the step in which the busiest stage recomputes, and waits for evictions, loads or
// NICs. Also copies the overhead between steps.
static void tell_shares(bl_plan_candidate_t *c, const bl_schedule_t *schedule, const bl_trial_t *trial) {
  const bl_simulation_t *simulation = &trial->simulation;
  uint32_t busiest = 0;
  for (uint32_t s = 1; s < simulation->stages; s++) {
    busiest = simulation->busy[s] > simulation->busy[busiest] ? s : busiest;
  }
  const bl_op_list_t *list = &schedule->lists[busiest];
  const double *stalls = simulation->stalls[busiest];
  double recompute_share = 0;
  for (size_t i = 0; i < list->count; i++) {
    const bl_span_t span = simulation->spans[busiest][i];
    recompute_share += list->ops[i].type == BL_OP_R ? span.end - span.start : 0;
  }
  c->overhead = trial->overhead;
  c->offload = trial->offload;
  c->recompute_share = recompute_share / simulation->t_end;
  c->transfers = (stalls[BL_STALL_LOAD] + stalls[BL_STALL_SLOT] + stalls[BL_STALL_NIC]) / simulation->t_end;
}

bl_status_t bl__evaluation_time(bl__evaluation_t *eval) {
  bl_plan_candidate_t *c = eval->c;
  const bl_plan_request_t *r = eval->request;
  bl_trial_request_t request = {.schedule = eval->balanced.schedule != NULL ? eval->balanced.schedule : eval->schedule,
                                .model = r->model,
                                .spans = eval->spans,
                                .options = eval->options,
                                .profile = eval->profile,
                                .hardware = r->hardware,
                                .parallel = c->parallel,
                                .optimizer_on_host = r->optimizer_on_host,
                                .threads = r->threads};
  bl_nodes_t nodes = {0};
  bl_status_t status = BL_OK;
  if (eval->host.count > 0) {
    request.host_rate = r->host.rate / eval->host.sharers;
    request.host_links = eval->host.links;
  }
  if (bl__evaluation_on_cluster(eval)) {
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
  if (eval->profile == NULL) {
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
                               .slices = candidate->slices,
                               .parallel = candidate->parallel,
                               .attention = candidate->attention,
                               .recompute = candidate->recompute,
                               .policy = candidate->policy,
                               .limit = candidate->limit,
                               .group = candidate->group,
                               .order = candidate->order};
}

// Keeps the operations that run, for callers that show them.
static void keep_operations(bl__evaluation_t *eval) {
  bl_schedule_t **kept = eval->balanced.schedule != NULL ? &eval->balanced.schedule : &eval->schedule;
  eval->c->operations = *kept;
  *kept = NULL;
}

// Returns how far a profile's blocks are from those of a candidate, as ratios of micro-batch and slices.
static double distance_to(const bl_profile_t *profile, uint32_t micro_batch, uint32_t slices) {
  return fabs(log((double)profile->options.micro_batch / micro_batch)) +
         fabs(log((double)bl_layout_slices(profile->options) / slices));
}

const bl_profile_t *bl_plan_nearest_profile(const bl_plan_request_t *r, uint32_t micro_batch, uint32_t slices) {
  const bl_profile_t *best = NULL;
  for (uint32_t i = 0; i < r->profile_count; i++) {
    const bool nearer =
        best == NULL || distance_to(r->profiles[i], micro_batch, slices) < distance_to(best, micro_batch, slices);
    best = nearer ? r->profiles[i] : best;
  }
  return best;
}

// Computes the minimum memory of any order: weights, gradients, optimizer and all blocks of one micro-batch, or one
// block in total if blocks are recomputed or parked. With slices, keys and values of a whole sequence stay. If that
// does not fit, tries lean blocks, which are smaller but may need more workspace.
static bl_status_t measure_least(bl__evaluation_t *eval, bool *fits) {
  const bool one = eval->options.recompute == BL_RECOMPUTE_FULL || eval->c->policy != BL_POLICY_NONE;
  for (uint32_t s = 0; s < eval->c->stages; s++) {
    eval->slots[s] = one ? 1 : bl__candidate_blocks(eval->c);
    eval->pages[s] = eval->c->slices > 1 ? bl__candidate_blocks(eval->c) : 0;
  }
  bl_status_t status = bl__evaluation_measure(eval);
  if (status == BL_OK && !eval->c->fits && eval->options.backward == BL_BACKWARD_FUSED) {
    eval->options.lean = true;
    status = bl__evaluation_measure(eval);
    eval->options.lean = false;
  }
  *fits = eval->c->fits || eval->c->chunks == 1; // with one chunk, layers may move to stages with free memory
  return status;
}

static bl_status_t evaluate(bl__evaluation_t *eval) {
  bool fits = true;
  bl_status_t status = first_partition(eval);
  if (status == BL_OK) {
    status = measure_least(eval, &fits);
  }
  if (status == BL_OK && fits) {
    status = bl__evaluation_order(eval);
  }
  if (status != BL_OK || !fits) {
    return status;
  }
  eval->c->fits = false;
  eval->c->memory = 0;
  eval->c->why[0] = '\0';
  choose_lean(eval);
  memcpy(eval->slots, eval->peaks, eval->c->stages * sizeof *eval->slots);
  if (eval->c->limit != BL_PLAN_LIMIT_OWN) {
    status = bl__fit_limit(eval);
  } else if (eval->c->policy == BL_POLICY_NONE) {
    status = bl__evaluation_measure(eval);
    if (status == BL_OK && !eval->c->fits && eval->c->chunks == 1) {
      status = bl__evaluation_move_layers(eval);
    }
  } else {
    status = bl__fit_balance(eval);
  }
  if (status != BL_OK || !eval->c->fits) {
    return status;
  }
  status = bl__evaluation_time(eval);
  if (status == BL_OK && eval->c->exact) {
    keep_operations(eval);
  }
  return status;
}

static bl__evaluation_t evaluation_of(const bl_plan_request_t *request, bl_plan_candidate_t *candidate) {
  bl__evaluation_t eval = {.request = request,
                           .c = candidate,
                           .info = bl_schedule_info_find(candidate->schedule),
                           .profile = bl_plan_nearest_profile(request, candidate->micro_batch, candidate->slices),
                           .chunks = candidate->stages * candidate->chunks};
  eval.options = (bl_layout_options_t){.micro_batch = candidate->micro_batch,
                                       .slices = candidate->slices,
                                       .attention = candidate->attention,
                                       .recompute = candidate->recompute,
                                       .backward = eval.info->splits_backward ? BL_BACKWARD_SPLIT : BL_BACKWARD_FUSED,
                                       .dtype = request->dtype,
                                       .logits = request->logits};
  return eval;
}

bl_status_t bl__evaluate(const bl_plan_request_t *request, double effort, bl__order_cache_t *cache,
                         bl_plan_candidate_t *candidate) {
  bl__evaluation_t eval = evaluation_of(request, candidate);
  eval.cache = cache;
  eval.effort = effort;
  if (eval.chunks > request->model->layers) {
    return BL_INVALID;
  }
  candidate->exact = cache->exact;
  bl_status_t status = allocate(&eval);
  if (status == BL_OK) {
    status = evaluate(&eval);
  }
  clean_up(&eval);
  return status;
}

bl_status_t bl__evaluate_bound(const bl_plan_request_t *request, const bl_plan_candidate_t *choice, double *bound) {
  bl_plan_candidate_t candidate = bl__candidate_choice(choice);
  bl__evaluation_t eval = evaluation_of(request, &candidate);
  if (eval.chunks > request->model->layers) {
    return BL_INVALID;
  }
  bl_status_t status = allocate(&eval);
  if (status == BL_OK) {
    status = first_partition(&eval);
  }
  if (status == BL_OK) {
    *bound = bl__bound_step(&eval);
  }
  clean_up(&eval);
  bl__candidate_cleanup(&candidate);
  return status;
}
