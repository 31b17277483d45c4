// SPDX-License-Identifier: Apache-2.0
// Drives one run: configures the stages, whatever they hold, for the job, runs steps, decides commits, validates on
// held-out data, generates text, and reports what happens. lib/step decides what may be requested of a stage and when;
// this makes the calls.
//
//   bl_driver_create(&options, &driver, err);
//   bl_driver_start(driver, address);
//   bl_loop_run(loop);                  // options.observer.ended fires once the run is over and may stop the loop
//   bl_driver_destroy(driver);
//
// A stage that is unreachable for BL_DRIVER_TIMEOUT_MS (6 s if its process exists but does not answer) is considered
// dead: the run ends, and the error names stage, address and cause.
//
// Thread: the loop's.
#ifndef BALLAST_DRIVER_DRIVER_H
#define BALLAST_DRIVER_DRIVER_H

#include "config/job.h"
#include "job/balance.h"
#include "job/checkpoint_claim.h"
#include "job/resume.h"
#include "job/training.h"
#include "policy/change.h"
#include "rpc/rpc.h"
#include "run_journal.h"
#include "simulate/automatic.h"
#include "stage_client_wire.h"
#include "step/driver_step.h"
#include "stores_wire.h"

#define BL_DRIVER_TIMEOUT_MS 3000
// Time for stages to come up before the run fails.
#define BL_DRIVER_ARRIVAL_MS 10000
// Attempts of a step that may fail on stages that stay alive. When the last of them fails, the run ends. After a cut a
// rank may learn only by sending that others have closed their connections to it, one in each attempt.
#define BL_DRIVER_ATTEMPTS_MIN 3
#define BL_DRIVER_ATTEMPTS_MAX 8
static inline uint32_t bl_driver_attempts(size_t ranks) {
  return ranks < BL_DRIVER_ATTEMPTS_MIN   ? BL_DRIVER_ATTEMPTS_MIN
         : ranks > BL_DRIVER_ATTEMPTS_MAX ? BL_DRIVER_ATTEMPTS_MAX
                                          : (uint32_t)ranks;
}

// The phase of a run before there is a driver for it.
#define BL_DRIVER_STARTING "starting"

typedef struct bl_driver bl_driver_t;
typedef struct bl_remote bl_remote_t;

typedef struct bl_driver_observer {
  void *context;
  // An event was added to the journal, or the state changed.
  void (*changed)(void *context);
  // Returns whether the next commit may be decided. If not, bl_driver_poke makes the driver call it again. NULL:
  // always. Sets *recorder to the watcher that keeps the run's record (0: none). The commit carries it to the stages.
  bool (*may_commit)(void *context, uint64_t *recorder);
  // The run is over: no more calls to stages.
  void (*ended)(int exit_code, void *context);
} bl_driver_observer_t;

typedef struct bl_driver_options {
  bl_rpc_t *rpc;
  const bl_job_t *job;           // borrowed; services.stages has one address per stage
  const bl_training_t *training; // borrowed
  const bl_resume_t *resume;     // borrowed; where to continue if the stages do not hold this job. NULL: from the start
  char *given_init; // borrowed; what model.init named before it was replaced (job/resume.h); NULL, "": it was not
  bl_checkpoint_claim_t *claim; // of the job's folder, taken by the caller before it read `resume`; NULL: not claimed
  bool start_over;              // if a stage has lost the run, all stages start over from `resume`, or from the start
  bool own_stages;              // end the stages' processes with the run
  bool linger;                  // stay after the last step until bl_driver_stop
  bl_driver_observer_t observer;
} bl_driver_options_t;

// BL_INVALID: services.stages does not fit pipeline.stages, or has an invalid address.
BL_MUST_USE bl_status_t bl_driver_create(const bl_driver_options_t *options, bl_driver_t **driver, bl_error_t *err);
// `address`: where the driver is served, for stages and stores that relay requests; borrowed, "": nowhere.
void bl_driver_start(bl_driver_t *driver, const char *address);
void bl_driver_destroy(bl_driver_t *driver); // NULL is fine

// ---- control --------------------------------------------------------------------------------------------------------

// Continues with what is possible now. Call it when an observer that returned false would return true.
void bl_driver_poke(bl_driver_t *driver);
// Holds the run at the next step boundary, or continues it. `held` (may be NULL) fires when the run is held or has
// ended, and at once when it continues.
typedef void (*bl_driver_held_fn)(uint64_t step, void *context);
void bl_driver_pause(bl_driver_t *driver, bool paused, bl_driver_held_fn held, void *context);
// Ends the run at the next step boundary, with a checkpoint of the last step if the job has a folder for them. The exit
// code is 0 if all steps are done, otherwise 130. If steps are left, stages that are not owned keep the job, so that it
// can be continued. Before the first step of this driver, steps that the stages hold of a predecessor are saved too, if
// the takeover has begun.
void bl_driver_stop(bl_driver_t *driver);
// For a process that ends without waiting for a boundary: answers all callers, and begins nothing any more. `ended`
// does not follow.
void bl_driver_abandon(bl_driver_t *driver);

// Takes a checkpoint at the next step boundary. If this returns BL_OK, `done` fires exactly once: with the folder when
// it is committed, or with the error. BL_PRECONDITION: the job has no checkpoint.folder, no step was made, or the run
// has ended.
typedef void (*bl_driver_saved_fn)(uint64_t step, const char *folder, const bl_error_t *err, void *context);
BL_MUST_USE bl_status_t bl_driver_checkpoint(bl_driver_t *driver, bl_driver_saved_fn done, void *context,
                                             bl_error_t *err);

typedef struct bl_policy_answer {
  const bl_policy_record_t *record; // in force on all stages from its from_step on; of a dry run version and step are 0
  bool unchanged;                   // it was already in force
  const bl_device_slots_t *device_slots; // slots that it needs of the devices; NULL if another one is in force by now
  const char *order;                     // as in bl_balance_plan_t; NULL with no device slots
} bl_policy_answer_t;
typedef void (*bl_driver_policy_fn)(const bl_policy_answer_t *answer, const bl_error_t *err, void *context);
// Puts a policy in force at the next step boundary (policy/change.h); `begun` of the request is ignored. `done` fires
// exactly once, perhaps before this returns: with the policy when all stages have prepared it, or with the error, which
// names what refused it and why. Then the policy before stays in force.
void bl_driver_set_policy(bl_driver_t *driver, const bl_policy_request_t *request, bl_driver_policy_fn done,
                          void *context);

typedef struct bl_sampling {
  const uint8_t *prompt; // copied; bytes are tokens. Empty: the first tokens of the held-out data, else of training
  size_t prompt_bytes;
  uint32_t tokens;
  uint64_t seed;
  double temperature; // 0: the likeliest token
  void (*drawn)(uint32_t token, void *context);
  void (*done)(const bl_error_t *err, void *context); // exactly once if bl_driver_generate returns BL_OK
  void *context;
} bl_sampling_t;
// BL_PRECONDITION: the run is neither held nor finished, or another generation is in progress; BL_INVALID: no tokens
// requested, a prompt for a model whose tokens are not bytes, or a byte that is not in the vocabulary.
// `done` gets BL_PRECONDITION if the run continues before the last token.
BL_MUST_USE bl_status_t bl_driver_generate(bl_driver_t *driver, const bl_sampling_t *sampling, bl_error_t *err);
// Ends the generation of that context early; its `done` does not fire.
void bl_driver_generate_cancel(bl_driver_t *driver, const void *context);

// Collects the operations of the last step of every stage. `done` fires when they have arrived, or the run has ended.
typedef struct bl_stage_trace {
  bl_trace_event_t *events; // [count]
  size_t count, capacity;
} bl_stage_trace_t;
typedef void (*bl_driver_traced_fn)(const bl_stage_trace_t *traces, size_t stages, const bl_error_t *err,
                                    void *context);
void bl_driver_trace(bl_driver_t *driver, bl_driver_traced_fn done, void *context);
void bl_driver_trace_cancel(bl_driver_t *driver, const void *context);

// ---- views ----------------------------------------------------------------------------------------------------------

const bl_run_journal_t *bl_driver_journal(const bl_driver_t *driver);

typedef struct bl_driver_view {
  const char *phase; // as in DriverStatusResponse
  bl_driver_id_t id;
  uint64_t step, steps;
  char waiting_for[BL_ERROR_TEXT_BYTES]; // "" when it waits for nothing
  uint64_t waiting_ns;
  const char *error; // "" unless failed
} bl_driver_view_t;
bl_driver_view_t bl_driver_look(const bl_driver_t *driver);

// Addresses, memory and paths of stage i, from Configure and Connect; for the PlanEvent.
typedef struct bl_stage_view {
  const char *address;
  bool reachable;
  int64_t process;
  const bl_stage_place_t *place;
  const bl_path_share_t *paths;
  size_t path_count;
  const void *status; // last StageStatusResponse received, NULL: none yet
  size_t status_bytes;
  uint64_t status_age_ms; // since it was received; 0 without one
} bl_stage_view_t;
size_t bl_driver_stage_count(const bl_driver_t *driver);
bl_stage_view_t bl_driver_stage(const bl_driver_t *driver, size_t stage);
const bl_stores_t *bl_driver_stores(const bl_driver_t *driver); // NULL: the job has none
const bl_job_t *bl_driver_job(const bl_driver_t *driver);
const bl_training_t *bl_driver_training(const bl_driver_t *driver);
// Returns the folder to which the run has moved checkpoints of an earlier one, "" if there were none.
const char *bl_driver_set_aside(const bl_driver_t *driver);

typedef struct bl_policies_view {
  const bl_policy_history_t *history;    // empty before the first plan
  const bl_device_slots_t *device_slots; // of the policy in force; devices 0 before the first plan
  const char *order;                     // as in bl_balance_plan_t; NULL before the first plan
  size_t waiting;                        // changes that wait for a step boundary
  uint64_t plan_version;
  const char *decision;                       // of auto, for people; "" under any other policy
  const char (*reasons)[BL_AUTOMATIC_REASON]; // [devices] of the decision; NULL: nothing has been measured
} bl_policies_view_t;
bl_policies_view_t bl_driver_policies(const bl_driver_t *driver);
// Returns the slots that a plan reserves at a store of the run (bl_job_store), for all ranks that use it.
uint32_t bl_driver_lent(const bl_driver_t *driver, const bl_device_slots_t *device_slots, size_t store);
// Returns the recorder of the last commit, even of one that the driver before this one decided; 0: none.
uint64_t bl_driver_recorder(const bl_driver_t *driver);

#endif
