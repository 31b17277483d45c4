// SPDX-License-Identifier: Apache-2.0
// What the files that make up a driver share: its state, and who does what.
//
//   driver.c     life, control, views
//   ask.c        asks stages what the step machine wants asked, and tells it the answers
//   presence.c   who is there: the first contact, and whether stages are alive
//   setup.c      configure, connect
//   plans.c      plans and policies: what is in force, and changes of it
//   automatic.c  the policy auto: measures steps and chooses
//   boundary.c   what comes next between two attempts: a step, a validation, a token, a pause, the end
//   reporting.c  the sum of the votes, and what is told of a step
//   generation.c text that is drawn from the model
//   traces.c     operations of the last step
//   checkpoint.c copies, files, commits
#ifndef BALLAST_DRIVER_DRIVER_CORE_H
#define BALLAST_DRIVER_DRIVER_CORE_H

#include "announce_wire.h"
#include "automatic.h"
#include "checkpoint.h"
#include "driver.h"

#include "loop/timer.h"
#include "recomputes.h"
#include "stores_wire.h"

#define BL__TICK_MS  100
#define BL__PROBE_MS 1000 // between two looks at a stage that is well
#define BL__RETRY_MS 200  // before a lost call is made again

typedef struct bl_remote {
  bl_driver_t *driver;
  size_t index;
  bl_stage_client_t *client;
  bl_stage_configuration_t configuration;
  uint64_t digest;  // of the configuration that it is to have
  uint64_t resumed; // digest of the checkpoint that its present configuration began from

  // The question under way.
  bl_driver_request_t asked;       // verb BL_ASK_NOTHING: none
  uint64_t ask_number;             // tells its answer from those to earlier questions
  uint64_t ask_again_ms;           // not before
  char cause[BL_ERROR_TEXT_BYTES]; // why the last call was lost

  // Presence.
  bool probing, met;
  uint64_t probe_at_ms;
  uint64_t silent_since_ms; // 0: it answers
  bool refuses;             // nobody listens there, as opposed to silence
  uint64_t incarnation;
  int64_t process;
  char busy[512];         // why it is not to be taken over now; "": it may be
  bl_error_t blame;       // ends the run once it is known to be the process that it was,
  unsigned blame_answers; // after so many answers more; 0: it is not blamed
  void *status;           // packed
  uint64_t status_ms;     // when it came
  size_t status_bytes;

  // Votes: of the attempt that runs or is decided, and of the last commit.
  bl_ballot_t vote, last_vote;
  uint32_t token;

  bl_policy_book_t books[BL_STAGE_PLANS]; // of the plans in its report

  // From setup; owned copies.
  bl_stage_place_t place;
  bl_path_share_t *paths;
  size_t path_count;
} bl_remote_t;

typedef enum {
  BL__MEETING,  // first contact
  BL__TAKING,   // takeover and what a predecessor left
  BL__SETUP,    // configure, connect, plans
  BL__DRIVING,  // steps
  BL__FINISHED, // all steps are done; lingers
  BL__LEAVING,  // release or stop stages
  BL__GONE,
} bl__life_t;

typedef enum {
  BL__ROUND_FORGET, // what stages hold of a run that starts over
  BL__ROUND_CONFIGURE,
  BL__ROUND_CONNECT,
  BL__ROUND_ABORT, // of a run that failed
  BL__ROUND_LEAVE, // release or stop
} bl__round_t;

typedef struct bl__plans {
  bl_changes_t changes;      // which policies are in force and asked for: decides, and the rest here does it
  char *texts[BL_RUN_KINDS]; // NULL: no run of this kind. BL_RUN_TRAIN: what is in force
  bl_balance_plan_t balance; // of the policy in force

  // What is proposed to the stages.
  bool open;
  bl_balance_plan_t next_balance;
  char *next_text;
  bl_error_t refusal;

  // Setup.
  uint64_t again_ms;       // of a plan that is refused for now; 0: none
  bl_run_kind_t next_kind; // to be proposed next
} bl__plans_t;

struct bl_driver {
  bl_driver_options_t options;
  bl_loop_t *loop;
  bl_timer_t *tick;
  bl_journal_t journal;
  bl__life_t life;
  uint64_t busy_since_ms; // that a stage belongs to another run; 0: none does
  const char *phase;
  const char *address; // where it is served
  bl_announcer_t *announcer;

  bl_remote_t *stages;
  size_t stage_count;
  bl_driver_step_t step;
  bl_driver_peer_t *peers;
  uint64_t next_ask;

  // Setup: one call to every stage at a time.
  char *job_text, *own_order, *other_order; // that stages are configured with
  bl__round_t round;
  size_t round_open; // answers still to come
  bool *round_retry; // [stage_count]

  bl__plans_t plans;
  bl__automatic_t automatic;
  bl_stores_t *stores; // NULL: the job has none
  bl_recomputes_t recomputes;

  // Steps.
  uint64_t reported; // last step in the journal
  uint64_t attempt_began_ns;
  double seconds; // of the last attempt
  double norm;    // of the gradients of the last step that was decided; 0: none was
  unsigned failures;
  bl_error_t failure; // why the last attempt failed
  double *squares;    // scratch, [parameters]
  size_t parameter_count;
  bl_ballot_t *ballots; // scratch, [stage_count], borrows

  // Validation.
  uint64_t validated;    // step
  uint64_t windows_seen; // micro-batches of it that are done
  double validation_sum;

  // Control.
  bl_driver_held_fn held;
  void *held_context;
  int exit_code;
  uint64_t leave_by_ms;
  uint64_t stop_by_ms; // told to end before its first step; 0: it was not

  // Generation.
  bl_generation_t generation;
  uint32_t *context; // [seq]
  uint32_t context_count;
  uint32_t drawn;

  bl__save_t save;

  // Traces.
  bl_stage_trace_t *traces; // [stage_count]
  uint64_t traced_step;
  size_t traces_open;
  struct bl__trace_wait *trace_waits;

  bool anew;  // some stage was configured by this driver
  bool fatal; // `failure` ends the run at the next boundary
  bool again; // the attempt that comes repeats one that was applied ahead in vain
  bool validating, paused, stopping, generating, drawing;
};

// driver.c
void bl__driver_pump(bl_driver_t *driver);
void bl__driver_set_phase(bl_driver_t *driver, const char *phase, const char *error, int exit_code);
// Ends the run with an error. `err` may be driver->failure.
void bl__driver_fail(bl_driver_t *driver, const bl_error_t *err);
void bl__driver_leave(bl_driver_t *driver, int exit_code);
uint64_t bl__driver_now_ms(const bl_driver_t *driver);
// "stage 2 (127.0.0.1:7702)"
#define BL__STAGE_NAME_BYTES (BL_RPC_ADDRESS_BYTES + 32)
const char *bl__stage_name(const bl_remote_t *stage, char text[BL__STAGE_NAME_BYTES]);

// ask.c
void bl__ask_all(bl_driver_t *driver);

// presence.c
void bl__presence_begin(bl_driver_t *driver);
void bl__presence_tick(bl_driver_t *driver);
// A call to the stage was lost: look at once whether it is alive.
void bl__presence_doubt(bl_remote_t *stage);
// The stage refused what the one that was met would not have refused: ends the run with `err`, or, if it is another process
// by now, as one whose stage was restarted.
void bl__presence_blame(bl_remote_t *stage, const bl_error_t *err);

// setup.c
BL_MUST_USE bl_status_t bl__setup_prepare(bl_driver_t *driver, bl_error_t *err);
void bl__setup_begin(bl_driver_t *driver);
void bl__setup_tick(bl_driver_t *driver);
void bl__setup_cleanup(bl_driver_t *driver);
// Leaving: gives up the attempt that runs (`abort`), then ends owned stages, or lets go of the job (`release`).
void bl__leave_begin(bl_driver_t *driver, bool abort, bool release);

// Setup is done: steps begin.
void bl__setup_end(bl_driver_t *driver);

// plans.c
// The policies in force, also before setup: then those that a predecessor left.
const bl_policy_book_t *bl__plans_book(bl_driver_t *driver);
bool bl__plans_setting_up(const bl_driver_t *driver);
// Setup: proposes what the stages lack. True: something is proposed, or the run has failed.
bool bl__plans_begin(bl_driver_t *driver);
// The same, at a boundary at which a proposal of setup has ended.
bool bl__plans_go_on(bl_driver_t *driver);
// Between steps: ends a change that was proposed, and begins the next. True: something is proposed. `held`: no step runs
// in between.
bool bl__plans_boundary(bl_driver_t *driver, bool held);
void bl__plans_end_waits(bl_driver_t *driver, const bl_error_t *err);
void bl__plans_cleanup(bl_driver_t *driver);
// The driver's own change, at the boundary that it is asked at. False: others wait, ask again later.
bool bl__plans_wish(bl_driver_t *driver, const bl_policy_t *policy, bl_driver_policy_fn done);
// The call to make for a proposal, and its refusal.
bl_stage_plan_text_t bl__plan_text(const bl_driver_t *driver, const bl_driver_request_t *request);
void bl__plan_refused(bl_remote_t *stage, const bl_driver_request_t *request, const bl_error_t *err);

// boundary.c
void bl__boundary(bl_driver_t *driver);
void bl__decide(bl_driver_t *driver);
// The call to make for the attempt that runs.
bl_stage_run_text_t bl__run_text(const bl_driver_t *driver, const bl_driver_request_t *request);

// reporting.c
// BL_INTERNAL: a vote of the attempt is missing.
BL_MUST_USE bl_status_t bl__votes_count(bl_driver_t *driver, uint64_t attempt, bl_tally_t *tally, bl_error_t *err);
// The step that was committed last, once: also one that a predecessor committed and could not tell of.
void bl__step_report(bl_driver_t *driver);

// generation.c
// An attempt of BL_RUN_GENERATE has ended: hands its token on, and closes it.
void bl__generation_take(bl_driver_t *driver);
void bl__generation_end(bl_driver_t *driver, const bl_error_t *err);

// traces.c
// True when the traces of the last step are here, or there is none; else collects them and pumps when they are.
bool bl__traces_ready(bl_driver_t *driver);
void bl__traces_answer(bl_driver_t *driver, const bl_error_t *err);
void bl__traces_cleanup(bl_driver_t *driver);

#endif
