// SPDX-License-Identifier: Apache-2.0
#include "plan/evaluate/trial.h"

#include "base/words.h"
#include "plan/evaluate/sharing.h"
#include "plan/profile/profile_use.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

// Storage that a simulator run borrows.
typedef struct setting {
  bl_costs_t costs;
  bl_machine_t machine;
  double *boundaries; // [virtual stages]
  double *paths;      // [stages]
  double *calls;      // [stages] of the compute thread for an evict
  double *far_paths;  // [stages]
  double *host_paths; // [stages]; NULL: no host store
  double *host_tails; // [stages]; likewise
  bl_network_t network;
  double *gathers, *reductions; // [virtual stages]
  double *evenly;               // durations of all operations, stage by stage, including E and L
  const double **times;
} setting_t;

static void setting_cleanup(setting_t *s) {
  free(s->boundaries);
  free(s->paths);
  free(s->calls);
  free(s->far_paths);
  free(s->host_paths);
  free(s->host_tails);
  free(s->gathers);
  free(s->reductions);
  free(s->evenly);
  free(s->times);
}

// Returns whether devices are GPUs in mixed precision, whose memory is not laid out as in our executor.
static bool is_mixed(const bl_trial_request_t *r) {
  return r->hardware != NULL && r->hardware->value_bytes != sizeof(float);
}

static bl_status_t measure_stages(const bl_trial_request_t *r, bl_trial_t *trial, bl_error_t *err) {
  for (uint32_t v = 0; v < r->schedule->virtual_stages; v++) {
    bl_trial_stage_t *stage = &trial->stages[r->schedule->stage_of[v]];
    bl_footprint_request_t one = {
        .stage = {.model = r->model, .spans = &r->spans[v], .span_count = 1, .options = r->options}};
    bl_footprint_t footprint;
    if (is_mixed(r)) {
      footprint = bl_footprint_of_cluster(&one, r->hardware, r->parallel);
    } else if (bl_footprint_of_executor(&one, &footprint) != BL_OK) {
      return bl_error_set(err, BL_INVALID, "an activation block of virtual stage %u would exceed all memory", v);
    }
    stage->slot_bytes = fmax(stage->slot_bytes, footprint.slot_bytes);
    stage->evict_bytes = fmax(stage->evict_bytes, footprint.evict_bytes);
    stage->parameters += bl_footprint_parameters(r->model, r->spans[v]) / r->parallel.tensor;
  }
  for (uint32_t s = 0; s < r->schedule->stages; s++) {
    for (size_t i = 0; i < r->schedule->lists[s].count; i++) {
      trial->stages[s].evictions += r->schedule->lists[s].ops[i].type == BL_OP_E;
      trial->stages[s].loads += r->schedule->lists[s].ops[i].type == BL_OP_L;
      // R's of pipeline.recompute are part of every step and not due to a policy. A report does not count them either.
      trial->stages[s].recomputed += r->schedule->forward_slots && r->schedule->lists[s].ops[i].type == BL_OP_R;
    }
  }
  return BL_OK;
}

static void fill_costs(const bl_trial_request_t *r, bl_trial_t *trial) {
  const uint32_t count = r->schedule->virtual_stages, slices = r->schedule->slices;
  if (r->profile != NULL) {
    bl_profile_costs(r->profile, r->model, r->spans, count, r->options, trial->costs);
    if (slices > 1) {
      bl_profile_slice_costs(r->profile, r->model, r->spans, count, r->options, trial->costs, trial->slice_costs);
    }
    return;
  }
  for (uint32_t v = 0; v < count; v++) {
    trial->costs[v] = bl_hardware_costs(r->hardware, r->model, r->spans[v], r->options, r->parallel);
    if (slices > 1) {
      bl_profile_spread(r->model, r->spans[v], r->options, trial->costs[v], &trial->slice_costs[(size_t)v * slices]);
    }
  }
}

// Rate of a copy within a machine, for profiles of runs without copies.
#define COPY_BYTES_PER_SECOND 4e9

// Returns the value of the stage itself if measured, else the mean of the stages that have it; 0: none has.
static double seen(const bl_profile_t *profile, uint32_t stage, size_t offset) {
  double sum = 0, count = 0;
  for (uint32_t s = 0; s < profile->stage_count; s++) {
    double value;
    memcpy(&value, (const char *)&profile->stages[s] + offset, sizeof value);
    if (s == stage && value > 0) {
      return value;
    }
    sum += value;
    count += value > 0;
  }
  return count > 0 ? sum / count : 0;
}

#define SEEN(profile, stage, member) seen((profile), (stage), offsetof(bl_profile_stage_t, member))

// Returns what a copy of a stage takes in addition to its bytes.
static double path_latency(const bl_profile_t *profile, uint32_t stage) {
  return profile->setting.device == BL_PROFILE_CUDA ? (SEEN(profile, stage, evict) + SEEN(profile, stage, load)) / 2
                                                    : SEEN(profile, stage, load);
}

// Sets links from a profile, which is of one machine.
static void fill_measured_links(const bl_trial_request_t *r, const bl_trial_t *trial, setting_t *setting) {
  for (uint32_t v = 0; v < r->schedule->virtual_stages; v++) {
    double boundary = r->replay ? r->profile->replay.boundary : r->profile->boundary;
    setting->boundaries[v] = bl_profile_boundary(r->profile, boundary, r->options);
  }
  for (uint32_t s = 0; s < r->schedule->stages; s++) {
    const double rate = SEEN(r->profile, s, path_rate);
    setting->paths[s] =
        path_latency(r->profile, s) + trial->stages[s].evict_bytes / (rate > 0 ? rate : COPY_BYTES_PER_SECOND);
    setting->calls[s] = r->profile->setting.device == BL_PROFILE_CUDA
                            ? 0
                            : bl_profile_evict_call(r->profile, s, trial->stages[s].slot_bytes);
  }
}

// Sets links from a device's model.
static void fill_links(const bl_trial_request_t *r, const bl_trial_t *trial, setting_t *setting) {
  const bl_hardware_t *hardware = r->hardware;
  const bl_schedule_t *schedule = r->schedule;
  const bl_nodes_t *nodes = r->nodes;
  const double near = nodes != NULL ? nodes->near_rate : hardware->intra_rate,
               far = nodes != NULL ? nodes->far_rate : hardware->inter_rate;
  for (uint32_t v = 0; v < schedule->virtual_stages; v++) {
    uint32_t stage = schedule->stage_of[v], next = schedule->stage_of[v + 1 < schedule->virtual_stages ? v + 1 : v];
    bool together = nodes == NULL || nodes->nodes[stage] == nodes->nodes[next];
    setting->boundaries[v] = bl_hardware_boundary(hardware, r->model, r->options, r->parallel, together ? near : far);
  }
  for (uint32_t s = 0; s < schedule->stages; s++) {
    double bytes = trial->stages[s].evict_bytes / hardware->link;
    setting->paths[s] = hardware->latency + bytes / near;
    setting->far_paths[s] = hardware->latency + bytes / far;
  }
  if (nodes != NULL && bl_nodes_spread(nodes)) {
    setting->network = (bl_network_t){
        .nodes = nodes->nodes, .nics = nodes->nics, .far_paths = setting->far_paths, .latency = hardware->latency};
    setting->machine.network = &setting->network;
  }
}

static bl_status_t fill_times(const bl_trial_request_t *r, setting_t *setting, bl_error_t *err) {
  const bl_schedule_t *schedule = r->schedule;
  const char *name = r->profile_name != NULL ? r->profile_name : "given";
  if (r->profile == NULL) {
    return bl_error_set(err, BL_INVALID, "a replay needs a profile");
  }
  bl_status_t status = bl_profile_check_replay(r->profile, schedule, r->options.micro_batch, name, err);
  if (status != BL_OK) {
    return status;
  }
  setting->evenly = calloc(bl_schedule_op_count(schedule) + 1, sizeof *setting->evenly);
  setting->times = calloc(schedule->stages, sizeof *setting->times);
  if (setting->evenly == NULL || setting->times == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for a replay");
  }
  double *next = setting->evenly;
  for (uint32_t s = 0; s < schedule->stages; s++) {
    const bl_profile_stage_t *stage = &r->profile->stages[s];
    uint32_t used = 0;
    setting->times[s] = next;
    for (size_t i = 0; i < schedule->lists[s].count; i++) {
      bool computes = bl_op_type_computes((bl_op_type_t)schedule->lists[s].ops[i].type);
      if (computes && used == stage->time_count) {
        break;
      }
      *next++ = computes ? stage->times[used++] : 0;
    }
    if (next != setting->times[s] + schedule->lists[s].count || used != stage->time_count) {
      return bl_error_set(err, BL_INVALID,
                          "profile %s: stages[%u].times has %u entr%s, which are not as many as the job's operations "
                          "there: a replay needs a profile of the same schedule",
                          name, s, stage->time_count, bl_one_or_many(stage->time_count, "y", "ies"));
    }
  }
  setting->machine.times = setting->times;
  return BL_OK;
}

// Sets the exchange between copies of the model. A recorded step consists of operations only.
static bl_status_t fill_sharing(const bl_trial_request_t *r, setting_t *setting, bl_error_t *err) {
  const uint32_t chunks = r->schedule->virtual_stages;
  if (r->parallel.data * r->schedule->pipes == 1 || r->replay) {
    return BL_OK;
  }
  setting->gathers = calloc(chunks, sizeof(double));
  setting->reductions = calloc(chunks, sizeof(double));
  bl_sharing_t *gathered = calloc(chunks, sizeof *gathered), *reduced = calloc(chunks, sizeof *reduced);
  const bl_sharing_request_t request = {.schedule = r->schedule,
                                        .model = r->model,
                                        .spans = r->spans,
                                        .hardware = is_mixed(r) ? r->hardware : NULL,
                                        .parallel = r->parallel};
  if (setting->gathers == NULL || setting->reductions == NULL || gathered == NULL || reduced == NULL ||
      bl_sharing_count(&request, gathered, reduced) != BL_OK) {
    free(gathered);
    free(reduced);
    return bl_error_set(err, BL_EXHAUSTED, "no memory for what copies of the model share");
  }
  for (uint32_t v = 0; v < chunks; v++) {
    double rate, latency;
    if (r->profile != NULL) {
      rate = SEEN(r->profile, r->schedule->stage_of[v], path_rate);
      rate = rate > 0 ? rate : COPY_BYTES_PER_SECOND;
      latency = bl_profile_message(r->profile);
    } else {
      rate = r->hardware->link * (r->update_rate > 0 ? r->update_rate : r->hardware->inter_rate);
      latency = r->hardware->latency;
    }
    setting->gathers[v] = gathered[v].messages * latency + gathered[v].bytes / rate;
    setting->reductions[v] = reduced[v].messages * latency + reduced[v].bytes / rate;
  }
  free(gathered);
  free(reduced);
  setting->machine.gathers = setting->gathers;
  setting->machine.reductions = setting->reductions;
  return BL_OK;
}

// Returns the rate that a profile measured for copies at hosts; if no stage has one, for any copies.
static double measured_host_rate(const bl_profile_t *profile, uint32_t stage) {
  const double rate = SEEN(profile, stage, host_rate), path = SEEN(profile, stage, path_rate);
  return rate > 0 ? rate : path > 0 ? path : COPY_BYTES_PER_SECOND;
}

// On a link that is slowed down (balance.rate) a copy has its turn for as long as its bytes would take, and is made
// after that, beside the next one's turn.
static void slow_host(const bl_trial_request_t *r, const bl_trial_t *trial, setting_t *setting, uint32_t stage) {
  const double turn = trial->stages[stage].evict_bytes / r->rate, copy = setting->host_paths[stage];
  // Costs that were recorded on such a link contain the turn.
  setting->host_tails[stage] = copy > turn ? copy - turn : copy;
  setting->host_paths[stage] = turn;
}

static bl_status_t fill_host(const bl_trial_request_t *r, const bl_trial_t *trial, setting_t *setting,
                             bl_error_t *err) {
  if (r->schedule->hosts == 0) {
    return BL_OK;
  }
  setting->host_paths = calloc(r->schedule->stages, sizeof(double));
  setting->host_tails = calloc(r->schedule->stages, sizeof(double));
  if (setting->host_paths == NULL || setting->host_tails == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for a trial of %u stages", r->schedule->stages);
  }
  for (uint32_t s = 0; s < r->schedule->stages; s++) {
    const double latency = r->profile != NULL ? path_latency(r->profile, s) : r->hardware->latency;
    const double rate = r->host_rate > 0     ? r->host_rate
                        : r->profile != NULL ? measured_host_rate(r->profile, s)
                                             : r->hardware->host_rate;
    setting->host_paths[s] = latency + trial->stages[s].evict_bytes / rate;
    if (r->rate > 0) {
      slow_host(r, trial, setting, s);
    }
  }
  setting->machine.host_tails = setting->host_tails;
  setting->machine.host_paths = setting->host_paths;
  setting->machine.host_links = r->host_links;
  return BL_OK;
}

static double handover_of(const bl_trial_request_t *r) {
  return r->profile == NULL ? 0 : r->replay ? r->profile->replay.handover : r->profile->handover;
}

static bl_status_t set_up(const bl_trial_request_t *r, const bl_trial_t *trial, setting_t *setting, bl_error_t *err) {
  setting->boundaries = calloc(r->schedule->virtual_stages, sizeof(double));
  setting->paths = calloc(r->schedule->stages, sizeof(double));
  setting->far_paths = calloc(r->schedule->stages, sizeof(double));
  setting->calls = calloc(r->schedule->stages, sizeof(double));
  if (setting->boundaries == NULL || setting->paths == NULL || setting->far_paths == NULL || setting->calls == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for a trial of %u stages", r->schedule->stages);
  }
  setting->costs = (bl_costs_t){.chunks = trial->costs};
  if (r->schedule->slices > 1) {
    setting->costs.slices = trial->slice_costs;
    setting->costs.slice_count = r->schedule->slices;
  }
  setting->machine = (bl_machine_t){.cores = trial->cores,
                                    .handover = handover_of(r),
                                    .early_gradient = true,
                                    .boundaries = setting->boundaries,
                                    .paths = setting->paths,
                                    .evict_calls = setting->calls,
                                    .shared_stores = true};
  if (r->profile != NULL) {
    fill_measured_links(r, trial, setting);
  } else {
    fill_links(r, trial, setting);
  }
  bl_status_t status = fill_host(r, trial, setting, err);
  for (uint32_t s = 0; s < r->schedule->stages && r->rate > 0; s++) {
    const double least = trial->stages[s].evict_bytes / r->rate;
    setting->paths[s] = fmax(setting->paths[s], least);
    setting->far_paths[s] = fmax(setting->far_paths[s], least);
  }
  status = status == BL_OK ? fill_sharing(r, setting, err) : status;
  return status == BL_OK && r->replay ? fill_times(r, setting, err) : status;
}

static double overhead_of(const bl_trial_request_t *r, bl_trial_t *trial) {
  if (r->profile != NULL) {
    return r->profile->overhead;
  }
  if (r->optimizer_on_host && r->hardware->host_source != NULL) {
    const bl_offload_request_t request = {.schedule = r->schedule,
                                          .simulation = &trial->simulation,
                                          .costs = trial->costs,
                                          .model = r->model,
                                          .spans = r->spans,
                                          .hardware = r->hardware,
                                          .parallel = r->parallel,
                                          .threads = r->threads};
    trial->offload = bl_offload_of(&request);
    return trial->offload.landing + trial->offload.update;
  }
  double most = 0;
  for (uint32_t s = 0; s < r->schedule->stages; s++) {
    most = fmax(most, trial->stages[s].parameters * r->parallel.tensor);
  }
  return bl_hardware_update(r->hardware, most, r->parallel);
}

// Returns the cores of one plane: planes on one machine share its cores equally.
static uint32_t shared_cores(const bl_trial_request_t *r) {
  const uint32_t cores = r->cores > 0 ? r->cores : r->profile != NULL ? r->profile->cores : 0;
  return bl_machine_shared_cores(cores, r->schedule->stages, r->parallel.tensor * r->parallel.data);
}

bl_status_t bl_trial_run(const bl_trial_request_t *request, bl_trial_t *trial, bl_error_t *err) {
  const bl_schedule_t *schedule = request->schedule;
  bl_trial_request_t r = *request;
  r.parallel.tensor = r.parallel.tensor > 0 ? r.parallel.tensor : 1;
  r.parallel.data = r.parallel.data > 0 ? r.parallel.data : 1;
  bl_trial_t made = {.cores = shared_cores(&r)};
  r.options.slices = schedule->slices;
  setting_t setting = {0};
  made.costs = calloc(schedule->virtual_stages, sizeof *made.costs);
  made.slice_costs = calloc((size_t)schedule->virtual_stages * schedule->slices, sizeof *made.slice_costs);
  made.stages = calloc(schedule->stages, sizeof *made.stages);
  if (made.costs == NULL || made.slice_costs == NULL || made.stages == NULL) {
    bl_trial_cleanup(&made);
    return bl_error_set(err, BL_EXHAUSTED, "no memory for a trial of %u stages", schedule->stages);
  }
  bl_status_t status = measure_stages(&r, &made, err);
  if (status == BL_OK) {
    fill_costs(&r, &made);
    status = set_up(&r, &made, &setting, err);
  }
  if (status == BL_OK) {
    status = bl_simulate_on(schedule, &setting.costs, &setting.machine, &made.simulation, err);
  }
  for (uint32_t s = 0; setting.host_paths != NULL && s < schedule->stages; s++) {
    made.host_copy = fmax(made.host_copy, setting.host_paths[s]);
  }
  setting_cleanup(&setting);
  if (status != BL_OK) {
    bl_trial_cleanup(&made);
    return status;
  }
  made.overhead = overhead_of(&r, &made);
  made.step = made.simulation.t_end + made.overhead;
  *trial = made;
  return BL_OK;
}

void bl_trial_cleanup(bl_trial_t *trial) {
  bl_simulation_cleanup(&trial->simulation);
  free(trial->costs);
  free(trial->slice_costs);
  free(trial->stages);
  *trial = (bl_trial_t){0};
}
