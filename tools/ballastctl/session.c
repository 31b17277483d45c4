// SPDX-License-Identifier: Apache-2.0
#include "session.h"
#include "security.h"

#include "driver_wire.h"
#include "fleet.h"
#include "patience.h"
#include "profiling.h"
#include "progress.h"
#include "report.h"
#include "step_timeline.h"
#include "summary.h"

#include "loop/signal.h"
#include "loop/timer.h"
#include "sys/clock.h"

#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// How long a failed run waits for the death of a process that explains it: the driver may notice before we do.
#define CAUSE_MS 1000
// How long processes may take to end when asked.
#define END_MS 5000
// How long the driver may take to reach a step boundary, a sample or a trace to be made.
#define STOP_MS            60000
#define STOP_SAVING_MS     900000 // where it writes a checkpoint first
#define COLLECT_MS         60000
#define SAMPLE_TEMPERATURE 0.8

typedef struct session {
  const bl_ctl_session_options_t *options;
  bl_loop_t *loop;
  bl_rpc_t *rpc;
  bl_signal_t *interrupt, *terminate, *hangup;
  bl_timer_t *cause_timer;
  bl_ctl_run_folder_t folder;
  bool has_folder;
  bl_ctl_fleet_t *fleet;   // NULL when the driver is not ours
  bl_ctl_driver_t *driver; // NULL until it is ready
  bl_ctl_patience_t *patience;
  bl_ctl_report_t *report; // NULL when none was asked for
  bl_ctl_progress_t *progress;
  bl_ctl_summary_t *summary;
  bl_ctl_step_timeline_t *timeline;
  bl_ctl_profiling_t *profiling; // NULL when neither a profile nor a prediction was asked for
  bool tracing;                  // for it
  size_t stage_count;
  bool planned, finished, failing, guessing, stopping, ending, interrupted;
  int exit_code;
  char failure[BL_ERROR_TEXT_BYTES]; // of a failure that waits for its cause
} session_t;

// ---- ends ----

// Ends processes that are ours, then the loop.
static void end(session_t *session, bl_ctl_end_t how, uint64_t grace_ms) {
  session->ending = true;
  if (session->fleet != NULL) {
    bl_ctl_fleet_end(session->fleet, how, grace_ms);
  } else {
    bl_loop_stop(session->loop);
  }
}

static void fleet_ended(void *context) {
  session_t *session = context;
  bl_loop_stop(session->loop);
}

static void say(session_t *session, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void say(session_t *session, const char *format, ...) {
  bl_ctl_progress_finish(session->progress);
  va_list args;
  va_start(args, format);
  fputs("ballastctl: ", stderr);
  vfprintf(stderr, format, args);
  va_end(args);
  fputc('\n', stderr);
}

// The end of a run that went wrong: says why and ends everything.
static void fail(session_t *session, int exit_code, const char *why) {
  if (session->ending) {
    return;
  }
  unsigned long long steps = bl_ctl_summary_steps(session->summary);
  session->exit_code = session->interrupted ? bl_status_exit_code(BL_CANCELLED) : exit_code;
  say(session, "%s; the run ends after %llu step%s", why, steps, steps == 1 ? "" : "s");
  end(session, BL_CTL_END_ASK, END_MS);
}

static void fail_with(session_t *session, const bl_error_t *err) {
  fail(session, bl_status_exit_code(err->status), err->text);
}

static uint64_t stop_ms(const session_t *session) {
  return session->options->job->checkpoint.folder != NULL ? STOP_SAVING_MS : STOP_MS;
}

static void stop_answered(const bl_error_t *err, void *context) {
  session_t *session = context;
  if (session->ending) {
    return;
  }
  if (err->status != BL_OK) {
    say(session, "the driver did not stop in order: %s", err->text);
  }
  // A driver answers at once and stops at the next step boundary.
  end(session, err->status == BL_OK ? BL_CTL_END_WAIT : BL_CTL_END_ASK, session->finished ? END_MS : stop_ms(session));
}

// The orderly end: the driver stops itself, and the stages that were started with it.
static void stop(session_t *session) {
  bl_error_t err;
  session->stopping = true;
  if (session->fleet == NULL) {
    end(session, BL_CTL_END_WAIT, 0); // somebody else's driver goes on
  } else if (bl_ctl_driver_stop(session->driver, END_MS, stop_answered, session, &err) != BL_OK) {
    stop_answered(&err, session);
  }
}

// ---- after the last step: timeline, sample, table ----

static void collect_sample(session_t *session);

static void timeline_answered(const bl_error_t *err, void *context) {
  session_t *session = context;
  if (session->ending) {
    return;
  }
  bl_error_t failure = *err;
  bl_status_t status = err->status;
  if (status == BL_OK) {
    char subtitle[160];
    snprintf(subtitle, sizeof subtitle, "step %llu, %s, %lld micro-batches",
             (unsigned long long)bl_ctl_summary_steps(session->summary),
             bl_job_schedule_name(session->options->job->pipeline.schedule),
             (long long)session->options->job->train.micro_batches);
    status = bl_ctl_step_timeline_draw(session->timeline, session->options->job->name, subtitle,
                                       session->options->timeline, &failure);
  }
  if (status != BL_OK) {
    say(session, "no timeline: %s", failure.text);
    session->exit_code = bl_status_exit_code(BL_PARTIAL);
  }
  collect_sample(session);
}

static void timeline_event(const bl_ctl_trace_event_t *event, void *context) {
  bl_ctl_step_timeline_add(((session_t *)context)->timeline, event);
}

static void collect_timeline(session_t *session) {
  bl_error_t err;
  if (session->options->timeline == NULL) {
    collect_sample(session);
    return;
  }
  bl_status_t status = bl_ctl_step_timeline_create(session->stage_count, &session->timeline);
  if (status != BL_OK) {
    bl_error_set(&err, status, "no memory");
  } else {
    status = bl_ctl_driver_trace(session->driver, COLLECT_MS, timeline_event, timeline_answered, session, &err);
  }
  if (status != BL_OK) {
    timeline_answered(&err, session);
  }
}

// A terminal gets no control characters and no broken UTF-8: a young model draws any byte.
static void sample_text(const uint8_t *text, size_t text_bytes, void *context) {
  (void)context;
  bool terminal = isatty(STDOUT_FILENO);
  for (size_t i = 0; i < text_bytes; i++) {
    bool printable = text[i] == '\n' || text[i] == '\t' || (text[i] >= 0x20 && text[i] < 0x7F);
    fputc(terminal && !printable ? '?' : text[i], stdout);
  }
}

static void sample_answered(const bl_error_t *err, void *context) {
  session_t *session = context;
  if (session->ending) {
    return;
  }
  fputc('\n', stdout);
  fflush(stdout);
  if (err->status != BL_OK) {
    say(session, "no sample: %s", err->text);
    session->exit_code = bl_status_exit_code(BL_PARTIAL);
  }
  stop(session);
}

static void collect_sample(session_t *session) {
  bl_error_t err;
  if (session->options->sample == 0) {
    stop(session);
    return;
  }
  fprintf(stderr, "\n%u tokens drawn from the model:\n", session->options->sample);
  if (bl_ctl_driver_generate(session->driver, session->options->sample, (uint64_t)session->options->job->train.seed,
                             SAMPLE_TEMPERATURE, COLLECT_MS, sample_text, sample_answered, session, &err) != BL_OK) {
    sample_answered(&err, session);
  }
}

// ---- profile and prediction ----

static void finish_profile(session_t *session) {
  bl_error_t err;
  bl_status_t status = bl_ctl_profiling_finish(session->profiling, &err);
  if (status != BL_OK) {
    say(session, "no profile: %s", err.text);
    session->exit_code = bl_status_exit_code(BL_PARTIAL);
  } else if (session->options->profile != NULL) {
    say(session, "profile: %s", session->options->profile);
  }
  bl_ctl_profiling_print(session->profiling, stdout);
  fflush(stdout);
  char *line = bl_ctl_profiling_line(session->profiling);
  if (line != NULL && session->report != NULL && bl_ctl_report_note(session->report, line, &err) != BL_OK) {
    say(session, "%s", err.text);
    session->exit_code = bl_status_exit_code(err.status);
  }
  free(line);
  collect_timeline(session);
}

static void profile_event(const bl_ctl_trace_event_t *event, void *context) {
  bl_ctl_profiling_event(((session_t *)context)->profiling, event);
}

static void profile_answered(const bl_error_t *err, void *context) {
  session_t *session = context;
  session->tracing = false;
  bl_ctl_profiling_trace_end(session->profiling, err->status == BL_OK);
  if (session->finished && !session->ending && !session->interrupted) {
    finish_profile(session);
  }
}

// A trace comes at the end of the step that runs; false: none was asked for.
static bool ask_profile_trace(session_t *session) {
  bl_error_t err;
  if (session->tracing || !bl_ctl_profiling_wants_trace(session->profiling)) {
    return session->tracing;
  }
  session->tracing =
      bl_ctl_driver_trace(session->driver, COLLECT_MS, profile_event, profile_answered, session, &err) == BL_OK;
  return session->tracing;
}

static void collect_profile(session_t *session) {
  if (session->profiling == NULL) {
    collect_timeline(session);
  } else if (!ask_profile_trace(session)) {
    finish_profile(session);
  }
}

static void finish(session_t *session, int exit_code) {
  session->finished = true;
  session->exit_code = exit_code;
  bl_ctl_progress_finish(session->progress);
  bl_ctl_summary_print_line(session->summary, stderr);
  if (session->interrupted) {
    session->exit_code = bl_status_exit_code(BL_CANCELLED);
    return; // the answer to our stop ends it
  }
  if (session->options->summary) {
    bl_ctl_summary_print_stages(session->summary, stdout);
    fflush(stdout);
  }
  collect_profile(session);
}

// ---- what the driver tells ----

static void on_plan(const bl_ctl_plan_t *plan, void *context) {
  session_t *session = context;
  bl_ctl_patience_end(session->patience);
  bl_ctl_progress_plan(session->progress, plan);
  session->stage_count = plan->stage_count;
  if (session->profiling != NULL) {
    bl_ctl_profiling_plan(session->profiling, plan);
  }
  if (bl_ctl_summary_plan(session->summary, plan) == BL_OK && !session->planned) {
    bl_ctl_summary_print_plan(session->summary, stderr);
  }
  session->planned = true;
}

static void on_step(const bl_ctl_step_t *step, void *context) {
  session_t *session = context;
  bl_error_t err;
  if (session->report != NULL && bl_ctl_report_step(session->report, step, &err) != BL_OK) {
    fail_with(session, &err);
    return;
  }
  bl_ctl_summary_step(session->summary, step);
  bl_ctl_progress_step(session->progress, step, bl_clock_now_ns());
  if (session->profiling != NULL) {
    bl_ctl_profiling_step(session->profiling, step);
    (void)ask_profile_trace(session);
  }
}

static void on_validation(const bl_ctl_validation_t *validation, void *context) {
  session_t *session = context;
  bl_error_t err;
  if (session->report != NULL && bl_ctl_report_validation(session->report, validation, &err) != BL_OK) {
    fail_with(session, &err);
    return;
  }
  bl_ctl_summary_validation(session->summary, validation);
  bl_ctl_progress_validation(session->progress, validation, bl_clock_now_ns());
}

// One that fails is told at once; of the others the last is told when the run ends.
static void on_checkpoint(const bl_ctl_checkpoint_t *checkpoint, void *context) {
  session_t *session = context;
  if (checkpoint->error[0] != '\0') {
    say(session, "warning: no checkpoint of step %llu: %s", (unsigned long long)checkpoint->step, checkpoint->error);
    return;
  }
  bl_ctl_summary_checkpoint(session->summary, checkpoint);
}

static void wait_for_cause(session_t *session, int exit_code, const char *why) {
  session->failing = true;
  session->exit_code = exit_code;
  snprintf(session->failure, sizeof session->failure, "%s", why);
  bl_timer_start(session->cause_timer, CAUSE_MS, 0);
}

static void no_cause_came(bl_timer_t *timer, void *context) {
  (void)timer;
  session_t *session = context;
  fail(session, session->exit_code, session->failure);
}

static void tell_wait(const char *text, void *context) {
  session_t *session = context;
  if (!session->ending) {
    say(session, "%s", text);
  }
}

static void on_phase(const bl_ctl_phase_t *phase, void *context) {
  session_t *session = context;
  if (session->finished || session->ending) {
    return;
  }
  if (strcmp(phase->phase, "finished") == 0) {
    finish(session, phase->exit_code);
  } else if (strcmp(phase->phase, "failed") == 0) {
    int exit_code = phase->exit_code != 0 ? phase->exit_code : bl_status_exit_code(BL_INTERNAL);
    if (session->fleet != NULL && exit_code == bl_status_exit_code(BL_UNAVAILABLE)) {
      wait_for_cause(session, exit_code, phase->error);
    } else {
      fail(session, exit_code, phase->error);
    }
  }
}

static void on_lost(const bl_error_t *err, void *context) {
  session_t *session = context;
  if (!session->ending && !session->failing) {
    fail_with(session, err);
  }
}

static bl_status_t attach(session_t *session, const char *address, bl_error_t *err) {
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
    status = bl_ctl_patience_create(session->loop, session->driver, tell_wait, session, &session->patience, err);
  }
  return status == BL_OK ? bl_ctl_driver_watch(session->driver, &watcher, err) : status;
}

// ---- processes of our own ----

static void print_last_words(session_t *session, int stage) {
  const char *words = bl_ctl_fleet_last_words(session->fleet, stage);
  if (words[0] != '\0') {
    bl_ctl_progress_finish(session->progress);
    fputs(words, stderr);
  }
}

static void process_gone(int stage, const char *cause, int exit_code, void *context) {
  session_t *session = context;
  int unavailable = bl_status_exit_code(BL_UNAVAILABLE);
  if (session->ending) {
    return;
  }
  if (session->stopping) {
    end(session, BL_CTL_END_WAIT, END_MS); // as asked; its answer may come after its end
    return;
  }
  if (stage != BL_CTL_DRIVER && exit_code == 0) {
    if (!session->failing) { // a driver that ends its stages in order has a reason, which is still to be read
      wait_for_cause(session, unavailable, cause);
      session->guessing = true;
    }
  } else if (stage != BL_CTL_DRIVER) {
    print_last_words(session, stage);
    fail(session, unavailable, cause);
  } else if (session->failing && !session->guessing) {
    fail(session, session->exit_code, session->failure);
  } else {
    session->guessing = false;
    // It may have told why on the watch, which is still to be read.
    print_last_words(session, stage);
    wait_for_cause(session, exit_code > 0 && exit_code < 128 ? exit_code : unavailable, cause);
  }
}

// Puts addresses into the job that the driver reads.
static bl_status_t fill_in(session_t *session, const char *key, const char *const *addresses, size_t count,
                           bl_error_t *err) {
  char *assignment = NULL;
  size_t assignment_bytes = 0;
  FILE *stream = open_memstream(&assignment, &assignment_bytes);
  if (stream == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory");
  }
  fprintf(stream, "%s=[", key);
  for (size_t i = 0; i < count; i++) {
    fprintf(stream, "%s\"%s\"", i > 0 ? ", " : "", addresses[i]);
  }
  fputc(']', stream);
  bl_status_t status = fclose(stream) == 0 ? BL_OK : bl_error_set(err, BL_EXHAUSTED, "no memory");
  if (status == BL_OK) {
    bl_job_t *job = session->options->job;
    status = bl_options_set(bl_job_options(), job, job->marks, assignment, NULL, err);
  }
  free(assignment);
  return status;
}

static bl_status_t write_job(session_t *session, bl_error_t *err) {
  char *text;
  size_t text_bytes;
  bl_status_t status = bl_job_dump(session->options->job, &text, &text_bytes);
  if (status != BL_OK) {
    return bl_error_set(err, status, "the job cannot be written down: %s",
                        status == BL_INVALID ? "a path is not UTF-8" : bl_status_text(status));
  }
  status = bl_ctl_run_folder_write(&session->folder, "job.yaml", text, err);
  free(text);
  return status;
}

static void stages_ready(const char *const *addresses, size_t count, const char *const *stores, size_t store_count,
                         void *context) {
  session_t *session = context;
  bl_error_t err;
  char path[BL_CTL_RUN_PATH_BYTES];
  bl_ctl_run_folder_path(&session->folder, "job.yaml", path);
  bl_status_t status = count > 0 ? fill_in(session, "services.stages", addresses, count, &err) : BL_OK;
  if (status == BL_OK && store_count > 0) {
    status = fill_in(session, "services.stores", stores, store_count, &err);
  }
  if (status == BL_OK) {
    status = write_job(session, &err);
  }
  if (status == BL_OK) {
    status = bl_ctl_fleet_start_driver(session->fleet, path, session->options->local, session->options->resume != NULL,
                                       &err);
  }
  if (status != BL_OK) {
    fail_with(session, &err);
  }
}

static json_t *list_of(const bl_text_list_t *texts) {
  json_t *list = json_array();
  for (size_t i = 0; i < texts->count; i++) {
    json_array_append_new(list, json_string(texts->items[i]));
  }
  return list;
}

// What other commands find the run by.
static bl_status_t write_endpoints(session_t *session, const char *driver_address, bl_error_t *err) {
  const bl_job_t *job = session->options->job;
  json_t *endpoints = json_pack("{s:s, s:s, s:I, s:o, s:o}", "name", job->name, "driver", driver_address, "driver_pid",
                                (json_int_t)bl_ctl_fleet_pid(session->fleet, BL_CTL_DRIVER), "stages",
                                list_of(&job->services.stages), "stores", list_of(&job->services.stores));
  char *text = endpoints != NULL ? json_dumps(endpoints, JSON_INDENT(2)) : NULL;
  bl_status_t status = text != NULL ? bl_ctl_run_folder_write(&session->folder, "endpoints.json", text, err)
                                    : bl_error_set(err, BL_EXHAUSTED, "no memory");
  free(text);
  json_decref(endpoints);
  return status;
}

static void driver_ready(const char *address, void *context) {
  session_t *session = context;
  bl_error_t err;
  bl_status_t status = write_endpoints(session, address, &err);
  if (status == BL_OK) {
    status = attach(session, address, &err);
  }
  if (status != BL_OK) {
    fail_with(session, &err);
  }
}

static bl_status_t start_fleet(session_t *session, bl_error_t *err) {
  bl_status_t status = bl_ctl_run_folder_create(&session->folder, err);
  if (status != BL_OK) {
    return status;
  }
  session->has_folder = true;
  bl_ctl_fleet_options_t options = {.folder = &session->folder,
                                    .verbose = session->options->verbose,
                                    .stages_ready = stages_ready,
                                    .driver_ready = driver_ready,
                                    .gone = process_gone,
                                    .ended = fleet_ended,
                                    .context = session};
  size_t count = session->options->local ? (size_t)session->options->job->pipeline.stages : 0;
  size_t store_count = session->options->job->services.stores.count == 0 ? count : 0;
  status = bl_ctl_fleet_create(session->loop, &options, count, store_count, &session->fleet, err);
  return status == BL_OK ? bl_ctl_fleet_start_stages(session->fleet, err) : status;
}

// ---- signals ----

static void interrupted(bl_signal_t *signal, int number, void *context) {
  (void)signal;
  (void)number;
  session_t *session = context;
  bool again = session->interrupted;
  session->interrupted = true;
  session->exit_code = bl_status_exit_code(BL_CANCELLED);
  if (again || (session->fleet != NULL && session->driver == NULL)) {
    end(session, again ? BL_CTL_END_KILL : BL_CTL_END_ASK, END_MS);
  } else if (session->fleet == NULL) {
    say(session, "detached; the driver goes on");
    end(session, BL_CTL_END_WAIT, 0);
  } else if (!session->ending) {
    say(session, "stopping after this step; Ctrl-C again stops at once");
    stop(session);
  }
}

// ---- life ----

static bl_status_t open_all(session_t *session, bl_error_t *err) {
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
    bool local = session->options->local;
    status = bl_ctl_profiling_create(session->options->job, session->options->profile, session->options->predict, local,
                                     &session->profiling, err);
  }
  if (status == BL_OK && session->options->report != NULL) {
    const bl_resume_t *resume = session->options->resume;
    status = resume == NULL
                 ? bl_ctl_report_create(session->options->report, false, &session->report, err)
                 : bl_ctl_report_resume(session->options->report, resume->path[0] != '\0' ? resume->step : UINT64_MAX,
                                        &session->report, err);
  }
  return status;
}

static void close_all(session_t *session) {
  bl_ctl_patience_end(session->patience);
  bl_ctl_driver_destroy(session->driver);
  bl_ctl_patience_destroy(session->patience);
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
  session_t session = {.options = options, .folder = {.lock_fd = -1}};
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
    status = driver != NULL ? attach(&session, driver, &err) : start_fleet(&session, &err);
    if (status != BL_OK && session.fleet != NULL) {
      fail_with(&session, &err); // some processes run: end them in order
      status = BL_OK;
    }
  }
  if (status == BL_OK) {
    bl_loop_run(session.loop);
    if (session.interrupted && !session.finished && bl_ctl_summary_steps(session.summary) > 0) {
      bl_ctl_summary_print_line(session.summary, stderr);
    }
  } else {
    fprintf(stderr, "ballastctl: %s\n", err.text);
    session.exit_code = bl_status_exit_code(status);
  }
  close_all(&session);
  return session.exit_code;
}
