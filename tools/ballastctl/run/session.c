// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/run/session_core.h"

#include "ballastctl/security.h"

#include "base/words.h"
#include "sys/clock.h"

#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

// How long a failed run waits for the exit of a process that explains it, since the driver may notice first.
#define CAUSE_MS 1000
// How long the driver may take to reach a step boundary.
#define STOP_MS        60000
#define STOP_SAVING_MS 900000 // if it writes a checkpoint first

// ---- ends

void bl__session_end(bl__session_t *session, bl_ctl_end_t how, uint64_t grace_ms) {
  session->ending = true;
  if (session->fleet != NULL) {
    bl_ctl_fleet_end(session->fleet, how, grace_ms);
  } else {
    bl_loop_stop(session->loop);
  }
}

void bl__session_say(bl__session_t *session, const char *format, ...) {
  bl_ctl_progress_finish(session->progress);
  va_list args;
  va_start(args, format);
  fputs("ballastctl: ", stderr);
  vfprintf(stderr, format, args);
  va_end(args);
  fputc('\n', stderr);
}

void bl__session_fail(bl__session_t *session, int exit_code, const char *why) {
  if (session->ending) {
    return;
  }
  const bl_resume_t *resume = session->options->resume;
  unsigned long long step = bl_ctl_summary_last_step(session->summary);
  step = step == 0 && resume != NULL ? resume->step : step;
  session->exit_code = session->early_code != 0 ? session->early_code : exit_code;
  if (step > 0) {
    bl__session_say(session, "%s; the run ends after step %llu", why, step);
  } else {
    bl__session_say(session, "%s; the run ends before its first step", why);
  }
  bl__session_end(session, BL_CTL_END_ASK, BL_CTL_END_MS);
}

void bl__session_fail_with(bl__session_t *session, const bl_error_t *err) {
  bl__session_fail(session, bl_status_exit_code(err->status), err->text);
}

void bl__session_wait_for_cause(bl__session_t *session, int exit_code, const char *why) {
  session->failing = true;
  session->guessing = false;
  session->exit_code = exit_code;
  snprintf(session->failure, sizeof session->failure, "%s", why);
  bl_timer_start(session->cause_timer, CAUSE_MS, 0);
}

static void no_cause_came(bl_timer_t *timer, void *context) {
  (void)timer;
  bl__session_t *session = context;
  bl__session_fail(session, session->exit_code, session->failure);
}

static uint64_t stop_ms(const bl__session_t *session) {
  return session->options->job->checkpoint.folder != NULL ? STOP_SAVING_MS : STOP_MS;
}

static void stop_answered(const bl_error_t *err, void *context) {
  bl__session_t *session = context;
  if (session->ending) {
    return;
  }
  if (err->status != BL_OK) {
    bl__session_say(session, "the driver did not stop in order: %s", err->text);
  }
  // A driver responds at once and stops at the next step boundary.
  bl__session_end(session, err->status == BL_OK ? BL_CTL_END_WAIT : BL_CTL_END_ASK,
                  session->finished ? BL_CTL_END_MS : stop_ms(session));
}

void bl__session_stop(bl__session_t *session) {
  bl_error_t err;
  session->stopping = true;
  if (session->fleet == NULL) {
    bl__session_end(session, BL_CTL_END_WAIT, 0); // a driver that another process started continues
  } else if (bl_ctl_driver_stop(session->driver, BL_CTL_END_MS, stop_answered, session, &err) != BL_OK) {
    stop_answered(&err, session);
  }
}

// ---- what the driver tells

static void finish(bl__session_t *session, int exit_code) {
  session->finished = true;
  session->exit_code = exit_code;
  bl_ctl_progress_finish(session->progress);
  if (exit_code == bl_status_exit_code(BL_CANCELLED) && session->early_code == 0) {
    bl__session_say(session, "the driver was asked to stop");
  }
  const bl_resume_t *resume = session->options->resume;
  if (exit_code == 0 && resume != NULL && resume->path[0] != '\0' && bl_ctl_summary_steps(session->summary) == 0) {
    bl__session_say(session, "nothing to train: %s is at step %llu of %lld; give more --steps, the total of all runs",
                    resume->path, (unsigned long long)resume->step, (long long)session->options->job->train.steps);
  }
  bl_ctl_summary_print_line(session->summary, stderr);
  if (session->early_code != 0) {
    session->exit_code = session->early_code;
    return; // the response to our stop request ends the session
  }
  if (session->options->summary) {
    bl_ctl_summary_print_stages(session->summary, stdout);
    bl__closing_print(session, "summary");
  }
  bl__closing_begin(session);
}

static void on_plan(const bl_ctl_plan_t *plan, void *context) {
  bl__session_t *session = context;
  bl_ctl_startup_progress_begun(session->startup);
  if (plan->set_aside[0] != '\0' && !session->planned) {
    bl__session_say(session, "this run starts from the beginning: checkpoints of an earlier one are in %s now",
                    plan->set_aside);
  }
  bl_ctl_progress_plan(session->progress, plan);
  if (session->profiling != NULL) {
    bl_ctl_profiling_plan(session->profiling, plan);
  }
  if (bl_ctl_summary_plan(session->summary, plan) == BL_OK && !session->planned) {
    bl_ctl_summary_print_plan(session->summary, stderr);
  }
  session->planned = true;
}

// Stops the run as Ctrl-C does, so that its steps are saved: the disk of the report, or whoever reads it, may be gone
// while that of the checkpoints is fine.
static void lose_report(bl__session_t *session, const bl_error_t *err) {
  bl_ctl_report_destroy(session->report);
  session->report = NULL;
  bl__session_say(session, "%s; %s", err->text,
                  session->fleet != NULL ? "stopping after this step" : "detached, and the driver continues");
  if (session->early_code == 0) {
    session->exit_code = session->early_code = bl_status_exit_code(err->status);
    bl__session_stop(session);
  }
}

static void on_step(const bl_ctl_step_t *step, void *context) {
  bl__session_t *session = context;
  bl_error_t err;
  if (session->report != NULL && bl_ctl_report_step(session->report, step, &err) != BL_OK) {
    lose_report(session, &err);
  }
  bl_ctl_summary_step(session->summary, step);
  bl_ctl_progress_step(session->progress, step, bl_clock_now_ns());
  if (session->profiling != NULL) {
    bl_ctl_profiling_step(session->profiling, step);
    (void)bl__closing_ask_trace(session);
  }
}

static void on_validation(const bl_ctl_validation_t *validation, void *context) {
  bl__session_t *session = context;
  bl_error_t err;
  if (session->report != NULL && bl_ctl_report_validation(session->report, validation, &err) != BL_OK) {
    lose_report(session, &err);
  }
  bl_ctl_summary_validation(session->summary, validation);
  bl_ctl_progress_validation(session->progress, validation, bl_clock_now_ns());
}

// Reports a failed checkpoint at once; of the committed ones only the last, when the run ends.
static void on_checkpoint(const bl_ctl_checkpoint_t *checkpoint, void *context) {
  bl__session_t *session = context;
  if (checkpoint->error[0] != '\0') {
    bl__session_say(session, "warning: no checkpoint of step %llu: %s", (unsigned long long)checkpoint->step,
                    checkpoint->error);
    return;
  }
  bl_ctl_summary_checkpoint(session->summary, checkpoint);
}

static void tell_wait(const char *text, void *context) {
  bl__session_t *session = context;
  if (!session->ending) {
    bl__session_say(session, "%s", text);
  }
}

static void on_phase(const bl_ctl_phase_t *phase, void *context) {
  bl__session_t *session = context;
  const bool failed = strcmp(phase->phase, "failed") == 0;
  if (failed && session->stopping && !session->finished) { // the response to our stop request ends the session
    if (phase->exit_code != bl_status_exit_code(BL_CANCELLED)) {
      bl__session_say(session, "the run failed before it had stopped: %s", phase->error);
    }
    return;
  }
  if (session->finished || session->ending) {
    return;
  }
  if (strcmp(phase->phase, "finished") == 0) {
    finish(session, phase->exit_code);
  } else if (failed) {
    int exit_code = phase->exit_code != 0 ? phase->exit_code : bl_status_exit_code(BL_INTERNAL);
    if (session->fleet != NULL && exit_code == bl_status_exit_code(BL_UNAVAILABLE)) {
      bl__session_wait_for_cause(session, exit_code, phase->error);
    } else {
      bl__session_fail(session, exit_code, phase->error);
    }
  }
}

static void on_lost(const bl_error_t *err, void *context) {
  bl__session_t *session = context;
  if (!session->ending && !session->failing) {
    bl__session_fail_with(session, err);
  }
}

bl_status_t bl__session_attach(bl__session_t *session, const char *address, bl_error_t *err) {
  bl_ctl_watcher_t watcher = {.plan = on_plan,
                              .step = on_step,
                              .validation = on_validation,
                              .checkpoint = on_checkpoint,
                              .phase = on_phase,
                              .lost = on_lost,
                              .keeps_record = session->report != NULL,
                              .context = session};
  bl_status_t status = bl_ctl_driver_create(session->rpc, address, &session->driver, err);
  if (status == BL_OK) {
    const int64_t pid = session->fleet != NULL ? bl_ctl_fleet_pid(session->fleet, BL_CTL_DRIVER) : 0;
    status =
        bl_ctl_startup_progress_create(session->loop, session->driver, pid, tell_wait, session, &session->startup, err);
  }
  return status == BL_OK ? bl_ctl_driver_watch(session->driver, &watcher, err) : status;
}

// ---- signals

static void interrupted(bl_signal_t *signal, int number, void *context) {
  (void)signal;
  bl__session_t *session = context;
  bool again = session->interrupted;
  if (again && number == SIGHUP) {
    return; // the kernel and the shell both tell that a terminal was closed: it is no second request
  }
  session->interrupted = true;
  session->exit_code = session->early_code = bl_status_exit_code(BL_CANCELLED);
  if (!again && session->fleet != NULL && session->driver == NULL) {
    bl__session_say(session, "stopped before the first step");
  }
  if (again || (session->fleet != NULL && session->driver == NULL)) {
    bl__session_end(session, again ? BL_CTL_END_KILL : BL_CTL_END_ASK, BL_CTL_END_MS);
  } else if (session->fleet == NULL) {
    bl__session_say(session, "detached; the driver continues");
    bl__session_end(session, BL_CTL_END_WAIT, 0);
  } else if (!session->ending && !session->stopping) {
    bl__session_say(session, "stopping after this step; Ctrl-C again stops at once");
    bl__session_stop(session);
  }
}

// ---- life

static bl_status_t open_all(bl__session_t *session, bl_error_t *err) {
  if (session->options->local && getenv("OMP_WAIT_POLICY") == NULL) {
    // For the stages: their idle compute threads sleep after 1,000 rounds of spinning, not 300,000, on a processor that
    // another stage may want. Set before this process has threads.
    (void)setenv("GOMP_SPINCOUNT", "1000", 0);
  }
  bl_status_t status = bl_loop_create(&session->loop, err);
  if (status != BL_OK) {
    return status;
  }
  status = bl_ctl_security_for_job(session->options->job, err);
  if (status == BL_OK) {
    status = bl_rpc_create(session->loop, &session->rpc, err);
  }
  const struct {
    int number;
    bl_signal_t **signal;
  } signals[] = {{SIGINT, &session->interrupt}, {SIGTERM, &session->terminate}, {SIGHUP, &session->hangup}};
  for (size_t i = 0; status == BL_OK && i < 3; i++) {
    status = bl_signal_create(session->loop, signals[i].number, interrupted, session, signals[i].signal, err);
  }
  if (status == BL_OK) {
    status = bl_timer_create(session->loop, no_cause_came, session, &session->cause_timer, err);
  }
  if (status == BL_OK && (session->options->profile != NULL || session->options->predict != NULL)) {
    const bl_ctl_session_options_t *options = session->options;
    status = bl_ctl_profiling_create(options->job, options->training, options->profile, options->predict,
                                     options->local, &session->profiling, err);
  }
  if (status == BL_OK && session->options->report != NULL) {
    const bl_resume_t *resume = session->options->resume;
    status = resume == NULL
                 ? bl_ctl_report_create(session->options->report, false, &session->report, err)
                 : bl_ctl_report_resume(session->options->report, resume->path[0] != '\0' ? resume->step : UINT64_MAX,
                                        &session->report, err);
    if (status == BL_OK && bl_ctl_report_notice(session->report) != NULL) {
      bl__session_say(session, "%s", bl_ctl_report_notice(session->report));
    }
  }
  return status;
}

static void close_all(bl__session_t *session) {
  bl_ctl_startup_progress_end(session->startup);
  bl_ctl_driver_destroy(session->driver);
  bl_ctl_startup_progress_destroy(session->startup);
  bl_ctl_fleet_destroy(session->fleet);
  if (session->has_folder) {
    bl_ctl_run_folder_remove(&session->folder);
  }
  bl_ctl_report_destroy(session->report);
  bl_timer_destroy(session->cause_timer);
  bl_signal_destroy(session->interrupt);
  bl_signal_destroy(session->terminate);
  bl_signal_destroy(session->hangup);
  if (session->rpc != NULL) {
    bl_rpc_destroy(session->rpc);
  }
  if (session->loop != NULL) {
    bl_loop_destroy(session->loop);
  }
  bl_ctl_profiling_destroy(session->profiling);
  bl_ctl_step_timeline_destroy(session->timeline);
  bl_ctl_summary_destroy(session->summary);
  bl_ctl_progress_destroy(session->progress);
}

int bl_ctl_session_run(const bl_ctl_session_options_t *options) {
  bl__session_t session = {.options = options, .folder = {.lock_fd = -1}};
  bl_error_t err;
  bl_status_t status = bl_ctl_progress_create(stderr, bl_ctl_progress_style_of(stderr), &session.progress);
  if (status == BL_OK) {
    status = bl_ctl_summary_create(&session.summary);
  }
  if (status != BL_OK) {
    bl_error_set(&err, status, "no memory");
  } else {
    status = open_all(&session, &err);
  }
  if (status == BL_OK) {
    const char *driver = options->local ? NULL : options->job->services.driver;
    status = driver != NULL ? bl__session_attach(&session, driver, &err) : bl__processes_start(&session, &err);
    if (status != BL_OK && session.fleet != NULL) {
      bl__session_fail_with(&session, &err); // some processes run: end them in order
      status = BL_OK;
    }
  }
  if (status == BL_OK) {
    bl_loop_run(session.loop);
    bl_ctl_progress_finish(session.progress);
    const bool stepped = bl_ctl_summary_steps(session.summary) > 0;
    if (session.early_code != 0 && !session.finished && stepped) {
      bl_ctl_summary_print_line(session.summary, stderr);
    } else if (session.interrupted && !stepped && session.fleet != NULL && session.driver != NULL) {
      bl__session_say(&session, "stopped before the first step");
    }
    bl__closing_tell_saved(&session);
  } else {
    fprintf(stderr, "ballastctl: %s\n", err.text);
    session.exit_code = bl_status_exit_code(status);
  }
  close_all(&session);
  return session.exit_code;
}
