// SPDX-License-Identifier: Apache-2.0
#include "profiling.h"

#include "alternative.h"
#include "output.h"
#include "profile_file.h"

#include "base/sort.h"
#include "base/words.h"
#include "job/policy.h"
#include "plan/recorder.h"
#include "sys/log.h"

#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TRACED_STEPS   20
#define MEASURED_STEPS 1024 // most of which medians are taken

typedef struct series {
  double values[MEASURED_STEPS];
  size_t count;
} series_t;

#define CAUSES (BL_STALL_CAUSES + 1) // the last: what is not predicted

typedef struct stage {
  uint32_t peak_slots;
  uint64_t slot_bytes;
  double moved_bytes, moved_seconds;
  series_t busy, stall;
  double waits[CAUSES]; // seconds in the traced steps
} stage_t;

struct bl_ctl_profiling {
  const char *record, *predict;
  const bl_job_t *job;
  bool local, asked, finished;
  bool skips;           // the trace under way is of a plan that is no more
  bl_policy_t policy;   // that steps run under
  uint64_t since;       // the first step under it; 0: from the start
  bl_profile_t profile; // that is predicted from
  bool has_prediction;
  bl_ctl_prediction_t prediction;
  double replayed; // seconds from first to last operation of the recorded step, simulated; 0: none
  const bl_training_t *training;
  bl_balance_plan_t plan; // of the policy
  bl_recorder_t *recorder;
  uint64_t last_step, steps, traced;
  double *waits; // [stage_count][CAUSES] of the step that is being told of
  double last_seconds;
  series_t seconds;
  stage_t *stages; // [stage_count]
  uint32_t stage_count;
};

static uint32_t cores_of_machine(void) {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? (uint32_t)CPU_COUNT(&set) : 0;
}

// That the stages of this run share, or have each; 0: of several machines.
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

// Before the run, which could be another one.
static void tell_alternative(const bl_ctl_profiling_t *p, bl_status_t status, const char *name) {
  char text[BL_CTL_ALTERNATIVE];
  const bl_ctl_prediction_source_t source = source_of(p, false);
  if (status == BL_OK) {
    bl_ctl_alternative_find(&p->prediction, &source, name, text);
    bl_ctl_doubt_tell(text);
  }
}

// The plan of the policy, and a recorder for its operations, in place of those before.
static bl_status_t begin_plan(bl_ctl_profiling_t *p, const bl_policy_t *policy, bl_error_t *err) {
  bl_recorder_destroy(p->recorder);
  p->recorder = NULL;
  bl_balance_plan_cleanup(&p->plan);
  p->policy = *policy;
  bl_status_t status = bl_balance_plan_init(&p->plan, p->training, policy, err); // what it gives up is made again
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
  p->waits = calloc(p->stage_count, CAUSES * sizeof *p->waits);
  bl_policy_t policy = bl_policy_of_job(job);
  bl_policy_settle(&policy, training);
  bl_status_t status = p->stages != NULL && p->waits != NULL
                           ? begin_plan(p, &policy, err)
                           : bl_error_set(err, BL_EXHAUSTED, "no memory to record %u stages", p->stage_count);
  if (status == BL_OK && predict_from != NULL) {
    status = bl_ctl_profile_read("--predict", predict_from, &p->profile, err);
    status = status == BL_OK ? predict(p, predict_from, err) : status;
    bl_ctl_doubt_tell(p->prediction.doubt);
    tell_alternative(p, status, predict_from);
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
  free(p->stages);
  free(p->waits);
  free(p);
}

// ---- what the driver tells

void bl_ctl_profiling_plan(bl_ctl_profiling_t *p, const bl_ctl_plan_t *plan) {
  for (size_t i = 0; i < plan->stage_count; i++) {
    if (plan->stages[i].stage >= 0 && (uint32_t)plan->stages[i].stage < p->stage_count) {
      p->stages[plan->stages[i].stage].slot_bytes = plan->stages[i].slot_bytes;
    }
  }
}

static void keep(series_t *series, double value) {
  if (series->count < MEASURED_STEPS) {
    series->values[series->count++] = value;
  }
}

// Nothing of the plan before counts. Where the new one cannot be made, nothing is recorded any more.
static void change_plan(bl_ctl_profiling_t *p, const bl_ctl_step_t *step) {
  bl_error_t err;
  for (uint32_t s = 0; s < p->stage_count; s++) {
    p->stages[s] = (stage_t){.slot_bytes = p->stages[s].slot_bytes};
  }
  p->skips = p->asked;
  p->since = p->steps > 0 ? step->step : 0;
  p->steps = p->traced = 0;
  p->seconds.count = 0;
  bl_status_t status = begin_plan(p, step->ran_under, &err);
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
  if (step->ran_under != NULL && !bl_policy_equal(step->ran_under, &p->policy)) {
    change_plan(p, step);
  }
  p->last_step = step->step;
  p->last_seconds = step->seconds;
  for (size_t i = 0; i < step->stage_count; i++) {
    const bl_ctl_stage_step_t *from = &step->stages[i];
    if (from->stage < 0 || (uint32_t)from->stage >= p->stage_count) {
      continue;
    }
    stage_t *stage = &p->stages[from->stage];
    stage->peak_slots = from->peak_slots > stage->peak_slots ? from->peak_slots : stage->peak_slots;
    if (p->steps > 0) {
      stage->moved_bytes += (double)from->moved_bytes;
      stage->moved_seconds += from->moved_seconds;
      keep(&stage->busy, from->busy_seconds);
      keep(&stage->stall, from->stall_seconds);
    }
  }
  if (p->steps++ > 0) {
    keep(&p->seconds, step->seconds);
  }
}

bool bl_ctl_profiling_wants_trace(const bl_ctl_profiling_t *p) {
  return !p->asked && p->recorder != NULL && p->steps > 1 && p->traced < TRACED_STEPS;
}

void bl_ctl_profiling_event(bl_ctl_profiling_t *p, const bl_ctl_trace_event_t *event) {
  if (!p->asked) {
    p->asked = true;
    p->skips = p->recorder == NULL;
    memset(p->waits, 0, (size_t)p->stage_count * CAUSES * sizeof *p->waits);
    if (!p->skips) {
      bl_recorder_begin(p->recorder);
    }
  }
  if (p->skips || event->stage < 0 || (uint32_t)event->stage >= p->stage_count) {
    return;
  }
  const uint32_t stage = (uint32_t)event->stage;
  if (event->wait) {
    p->waits[stage * CAUSES + bl_stall_cause_of(event->name)] += 1e-9 * (double)(event->end_ns - event->start_ns);
    bl_recorder_wait(p->recorder, stage, event->name, event->start_ns, event->end_ns);
  } else {
    bl_recorder_add(p->recorder, stage, event->name, event->start_ns, event->end_ns);
  }
}

void bl_ctl_profiling_trace_end(bl_ctl_profiling_t *p, bool complete) {
  if (complete && p->asked && !p->skips) {
    bl_recorder_end(p->recorder, p->last_seconds);
    const bool whole = bl_recorder_steps(p->recorder) > p->traced;
    p->traced = bl_recorder_steps(p->recorder);
    for (uint32_t s = 0; s < p->stage_count; s++) {
      for (int cause = 0; whole && cause < CAUSES; cause++) {
        p->stages[s].waits[cause] += p->waits[s * CAUSES + cause];
      }
    }
  }
  p->asked = p->skips = false;
}

// ---- at the end

// What the recorded step would have taken by the simulator, with its own durations.
static void replay(bl_ctl_profiling_t *p) {
  bl_error_t err;
  bl_ctl_prediction_t replayed;
  const bl_ctl_prediction_source_t source = source_of(p, true);
  if (bl_ctl_prediction_init(&replayed, p->training, &source, p->record, &err) == BL_OK) {
    p->replayed = replayed.trial.simulation.t_end;
    bl_ctl_prediction_cleanup(&replayed);
  }
}

bl_status_t bl_ctl_profiling_finish(bl_ctl_profiling_t *p, bl_error_t *err) {
  p->finished = true;
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
  profile.cores = cores;
  for (uint32_t s = 0; s < p->stage_count; s++) {
    const stage_t *stage = &p->stages[s];
    profile.stages[s].slot_bytes = stage->slot_bytes;
    profile.stages[s].path_rate = stage->moved_seconds > 0 ? stage->moved_bytes / stage->moved_seconds : 0;
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

static double median(const series_t *series) {
  series_t sorted = *series;
  return bl_median(sorted.values, sorted.count);
}

static double stalled(const bl_ctl_profiling_t *p, uint32_t s) {
  const bl_simulation_t *simulation = &p->prediction.trial.simulation;
  double sum = 0; // the end is no wait of the executor
  for (int cause = 0; cause < BL_STALL_END; cause++) {
    sum += simulation->stalls[s][cause];
  }
  return sum;
}

static const char *pair(char *text, size_t bytes, double predicted, double measured) {
  snprintf(text, bytes, "%.3g / %.3g ms", 1e3 * predicted, 1e3 * measured);
  return text;
}

static json_t *stage_row(const bl_ctl_profiling_t *p, uint32_t s) {
  const stage_t *stage = &p->stages[s];
  const bl_simulation_t *simulation = &p->prediction.trial.simulation;
  char slots[32], bytes[64], busy[64], stall[64];
  snprintf(slots, sizeof slots, "%u / %u", simulation->peak_slots[s], stage->peak_slots);
  snprintf(bytes, sizeof bytes, "%llu / %llu", (unsigned long long)p->prediction.training->stages[s].slot_bytes,
           (unsigned long long)stage->slot_bytes);
  return json_pack("{s:i, s:s, s:s, s:s, s:s}", "stage", (int)s, "slots", slots, "bytes", bytes, "busy",
                   pair(busy, sizeof busy, simulation->busy[s], median(&stage->busy)), "stall",
                   pair(stall, sizeof stall, stalled(p, s), median(&stage->stall)));
}

// What a stage stood still for in a step, at one place of the array `waits`; the end of the others is no wait of its own.
static double waited(const bl_ctl_profiling_t *p, uint32_t s, int cause) {
  return p->traced > 0 ? p->stages[s].waits[cause] / (double)p->traced : 0;
}

static const char *cause_name(int cause) {
  return cause < BL_STALL_CAUSES ? bl_stall_cause_name((bl_stall_cause_t)cause) : "other";
}

static double predicted_wait(const bl_ctl_profiling_t *p, uint32_t s, int cause) {
  return cause < BL_STALL_CAUSES ? p->prediction.trial.simulation.stalls[s][cause] : 0;
}

static bool is_wait(int cause) {
  return cause != BL_STALL_END && cause != BL_STALL_CARD; // one machine
}

static json_t *waits_row(const bl_ctl_profiling_t *p, uint32_t s) {
  json_t *row = json_pack("{s:i}", "stage", (int)s);
  for (int cause = 0; cause < CAUSES; cause++) {
    char text[64];
    json_object_set_new(row, cause_name(cause),
                        json_string(pair(text, sizeof text, predicted_wait(p, s, cause), waited(p, s, cause))));
  }
  return row;
}

static void print_waits(const bl_ctl_profiling_t *p, FILE *stream) {
  static const bl_ctl_column_t columns[] = {{.key = "stage", .title = "STAGE", .right = true},
                                            {.key = "activation", .title = "ACTIVATION", .right = true},
                                            {.key = "gradient", .title = "GRADIENT", .right = true},
                                            {.key = "load", .title = "LOAD", .right = true},
                                            {.key = "slot", .title = "SLOT", .right = true},
                                            {.key = "core", .title = "CORE", .right = true},
                                            {.key = "other", .title = "OTHER", .right = true}};
  json_t *rows = json_array();
  fprintf(stream, "\nwaits by cause, predicted / mean of %llu traced steps\n", (unsigned long long)p->traced);
  for (uint32_t s = 0; s < p->stage_count; s++) {
    json_array_append_new(rows, waits_row(p, s));
  }
  if (bl_ctl_print_rows(BL_CTL_TABLE, columns, sizeof columns / sizeof columns[0], rows, stream) != BL_OK) {
    fputs("(the table of waits could not be printed)\n", stderr);
  }
  json_decref(rows);
}

void bl_ctl_profiling_print(const bl_ctl_profiling_t *p, FILE *stream) {
  static const bl_ctl_column_t columns[] = {{.key = "stage", .title = "STAGE", .right = true},
                                            {.key = "slots", .title = "PEAK SLOTS", .right = true},
                                            {.key = "bytes", .title = "SLOT BYTES", .right = true},
                                            {.key = "busy", .title = "BUSY", .right = true},
                                            {.key = "stall", .title = "STALL", .right = true}};
  if (!p->has_prediction || p->seconds.count == 0) {
    return;
  }
  double predicted = p->prediction.trial.step, measured = median(&p->seconds);
  fprintf(stream, "predicted / measured, median of %zu step%s: step %.4g / %.4g ms (%+.1f %%)\n", p->seconds.count,
          bl_plural(p->seconds.count), 1e3 * predicted, 1e3 * measured, 100 * (predicted / measured - 1));
  if (p->replayed > 0) {
    fprintf(stream, "one step replayed with its own durations: %.4g / %.4g ms (%+.1f %%)\n", 1e3 * p->replayed,
            1e3 * p->profile.replay.makespan, 100 * (p->replayed / p->profile.replay.makespan - 1));
  }
  json_t *rows = json_array();
  for (uint32_t s = 0; rows != NULL && s < p->stage_count; s++) {
    json_array_append_new(rows, stage_row(p, s));
  }
  if (rows == NULL ||
      bl_ctl_print_rows(BL_CTL_TABLE, columns, sizeof columns / sizeof columns[0], rows, stream) != BL_OK) {
    fputs("(the table of the prediction could not be printed)\n", stderr);
  }
  json_decref(rows);
  if (p->traced > 0) {
    print_waits(p, stream);
  }
}

static json_t *both(json_t *predicted, json_t *measured) {
  return json_pack("{s:o, s:o}", "predicted", predicted, "measured", measured);
}

static json_t *waits_json(const bl_ctl_profiling_t *p, uint32_t s) {
  json_t *waits = json_object();
  for (int cause = 0; cause < CAUSES; cause++) {
    if (is_wait(cause)) {
      json_object_set_new(waits, cause_name(cause),
                          both(json_real(predicted_wait(p, s, cause)), json_real(waited(p, s, cause))));
    }
  }
  return waits;
}

char *bl_ctl_profiling_line(const bl_ctl_profiling_t *p) {
  if (!p->has_prediction || p->seconds.count == 0) {
    return NULL;
  }
  json_t *stages = json_array();
  const bl_simulation_t *simulation = &p->prediction.trial.simulation;
  for (uint32_t s = 0; s < p->stage_count; s++) {
    const stage_t *stage = &p->stages[s];
    json_array_append_new(
        stages, json_pack("{s:i, s:o, s:o, s:o, s:o, s:o}", "stage", (int)s, "peak_slots",
                          both(json_integer(simulation->peak_slots[s]), json_integer(stage->peak_slots)), "slot_bytes",
                          both(json_integer((json_int_t)p->prediction.training->stages[s].slot_bytes),
                               json_integer((json_int_t)stage->slot_bytes)),
                          "busy_seconds", both(json_real(simulation->busy[s]), json_real(median(&stage->busy))),
                          "stall_seconds", both(json_real(stalled(p, s)), json_real(median(&stage->stall))), "waits",
                          waits_json(p, s)));
  }
  json_t *object = json_pack("{s:s, s:I, s:o, s:o, s:o}", "event", "prediction", "step", (json_int_t)p->last_step,
                             "seconds", both(json_real(p->prediction.trial.step), json_real(median(&p->seconds))),
                             "stages", stages, "warnings", bl_ctl_doubt_json(p->prediction.doubt));
  if (object != NULL && p->replayed > 0) {
    json_object_set_new(object, "replay_seconds", both(json_real(p->replayed), json_real(p->profile.replay.makespan)));
  }
  char *text = object != NULL ? json_dumps(object, JSON_COMPACT) : NULL;
  json_decref(object);
  return text;
}
