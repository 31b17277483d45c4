// SPDX-License-Identifier: Apache-2.0
// Verifies profiles: what a recorder makes of the events of steps whose durations are known, of waits where stages
// share cores, that a profile survives
// being written and read, what is refused, and what it says of other partitions and micro-batches.
#include "plan/evaluate/footprint.h"
#include "plan/evaluate/trial.h"
#include "plan/profile/profile.h"
#include "plan/profile/recorder.h"

#include "schedule/balance/balance.h"
#include "schedule/generate.h"

#include "models.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define BOUNDARY 0.0005

static void assert_near(double value, double expected) {
  if (!(fabs(value - expected) <= 2e-6)) {
    fail_msg("%.9g, expected %.9g", value, expected);
  }
}

typedef struct world {
  bl_model_t model;
  bl_chunk_span_t spans[2];
  bl_schedule_t *schedule;
  bl_chunk_costs_t costs[2];
  bl_simulation_t simulation;
} world_t;

// Two stages of a small model, stage 1 with the head, timed by the simulator with gradients that leave after I.
static void open_world(world_t *w) {
  bl_error_t err;
  double boundaries[] = {BOUNDARY, 0};
  *w = (world_t){.model = gpt(6, 64, 4),
                 .spans = {{.layer_count = 3, .embedding = true}, {.first_layer = 3, .layer_count = 3, .head = true}},
                 .costs = {{0.003, 0.004, 0.0031, 0.003}, {0.003, 0.006, 0.003, 0.003}}};
  bl_schedule_request_t request = {.name = "1f1b", .stages = 2, .micro_batches = 8};
  assert_int_equal(bl_schedule_generate(&request, &w->schedule, &err), BL_OK);
  bl_costs_t costs = {.chunks = w->costs};
  bl_machine_t machine = {.early_gradient = true, .boundaries = boundaries};
  assert_int_equal(bl_simulate_on(w->schedule, &costs, &machine, &w->simulation, &err), BL_OK);
}

static void close_world(world_t *w) {
  bl_simulation_cleanup(&w->simulation);
  bl_schedule_destroy(w->schedule);
}

static void add_step(const world_t *w, bl_recorder_t *recorder, double step_seconds, uint32_t leave_out) {
  bl_recorder_begin(recorder);
  for (uint32_t s = 0; s < 2; s++) {
    for (size_t i = 0; i + leave_out < w->schedule->lists[s].count; i++) {
      char cell[BL_OP_TEXT];
      bl_span_t span = w->simulation.spans[s][i];
      bl_recorder_add(recorder, s, "activation from 0", 0, 1);
      bl_recorder_add(recorder, s, bl_op_format(w->schedule->lists[s].ops[i], cell),
                      (uint64_t)(span.start * 1e9) + 5000000000u, (uint64_t)(span.end * 1e9) + 5000000000u);
    }
  }
  bl_recorder_end(recorder, step_seconds);
}

static bl_profile_t record(const world_t *w) {
  bl_recorder_t *recorder;
  bl_profile_t profile;
  bl_error_t err;
  assert_int_equal(bl_recorder_create(w->schedule, w->spans, &recorder), BL_OK);
  assert_int_equal(bl_recorder_fill(recorder, &w->model, BL_ATTENTION_NAIVE, true, &profile, &err), BL_PRECONDITION);
  for (int i = 0; i < 3; i++) {
    add_step(w, recorder, w->simulation.t_end + 0.002, 0);
  }
  add_step(w, recorder, 9, 1); // lacks an operation: left out
  assert_int_equal(bl_recorder_steps(recorder), 3);
  assert_int_equal(bl_recorder_fill(recorder, &w->model, BL_ATTENTION_NAIVE, true, &profile, &err), BL_OK);
  profile.options = (bl_layout_options_t){.micro_batch = 2, .lean = true, .backward = BL_BACKWARD_FUSED};
  profile.setting.known = true;
  profile.setting.threads = 2;
  profile.handover = 0.00003;
  profile.stages[0].slot_bytes = 4096;
  profile.stages[1].path_rate = 2.5e9;
  profile.stages[0].host_rate = 1.5e9;
  bl_recorder_destroy(recorder);
  return profile;
}

// With replicas a step has more than operations and what lies between steps: weights that come before the first
// operation and gradients that are added up after the last one. A recorder tells them apart, and a trial adds what the
// job's replicas bring to each other to a profile of however many.
static void replicas_are_no_part_of_what_lies_between(void **state) {
  (void)state;
  world_t w;
  open_world(&w);
  bl_recorder_t *recorder;
  bl_profile_t profile;
  bl_error_t err;
  assert_int_equal(bl_recorder_create(w.schedule, w.spans, &recorder), BL_OK);
  const uint64_t first_ns = 5000000000u, last_ns = first_ns + (uint64_t)(w.simulation.t_end * 1e9);
  bl_recorder_begin(recorder);
  for (uint32_t s = 0; s < 2; s++) {
    bl_recorder_wait(recorder, s, "gather of weights", first_ns - 3000000, first_ns + s * 1000000);
    for (size_t i = 0; i < w.schedule->lists[s].count; i++) {
      char cell[BL_OP_TEXT];
      bl_span_t span = w.simulation.spans[s][i];
      bl_recorder_add(recorder, s, bl_op_format(w.schedule->lists[s].ops[i], cell),
                      first_ns + (uint64_t)(span.start * 1e9), first_ns + (uint64_t)(span.end * 1e9));
    }
    bl_recorder_wait(recorder, s, "reduction of gradients", last_ns - 2000000, last_ns + (1 - s) * 4000000);
  }
  bl_recorder_end(recorder, w.simulation.t_end + 0.003 + 0.004 + 0.002);
  assert_int_equal(bl_recorder_fill(recorder, &w.model, BL_ATTENTION_NAIVE, true, &profile, &err), BL_OK);
  bl_recorder_destroy(recorder);
  assert_near(profile.overhead, 0.002);
  profile.options = (bl_layout_options_t){.micro_batch = 2, .lean = true, .backward = BL_BACKWARD_FUSED};
  profile.stages[0].path_rate = 1e9;

  bl_trial_t one, two;
  bl_trial_request_t request = {
      .schedule = w.schedule, .model = &w.model, .spans = w.spans, .options = profile.options, .profile = &profile};
  assert_int_equal(bl_trial_run(&request, &one, &err), BL_OK);
  request.parallel = (bl_parallel_t){.tensor = 1, .data = 2, .shard = true};
  assert_int_equal(bl_trial_run(&request, &two, &err), BL_OK);
  // Each replica updates half of stage 0: it gets the other half's weights, and its own half's gradients, in a message
  // for each of two tables and one for the layers. Stage 1 has its weights in time.
  const double half = 4.0 * bl_footprint_parameters(&w.model, w.spans[0]) / 2 / 1e9 + 3 * bl_profile_message(&profile);
  assert_near(two.simulation.stalls[0][BL_STALL_GATHER], half);
  assert_near(two.simulation.stalls[0][BL_STALL_REDUCTION], half);
  assert_near(two.simulation.t_end, one.simulation.t_end + 2 * half);
  assert_near(two.overhead, one.overhead);
  assert_near(two.simulation.stalls[1][BL_STALL_GATHER], 0);
  bl_trial_cleanup(&one);
  bl_trial_cleanup(&two);
  // Four stages, two of each replica, on two cores: a replica has one of them.
  profile.cores = 2;
  assert_int_equal(bl_trial_run(&request, &two, &err), BL_OK);
  assert_int_equal(two.cores, 1);
  bl_trial_cleanup(&two);
  bl_profile_cleanup(&profile);
  close_world(&w);
}

static void known_durations_come_back(void **state) {
  (void)state;
  world_t w;
  open_world(&w);
  bl_profile_t profile = record(&w);
  assert_int_equal(profile.steps, 3);
  assert_near(profile.makespan, w.simulation.t_end);
  assert_near(profile.overhead, 0.002);
  assert_near(profile.boundary, BOUNDARY);
  for (uint32_t v = 0; v < 2; v++) {
    assert_near(profile.chunks[v].costs.forward, w.costs[v].forward);
    assert_near(profile.chunks[v].costs.input + profile.chunks[v].costs.weight, w.costs[v].input + w.costs[v].weight);
  }
  // the part of I shows where stage 0 waited for its gradient: 6 of 9 milliseconds
  assert_true(profile.chunks[1].measured_input);
  assert_true(fabs(profile.chunks[1].costs.input - 0.006) < 2e-4);
  bl_profile_cleanup(&profile);
  close_world(&w);
}

// Replaying what was recorded gives the step that was recorded.
static void a_replay_takes_as_long_as_the_step(void **state) {
  (void)state;
  world_t w;
  open_world(&w);
  bl_profile_t profile = record(&w);
  bl_trial_t trial;
  bl_error_t err;
  bl_trial_request_t request = {.schedule = w.schedule,
                                .model = &w.model,
                                .spans = w.spans,
                                .options = profile.options,
                                .profile = &profile,
                                .replay = true};
  assert_int_equal(bl_trial_run(&request, &trial, &err), BL_OK);
  assert_true(fabs(trial.simulation.t_end / w.simulation.t_end - 1) < 0.005);
  assert_near(trial.step - trial.simulation.t_end, 0.002);
  bl_trial_cleanup(&trial);
  bl_schedule_t *other;
  bl_schedule_request_t gpipe = {.name = "1f1b", .stages = 2, .micro_batches = 9};
  assert_int_equal(bl_schedule_generate(&gpipe, &other, &err), BL_OK);
  request.schedule = other;
  assert_int_equal(bl_trial_run(&request, &trial, &err), BL_INVALID);
  assert_non_null(
      strstr(err.text, "micro_batches is 8, the job's train.micro_batches 9; a replay needs one of the same schedule"));
  bl_schedule_destroy(other);
  bl_profile_cleanup(&profile);
  close_world(&w);
}

#define CROWD    4
#define HANDOVER 0.0002

#define CROWD_INPUT  0.005
#define CROWD_WEIGHT 0.0031

static bl_schedule_t *crowd(bl_chunk_span_t spans[CROWD]) {
  bl_error_t err;
  bl_schedule_t *schedule;
  bl_schedule_request_t request = {.name = "1f1b", .stages = CROWD, .micro_batches = 16};
  for (uint32_t s = 0; s < CROWD; s++) {
    spans[s] = (bl_chunk_span_t){.first_layer = 2 * s, .layer_count = 2, .embedding = s == 0, .head = s + 1 == CROWD};
  }
  assert_int_equal(bl_schedule_generate(&request, &schedule, &err), BL_OK);
  return schedule;
}

// Messages take `scale` times as long.
static bl_simulation_t simulate_crowd(const bl_schedule_t *schedule, double scale) {
  bl_error_t err;
  bl_simulation_t simulation;
  double boundaries[CROWD] = {scale * BOUNDARY, scale * BOUNDARY, scale * BOUNDARY, 0};
  const bl_costs_t costs = {.every = {0.003, CROWD_INPUT, CROWD_WEIGHT, 0.003}};
  bl_machine_t machine = {.cores = 2, .handover = HANDOVER, .early_gradient = true, .boundaries = boundaries};
  assert_int_equal(bl_simulate_on(schedule, &costs, &machine, &simulation, &err), BL_OK);
  return simulation;
}

// A step of four stages on two cores, with what each of its operations waited for.
static void add_crowded_step(const bl_schedule_t *schedule, const bl_simulation_t *simulation, double scale,
                             bool tells_waits, bl_recorder_t *recorder) {
  const double input_share = CROWD_INPUT / (CROWD_INPUT + CROWD_WEIGHT);
  double forward_end[CROWD][16], sent[CROWD][16];
  for (uint32_t s = 0; s < CROWD; s++) {
    for (size_t i = 0; i < schedule->lists[s].count; i++) {
      bl_op_t op = schedule->lists[s].ops[i];
      bl_span_t span = simulation->spans[s][i];
      if (op.type == BL_OP_F) {
        forward_end[s][op.micro_batch] = span.end;
      } else {
        sent[s][op.micro_batch] = span.start + input_share * (span.end - span.start);
      }
    }
  }
  bl_recorder_begin(recorder);
  for (uint32_t s = 0; s < CROWD; s++) {
    double free_at = 0;
    for (size_t i = 0; i < schedule->lists[s].count; i++) {
      bl_op_t op = schedule->lists[s].ops[i];
      bl_span_t span = simulation->spans[s][i];
      const bool forward = op.type == BL_OP_F, waits = forward ? s > 0 : s + 1 < CROWD;
      double came = !waits ? 0 : (forward ? forward_end[s - 1] : sent[s + 1])[op.micro_batch] + scale * BOUNDARY;
      char cell[BL_OP_TEXT];
      if (came > free_at && tells_waits) {
        bl_recorder_wait(recorder, s, forward ? "activation from stage 0" : "gradient from stage 1",
                         (uint64_t)(free_at * 1e9), (uint64_t)(came * 1e9));
      }
      double asked = fmax(free_at, came);
      if (span.start > asked && tells_waits) {
        bl_recorder_wait(recorder, s, "core", (uint64_t)(asked * 1e9), (uint64_t)(span.start * 1e9));
      }
      bl_recorder_add(recorder, s, bl_op_format(op, cell), (uint64_t)(span.start * 1e9), (uint64_t)(span.end * 1e9));
      free_at = span.end;
    }
  }
  bl_recorder_end(recorder, simulation->t_end);
}

// With more stages than cores, operations start late for two reasons. Waits that were told of tell them apart: how long
// a message is on its way, how long a core takes from one to the next, and when gradients leave.
static void waits_show_what_cores_hide(void **state) {
  (void)state;
  bl_error_t err;
  const bl_model_t model = gpt(8, 64, 4);
  bl_chunk_span_t spans[CROWD];
  bl_schedule_t *schedule = crowd(spans);
  bl_simulation_t simulation = simulate_crowd(schedule, 1);
  for (int tells = 0; tells < 2; tells++) {
    bl_recorder_t *recorder;
    bl_profile_t profile;
    assert_int_equal(bl_recorder_create(schedule, spans, &recorder), BL_OK);
    add_crowded_step(schedule, &simulation, 1, tells == 1, recorder);
    assert_int_equal(bl_recorder_fill(recorder, &model, BL_ATTENTION_NAIVE, false, &profile, &err), BL_OK);
    if (tells == 1) {
      assert_near(profile.boundary, BOUNDARY);
      assert_near(profile.handover, HANDOVER);
      assert_true(profile.chunks[1].measured_input);
    } else {
      assert_true(profile.handover == 0 && !profile.chunks[1].measured_input);
    }
    bl_profile_cleanup(&profile);
    bl_recorder_destroy(recorder);
  }
  bl_simulation_cleanup(&simulation);
  bl_schedule_destroy(schedule);
}

// Of steps with slower and faster messages, means are of the one in the middle, and a replay is of it and of its
// messages; not of the last step and the messages of all.
static void a_replay_is_of_the_usual_step(void **state) {
  (void)state;
  static const double scales[] = {1, 7, 40, 2, 3}; // of what messages take
  bl_error_t err;
  const bl_model_t model = gpt(8, 64, 4);
  bl_chunk_span_t spans[CROWD];
  bl_schedule_t *schedule = crowd(spans);
  bl_recorder_t *recorder;
  bl_profile_t profile;
  double usual = 0;
  assert_int_equal(bl_recorder_create(schedule, spans, &recorder), BL_OK);
  for (size_t i = 0; i < sizeof scales / sizeof scales[0]; i++) {
    bl_simulation_t simulation = simulate_crowd(schedule, scales[i]);
    usual = scales[i] == 3 ? simulation.t_end : usual;
    add_crowded_step(schedule, &simulation, scales[i], true, recorder);
    bl_simulation_cleanup(&simulation);
  }
  assert_int_equal(bl_recorder_fill(recorder, &model, BL_ATTENTION_NAIVE, false, &profile, &err), BL_OK);
  assert_near(profile.replay.makespan, usual);
  assert_near(profile.replay.boundary, 3 * BOUNDARY);
  assert_near(profile.replay.handover, HANDOVER);
  assert_near(profile.boundary, 3 * BOUNDARY);
  assert_near(profile.handover, HANDOVER);
  profile.cores = 2;
  profile.options = (bl_layout_options_t){.micro_batch = 2, .lean = true, .backward = BL_BACKWARD_FUSED};
  char *text;
  bl_profile_t read;
  assert_int_equal(bl_profile_write(&profile, &text), BL_OK);
  assert_int_equal(bl_profile_read(&read, text, strlen(text), "p.json", &err), BL_OK);
  read.boundary = read.handover = 0; // not what a replay takes
  bl_trial_t trial;
  bl_trial_request_t request = {
      .schedule = schedule, .model = &model, .spans = spans, .options = read.options, .profile = &read, .replay = true};
  assert_int_equal(bl_trial_run(&request, &trial, &err), BL_OK);
  assert_true(fabs(trial.simulation.t_end / usual - 1) < 0.005);
  bl_trial_cleanup(&trial);
  free(text);
  bl_profile_cleanup(&read);
  bl_profile_cleanup(&profile);
  bl_recorder_destroy(recorder);
  bl_schedule_destroy(schedule);
}

// Each stage's own: what it spends on evicts and loads, and what the messages took that it waited for.
static void stages_have_what_they_did_themselves(void **state) {
  (void)state;
  world_t w;
  bl_error_t err;
  bl_recorder_t *recorder;
  bl_profile_t profile;
  open_world(&w);
  assert_int_equal(bl_recorder_create(w.schedule, w.spans, &recorder), BL_OK);
  for (int i = 0; i < 2; i++) {
    add_step(&w, recorder, w.simulation.t_end, 0);
    bl_recorder_add(recorder, 0, "0E1@1", 0, 3000);
    bl_recorder_add(recorder, 0, "0L1@1", 0, 5000);
    bl_recorder_add(recorder, 1, "1E1@0", 0, 9000);
  }
  assert_int_equal(bl_recorder_fill(recorder, &w.model, BL_ATTENTION_NAIVE, true, &profile, &err), BL_OK);
  assert_true(fabs(profile.stages[0].evict - 3e-6) < 1e-12 && fabs(profile.stages[0].load - 5e-6) < 1e-12);
  assert_true(fabs(profile.stages[1].evict - 9e-6) < 1e-12 && profile.stages[1].load == 0);
  assert_true(profile.stages[0].boundary == 0); // nothing comes before it
  assert_near(profile.stages[1].boundary, BOUNDARY);
  bl_profile_cleanup(&profile);
  bl_recorder_destroy(recorder);
  close_world(&w);
}

// A stage keeps its core for an evict directly after its operation: a handover begins after that. After a wait it has no
// core any more.
static void a_core_is_kept_for_an_evict(void **state) {
  (void)state;
  static const char *const cells[] = {"0F0", "0B0", "1F0", "1B0"};
  static const uint64_t ms[][2] = {{0, 10}, {30, 40}, {12, 20}, {20, 30}};
  world_t w;
  bl_error_t err;
  open_world(&w);
  bl_schedule_request_t request = {.name = "1f1b", .stages = 2, .micro_batches = 1};
  bl_schedule_t *one;
  assert_int_equal(bl_schedule_generate(&request, &one, &err), BL_OK);
  for (int waited = 0; waited < 2; waited++) {
    bl_recorder_t *recorder;
    bl_profile_t profile;
    assert_int_equal(bl_recorder_create(one, w.spans, &recorder), BL_OK);
    bl_recorder_begin(recorder);
    for (uint32_t i = 0; i < 4; i++) {
      if (i == 1 && waited) {
        bl_recorder_wait(recorder, 0, "eviction", 10000000, 10100000);
      }
      if (i == 1) {
        bl_recorder_add(recorder, 0, "0E0@1", 10100000, 11900000);
      } else if (i == 2) {
        bl_recorder_wait(recorder, 1, "core", 5000000, 12000000);
      }
      bl_recorder_add(recorder, i / 2, cells[i], ms[i][0] * 1000000, ms[i][1] * 1000000);
    }
    bl_recorder_end(recorder, 0.04);
    assert_int_equal(bl_recorder_fill(recorder, &w.model, BL_ATTENTION_NAIVE, false, &profile, &err), BL_OK);
    assert_near(profile.handover, waited ? 0.002 : 0.0001);
    bl_profile_cleanup(&profile);
    bl_recorder_destroy(recorder);
  }
  bl_schedule_destroy(one);
  close_world(&w);
}

// As programs wrote them before profiles had dtype, device, threads and order.
static void profiles_of_older_programs_are_read(void **state) {
  (void)state;
  world_t w;
  bl_error_t err;
  open_world(&w);
  bl_profile_t profile = record(&w), read;
  char *text;
  profile.setting.known = false;
  profile.stages[1].evict = 0.5;
  assert_int_equal(bl_profile_write(&profile, &text), BL_OK);
  assert_null(strstr(text, "dtype"));
  char *evict = strstr(text, "\"evict\": 0.5");
  assert_non_null(evict);
  memcpy(evict, "\"evict\": 0.0", strlen("\"evict\": 0.0")); // they wrote 0 for none
  assert_int_equal(bl_profile_read(&read, text, strlen(text), "p.json", &err), BL_OK);
  assert_true(!read.setting.known && read.stages[1].evict == 0 && read.options.dtype == BL_DTYPE_FP32);
  free(text);
  bl_profile_cleanup(&read);
  bl_profile_cleanup(&profile);
  close_world(&w);
}

static void reading_gives_what_was_written(void **state) {
  (void)state;
  world_t w;
  open_world(&w);
  bl_profile_t profile = record(&w), read;
  char *text, *recompute_share;
  bl_error_t err;
  profile.setting.masked = true;
  assert_int_equal(bl_profile_write(&profile, &text), BL_OK);
  assert_int_equal(bl_profile_read(&read, text, strlen(text), "p.json", &err), BL_OK);
  assert_int_equal(bl_profile_write(&read, &recompute_share), BL_OK);
  assert_string_equal(text, recompute_share);
  assert_true(read.setting.known && read.setting.threads == 2 && read.setting.order == bl_profile_order(w.schedule));
  assert_true(read.setting.masked);
  assert_true(read.stages[0].path_rate == 0 && read.stages[1].path_rate == 2.5e9);
  assert_true(read.stages[0].host_rate == 1.5e9 && read.stages[1].host_rate == 0);
  assert_null(strstr(text, "evict")); // no stage did any
  free(recompute_share);
  free(text);
  bl_profile_cleanup(&read);
  bl_profile_cleanup(&profile);
  close_world(&w);
}

static void refuse_change(const char *text, const char *from, const char *to, const char *message) {
  char *changed = malloc(strlen(text) + strlen(to) + 1);
  const char *at = strstr(text, from);
  bl_profile_t profile;
  bl_error_t err;
  assert_non_null(at);
  sprintf(changed, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
  assert_int_equal(bl_profile_read(&profile, changed, strlen(changed), "p.json", &err), BL_INVALID);
  if (strstr(err.text, message) == NULL) {
    fail_msg("'%s', expected '...%s...'", err.text, message);
  }
  free(changed);
}

static void broken_profiles_are_refused_by_name(void **state) {
  (void)state;
  world_t w;
  open_world(&w);
  bl_profile_t profile = record(&w);
  profile.chunks[1].costs.weight = 0.25;
  profile.stages[1].path_rate = 512;
  profile.chunks[1].costs.forward = 0.125;
  profile.step = 16;
  char *text;
  assert_int_equal(bl_profile_write(&profile, &text), BL_OK);
  refuse_change(text, "\"W\": 0.25", "\"W\": -0.25",
                "profile p.json: chunks[1].W must be from 1e-12 to 1e+06 seconds, is -0.25");
  refuse_change(text, "\"W\": 0.25", "\"W\": 1e308", "chunks[1].W must be from 1e-12 to 1e+06 seconds, is 1e+308");
  refuse_change(text, "\"F\": 0.125", "\"F\": 0", "chunks[1].F must be from 1e-12 to 1e+06 seconds, is 0");
  refuse_change(text, "\"F\": 0.125", "\"F\": 0.125, \"F\": 0.25", "duplicate object key");
  refuse_change(text, "\"step\": 16", "\"step\": 0", "profile p.json: step must be from");
  refuse_change(text, "\"W\": 0.25", "\"W\": \"fast\"", "profile p.json: chunks[1].W is not a number");
  refuse_change(text, "\"ballast_profile\": 1", "\"ballast_profile\": 2",
                "has version 2, this program reads version 1");
  refuse_change(text, "\"ballast_profile\": 1", "\"x\": 1", "p.json is no profile");
  refuse_change(text, "\"path_rate\": 512.0", "\"path_rate\": -1",
                "stages[1].path_rate must be from 1 to 1e+15 bytes per second, is -1");
  refuse_change(text, "\"path_rate\": 512.0", "\"path_rate\": 1e-320", "stages[1].path_rate must be from 1");
  refuse_change(text, "\"path_rate\": 512.0", "\"path_rate\": \"fast\"", "stages[1].path_rate is not a number");
  refuse_change(text, "\"dtype\": \"fp32\"", "\"dtype\": \"fp8\"", "profile p.json: dtype is none of the known words");
  refuse_change(text, "\"dtype\": \"fp32\"", "\"kind\": 1", "profile p.json: dtype is not a text");
  refuse_change(text, "\"threads\": 2", "\"threads\": 0", "profile p.json: threads must be from 1 to");
  refuse_change(text, "\"order\": \"", "\"order\": \"x", "profile p.json: order is not a number of up to 16 hexa");
  refuse_change(text, "\"lean\": true", "\"lean\": \"no\"", "profile p.json: lean is neither true nor false");
  refuse_change(text, "\"layers\": 3", "\"layers\": 2",
                "chunks[1].first_layer must be 2, where the chunk before it ends");
  refuse_change(text, "\"layers\": 3", "\"layers\": 0", "chunks[0].layers must be from 1 to 16384, is 0");
  refuse_change(text, "\"first_layer\": 3", "\"first_layer\": 65536", "chunks[1].first_layer must be from 0 to 16384");
  refuse_change(text, "\"stage\": 1", "\"stage\": 0", "stages[0].chunks of 2 chunks names it, 1 should");
  refuse_change(text, "\"times\": [", "\"other\": [", "profile p.json: stages[0].times is missing");
  refuse_change(text, "\"times\": [", "\"times\": 7, \"other\": [", "stages[0].times is not a list of seconds");
  refuse_change(text, "\"times\": [", "\"times\": [-1, ", "stages[0].times has an entry, number 0 from 0, that is not");
  refuse_change(text, "\"times\": [", "\"times\": [], \"other\": [", "stages[1].times has 16 entries, a step of 8");
  refuse_change(text, "\"micro_batches\": 8", "\"micro_batches\": 9", "stages[0].times has 16 entries, a step of 9");
  refuse_change(text, "\"micro_batches\": 8", "\"micro_batches\": 0", "profile p.json: micro_batches must be from 1");
  refuse_change(text, "{", "{{", "p.json is no profile: line 1");
  refuse_change(text, "\"stage\": 1", "\"stage\": 7", "chunks[1].stage is not one of the stages");
  free(text);
  bl_profile_cleanup(&profile);
  close_world(&w);
}

// Four stages from a profile of two: every layer costs the same, the head stays with the last stage.
static void other_partitions_add_up(void **state) {
  (void)state;
  world_t w;
  open_world(&w);
  bl_profile_t profile = record(&w);
  bl_chunk_span_t spans[] = {{.layer_count = 2, .embedding = true},
                             {.first_layer = 2, .layer_count = 2},
                             {.first_layer = 4, .layer_count = 2, .head = true}};
  bl_chunk_costs_t three[3], twice[2];
  bl_profile_costs(&profile, &w.model, spans, 3, profile.options, three);
  for (uint32_t v = 0; v < 3; v++) {
    assert_near(three[v].forward, 0.002);
  }
  double input = profile.chunks[0].costs.input + profile.chunks[1].costs.input;
  assert_near(three[0].input + three[1].input + three[2].input, input);
  assert_true(three[2].input > three[1].input);
  bl_layout_options_t larger = profile.options;
  larger.micro_batch = 4;
  bl_profile_costs(&profile, &w.model, w.spans, 2, larger, twice);
  assert_near(twice[0].forward, 2 * profile.chunks[0].costs.forward);
  bl_profile_cleanup(&profile);
  close_world(&w);
}

// R does not make the last product of its chunk again: a third of the products of its last layer, as ffn is 4 hidden.
static void recomputation_lacks_the_last_product(void **state) {
  (void)state;
  world_t w;
  open_world(&w);
  bl_profile_t profile = record(&w);
  const double hidden = w.model.hidden, keys = (w.model.seq + 1) / 2.0;
  const double last = 2 * hidden * 4 * hidden, layer = 2 * 12 * hidden * hidden + 2 * 2 * keys * hidden;
  for (uint32_t v = 0; v < 2; v++) {
    assert_false(profile.chunks[v].measured_recompute);
    assert_near(profile.chunks[v].costs.recompute, w.costs[v].forward * (3 * layer - last) / (3 * layer));
  }
  bl_chunk_span_t spans[] = {{.layer_count = 1, .embedding = true},
                             {.first_layer = 1, .layer_count = 1},
                             {.first_layer = 2, .layer_count = 4, .head = true}};
  bl_chunk_costs_t costs[3];
  bl_profile_costs(&profile, &w.model, spans, 3, profile.options, costs);
  assert_near(costs[1].recompute, 0.001 * (layer - last) / layer);
  assert_near(costs[2].recompute, 0.001 * (4 * layer - last) / layer);
  profile.chunks[0].measured_recompute = profile.chunks[1].measured_recompute = true;
  profile.chunks[0].costs.recompute = profile.chunks[1].costs.recompute = 0.0025;
  bl_profile_costs(&profile, &w.model, spans, 3, profile.options, costs);
  assert_near(costs[1].recompute, 0.0025 * (layer - last) / (3 * layer - last));
  assert_near(costs[2].recompute, 0.0025 * (4 * layer - last) / (3 * layer - last));
  bl_profile_cleanup(&profile);
  close_world(&w);
}

// An evict takes the compute thread for its checksum: as long as this stage's took, or the others', for as many bytes.
static void evicts_are_in_proportion_to_bytes(void **state) {
  (void)state;
  world_t w;
  open_world(&w);
  bl_profile_t profile = record(&w);
  profile.stages[0].slot_bytes = profile.stages[1].slot_bytes = 1000000;
  assert_near(bl_profile_evict_call(&profile, 0, 4000000), 4000000 / 2e10); // none was measured
  profile.stages[0].evict = 0.001;
  assert_near(bl_profile_evict_call(&profile, 0, 4000000), 0.004);
  assert_near(bl_profile_evict_call(&profile, 1, 500000), 0.0005);
  assert_near(bl_profile_evict_call(&profile, 7, 500000), 0.0005); // no stage of the profile
  profile.stages[1].evict = 0.003;
  assert_near(bl_profile_evict_call(&profile, 1, 500000), 0.0015);
  assert_near(bl_profile_evict_call(&profile, 0, 500000), 0.0005);
  profile.stages[0].slot_bytes = profile.stages[1].slot_bytes = 0;
  assert_near(bl_profile_evict_call(&profile, 1, 500000), 0.003);
  bl_profile_cleanup(&profile);
  close_world(&w);
}

// Copies take as long as the profile measured them, of other stages where a stage made none. On CPUs a copy begins after
// the checksum of its block, on a GPU nothing waits for that.
static void copies_take_their_measured_time(void **state) {
  (void)state;
  world_t w;
  open_world(&w);
  bl_profile_t profile = record(&w);
  bl_error_t err;
  bl_balance_result_t balanced;
  bl_schedule_t *gpipe;
  bl_schedule_request_t request = {.name = "gpipe", .stages = 2, .micro_batches = 4};
  const uint32_t own[] = {2, 4}, lent[] = {4, 4};
  const uint16_t reach[] = {1, 0};
  assert_int_equal(bl_schedule_generate(&request, &gpipe, &err), BL_OK);
  bl_balance_request_t to_cap = {
      .mode = BL_BALANCE_FEWEST, .own = own, .lent = lent, .stores = 2, .reach = reach, .reach_count = 1};
  assert_int_equal(bl_balance(gpipe, &to_cap, &balanced, &err), BL_OK);
  bl_trial_request_t trial_request = {.schedule = balanced.schedule,
                                      .model = &w.model,
                                      .spans = w.spans,
                                      .options = profile.options,
                                      .profile = &profile};
  profile.stages[0].evict = 0.002;
  for (int device = BL_PROFILE_HOST; device <= BL_PROFILE_CUDA; device++) {
    bl_trial_t trial;
    profile.setting.device = (bl_profile_device_t)device;
    assert_int_equal(bl_trial_run(&trial_request, &trial, &err), BL_OK);
    const double call = device == BL_PROFILE_HOST ? 0.002 * trial.stages[0].slot_bytes / 4096 : 0;
    bool seen = false;
    for (size_t i = 0; i < balanced.schedule->lists[0].count; i++) {
      if (balanced.schedule->lists[0].ops[i].type == BL_OP_E) {
        bl_span_t span = trial.simulation.spans[0][i];
        assert_near(span.end - span.start,
                    trial.stages[0].evict_bytes / 2.5e9 + (device == BL_PROFILE_CUDA ? 0.001 : 0));
        assert_true(seen || fabs(trial.simulation.asked[0][i] - trial.simulation.spans[0][i - 1].end - call) < 1e-9);
        seen = true;
      }
    }
    assert_true(seen);
    bl_trial_cleanup(&trial);
  }
  bl_balance_result_cleanup(&balanced);
  bl_schedule_destroy(gpipe);
  bl_profile_cleanup(&profile);
  close_world(&w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(known_durations_come_back),
      cmocka_unit_test(a_replay_takes_as_long_as_the_step),
      cmocka_unit_test(waits_show_what_cores_hide),
      cmocka_unit_test(a_core_is_kept_for_an_evict),
      cmocka_unit_test(evicts_are_in_proportion_to_bytes),
      cmocka_unit_test(reading_gives_what_was_written),
      cmocka_unit_test(broken_profiles_are_refused_by_name),
      cmocka_unit_test(other_partitions_add_up),
      cmocka_unit_test(recomputation_lacks_the_last_product),
      cmocka_unit_test(copies_take_their_measured_time),
      cmocka_unit_test(stages_have_what_they_did_themselves),
      cmocka_unit_test(a_replay_is_of_the_usual_step),
      cmocka_unit_test(replicas_are_no_part_of_what_lies_between),
      cmocka_unit_test(profiles_of_older_programs_are_read),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
