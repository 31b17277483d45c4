// SPDX-License-Identifier: Apache-2.0
#include "driver_core.h"

#include "base/words.h"
#include "model/parameters.h"
#include "sys/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LEAVE_MS 3000  // for stages to answer Release or Stop
#define STOP_MS  60000 // for a stop before the first step: to save what stages hold of a predecessor

// ---- life cycle -----------------------------------------------------------------------------------------------------

// Answers all callers that wait for something.
static void end_waits(bl_driver_t *driver, const bl_error_t *err) {
  bl__sampling_end(driver, err);
  bl__traces_answer(driver, err);
  bl__save_end_waits(driver, err);
  bl__plans_end_waits(driver, err);
  if (driver->control.held != NULL) {
    bl_driver_held_fn held = driver->control.held;
    driver->control.held = NULL;
    held(driver->step.applied, driver->control.held_context);
  }
}

static int exit_code_of(const bl_driver_t *driver, const bl_error_t *err) {
  bool lost =
      driver->step.end == BL_DRIVER_END_LOST; // a stage died and was restarted: same exit code as for one that died
  return bl_status_exit_code(lost ? BL_UNAVAILABLE : err->status);
}

static void fail(bl_driver_t *driver, const bl_error_t *err) {
  if (driver->state >= BL__RUN_STOPPING) {
    return;
  }
  bl_error_t cause = *err;
  bool runs = driver->state >= BL__RUN_STEPS &&
              (driver->step.phase == BL_DRIVER_RUNNING || driver->step.phase == BL_DRIVER_DECIDING ||
               driver->step.phase == BL_DRIVER_ABORTING || driver->step.offer.attempt != 0);
  bool drives = driver->state >= BL__RUN_SETUP && driver->step.end != BL_DRIVER_END_FENCED;
  if (drives) {
    bl__save_keep(driver);
  }
  driver->control.exit_code = exit_code_of(driver, &cause);
  driver->state = BL__RUN_STOPPING;
  driver->control.leave_by_ms = bl__driver_now_ms(driver) + LEAVE_MS;
  driver->attempts.failure = cause;
  bl_log(BL_LOG_ERROR, "%s", cause.text);
  driver->phase = "";
  bl__driver_set_phase(driver, "failed", cause.text, driver->control.exit_code);
  end_waits(driver, &cause);
  if (drives) {
    bl__leave_begin(driver, runs, false);
  } else {
    driver->state = BL__RUN_STOPPED;
    driver->options.observer.ended(driver->control.exit_code, driver->options.observer.context);
  }
}

static void stop_before_driving(bl_driver_t *driver) {
  bl_error_t err;
  const char *kept = driver->state == BL__RUN_SETUP && driver->setup.anew
                         ? "stages had made no steps"
                         : "no checkpoint was written; what stages hold stays there for the next driver";
  (void)bl_error_set(&err, BL_CANCELLED, "stopped before the first step: %s", kept);
  fail(driver, &err);
}

static void leave(bl_driver_t *driver, int exit_code) {
  bool done = driver->step.applied >= (uint64_t)driver->options.job->train.steps;
  bl__driver_set_phase(driver, "finished", "", exit_code);
  driver->control.exit_code = exit_code;
  driver->state = BL__RUN_STOPPING;
  driver->control.leave_by_ms = bl__driver_now_ms(driver) + LEAVE_MS;
  bl_error_t ended;
  (void)bl_error_set(&ended, BL_PRECONDITION, "the run has ended");
  end_waits(driver, &ended);
  bl__leave_begin(driver, false, done);
}

static void go_on(bl_driver_t *driver) {
  // Handling a decision or a boundary can lead to another one. Repeats until the state stops changing, then makes the
  // calls.
  for (;;) {
    if (driver->state < BL__RUN_TAKEOVER || driver->state >= BL__RUN_STOPPING) {
      return;
    }
    bl_driver_phase_t phase = driver->step.phase;
    uint64_t attempt = driver->step.highest_attempt;
    bl__run_state_t state = driver->state;
    switch (phase) {
    case BL_DRIVER_ENDED: {
      bl_error_t err;
      char name[BL_GRID_NAME_BYTES];
      (void)bl_grid_name(&driver->options.training->grid, (uint32_t)driver->step.end_stage, name);
      (void)bl_driver_step_explain(&driver->step, name, &err);
      fail(driver, &err);
      return;
    }
    case BL_DRIVER_DECIDING:
      bl__decide(driver);
      break;
    case BL_DRIVER_BOUNDARY:
      if (state == BL__RUN_TAKEOVER) {
        bl__setup_begin(driver);
        if (driver->control.stopping && driver->setup.anew) {
          stop_before_driving(driver);
        }
      } else if (state != BL__RUN_SETUP) {
        bl__boundary(driver);
      } else if (bl__plans_setting_up(driver) && !bl__plans_go_on(driver)) {
        bl__setup_end(driver);
      }
      break;
    default:
      break;
    }
    if (driver->state >= BL__RUN_STOPPING) {
      return;
    }
    if (phase == driver->step.phase && attempt == driver->step.highest_attempt && state == driver->state) {
      break;
    }
  }
  bl__ask_all(driver);
}

static void pump(bl_driver_t *driver) {
  go_on(driver);
  bl__wait_note(driver);
}

static void ticked(bl_timer_t *timer, void *context) {
  bl_driver_t *driver = context;
  bl__wait_note(driver);
  if (driver->control.stopping && driver->state < BL__RUN_STEPS &&
      bl__driver_now_ms(driver) >= driver->control.stop_by_ms) {
    stop_before_driving(driver);
  }
  if (driver->state == BL__RUN_STOPPING && bl__driver_now_ms(driver) >= driver->control.leave_by_ms) {
    bl_log(BL_LOG_WARNING, "some stages do not answer, leaving them");
    driver->state = BL__RUN_STOPPED;
    driver->options.observer.ended(driver->control.exit_code, driver->options.observer.context);
  }
  if (driver->state == BL__RUN_STOPPED) {
    bl_timer_stop(timer);
    return;
  }
  if (driver->state >= BL__RUN_STOPPING) {
    return;
  }
  bl__presence_tick(driver);
  bl_stores_tick(driver->stores, bl__driver_now_ms(driver));
  bl__save_tick(driver);
  if (driver->state == BL__RUN_SETUP) {
    bl__setup_tick(driver);
  }
  pump(driver);
}

static bl_status_t check_addresses(const bl_driver_options_t *options, bl_error_t *err) {
  size_t given = options->job->services.stages.count;
  const bl_grid_t *grid = &options->training->grid;
  size_t needed = bl_grid_ranks(grid);
  if (given == needed) {
    return BL_OK;
  }
  return bl_job_fail(options->job, err, "services.stages", "has %zu %s, the job has %zu %s%s (%s)", given,
                     bl_one_or_many(given, "address", "addresses"), needed, needed > grid->stages ? "rank" : "stage",
                     bl_plural(needed),
                     grid->tensor > 1 ? "pipeline.stages x parallel.tensor x parallel.data"
                     : grid->data > 1 ? "pipeline.stages x parallel.data"
                                      : "pipeline.stages");
}

bl_status_t bl_driver_create(const bl_driver_options_t *options, bl_driver_t **driver, bl_error_t *err) {
  bl_status_t status = check_addresses(options, err);
  if (status != BL_OK) {
    return status;
  }
  bl_driver_t *made = calloc(1, sizeof *made);
  size_t count = bl_grid_ranks(&options->training->grid);
  if (made == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for the run");
  }
  static const bl__driver_hooks_t hooks = {.pump = pump, .fail = fail, .leave = leave};
  made->hooks = &hooks;
  made->options = *options;
  made->loop = bl_rpc_loop(options->rpc);
  made->phase = "";
  made->stage_count = count;
  made->stages = calloc(count, sizeof *made->stages);
  made->peers = calloc(count, sizeof *made->peers);
  made->attempts.votes = calloc(count, sizeof *made->attempts.votes);
  made->tracing.stages = calloc(count, sizeof *made->tracing.stages);
  made->attempts.squares =
      calloc(bl_square_numbers(&options->training->grid, bl_parameter_count(&options->training->model)) + 1,
             sizeof *made->attempts.squares);
  made->generation.tokens = calloc(options->training->model.seq, sizeof *made->generation.tokens);
  if (made->stages == NULL || made->peers == NULL || made->attempts.votes == NULL || made->tracing.stages == NULL ||
      made->attempts.squares == NULL || made->generation.tokens == NULL ||
      bl_run_journal_init(&made->journal) != BL_OK) {
    status = bl_error_set(err, BL_EXHAUSTED, "no memory for the run");
    made->stage_count = made->stages == NULL ? 0 : count;
    goto destroy;
  }
  bl_driver_step_init(&made->step, (bl_driver_id_t){.epoch = 1}, made->peers, count);
  for (size_t i = 0; i < count && status == BL_OK; i++) {
    made->stages[i].driver = made;
    made->stages[i].index = i;
    status = bl_stage_client_create(options->rpc, options->job->services.stages.items[i], &made->stages[i].client, err);
  }
  if (status == BL_OK) {
    const char *name = options->job->name != NULL ? options->job->name : "";
    status = bl_announcer_create(options->rpc, options->job, name, &made->announcer, err);
  }
  if (status == BL_OK) {
    status = bl__setup_prepare(made, err);
  }
  if (status == BL_OK) {
    status = bl__save_prepare(made, err);
  }
  if (status == BL_OK) {
    status = bl_timer_create(made->loop, ticked, made, &made->tick, err);
  }
  if (status == BL_OK) {
    *driver = made;
    return BL_OK;
  }
destroy:
  bl_driver_destroy(made);
  return status;
}

void bl_driver_start(bl_driver_t *driver, const char *address) {
  driver->address = address;
  if (address[0] != '\0') {
    bl_announcer_start(driver->announcer, address);
  }
  bl__driver_set_phase(driver, "connecting", "", 0);
  bl__wait_note(driver);
  bl_timer_start(driver->tick, BL__TICK_MS, BL__TICK_MS);
  bl__presence_begin(driver);
}

void bl_driver_destroy(bl_driver_t *driver) {
  if (driver == NULL) {
    return;
  }
  driver->state = BL__RUN_STOPPED;
  bl_timer_destroy(driver->tick);
  for (size_t i = 0; i < driver->stage_count; i++) {
    bl_remote_t *stage = &driver->stages[i];
    bl_stage_client_destroy(stage->client);
    bl_rank_vote_cleanup(&stage->vote);
    bl_rank_vote_cleanup(&stage->last_vote);
    free(stage->status);
  }
  bl_announcer_destroy(driver->announcer);
  bl__save_cleanup(driver);
  bl__setup_cleanup(driver);
  bl__plans_cleanup(driver);
  bl__automatic_cleanup(driver);
  bl__traces_cleanup(driver);
  bl_run_journal_cleanup(&driver->journal);
  free(driver->stages);
  free(driver->peers);
  free(driver->attempts.votes);
  free(driver->attempts.squares);
  free(driver->generation.tokens);
  free(driver);
}

// ---- control --------------------------------------------------------------------------------------------------------

void bl_driver_poke(bl_driver_t *driver) {
  pump(driver);
}

void bl_driver_pause(bl_driver_t *driver, bool paused, bl_driver_held_fn held, void *context) {
  driver->control.paused = paused;
  if (driver->control.held != NULL) { // an earlier call is answered with the present state
    bl_driver_held_fn earlier = driver->control.held;
    driver->control.held = NULL;
    earlier(driver->step.applied, driver->control.held_context);
  }
  if (!paused || driver->state >= BL__RUN_STOPPING) {
    if (held != NULL) {
      held(driver->step.applied, context);
    }
  } else {
    driver->control.held = held;
    driver->control.held_context = context;
  }
  pump(driver);
}

void bl_driver_stop(bl_driver_t *driver) {
  driver->control.stopping = true;
  // Stages may hold steps that a predecessor committed and did not save. A driver that has begun the takeover saves
  // them first.
  bool may_save = driver->options.job->checkpoint.folder != NULL &&
                  (driver->state == BL__RUN_TAKEOVER || (driver->state == BL__RUN_SETUP && !driver->setup.anew));
  if (driver->state < BL__RUN_STEPS && !may_save) {
    stop_before_driving(driver);
    return;
  }
  driver->control.stop_by_ms = bl__driver_now_ms(driver) + STOP_MS;
  pump(driver);
}

void bl_driver_abandon(bl_driver_t *driver) {
  bl_error_t err;
  (void)bl_error_set(&err, BL_UNAVAILABLE, "the driver is ending");
  driver->state = BL__RUN_STOPPED;
  end_waits(driver, &err);
}

// ---- views ----------------------------------------------------------------------------------------------------------

const bl_run_journal_t *bl_driver_journal(const bl_driver_t *driver) {
  return &driver->journal;
}

bl_driver_view_t bl_driver_look(const bl_driver_t *driver) {
  bl_driver_view_t view = {.phase = driver->phase,
                           .id = driver->step.id,
                           .step = driver->step.applied,
                           .steps = (uint64_t)driver->options.job->train.steps,
                           .error = strcmp(driver->phase, "failed") == 0 ? driver->attempts.failure.text : ""};
  bl__wait_describe(driver, &view);
  return view;
}

size_t bl_driver_stage_count(const bl_driver_t *driver) {
  return driver->stage_count;
}

bl_stage_view_t bl_driver_stage(const bl_driver_t *driver, size_t stage) {
  const bl_remote_t *remote = &driver->stages[stage];
  return (bl_stage_view_t){.address = bl_stage_client_address(remote->client),
                           .reachable = remote->met && remote->silent_since_ms == 0,
                           .process = remote->process,
                           .place = &remote->place,
                           .paths = remote->paths,
                           .path_count = remote->path_count,
                           .status = remote->status,
                           .status_bytes = remote->status_bytes,
                           .status_age_ms = remote->status != NULL ? bl__driver_now_ms(driver) - remote->status_ms : 0};
}

const bl_stores_t *bl_driver_stores(const bl_driver_t *driver) {
  return driver->stores;
}

const bl_job_t *bl_driver_job(const bl_driver_t *driver) {
  return driver->options.job;
}

const bl_training_t *bl_driver_training(const bl_driver_t *driver) {
  return driver->options.training;
}

const char *bl_driver_set_aside(const bl_driver_t *driver) {
  return driver->save.aside;
}

bl_policies_view_t bl_driver_policies(const bl_driver_t *driver) {
  const bl__plans_t *plans = &driver->plans;
  return (bl_policies_view_t){.history = &plans->changes.history,
                              .device_slots = &plans->balance.device_slots,
                              .order = plans->balance.order,
                              .waiting = bl_changes_open_count(&plans->changes),
                              .decision = bl__automatic_decision(driver),
                              .reasons = bl__automatic_reasons(driver),
                              .plan_version = driver->step.plans[BL_RUN_TRAIN].version};
}

uint64_t bl_driver_recorder(const bl_driver_t *driver) {
  return driver->step.commit.recorder;
}
