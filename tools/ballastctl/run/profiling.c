// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/run/profiling_core.h"

#include "ballastctl/plan/profile_file.h"
#include "ballastctl/plan/schedule_advice.h"

#include "base/minmax.h"
#include "base/sort.h"
#include "sys/log.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint32_t cores_of_machine(void) {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? (uint32_t)CPU_COUNT(&set) : 0;
}

// Returns the cores that the stages of this run share, or that each has; 0: it runs on several machines.
static uint32_t cores_of_run(const bl_ctl_profiling_t *p) {
  if (p->job->pipeline.cores.set) {
    return (uint32_t)p->job->pipeline.cores.value;
  }
  const uint32_t cores = p->local ? cores_of_machine() / (uint32_t)p->job->pipeline.threads : 0;
  return p->local && cores == 0 ? 1 : cores;
}

static bl_ctl_prediction_source_t source_of(const bl_ctl_profiling_t *p, bool replay) {
  return (bl_ctl_prediction_source_t){
      .profile = &p->profile, .replay = replay, .policy = &p->policy, .job = p->job, .cores = cores_of_run(p)};
}

static bl_status_t predict(bl_ctl_profiling_t *p, const char *name, bl_error_t *err) {
  const bl_ctl_prediction_source_t source = source_of(p, false);
  bl_ctl_prediction_cleanup(&p->prediction);
  bl_status_t status = bl_ctl_prediction_init(&p->prediction, p->training, &source, name, err);
  p->has_prediction = status == BL_OK;
  return status;
}

// Printed before the run, while another job can still be chosen.
static void print_advice(const bl_ctl_profiling_t *p, bl_status_t status, const char *name) {
  char text[BL_CTL_SCHEDULE_ADVICE];
  const bl_ctl_prediction_source_t source = source_of(p, false);
  if (status == BL_OK) {
    bl_ctl_schedule_advice_find(&p->prediction, &source, name, text);
    bl_ctl_warning_tell(text);
  }
}

// Makes the plan of the policy and a recorder for its operations, in place of the former ones.
static bl_status_t begin_plan(bl_ctl_profiling_t *p, const bl_policy_t *policy, bl_error_t *err) {
  bl_recorder_destroy(p->recorder);
  p->recorder = NULL;
  bl_balance_plan_cleanup(&p->plan);
  p->policy = *policy;
  // The plan includes recomputation of dropped blocks.
  bl_status_t status = bl_balance_plan_init(&p->plan, p->training, policy, err);
  if (status == BL_OK && bl_recorder_create(p->plan.schedule, p->training->partition.spans, &p->recorder) != BL_OK) {
    status = bl_error_set(err, BL_EXHAUSTED, "no memory to record %u stages", p->stage_count);
  }
  return status;
}

bl_status_t bl_ctl_profiling_create(const bl_job_t *job, const bl_training_t *training, const char *record,
                                    const char *predict_from, bool local, bl_ctl_profiling_t **profiling,
                                    bl_error_t *err) {
  bl_ctl_profiling_t *p = calloc(1, sizeof *p);
  if (p == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory");
  }
  *p = (bl_ctl_profiling_t){.record = record,
                            .predict = predict_from,
                            .job = job,
                            .local = local,
                            .training = training,
                            .stage_count = training->stage_count};
  p->stages = calloc(p->stage_count, sizeof *p->stages);
  p->waits = calloc(p->stage_count, BL__WAIT_CAUSES * sizeof *p->waits);
  bl_policy_t policy = bl_policy_of_job(job);
  bl_policy_resolve(&policy, training);
  bl_status_t status = p->stages != NULL && p->waits != NULL
                           ? begin_plan(p, &policy, err)
                           : bl_error_set(err, BL_EXHAUSTED, "no memory to record %u stages", p->stage_count);
  if (status == BL_OK && predict_from != NULL) {
    status = bl_ctl_profile_read("--predict", predict_from, &p->profile, err);
    status = status == BL_OK ? predict(p, predict_from, err) : status;
    bl_ctl_warning_tell(p->prediction.warning);
    print_advice(p, status, predict_from);
  }
  if (status != BL_OK) {
    bl_ctl_profiling_destroy(p);
    return status;
  }
  *profiling = p;
  return BL_OK;
}

void bl_ctl_profiling_destroy(bl_ctl_profiling_t *p) {
  if (p == NULL) {
    return;
  }
  bl_recorder_destroy(p->recorder);
  bl_ctl_prediction_cleanup(&p->prediction);
  bl_balance_plan_cleanup(&p->plan);
  bl_profile_cleanup(&p->profile);
  bl_ctl_link_turns_cleanup(&p->turns);
  free(p->stages);
  free(p->waits);
  free(p);
}

// ---- what the driver tells

// Returns whether the rank is the first of its stage, which represents all of them.
static bool is_first(const bl_ctl_profiling_t *p, int stage, uint32_t tensor, uint32_t data) {
  return stage >= 0 && (uint32_t)stage < p->stage_count && tensor == 0 && data == 0;
}

void bl_ctl_profiling_plan(bl_ctl_profiling_t *p, const bl_ctl_plan_t *plan) {
  for (size_t i = 0; i < plan->stage_count; i++) {
    const bl_ctl_stage_plan_t *stage = &plan->stages[i];
    if (is_first(p, stage->stage, stage->tensor, stage->data)) {
      p->stages[stage->stage].slot_bytes = stage->slot_bytes;
    }
  }
}

static void keep(bl__series_t *series, double value) {
  if (series->count < BL__MEASURED_STEPS) {
    series->values[series->count++] = value;
  }
}

// Discards everything recorded under the former plan. If the new plan cannot be made, nothing more is recorded.
static void change_plan(bl_ctl_profiling_t *p, const bl_ctl_step_t *step) {
  bl_error_t err;
  for (uint32_t s = 0; s < p->stage_count; s++) {
    p->stages[s] = (bl__profiled_stage_t){.slot_bytes = p->stages[s].slot_bytes};
  }
  p->skips_trace = p->tracing;
  p->since = p->steps > 0 ? step->step : 0;
  p->steps = p->traced = 0;
  p->seconds.count = 0;
  bl_status_t status = begin_plan(p, &step->ran_under.policy, &err);
  if (status == BL_OK && p->predict != NULL) {
    status = predict(p, p->predict, &err);
  }
  if (status != BL_OK) {
    p->has_prediction = false;
    bl_log(BL_LOG_WARNING, "step %llu runs under another policy, of which nothing is predicted: %s",
           (unsigned long long)step->step, err.text);
  }
}

void bl_ctl_profiling_step(bl_ctl_profiling_t *p, const bl_ctl_step_t *step) {
  if (step->ran_under.version > 0 && !bl_policy_equal(&step->ran_under.policy, &p->policy)) {
    change_plan(p, step);
  }
  p->last_step = step->step;
  p->last_seconds = step->seconds;
  for (size_t i = 0; i < step->stage_count; i++) {
    const bl_ctl_stage_step_t *from = &step->stages[i];
    if (!is_first(p, from->stage, from->tensor, from->data)) {
      continue;
    }
    bl__profiled_stage_t *stage = &p->stages[from->stage];
    stage->peak_slots = bl_max_u32(from->counters.peak_slots, stage->peak_slots);
    if (p->steps > 0) {
      stage->moved_bytes += (double)(from->counters.moved_bytes - from->counters.host_moved_bytes);
      stage->moved_seconds += 1e-9 * (double)(from->counters.moved_ns - from->counters.host_moved_ns);
      stage->host_bytes += (double)from->counters.host_moved_bytes;
      stage->host_seconds += 1e-9 * (double)from->counters.host_moved_ns;
      keep(&stage->busy, 1e-9 * (double)from->counters.busy_ns);
      keep(&stage->stall, 1e-9 * (double)from->counters.stall_ns);
    }
  }
  if (p->steps++ > 0) {
    keep(&p->seconds, step->seconds);
  }
}

bool bl_ctl_profiling_wants_trace(const bl_ctl_profiling_t *p) {
  return !p->tracing && p->recorder != NULL && p->steps > 1 && p->traced < BL__TRACED_STEPS;
}

void bl_ctl_profiling_event(bl_ctl_profiling_t *p, const bl_ctl_trace_event_t *event) {
  if (!p->tracing) {
    p->tracing = true;
    p->skips_trace = p->recorder == NULL;
    memset(p->waits, 0, (size_t)p->stage_count * BL__WAIT_CAUSES * sizeof *p->waits);
    p->turns.count = 0;
    if (!p->skips_trace) {
      bl_recorder_begin(p->recorder);
    }
  }
  if (!p->skips_trace && bl_ctl_link_turns_add(&p->turns, event) != BL_OK) { // of all ranks, as they share the link
    p->skips_trace = true;
  }
  const bl_coords_t coords = bl_grid_coords(&p->training->grid, event->stage < 0 ? 0 : (uint32_t)event->stage);
  if (p->skips_trace || event->stage < 0 || !is_first(p, (int)coords.stage, coords.tensor, coords.data)) {
    return;
  }
  const uint32_t stage = coords.stage;
  if (event->wait) {
    p->waits[stage * BL__WAIT_CAUSES + bl_stall_cause_of(event->name)] +=
        1e-9 * (double)(event->end_ns - event->start_ns);
    bl_recorder_wait(p->recorder, stage, event->name, event->start_ns, event->end_ns);
  } else if (!event->transfer) {
    bl_recorder_add(p->recorder, stage, event->name, event->start_ns, event->end_ns);
  }
}

// Returns seconds a byte of a host's quickest transfer in the step, of those that found its link idle; 0: there was none.
static double quickest_pace(const bl_ctl_link_turns_t *turns, uint32_t host) {
  double quickest = 0;
  for (size_t i = 0; i < turns->count; i++) {
    const bl_ctl_link_turn_t *turn = &turns->of[i];
    if (turn->host == host && turn->turn_ns == turn->asked_ns && turn->bytes > 0) {
      const double pace = 1e-9 * (double)(turn->end_ns - turn->turn_ns) / (double)turn->bytes;
      quickest = quickest == 0 || pace < quickest ? pace : quickest;
    }
  }
  return quickest;
}

// Keeps how fast copies at the host of each stage were. What a stage counts itself contains waits for the link. Some of
// its transfers wait for room at the store, and few find the link idle, so the others of its host count, too.
static void keep_host_paces(bl_ctl_profiling_t *p) {
  bl_ctl_link_turns_sort(&p->turns);
  for (uint32_t s = 0; s < p->stage_count; s++) {
    size_t i = 0;
    while (i < p->turns.count && bl_grid_coords(&p->training->grid, p->turns.of[i].stage).stage != s) {
      i++;
    }
    const double quickest = i < p->turns.count ? quickest_pace(&p->turns, p->turns.of[i].host) : 0;
    if (quickest > 0) {
      keep(&p->stages[s].host_paces, quickest);
    }
  }
}

void bl_ctl_profiling_trace_end(bl_ctl_profiling_t *p, bool complete) {
  if (complete && p->tracing && !p->skips_trace) {
    bl_recorder_end(p->recorder, p->last_seconds);
    const bool whole = bl_recorder_steps(p->recorder) > p->traced;
    if (whole) {
      keep_host_paces(p);
    }
    for (uint32_t s = 0; s < p->stage_count; s++) {
      for (int cause = 0; whole && cause < BL__WAIT_CAUSES; cause++) {
        p->stages[s].waits[cause][p->traced] = p->waits[s * BL__WAIT_CAUSES + cause];
      }
    }
    p->traced = bl_recorder_steps(p->recorder);
  }
  p->tracing = p->skips_trace = false;
}

// ---- at the end

// Simulates the recorded step with its own durations.
static void replay(bl_ctl_profiling_t *p) {
  bl_error_t err;
  bl_ctl_prediction_t replayed;
  const bl_ctl_prediction_source_t source = source_of(p, true);
  if (bl_ctl_prediction_init(&replayed, p->training, &source, p->record, &err) == BL_OK) {
    p->replayed = replayed.trial.simulation.t_end;
    bl_ctl_prediction_cleanup(&replayed);
  }
}

// Returns the rate of a stage's copies at its host, alone on the link; 0: there were none.
static double host_rate(const bl__profiled_stage_t *stage) {
  if (stage->host_paces.count > 0) {
    bl__series_t sorted = stage->host_paces;
    return 1 / bl_median(sorted.values, sorted.count);
  }
  return stage->host_seconds > 0 ? stage->host_bytes / stage->host_seconds : 0; // its quickest copy, waits included
}

bl_status_t bl_ctl_profiling_finish(bl_ctl_profiling_t *p, bl_error_t *err) {
  if (p->record == NULL) {
    return BL_OK;
  }
  const uint32_t cores = cores_of_run(p);
  bl_profile_t profile;
  bool input_shows = p->local && cores >= p->stage_count;
  bl_status_t status = p->recorder != NULL ? bl_recorder_fill(p->recorder, &p->training->model,
                                                              p->training->layout.attention, input_shows, &profile, err)
                                           : bl_error_set(err, BL_PRECONDITION,
                                                          "the plan of the policy that ran last could not be made");
  if (status != BL_OK && p->since > 0) {
    (void)bl_error_prefix(err, "the policy changed at step %llu, and since then", (unsigned long long)p->since);
  }
  if (status != BL_OK) {
    return status;
  }
  const bl_profile_use_t use = bl_ctl_profile_use(p->job, &p->training->model);
  profile.options = p->training->layout;
  profile.setting.known = true;
  profile.setting.device = use.device;
  profile.setting.threads = use.threads;
  profile.setting.masked = use.masked;
  profile.cores = cores;
  for (uint32_t s = 0; s < p->stage_count; s++) {
    const bl__profiled_stage_t *stage = &p->stages[s];
    profile.stages[s].slot_bytes = stage->slot_bytes;
    profile.stages[s].path_rate = stage->moved_seconds > 0 ? stage->moved_bytes / stage->moved_seconds : 0;
    profile.stages[s].host_rate = host_rate(stage);
  }
  status = bl_ctl_profile_write(p->record, &profile, err);
  if (p->predict == NULL && status == BL_OK) {
    p->profile = profile;
    status = predict(p, p->record, err);
    replay(p);
  } else {
    bl_profile_cleanup(&profile);
  }
  return status;
}
