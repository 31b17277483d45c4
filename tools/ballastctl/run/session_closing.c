// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/run/session_core.h"

#include "ballastctl/output.h"

#include "base/words.h"
#include "job/checkpoint_claim.h"
#include "job/checkpoint_folder.h"

#include <stdlib.h>
#include <unistd.h>

// Timeout of a sample or a trace.
#define COLLECT_MS         60000
#define SAMPLE_TEMPERATURE 0.8

// A run that was stopped meanwhile collects nothing more: the response to the stop request ends the session.
static bool is_over(const bl__session_t *session) {
  return session->ending || session->stopping;
}

static void miss(bl__session_t *session, const char *what, const char *why) {
  bl__session_say(session, "no %s: %s", what, why);
  if (session->exit_code == 0) {
    session->exit_code = bl_status_exit_code(BL_PARTIAL);
  }
}

void bl__closing_print(bl__session_t *session, const char *what) {
  bl_error_t err;
  if ((fflush(stdout) != 0 || ferror(stdout)) && bl_ctl_printed(BL_IO, &err) != BL_OK) {
    miss(session, what, err.text);
  }
}

// ---- sample

// A terminal gets no control characters and no bytes beyond ASCII, because an untrained model draws any byte.
static void sample_text(const uint8_t *text, size_t text_bytes, void *context) {
  (void)context;
  bool terminal = isatty(STDOUT_FILENO);
  for (size_t i = 0; i < text_bytes; i++) {
    bool printable = text[i] == '\n' || text[i] == '\t' || (text[i] >= 0x20 && text[i] < 0x7F);
    fputc(terminal && !printable ? '?' : text[i], stdout);
  }
}

static void sample_answered(const bl_error_t *err, void *context) {
  bl__session_t *session = context;
  if (is_over(session)) {
    return;
  }
  fputc('\n', stdout);
  if (err->status != BL_OK) {
    fflush(stdout);
    miss(session, "sample", err->text);
  } else {
    bl__closing_print(session, "sample");
  }
  bl__session_stop(session);
}

static void collect_sample(bl__session_t *session) {
  bl_error_t err;
  if (session->options->sample == 0) {
    bl__session_stop(session);
    return;
  }
  fprintf(stderr, "\n%u token%s drawn from the model:\n", session->options->sample,
          bl_plural(session->options->sample));
  if (bl_ctl_driver_generate(session->driver, session->options->sample, (uint64_t)session->options->job->train.seed,
                             SAMPLE_TEMPERATURE, COLLECT_MS, sample_text, sample_answered, session, &err) != BL_OK) {
    sample_answered(&err, session);
  }
}

// ---- timeline

static void timeline_answered(const bl_error_t *err, void *context) {
  bl__session_t *session = context;
  if (is_over(session)) {
    return;
  }
  bl_error_t failure = *err;
  bl_status_t status = err->status;
  if (status == BL_OK) {
    char subtitle[160];
    snprintf(subtitle, sizeof subtitle, "step %llu, %s, %lld micro-batches",
             (unsigned long long)bl_ctl_summary_last_step(session->summary),
             bl_job_schedule_name(session->options->job->pipeline.schedule),
             (long long)session->options->job->train.micro_batches);
    status = bl_ctl_step_timeline_draw(session->timeline, session->options->job->name, subtitle,
                                       session->options->timeline, &failure);
  }
  if (status != BL_OK) {
    miss(session, "timeline", failure.text);
  }
  collect_sample(session);
}

static void timeline_event(const bl_ctl_trace_event_t *event, void *context) {
  bl_ctl_step_timeline_add(((bl__session_t *)context)->timeline, event);
}

static void collect_timeline(bl__session_t *session) {
  bl_error_t err;
  const bool draws = session->options->timeline != NULL, samples = session->options->sample > 0;
  if (session->exit_code == bl_status_exit_code(BL_CANCELLED)) { // its driver answers no such calls any more
    if (draws || samples) {
      miss(session, draws && samples ? "timeline and no sample" : draws ? "timeline" : "sample", "the run was stopped");
    }
    bl__session_stop(session);
    return;
  }
  if (!draws) {
    collect_sample(session);
    return;
  }
  bl_status_t status = bl_ctl_step_timeline_create(&session->timeline);
  if (status != BL_OK) {
    bl_error_set(&err, status, "no memory");
  } else {
    status = bl_ctl_driver_trace(session->driver, COLLECT_MS, timeline_event, timeline_answered, session, &err);
  }
  if (status != BL_OK) {
    timeline_answered(&err, session);
  }
}

// ---- profile and prediction

static void finish_profile(bl__session_t *session) {
  bl_error_t err;
  bl_status_t status = bl_ctl_profiling_finish(session->profiling, &err);
  if (status != BL_OK) {
    miss(session, "profile", err.text);
  } else if (session->options->profile != NULL) {
    bl__session_say(session, "profile: %s", session->options->profile);
  }
  bl_ctl_profiling_print(session->profiling, stdout);
  bl__closing_print(session, "prediction");
  char *line = bl_ctl_profiling_line(session->profiling);
  if (line != NULL && session->report != NULL && bl_ctl_report_note(session->report, line, &err) != BL_OK) {
    bl__session_say(session, "%s", err.text);
    session->exit_code = bl_status_exit_code(err.status);
  }
  free(line);
  collect_timeline(session);
}

static void profile_event(const bl_ctl_trace_event_t *event, void *context) {
  bl_ctl_profiling_event(((bl__session_t *)context)->profiling, event);
}

static void profile_answered(const bl_error_t *err, void *context) {
  bl__session_t *session = context;
  session->tracing = false;
  bl_ctl_profiling_trace_end(session->profiling, err->status == BL_OK);
  if (session->finished && !is_over(session)) {
    finish_profile(session);
  }
}

bool bl__closing_ask_trace(bl__session_t *session) {
  bl_error_t err;
  if (session->tracing || !bl_ctl_profiling_wants_trace(session->profiling)) {
    return session->tracing;
  }
  session->tracing =
      bl_ctl_driver_trace(session->driver, COLLECT_MS, profile_event, profile_answered, session, &err) == BL_OK;
  return session->tracing;
}

void bl__closing_begin(bl__session_t *session) {
  if (session->profiling == NULL) {
    collect_timeline(session);
  } else if (!bl__closing_ask_trace(session)) {
    finish_profile(session);
  }
}

// ---- what is saved

void bl__closing_tell_saved(bl__session_t *session) {
  const bl_ctl_session_options_t *options = session->options;
  const char *folder = options->job->checkpoint.folder;
  bool began = bl_ctl_summary_steps(session->summary) > 0 || (options->resume != NULL && options->resume->step > 0);
  if (folder == NULL || session->fleet == NULL || session->exit_code == 0 || !began) {
    return;
  }
  char path[PATH_MAX];
  uint64_t step;
  size_t count;
  bl_error_t err;
  bl_checkpoint_claim_t claim = {0};
  if (options->local && bl_checkpoint_claim_take(&claim, options->job, &err) == BL_OK) { // no process writes now
    (void)!bl_checkpoint_folder_sweep(folder, &count, &err);
    bl_checkpoint_claim_release(&claim);
  }
  if (bl_checkpoint_folder_newest(folder, path, &step, &err) == BL_OK) {
    if (step < (uint64_t)options->job->train.steps) {
      bl__session_say(session, "the same command with --resume continues from step %llu (%s)", (unsigned long long)step,
                      path);
    }
  } else if (err.status == BL_NOT_FOUND) {
    bl__session_say(session,
                    "no checkpoint was finished (checkpoint.every is %lld): the run can only start from the beginning",
                    (long long)options->job->checkpoint.every);
  }
}
