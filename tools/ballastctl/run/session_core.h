// SPDX-License-Identifier: Apache-2.0
// What the files that make up a run from here share: its state, and who does what.
//
//   session.c            life, ends, signals, what the driver tells
//   session_processes.c  processes of our own, and what is written down for them and about them
//   session_closing.c    after the last step: profile, timeline, sample
//
// Thread: the loop's.
#ifndef BALLAST_BALLASTCTL_SESSION_CORE_H
#define BALLAST_BALLASTCTL_SESSION_CORE_H

#include "ballastctl/run/session.h"

#include "ballastctl/inspect/driver_wire.h"
#include "ballastctl/inspect/step_timeline.h"
#include "ballastctl/run/fleet.h"
#include "ballastctl/run/profiling.h"
#include "ballastctl/run/progress.h"
#include "ballastctl/run/report.h"
#include "ballastctl/run/startup_progress.h"
#include "ballastctl/run/summary.h"

#include "loop/signal.h"
#include "loop/timer.h"

#define BL__SESSION_END_MS 5000 // how long processes may take to end when asked

typedef struct bl__session {
  const bl_ctl_session_options_t *options;
  bl_loop_t *loop;
  bl_rpc_t *rpc;
  bl_signal_t *interrupt, *terminate, *hangup;
  bl_timer_t *cause_timer;
  bl_ctl_run_folder_t folder;
  bool has_folder;
  bl_ctl_fleet_t *fleet;   // NULL when the driver is not ours
  bl_ctl_driver_t *driver; // NULL until it is ready
  bl_ctl_startup_progress_t *startup;
  bl_ctl_report_t *report; // NULL when none was asked for
  bl_ctl_progress_t *progress;
  bl_ctl_summary_t *summary;
  bl_ctl_step_timeline_t *timeline;
  bl_ctl_profiling_t *profiling; // NULL when neither a profile nor a prediction was asked for
  bool tracing;                  // for it
  bool planned, finished, failing, guessing, stopping, ending, interrupted;
  int exit_code;
  char failure[BL_ERROR_TEXT_BYTES]; // of a failure that waits for its cause
} bl__session_t;

// session.c
void bl__session_say(bl__session_t *session, const char *format, ...) __attribute__((format(printf, 2, 3)));
// Ends processes that are ours, then the loop.
void bl__session_end(bl__session_t *session, bl_ctl_end_t how, uint64_t grace_ms);
// The end of a run that went wrong: says why and ends everything.
void bl__session_fail(bl__session_t *session, int exit_code, const char *why);
void bl__session_fail_with(bl__session_t *session, const bl_error_t *err);
// The same, unless something better is heard of within a moment.
void bl__session_wait_for_cause(bl__session_t *session, int exit_code, const char *why);
// The orderly end: the driver stops itself, and the stages that were started with it.
void bl__session_stop(bl__session_t *session);
// Follows the driver at this address.
BL_MUST_USE bl_status_t bl__session_attach(bl__session_t *session, const char *address, bl_error_t *err);

// session_processes.c
BL_MUST_USE bl_status_t bl__processes_start(bl__session_t *session, bl_error_t *err);

// session_closing.c
// Collects what was asked for, then stops.
void bl__closing_begin(bl__session_t *session);
// After the last process: clears away what a run that did not end in order left half written, and says where --resume
// goes on.
void bl__closing_tell_saved(bl__session_t *session);
// A trace for the profile comes at the end of the step that runs; false: none was asked for.
bool bl__closing_ask_trace(bl__session_t *session);

#endif
