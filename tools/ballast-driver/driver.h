// SPDX-License-Identifier: Apache-2.0
// One run: brings stages that may hold anything to the job's configuration, runs steps, decides commits, looks at
// held-out data, draws text, and says what happens. What may be asked of a stage, and when, is lib/step's decision;
// this does the asking.
//
//   bl_driver_create(&options, &driver, err);
//   bl_driver_start(driver, address);
//   bl_loop_run(loop);                  // options.observer.ended fires once the run is over and may stop the loop
//   bl_driver_destroy(driver);
//
// A stage that does not answer for BL_DRIVER_TIMEOUT_MS (6 s when it is there but silent) is taken for dead: the run
// ends, and the error names stage, address and cause.
//
// Thread: the loop's.
#ifndef BALLAST_DRIVER_DRIVER_H
#define BALLAST_DRIVER_DRIVER_H

#include "config/job.h"
#include "job/balance.h"
#include "job/checkpoint_claim.h"
#include "job/resume.h"
#include "job/training.h"
#include "journal.h"
#include "policy/change.h"
#include "rpc/rpc.h"
#include "simulate/automatic.h"
#include "stage_client_wire.h"
#include "step/driver_step.h"
#include "stores_wire.h"

#define BL_DRIVER_TIMEOUT_MS 3000
// How long stages may take to come up before the run gives up.
#define BL_DRIVER_ARRIVAL_MS 10000
// Held-out windows looked at in one validation, at most: the first ones, always the same, so that losses of different
// steps compare. Bounds the time of a validation to a few steps.
#define BL_DRIVER_VALIDATION_WINDOWS 256
// An attempt that fails on a stage that lives on is run again so often, then the run ends.
#define BL_DRIVER_ATTEMPTS_MAX 3

// The phase of a run before there is a driver for it.
#define BL_DRIVER_STARTING "starting"

typedef struct bl_driver bl_driver_t;
typedef struct bl_remote bl_remote_t;

typedef struct bl_driver_observer {
  void *context;
  // Something was added to the journal, or the state changed.
  void (*changed)(void *context);
  // Whether the next commit may be decided; when not, bl_driver_poke says that it may be asked again. NULL: always.
  // Sets *recorder to who keeps the run's record (0: nobody), which the commit carries to the stages.
  bool (*may_commit)(void *context, uint64_t *recorder);
  // The run is over: nothing is asked of stages any more.
  void (*ended)(int exit_code, void *context);
} bl_driver_observer_t;

typedef struct bl_driver_options {
  bl_rpc_t *rpc;
  const bl_job_t *job;           // borrowed; services.stages has one address per stage
  const bl_training_t *training; // borrowed
  const bl_resume_t *resume;     // borrowed; where to go on, if the stages do not hold this job already. NULL: anew
  bl_checkpoint_claim_t *claim;  // of the job's folder, taken by the caller before `resume` was read; NULL: not claimed
  bool start_over;               // when a stage has lost the run, all begin again from `resume`, or from the start
  bool own_stages;               // end them with the run
  bool linger;                   // stay after the last step until bl_driver_stop
  bl_driver_observer_t observer;
} bl_driver_options_t;

// BL_INVALID: services.stages does not fit pipeline.stages, or has something that is no address.
BL_MUST_USE bl_status_t bl_driver_create(const bl_driver_options_t *options, bl_driver_t **driver, bl_error_t *err);
// `address`: where the driver is served, for stages and stores that pass questions on; borrowed, "": nowhere.
void bl_driver_start(bl_driver_t *driver, const char *address);
void bl_driver_destroy(bl_driver_t *driver); // NULL is fine

// ---- control --------------------------------------------------------------------------------------------------------

// Looks again at what can be done; after an observer has said no.
void bl_driver_poke(bl_driver_t *driver);
// Holds the run at the next step boundary, or lets it go on. `held` (may be NULL) fires once it is held, or the run
// has ended; at once when letting go.
typedef void (*bl_driver_held_fn)(uint64_t step, void *context);
void bl_driver_pause(bl_driver_t *driver, bool paused, bl_driver_held_fn held, void *context);
// Ends the run at the next step boundary, with a checkpoint of the last step if the job has a folder for them: with
// exit code 0 when it has finished, else 130. Stages that are not owned keep the job, so that the same job can be
// continued. Before the first step of this driver, what stages hold of a predecessor's is saved too, once they have
// been taken over.
void bl_driver_stop(bl_driver_t *driver);

// Takes a checkpoint at the next step boundary. `done` fires exactly once if this returns BL_OK: with the folder, once
// it is committed, or with what went wrong. BL_PRECONDITION: the job has no checkpoint.folder, no step was made, or the
// run has ended.
typedef void (*bl_driver_saved_fn)(uint64_t step, const char *folder, const bl_error_t *err, void *context);
BL_MUST_USE bl_status_t bl_driver_checkpoint(bl_driver_t *driver, bl_driver_saved_fn done, void *context,
                                             bl_error_t *err);

typedef struct bl_policy_answer {
  const bl_policy_record_t *record; // in force on all stages from its from_step on; of a dry run version and step are 0
  bool unchanged;                   // it was in force already
  const bl_holdings_t *holdings;    // what it takes of the devices; NULL when another one is in force by now
  const char *order;                // as in bl_balance_plan_t; NULL with no holdings
} bl_policy_answer_t;
typedef void (*bl_driver_policy_fn)(const bl_policy_answer_t *answer, const bl_error_t *err, void *context);
// Puts a policy in force at the next step boundary (policy/change.h); `begun` of the request is not looked at. `done`
// fires exactly once, perhaps before this returns: with the policy once all stages have prepared it, or with who
// refused and why; then the policy before stays in force.
void bl_driver_set_policy(bl_driver_t *driver, const bl_policy_request_t *request, bl_driver_policy_fn done,
                          void *context);

typedef struct bl_generation {
  const uint8_t *prompt; // copied; bytes are tokens. Empty: the first tokens of the held-out data, else of training
  size_t prompt_bytes;
  uint32_t tokens;
  uint64_t seed;
  double temperature; // 0 takes the likeliest token
  void (*drawn)(uint32_t token, void *context);
  void (*done)(const bl_error_t *err, void *context); // exactly once if bl_driver_generate returns BL_OK
  void *context;
} bl_generation_t;
// BL_PRECONDITION: the run is neither held nor finished, or another generation is under way; BL_INVALID: a prompt for
// a model whose tokens are not bytes.
BL_MUST_USE bl_status_t bl_driver_generate(bl_driver_t *driver, const bl_generation_t *generation, bl_error_t *err);
// Ends the generation of that context early; its `done` does not fire.
void bl_driver_generate_cancel(bl_driver_t *driver, const void *context);

// Operations of the last step of every stage. `done` fires once they are there (or the run has ended).
typedef struct bl_trace_record {
  char name[40];
  bl_trace_item_t item; // item.name points to name
} bl_trace_record_t;
typedef struct bl_stage_trace {
  bl_trace_record_t *records; // [count]
  size_t count, capacity;
} bl_stage_trace_t;
typedef void (*bl_driver_traced_fn)(const bl_stage_trace_t *traces, size_t stages, const bl_error_t *err,
                                    void *context);
void bl_driver_trace(bl_driver_t *driver, bl_driver_traced_fn done, void *context);
void bl_driver_trace_cancel(bl_driver_t *driver, const void *context);

// ---- looking at it --------------------------------------------------------------------------------------------------

const bl_journal_t *bl_driver_journal(const bl_driver_t *driver);

typedef struct bl_driver_view {
  const char *phase; // as in DriverStatusResponse
  bl_driver_id_t id;
  uint64_t step, steps;
  char waiting_for[BL_ERROR_TEXT_BYTES]; // "" when it waits for nothing
  uint64_t waiting_ns;
  const char *error; // "" unless failed
} bl_driver_view_t;
bl_driver_view_t bl_driver_look(const bl_driver_t *driver);

// What stage i is and has, from Configure and Connect; for the PlanEvent.
typedef struct bl_stage_view {
  const char *address;
  bool reachable;
  int64_t process;
  const bl_stage_place_t *place;
  const bl_path_share_t *paths;
  size_t path_count;
  const void *status; // StageStatusResponse as it came last, NULL when none yet
  size_t status_bytes;
  uint64_t status_age_ms; // since it came; 0 without one
} bl_stage_view_t;
size_t bl_driver_stage_count(const bl_driver_t *driver);
bl_stage_view_t bl_driver_stage(const bl_driver_t *driver, size_t stage);
const bl_stores_t *bl_driver_stores(const bl_driver_t *driver); // NULL: the job has none
const bl_job_t *bl_driver_job(const bl_driver_t *driver);
const bl_training_t *bl_driver_training(const bl_driver_t *driver);

typedef struct bl_policies_view {
  const bl_policy_history_t *history; // empty before the first plan
  const bl_holdings_t *holdings;      // of the policy in force; devices 0 before the first plan
  const char *order;                  // as in bl_balance_plan_t; NULL before the first plan
  size_t waiting;                     // changes that wait for a step boundary
  uint64_t plan_version;
  const char *decision;                       // of auto, for people; "" under any other policy
  const char (*reasons)[BL_AUTOMATIC_REASON]; // [devices] of it; NULL: nothing has been measured
} bl_policies_view_t;
bl_policies_view_t bl_driver_policies(const bl_driver_t *driver);
// Slots that a plan reserves at a store of the run (bl_job_store), for all ranks that use it.
uint32_t bl_driver_lent(const bl_driver_t *driver, const bl_holdings_t *holdings, size_t store);
// The recorder of the last commit, also of one that a driver before this one decided; 0: nobody.
uint64_t bl_driver_recorder(const bl_driver_t *driver);

#endif
