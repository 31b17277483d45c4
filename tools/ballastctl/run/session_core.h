// SPDX-License-Identifier: Apache-2.0
// Shared by the files of a run's session: its state and functions.
//
//   session.c            create and destroy, ends, signals, events from the driver
//   session_processes.c  our own processes, and the files written for them and about them
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

typedef struct bl__session {
  const bl_ctl_session_options_t *options;
  bl_loop_t *loop;
  bl_rpc_t *rpc;
  bl_signal_t *interrupt, *terminate, *hangup;
  bl_timer_t *cause_timer;
  bl_ctl_run_folder_t folder;
  bool has_folder;
  bl_ctl_fleet_t *fleet;   // NULL: another process started the driver
  bl_ctl_driver_t *driver; // NULL until it is ready
  bl_ctl_startup_progress_t *startup;
  bl_ctl_report_t *report; // NULL when none was asked for, or it could not be written
  bl_ctl_progress_t *progress;
  bl_ctl_summary_t *summary;
  bl_ctl_step_timeline_t *timeline;
  bl_ctl_profiling_t *profiling; // NULL when neither a profile nor a prediction was asked for
  bool tracing;                  // a trace for `profiling` is in progress
  bool planned, finished, failing, guessing, stopping, ending, interrupted;
  int exit_code;
  int early_code;                    // exit code of a run that this session stops before its last step; 0: it does not
  char failure[BL_ERROR_TEXT_BYTES]; // message of a failure that waits for its cause
} bl__session_t;

// session.c
void bl__session_say(bl__session_t *session, const char *format, ...) __attribute__((format(printf, 2, 3)));
// Ends our own processes, then the loop.
void bl__session_end(bl__session_t *session, bl_ctl_end_t how, uint64_t grace_ms);
// Ends a run that failed: prints the reason and ends all processes.
void bl__session_fail(bl__session_t *session, int exit_code, const char *why);
void bl__session_fail_with(bl__session_t *session, const bl_error_t *err);
// The same, but waits a moment in case a better explanation arrives.
void bl__session_wait_for_cause(bl__session_t *session, int exit_code, const char *why);
// The orderly end: the driver stops itself and the stages that it was started with.
void bl__session_stop(bl__session_t *session);
// Follows the driver at this address.
BL_MUST_USE bl_status_t bl__session_attach(bl__session_t *session, const char *address, bl_error_t *err);

// session_processes.c
BL_MUST_USE bl_status_t bl__processes_start(bl__session_t *session, bl_error_t *err);

// session_closing.c
// Collects what was asked for, then stops.
void bl__closing_begin(bl__session_t *session);
// Ends what was printed on standard output. If it cannot be written, the run misses `what` (a noun).
void bl__closing_print(bl__session_t *session, const char *what);
// Called after the last process has ended. Deletes what a failed run wrote incompletely, and prints where --resume
// continues.
void bl__closing_tell_saved(bl__session_t *session);
// Requests a trace for the profile, if one is wanted and none is in progress; it arrives at the end of the current
// step. Returns whether a trace is in progress.
bool bl__closing_ask_trace(bl__session_t *session);

#endif
