// SPDX-License-Identifier: Apache-2.0
// Private to the files of a stage: its state, and which file does what.
//
//   stage.c          creation, drivers, checkpoints, views
//   configuration.c  the engine: configure, release
//   peers.c          the data paths to other stages
//   plans.c          the plans that are kept, and the preparation of the next one
//   attempts.c       runs, commits, aborts
//
// Thread: the loop's, except for the functions of tasks that say otherwise.
#ifndef BALLAST_STAGE_SERVICE_STAGE_CORE_H
#define BALLAST_STAGE_SERVICE_STAGE_CORE_H

#include "stage.h"

#include "client/runtime.h"
#include "loop/timer.h"
#include "loop/worker.h"
#include "prepared.h"

#define BL__STAGE_PLANS ((size_t)BL_RUN_KINDS * BL_STAGE_PLANS) // what the step machine keeps

// A piece of work on the compute thread, and its outcome. The step machine allows one of each kind at a time.
typedef struct bl__work {
  bl_task_t task;
  bl_stage_t *stage;
  bl_error_t err;
} bl__work_t;

typedef struct bl__texts {
  char *job, *own, *other, *resume; // as in bl_stage_configuration_t
} bl__texts_t;

struct bl_stage {
  bl_stage_step_t step;
  bl_stage_options_t options;
  bl_loop_t *loop;
  bl_worker_t *worker;
  bl_loop_thread_t *transfer; // moves tensors
  uint64_t incarnation;
  bl_engine_t *engine;
  bool connected;
  bl_prepared_t *plans[BL__STAGE_PLANS];
  bl_prepared_t *retired[BL__STAGE_PLANS + 1]; // no longer in use; destroyed when nothing runs
  size_t retired_count;
  const bl_prepared_t *running_plan;
  bl_vote_t votes[3];
  bl_vote_t *vote, *ahead_vote, *commit_vote; // of step.run, of the attempt ahead of its commit, of step.last_commit

  bl__work_t configure;
  bl__texts_t texts;      // of the current configuration request
  uint64_t resume_digest; // of this request and the present configuration
  uint32_t rank;
  bl_engine_t *old_engine;  // freed before the new one is created
  bl_engine_t *made_engine; // from configure_work to configure_done

  bl__work_t prepare;
  bool preparing;
  bl_driver_id_t plan_driver;              // driver that requested it
  bl_timer_t *rest;                        // checks whether a driver still calls
  uint64_t driven_ms;                      // time of the last request of a driver
  bl_executor_plan_request_t plan_request; // csv is owned
  uint64_t plan_replaces;
  bl_prepared_t *made_plan;     // from prepare_work to prepare_done
  bl_reserving_t ahead;         // owned by the compute thread while a plan is being prepared
  bl_client_runtime_t *runtime; // for sessions with stores

  bl__work_t run;
  bl_run_t run_request;
  bl_vote_t *voting; // what the run fills in
  uint32_t *context; // tokens of a BL_RUN_GENERATE, [seq]
  bl_run_progress_t progress;

  bl__work_t commit, undo;
  bl_offer_t applies;    // attempt not 0: the run first applies the step before it with these numbers
  bl_error_t ahead_err;  // why the attempt ahead failed
  uint64_t ahead_failed; // number of that attempt; 0: none failed, or it was reported

  bl_saver_t *saver;

  bl_message_t connect_message; // from the data path's thread
  bl_error_t connect_error;
  bool connecting;
  uint64_t connect_since_ns;
  bool connect_dropped; // the pending connection belongs to a configuration that was dropped
};

// stage_core.c
bl_stage_decision_t bl__stage_refuse(bl_error_t *err, bl_status_t status, const char *text);

// configuration.c
void bl__configuration_init(bl_stage_t *stage);
void bl__texts_free(bl__texts_t *texts);
// Drops everything of a configuration except the engine.
void bl__configuration_drop(bl_stage_t *stage);

// peers.c
void bl__peers_init(bl_stage_t *stage);

// plans.c
void bl__plans_init(bl_stage_t *stage);
bl_prepared_t **bl__plans_find(bl_stage_t *stage, uint64_t version); // NULL: not kept
// Drops plans that the step machine no longer knows (it forgets an older one when a newer one runs).
void bl__plans_drop_forgotten(bl_stage_t *stage);
void bl__plans_drop(bl_stage_t *stage); // all
// Destroys dropped plans. Call it on the compute thread or while that thread is idle.
void bl__plans_retire(bl_stage_t *stage);
// Called when a run begins. Releases store slots that were being reserved for a plan that no driver has requested
// since.
void bl__plans_age(bl_stage_t *stage);

// attempts.c
void bl__attempts_init(bl_stage_t *stage);

#endif
