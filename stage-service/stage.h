// SPDX-License-Identifier: Apache-2.0
// One pipeline stage: its configuration, its plans, the running attempt, and the vote that it keeps. lib/step decides,
// the executor does the work on the compute thread, and this code connects the two.
//
//   bl_stage_create(loop, &options, &stage, err);
//   switch (bl_stage_run(stage, driver, &request, &err)) {
//   case BL_STAGE_REFUSE: ...   err says why; nothing changed
//   case BL_STAGE_ANSWER: ...   answer now
//   case BL_STAGE_WAIT:
//   case BL_STAGE_BEGIN: ...    answer when the observer's `ran` is called (`configured` for configure, ...)
//   }
//
// Thread: the loop's. Observer functions are called there, never from within the request that started the work.
#ifndef BALLAST_STAGE_SERVICE_STAGE_H
#define BALLAST_STAGE_SERVICE_STAGE_H

#include "executor/engine.h"
#include "executor/executor.h"
#include "loop/loop.h"
#include "loop/thread.h"
#include "parking/store_parking.h"
#include "saver.h"
#include "step/stage_step.h"

typedef struct bl_stage bl_stage_t;

typedef struct bl_stage_observer {
  void *context;
  // err->status is BL_OK when the work ended well.
  void (*configured)(void *context, const bl_error_t *err);
  void (*connected)(void *context, const bl_error_t *err);
  void (*prepared)(void *context, const bl_error_t *err);
  // bl_stage_vote returns the vote. An attempt that was undone is reported as BL_STAGE_DROP, after that.
  void (*ran)(void *context, bl_stage_outcome_t outcome, const bl_error_t *err);
  void (*committed)(void *context);
  void (*copied)(void *context);                         // of bl_stage_snapshot
  void (*written)(void *context, const bl_error_t *err); // of bl_stage_write
} bl_stage_observer_t;

typedef struct bl_stage_options {
  int64_t pod;               // number of this process in its set, BL_POD_NONE: none (pod.h)
  const char *unix_path;     // of the data path; NULL: none
  const char *tcp_host;      // of the data path; NULL: none
  const char *tcp_advertise; // NULL: tcp_host
  bl_tls_t *tls;             // of the data path on tcp; NULL: plaintext
  bool plaintext_ok;
  // Of the process: its completion-queue thread also serves stores. NULL: the stage creates one for them.
  struct bl_rpc *rpc;
  uint64_t rest_ms;        // silence of the driver after which slots at stores are released; 0: never
  int32_t gpu;             // as in bl_engine_options_t
  bool nccl_shared_gpu;    // as in bl_engine_options_t
  int32_t first_core;      // first core to pin the compute thread to; -1: do not pin
  const char *core_tokens; // file of the tokens for cores; NULL: none
  bl_stage_observer_t observer;
} bl_stage_options_t;

// Strings of the options are borrowed.
BL_MUST_USE bl_status_t bl_stage_create(bl_loop_t *loop, const bl_stage_options_t *options, bl_stage_t **stage,
                                        bl_error_t *err);
// Interrupts the running work and waits for it. No observer function is called any more. NULL is fine.
void bl_stage_destroy(bl_stage_t *stage);

// Notes a call of the driver. The functions below do; call it for others, because a driver may be held between two
// steps, or wait with a commit, and then asks for no more than the state.
void bl_stage_driven(bl_stage_t *stage);
bool bl_stage_takeover(bl_stage_t *stage, bl_driver_id_t driver, const char *run);
bl_stage_decision_t bl_stage_check(const bl_stage_t *stage, bl_driver_id_t driver, bl_error_t *err);
typedef struct bl_stage_configuration {
  const char *job; // canonical YAML
  bl_training_orders_t orders;
  uint32_t rank;
  const char *resume; // folder of a checkpoint to resume from; "": start from scratch
  uint64_t resume_digest;
  uint64_t digest; // of job, rank and resume_digest
} bl_stage_configuration_t;
// Strings are copied.
bl_stage_decision_t bl_stage_configure(bl_stage_t *stage, bl_driver_id_t driver,
                                       const bl_stage_configuration_t *configuration, bl_error_t *err);
// `peers` must hold every stage that this one exchanges tensors with. Sets their `notes_only`. They are copied.
bl_stage_decision_t bl_stage_connect(bl_stage_t *stage, bl_driver_id_t driver, bl_transport_peer_t *peers, size_t count,
                                     bl_path_t path, uint64_t deadline_ns, bl_error_t *err);
bl_stage_decision_t bl_stage_prepare(bl_stage_t *stage, bl_driver_id_t driver, const bl_executor_plan_request_t *plan,
                                     bl_error_t *err);

typedef struct bl_stage_run_request {
  bl_run_id_t id;
  bl_offer_t offer;       // lets a training attempt be applied before its commit (step/record.h); attempt 0: none
  uint64_t first_window;  // of training and of held-out data
  const uint32_t *tokens; // of a generation, like all that follows; copied
  uint32_t token_count;
  uint64_t draw_seed;
  double temperature;
} bl_stage_run_request_t;
bl_stage_decision_t bl_stage_run(bl_stage_t *stage, bl_driver_id_t driver, const bl_stage_run_request_t *request,
                                 bl_error_t *err);
bl_stage_decision_t bl_stage_commit(bl_stage_t *stage, bl_driver_id_t driver, const bl_commit_t *commit,
                                    bl_error_t *err);
bl_stage_decision_t bl_stage_abort(bl_stage_t *stage, bl_driver_id_t driver, uint64_t next, uint64_t attempt,
                                   bl_error_t *err);
// bl_stage_snapshot copies weights and optimizer as they are after `step`; bl_stage_write then writes the copy while
// steps run.
bl_stage_decision_t bl_stage_snapshot(bl_stage_t *stage, bl_driver_id_t driver, uint64_t step, bl_error_t *err);
bl_stage_decision_t bl_stage_write(bl_stage_t *stage, bl_driver_id_t driver, const bl_saver_request_t *request,
                                   bl_error_t *err);
// Drops everything of the job. Blocks for as long as freeing memory takes.
bl_stage_decision_t bl_stage_release(bl_stage_t *stage, bl_driver_id_t driver, bl_error_t *err);

// ---- views

// Whether this stage refused the plan of this version for good.
bool bl_stage_has_refused(const bl_stage_t *stage, uint64_t version);
const bl_stage_step_t *bl_stage_step(const bl_stage_t *stage);
bl_loop_thread_t *bl_stage_transfer(const bl_stage_t *stage); // the thread that moves tensors; may be shared
uint64_t bl_stage_incarnation(const bl_stage_t *stage);       // random, of this process
const bl_engine_t *bl_stage_engine(const bl_stage_t *stage);  // NULL while not configured
uint64_t bl_stage_resumed(const bl_stage_t *stage);           // digest of the checkpoint it resumed from, 0: none
const bl_saver_t *bl_stage_saver(const bl_stage_t *stage);
bool bl_stage_is_connected(const bl_stage_t *stage);
const bl_vote_t *bl_stage_vote(const bl_stage_t *stage);        // of `run`, while the step machine keeps it
const bl_vote_t *bl_stage_commit_vote(const bl_stage_t *stage); // of `last_commit`; loss_count 0 before the first
const bl_run_progress_t *bl_stage_progress(const bl_stage_t *stage);
// Sets *wait to what the run waits for at a store; false: nothing.
bool bl_stage_store_wait(const bl_stage_t *stage, bl_store_parking_wait_t *wait);
// The plan of the current or last run, or NULL.
const bl_executor_plan_t *bl_stage_running_plan(const bl_stage_t *stage);
// Counts stores that the plan parks at and that accept blocks now, by the path to them; 0 and 0 if nothing is parked.
void bl_stage_store_paths(const bl_stage_t *stage, uint32_t counts[BL_PATHS]);

#endif
