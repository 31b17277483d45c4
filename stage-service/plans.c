// SPDX-License-Identifier: Apache-2.0
#include "stage_core.h"

#include "sys/log.h"

#include <stdlib.h>
#include <string.h>

#define AHEAD_RUNS 2 // a driver that still wants a plan requests it again at every boundary

// ---- kept and dropped

void bl__plans_retire(bl_stage_t *stage) {
  for (size_t i = 0; i < stage->retired_count; i++) {
    bl_prepared_destroy(stage->retired[i]);
  }
  stage->retired_count = 0;
}

static void retire(bl_stage_t *stage, bl_prepared_t **place) {
  if (*place == NULL) {
    return;
  }
  if (stage->running_plan == *place) {
    stage->running_plan = NULL;
    if (stage->engine != NULL) {
      stage->engine->parking = NULL; // an interrupt would still use it
    }
  }
  if (stage->retired_count == sizeof stage->retired / sizeof stage->retired[0]) {
    bl__plans_retire(stage); // cannot happen: each run and each prepared plan empties the list
  }
  stage->retired[stage->retired_count++] = *place;
  *place = NULL;
}

void bl__plans_drop(bl_stage_t *stage) {
  for (size_t i = 0; i < BL__STAGE_PLANS; i++) {
    retire(stage, &stage->plans[i]);
  }
  bl_reserving_drop(&stage->ahead);
}

void bl__plans_age(bl_stage_t *stage) {
  if (stage->ahead.parking != NULL && ++stage->ahead.runs > AHEAD_RUNS) {
    bl_reserving_drop(&stage->ahead);
  }
}

bl_prepared_t **bl__plans_find(bl_stage_t *stage, uint64_t version) {
  for (size_t i = 0; i < BL__STAGE_PLANS; i++) {
    if (stage->plans[i] != NULL && stage->plans[i]->plan->version == version) {
      return &stage->plans[i];
    }
  }
  return NULL;
}

static void drop_plan(bl_stage_t *stage, uint64_t version) {
  bl_prepared_t **place = version == 0 ? NULL : bl__plans_find(stage, version);
  if (place != NULL) {
    retire(stage, place);
  }
}

static bl_prepared_t **free_place(bl_stage_t *stage) {
  for (size_t i = 0; i < BL__STAGE_PLANS; i++) {
    if (stage->plans[i] == NULL) {
      return &stage->plans[i];
    }
  }
  return NULL;
}

void bl__plans_drop_forgotten(bl_stage_t *stage) {
  for (size_t i = 0; i < BL__STAGE_PLANS; i++) {
    bool known = stage->plans[i] == NULL;
    for (size_t k = 0; k < BL__STAGE_PLANS && !known; k++) {
      known = stage->step.plans[k / BL_STAGE_PLANS][k % BL_STAGE_PLANS].version == stage->plans[i]->plan->version;
    }
    if (!known) {
      retire(stage, &stage->plans[i]);
    }
  }
}

// ---- the next plan

static void prepare_work(bl_task_t *task) {
  bl_stage_t *stage = BL_TASK_OWNER(task, bl__work_t, task)->stage;
  bl__work_t *work = &stage->prepare;
  bl_error_clear(&work->err);
  bl__plans_retire(stage);
  work->err.status = bl_prepared_create(stage->engine, &stage->plan_request, &stage->ahead, stage->runtime,
                                        &stage->made_plan, &work->err);
}

static void prepare_done(bl_task_t *task) {
  bl_stage_t *stage = BL_TASK_OWNER(task, bl__work_t, task)->stage;
  const bl_executor_plan_request_t *request = &stage->plan_request;
  bl_error_t *err = &stage->prepare.err;
  stage->preparing = false;
  if (!bl_driver_id_equal(stage->plan_driver, stage->step.driver)) {
    // Another driver has taken over meanwhile and was sent the plans prepared here. They must not change without its
    // knowledge.
    retire(stage, &stage->made_plan);
    (void)bl__stage_refuse(err, BL_EXHAUSTED, "the driver that asked for this plan was replaced: ask again");
  } else if (err->status == BL_OK) {
    drop_plan(stage, stage->plan_replaces);
    bl_prepared_t **place = free_place(stage);
    if (place == NULL) {
      (void)bl__stage_refuse(err, BL_INTERNAL, "more plans are kept than the step protocol allows");
      bl_prepared_destroy(stage->made_plan);
    } else {
      *place = stage->made_plan;
      bl_plan_record_t record = {.version = request->version,
                                 .digest = request->digest,
                                 .policy = request->policy,
                                 .follows = request->follows};
      bl_stage_step_plan_installed(&stage->step, request->kind, record);
      bl__plans_drop_forgotten(stage);
    }
    stage->made_plan = NULL;
  } else {
    bl_log(err->status == BL_DEADLINE ? BL_LOG_INFO : BL_LOG_WARNING, "plan %lu: %s", request->version, err->text);
    bl_stage_step_plan_refused(&stage->step, request->version);
  }
  free((char *)(uintptr_t)stage->plan_request.csv);
  stage->plan_request.csv = NULL;
  if (stage->options.observer.prepared != NULL) {
    stage->options.observer.prepared(stage->options.observer.context, err);
  }
}

void bl__plans_init(bl_stage_t *stage) {
  stage->prepare.stage = stage;
  bl_task_init(&stage->prepare.task, prepare_work, prepare_done);
}

bl_stage_decision_t bl_stage_prepare(bl_stage_t *stage, bl_driver_id_t driver, const bl_executor_plan_request_t *plan,
                                     bl_error_t *err) {
  bl_stage_driven(stage);
  uint64_t replaces = 0;
  bl_plan_record_t record = {
      .version = plan->version, .digest = plan->digest, .policy = plan->policy, .follows = plan->follows};
  bl_stage_decision_t decision = bl_stage_step_plan(&stage->step, driver, plan->kind, record, &replaces, err);
  if (decision != BL_STAGE_BEGIN) {
    return decision;
  }
  if (stage->preparing) {
    const bl_executor_plan_request_t *now = &stage->plan_request;
    bool same = now->version == plan->version && now->digest == plan->digest && now->kind == plan->kind;
    return same ? BL_STAGE_WAIT : bl__stage_refuse(err, BL_EXHAUSTED, "another plan is being prepared: ask again");
  }
  char *csv = strndup(plan->csv, plan->csv_bytes);
  if (csv == NULL) {
    return bl__stage_refuse(err, BL_EXHAUSTED, "no memory for a plan");
  }
  bl_prepared_t **before = bl__plans_find(stage, plan->follows);
  stage->ahead.steady_slots = before != NULL ? (*before)->own_slots : 0;
  stage->ahead.runs = 0;
  stage->plan_request = *plan;
  stage->plan_request.csv = csv;
  stage->plan_replaces = replaces;
  stage->plan_driver = driver;
  stage->preparing = true;
  bl_worker_submit(stage->worker, &stage->prepare.task);
  return BL_STAGE_BEGIN;
}
