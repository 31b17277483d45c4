// SPDX-License-Identifier: Apache-2.0
// Private to the driver: the state that its files share, and what each file does.
//
//   driver.c      the run: which part is called next, how the run ends; control, views
//   life.c        phase, time, names
//   ask.c         makes the calls that the step machine requests, and passes it the answers
//   presence.c    the first contact with stages, and whether they are alive
//   wait.c        what the driver waits for, and since when
// and its parts, each with a state of its own:
//   setup.h       configure, connect, release
//   plans.h       plans and changes of the policy
//   automatic.h   the policy auto
//   boundary.h    chooses what follows
//   attempts.h    votes and reports of steps
//   sampling.h    text
//   checkpoint.h  copies, files, commits
//   traces.h      operations of the last step
// Calls go downward in the first list and from there to parts. A part calls its driver through hooks.
#ifndef BALLAST_DRIVER_DRIVER_CORE_H
#define BALLAST_DRIVER_DRIVER_CORE_H

#include "announce_wire.h"
#include "attempts.h"
#include "automatic.h"
#include "boundary.h"
#include "checkpoint.h"
#include "driver.h"
#include "plans.h"
#include "sampling.h"
#include "setup.h"
#include "traces.h"

#include "loop/timer.h"
#include "recomputes.h"
#include "stores_wire.h"

#define BL__TICK_MS  100
#define BL__PROBE_MS 1000 // between two status calls to a healthy stage
#define BL__RETRY_MS 200  // before a lost call is repeated

typedef struct bl_remote {
  bl_driver_t *driver;
  size_t index;
  bl_stage_client_t *client;
  bl_configure_request_t configuration;
  uint64_t resumed; // digest of the checkpoint that its present configuration began from

  // The call in flight.
  bl_driver_request_t asked;       // kind BL_DRIVER_REQUEST_NONE: none
  uint64_t ask_number;             // distinguishes its answer from those to earlier calls
  uint64_t ask_again_ms;           // not before
  char cause[BL_ERROR_TEXT_BYTES]; // why a call was lost, the first since one was answered

  // Presence.
  bool probing, met;
  uint64_t probe_at_ms;
  uint64_t silent_since_ms;          // 0: it answers
  bool refuses;                      // connections are refused, as opposed to unanswered
  char silence[BL_ERROR_TEXT_BYTES]; // why it was silent, the last time since a call was answered
  uint64_t incarnation;
  int64_t process;
  char busy[512];         // why it must not be taken over now; "": it may be
  bl_error_t blame;       // ends the run if the stage turns out to be the same process as before,
  unsigned blame_answers; // after this many more answers; 0: no error is pending
  void *status;           // packed
  uint64_t status_ms;     // when it was received
  size_t status_bytes;

  // Votes: for the attempt that runs or is decided, and for the last commit.
  bl_rank_vote_t vote, last_vote;
  uint32_t token;

  bl_policy_history_t policy_histories[BL_STAGE_PLANS]; // of the plans in its report

  // From setup; owned copies.
  bl_stage_place_t place;
  bl_path_share_t *paths;
  size_t path_count;
} bl_remote_t;

typedef enum {
  BL__RUN_CONNECTING, // first contact
  BL__RUN_TAKEOVER,   // takeover and what a predecessor left
  BL__RUN_SETUP,      // configure, connect, plans
  BL__RUN_STEPS,      // steps
  BL__RUN_FINISHED,   // all steps are done; lingers
  BL__RUN_STOPPING,   // release or stop stages
  BL__RUN_STOPPED,
} bl__run_state_t;

typedef enum {
  BL__WAIT_NONE,
  BL__WAIT_ARRIVAL, // of a stage
  BL__WAIT_OTHERS,  // of another run, to end
  BL__WAIT_POLICY,  // that fits
  BL__WAIT_ROUND,   // stages' answers in set-up or at the end
  BL__WAIT_REQUEST, // a stage's answer to a request of the step machine
  BL__WAIT_WATCHER,
} bl__wait_kind_t;

typedef struct bl__wait {
  bl__wait_kind_t kind;
  size_t stage;                // of ARRIVAL, OTHERS, REQUEST: the first one
  int round;                   // of ROUND
  bl_driver_request_t request; // of REQUEST
  uint64_t since_ns;
} bl__wait_t;

// Calls from parts to their driver. They need not know what it does.
typedef struct bl__driver_hooks {
  void (*pump)(bl_driver_t *driver);
  void (*fail)(bl_driver_t *driver, const bl_error_t *err);
  void (*leave)(bl_driver_t *driver, int exit_code);
} bl__driver_hooks_t;

struct bl_driver {
  const bl__driver_hooks_t *hooks;
  bl_driver_options_t options;
  bl_loop_t *loop;
  bl_timer_t *tick;
  bl_run_journal_t journal;
  bl__run_state_t state;
  uint64_t busy_since_ms; // since a stage belongs to another run; 0: none does
  const char *phase;
  const char *address; // where it is served
  bl_announcer_t *announcer;

  bl_remote_t *stages;
  size_t stage_count;
  bl_driver_step_t step;
  bl_driver_peer_t *peers;
  uint64_t next_ask;
  bl_stores_t *stores; // NULL: the job has none
  bl_recomputes_t recomputes;
  bl__wait_t wait;

  bl__setup_t setup;
  bl__plans_t plans;
  bl__automatic_t automatic;
  bl__attempts_t attempts;
  bl__validation_t validation;
  bl__control_t control;
  bl__generation_t generation;
  bl__save_t save;
  bl__tracing_t tracing;
};

// Continues with whatever can be done now.
static inline void bl__driver_pump(bl_driver_t *driver) {
  driver->hooks->pump(driver);
}
// Ends the run with an error. `err` may point into the driver.
static inline void bl__driver_fail(bl_driver_t *driver, const bl_error_t *err) {
  driver->hooks->fail(driver, err);
}
// Ends the run successfully.
static inline void bl__driver_leave(bl_driver_t *driver, int exit_code) {
  driver->hooks->leave(driver, exit_code);
}

// life.c
void bl__driver_set_phase(bl_driver_t *driver, const char *phase, const char *error, int exit_code);
uint64_t bl__driver_now_ms(const bl_driver_t *driver);
// "stage 2 (127.0.0.1:7702)"
#define BL__STAGE_NAME_BYTES (BL_RPC_ADDRESS_BYTES + 32)
// Returns the coordinates of a rank, or of a device store.
bl_coords_t bl__driver_coords(const bl_driver_t *driver, size_t rank);
const char *bl__stage_name(const bl_remote_t *stage, char text[BL__STAGE_NAME_BYTES]);

// ask.c
void bl__ask_all(bl_driver_t *driver);

// presence.c
void bl__presence_begin(bl_driver_t *driver);
void bl__presence_tick(bl_driver_t *driver);
// A call to the stage was lost: checks at once whether it is alive.
void bl__presence_doubt(bl_remote_t *stage);
// The stage refused something that the process met at first would have accepted. Ends the run with `err`, or, if it is
// another process by now, because the stage was restarted.
void bl__presence_blame(bl_remote_t *stage, const bl_error_t *err);

// wait.c
// Notes since when the driver waits for what it waits for now.
void bl__wait_note(bl_driver_t *driver);
// Sets waiting_for and waiting_ns.
void bl__wait_describe(const bl_driver_t *driver, bl_driver_view_t *view);

#endif
