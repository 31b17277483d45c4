// SPDX-License-Identifier: Apache-2.0
#include "step/driver_step.h"

#include <inttypes.h>
#include <string.h>

static void enter(bl_driver_step_t *step, bl_driver_phase_t phase) {
  step->phase = phase;
  for (size_t i = 0; i < step->stage_count; i++) {
    step->peers[i].answered = false;
  }
}

static void end(bl_driver_step_t *step, bl_driver_end_t why, size_t stage) {
  if (step->phase != BL_DRIVER_ENDED) {
    step->phase = BL_DRIVER_ENDED;
    step->end = why;
    step->end_stage = stage;
  }
}

// Records the answer of `stage`. Returns true if it was the last one awaited.
static bool answer(bl_driver_step_t *step, size_t stage) {
  step->peers[stage].answered = true;
  for (size_t i = 0; i < step->stage_count; i++) {
    if (!step->peers[i].answered) {
      return false;
    }
  }
  return true;
}

void bl_driver_step_init(bl_driver_step_t *step, bl_driver_id_t id, bl_driver_peer_t *peers, size_t stage_count) {
  *step = (bl_driver_step_t){.id = id, .peers = peers, .stage_count = stage_count};
  memset(peers, 0, stage_count * sizeof *peers);
  enter(step, BL_DRIVER_TAKEOVER);
}

// ---- requests ------------------------------------------------------------------------------------------------------

bl_driver_request_t bl_driver_step_request(const bl_driver_step_t *step, size_t stage) {
  const bl_driver_peer_t *peer = &step->peers[stage];
  bl_driver_request_t request = {.kind = BL_DRIVER_REQUEST_NONE, .driver = step->id};
  if (peer->answered) {
    return request;
  }
  switch (step->phase) {
  case BL_DRIVER_TAKEOVER:
    request.kind = BL_DRIVER_REQUEST_TAKEOVER;
    break;
  case BL_DRIVER_ABORTING:
    request.kind = BL_DRIVER_REQUEST_ABORT;
    request.next = peer->report.applied + 1;
    request.attempt = step->highest_attempt;
    break;
  case BL_DRIVER_PREPARING:
    request.kind = BL_DRIVER_REQUEST_PREPARE;
    request.plan = step->proposal;
    request.run.kind = step->proposal_kind;
    break;
  case BL_DRIVER_RUNNING:
    request.kind = BL_DRIVER_REQUEST_RUN;
    request.run = step->run;
    request.offer = step->offer;
    break;
  case BL_DRIVER_COMMITTING:
    request.kind = BL_DRIVER_REQUEST_COMMIT;
    request.commit = step->commit;
    break;
  case BL_DRIVER_DECIDING:
  case BL_DRIVER_BOUNDARY:
  case BL_DRIVER_ENDED:
    break;
  }
  return request;
}

bool bl_driver_request_equal(const bl_driver_request_t *a, const bl_driver_request_t *b) {
  if (a->kind != b->kind || !bl_driver_id_equal(a->driver, b->driver)) {
    return false;
  }
  switch (a->kind) {
  case BL_DRIVER_REQUEST_PREPARE:
    return a->plan.version == b->plan.version;
  case BL_DRIVER_REQUEST_RUN:
    return a->run.attempt == b->run.attempt && a->run.step == b->run.step && a->run.kind == b->run.kind;
  case BL_DRIVER_REQUEST_COMMIT:
    return bl_commit_equal(&a->commit, &b->commit);
  case BL_DRIVER_REQUEST_ABORT:
    return a->next == b->next && a->attempt == b->attempt;
  case BL_DRIVER_REQUEST_NONE:
  case BL_DRIVER_REQUEST_TAKEOVER:
    break;
  }
  return true;
}

// ---- what a predecessor left ---------------------------------------------------------------------------------------

// The stages that have this job's configuration ("ours"), and how far they are.
typedef struct survey {
  size_t ours;
  size_t stranger;    // a stage without this job's configuration, if any
  size_t first, last; // ours with the maximum and the minimum of applied steps
  bool begun;         // one of ours has committed a step since it was configured
} survey_t;

static survey_t survey(const bl_driver_step_t *step) {
  survey_t found = {0};
  for (size_t i = 0; i < step->stage_count; i++) {
    const bl_stage_report_t *report = &step->peers[i].report;
    if (!report->ours) {
      found.stranger = i;
      continue;
    }
    if (found.ours == 0 || report->applied > step->peers[found.first].report.applied) {
      found.first = i;
    }
    if (found.ours == 0 || report->applied < step->peers[found.last].report.applied) {
      found.last = i;
    }
    found.begun = found.begun || report->last_commit.step > 0;
    found.ours++;
  }
  return found;
}

// Whether every stage keeps a vote for the same attempt at `next`.
static bool all_prepared(const bl_driver_step_t *step, uint64_t next) {
  for (size_t i = 0; i < step->stage_count; i++) {
    const bl_stage_report_t *report = &step->peers[i].report;
    if (!report->prepared || report->run.step != next || report->run.attempt != step->peers[0].report.run.attempt) {
      return false;
    }
  }
  return true;
}

static const bl_plan_record_t *find_plan(const bl_stage_report_t *report, const bl_plan_record_t *plan) {
  for (size_t i = 0; i < BL_STAGE_PLANS; i++) {
    const bl_plan_record_t *kept = &report->plans[i];
    if (kept->version == plan->version && kept->digest == plan->digest && kept->policy == plan->policy) {
      return kept;
    }
  }
  return NULL;
}

static bool all_keep(const bl_driver_step_t *step, const bl_plan_record_t *plan) {
  for (size_t i = 0; i < step->stage_count; i++) {
    if (find_plan(&step->peers[i].report, plan) == NULL) {
      return false;
    }
  }
  return true;
}

// Sets the plan in force: the newest that all stages keep.
static void recover_plan(bl_driver_step_t *step) {
  for (size_t i = 0; i < BL_STAGE_PLANS; i++) {
    const bl_plan_record_t *plan = &step->peers[0].report.plans[i];
    if (plan->version > step->plans[BL_RUN_TRAIN].version && all_keep(step, plan)) {
      step->plans[BL_RUN_TRAIN] = *plan;
    }
  }
}

static void abort_or_rest(bl_driver_step_t *step) {
  enter(step, step->highest_attempt == 0 ? BL_DRIVER_BOUNDARY : BL_DRIVER_ABORTING);
}

// Decides what follows when all stages have applied the same number of steps.
static void recover_level(bl_driver_step_t *step, uint64_t applied) {
  const bl_commit_t *record = &step->peers[0].report.last_commit;
  for (size_t i = 1; i < step->stage_count; i++) {
    if (applied > 0 && !bl_commit_equal(&step->peers[i].report.last_commit, record)) {
      end(step, BL_DRIVER_END_DIVERGED, i);
      return;
    }
  }
  step->applied = applied;
  step->commit = applied > 0 ? *record : (bl_commit_t){0};
  if (all_prepared(step, applied + 1)) {
    step->run = step->peers[0].report.run;
    for (size_t i = 0; i < step->stage_count; i++) { // one offer for all
      const bl_offer_t *ahead = &step->peers[i].report.ahead;
      step->offer = ahead->attempt != 0 ? *ahead : step->offer;
    }
    step->sweeps = step->highest_attempt > step->run.attempt;
    enter(step, BL_DRIVER_DECIDING);
  } else {
    abort_or_rest(step);
  }
}

// `stage` has lost what other stages have committed: ends the run, or lets all stages start over.
static void lose(bl_driver_step_t *step, size_t stage) {
  if (!step->may_start_over) {
    end(step, BL_DRIVER_END_LOST, stage);
    return;
  }
  step->starts_over = true;
  step->end_stage = stage;
  abort_or_rest(step);
}

// Stage `first` has applied a step that other stages have not. They must hold its vote, and are to apply its record.
static void recover_ahead(bl_driver_step_t *step, size_t first) {
  bl_commit_t record = step->peers[first].report.last_commit;
  for (size_t i = 0; i < step->stage_count; i++) {
    const bl_stage_report_t *report = &step->peers[i].report;
    if (report->applied == record.step) {
      if (!bl_commit_equal(&report->last_commit, &record)) {
        end(step, BL_DRIVER_END_DIVERGED, i);
        return;
      }
    } else if (!report->prepared || report->run.step != record.step || report->run.attempt != record.attempt) {
      lose(step, i);
      return;
    }
  }
  step->applied = record.step - 1;
  step->commit = record;
  step->sweeps = step->highest_attempt > record.attempt;
  enter(step, BL_DRIVER_COMMITTING);
}

static void recover(bl_driver_step_t *step) {
  for (size_t i = 0; i < step->stage_count; i++) {
    uint64_t attempt = step->peers[i].report.highest_attempt, plan = step->peers[i].report.plan_version;
    step->highest_attempt = attempt > step->highest_attempt ? attempt : step->highest_attempt;
    step->plan_version = plan > step->plan_version ? plan : step->plan_version;
  }
  survey_t found = survey(step);
  uint64_t most = found.ours > 0 ? step->peers[found.first].report.applied : 0;
  uint64_t least = found.ours > 0 ? step->peers[found.last].report.applied : 0;
  if (found.ours < step->stage_count) {
    step->applied = most;
    if (found.begun) {
      lose(step, found.stranger);
    } else {
      abort_or_rest(step); // a job that has not begun: the shell configures the stages that lack it
    }
    return;
  }
  recover_plan(step);
  if (most == least) {
    recover_level(step, most);
  } else {
    recover_ahead(step, found.first);
  }
}

// ---- answers -------------------------------------------------------------------------------------------------------

void bl_driver_step_taken(bl_driver_step_t *step, size_t stage, uint64_t epoch, bool accepted,
                          const bl_stage_report_t *report) {
  if (step->phase != BL_DRIVER_TAKEOVER || epoch != step->id.epoch || step->peers[stage].answered) {
    return;
  }
  if (!accepted) {
    step->id.epoch = (report->epoch > epoch ? report->epoch : epoch) + 1;
    enter(step, BL_DRIVER_TAKEOVER);
    return;
  }
  step->peers[stage].report = *report;
  if (answer(step, stage)) {
    recover(step);
  }
}

void bl_driver_step_prepared(bl_driver_step_t *step, size_t stage, uint64_t version) {
  if (step->phase == BL_DRIVER_PREPARING && version == step->proposal.version && answer(step, stage)) {
    step->plans[step->proposal_kind] = step->proposal;
    enter(step, BL_DRIVER_BOUNDARY);
  }
}

void bl_driver_step_plan_refused(bl_driver_step_t *step, size_t stage, uint64_t version) {
  if (step->phase == BL_DRIVER_PREPARING && version == step->proposal.version && !step->peers[stage].answered) {
    step->proposal_refused = true;
    step->refuser = stage;
    enter(step, BL_DRIVER_BOUNDARY);
  }
}

void bl_driver_step_voted(bl_driver_step_t *step, size_t stage, uint64_t attempt) {
  if (step->phase == BL_DRIVER_RUNNING && attempt == step->run.attempt && answer(step, stage)) {
    step->phase = BL_DRIVER_DECIDING;
  }
}

void bl_driver_step_run_failed(bl_driver_step_t *step, size_t stage, uint64_t attempt) {
  (void)stage;
  if (step->phase == BL_DRIVER_RUNNING && attempt == step->run.attempt) {
    bl_driver_step_abort(step);
  }
}

void bl_driver_step_committed(bl_driver_step_t *step, size_t stage, uint64_t committed_step) {
  if (step->phase != BL_DRIVER_COMMITTING || committed_step != step->commit.step) {
    return;
  }
  step->peers[stage].report.applied = committed_step;
  if (answer(step, stage)) {
    step->applied = committed_step;
    if (step->sweeps) {
      bl_driver_step_abort(step);
    } else {
      enter(step, BL_DRIVER_BOUNDARY);
    }
  }
}

void bl_driver_step_aborted(bl_driver_step_t *step, size_t stage, uint64_t attempt) {
  if (step->phase == BL_DRIVER_ABORTING && attempt == step->highest_attempt && answer(step, stage)) {
    enter(step, BL_DRIVER_BOUNDARY);
  }
}

void bl_driver_step_refused(bl_driver_step_t *step, size_t stage, const bl_driver_request_t *request,
                            bl_status_t status) {
  if (step->phase == BL_DRIVER_TAKEOVER || !bl_driver_id_equal(request->driver, step->id)) {
    return;
  }
  if (status == BL_FENCED) {
    end(step, BL_DRIVER_END_FENCED, stage);
    return;
  }
  bl_driver_request_t asked = bl_driver_step_request(step, stage);
  if (!bl_driver_request_equal(&asked, request)) {
    return;
  }
  if (request->kind == BL_DRIVER_REQUEST_PREPARE) {
    bl_driver_step_plan_refused(step, stage, request->plan.version);
  } else if (request->kind == BL_DRIVER_REQUEST_RUN) {
    bl_driver_step_abort(step);
  } else if (request->kind != BL_DRIVER_REQUEST_NONE) {
    end(step, BL_DRIVER_END_LOST, stage); // the stage no longer has what this driver saw there
  }
}

// ---- what the shell chooses ----------------------------------------------------------------------------------------

void bl_driver_step_prepare(bl_driver_step_t *step, bl_run_kind_t kind, uint64_t digest, uint64_t policy) {
  step->plan_version++;
  step->proposal = (bl_plan_record_t){
      .version = step->plan_version, .digest = digest, .policy = policy, .follows = step->plans[kind].version};
  step->proposal_kind = kind;
  step->proposal_refused = false;
  enter(step, BL_DRIVER_PREPARING);
}

void bl_driver_step_run(bl_driver_step_t *step, bl_run_kind_t kind) {
  bool offered = step->offer.attempt != 0; // stages have begun this attempt
  step->highest_attempt += !offered;
  step->run = (bl_run_id_t){.kind = kind,
                            .step = step->applied + (kind == BL_RUN_TRAIN ? 1 : 0),
                            .attempt = step->highest_attempt,
                            .plan_version = step->plans[kind].version};
  step->offer = (bl_offer_t){0};
  enter(step, BL_DRIVER_RUNNING);
}

void bl_driver_step_run_on(bl_driver_step_t *step, double scale, double learning_rate) {
  bl_driver_step_run(step, BL_RUN_TRAIN);
  step->highest_attempt++;
  step->offer = (bl_offer_t){.attempt = step->highest_attempt, .scale = scale, .learning_rate = learning_rate};
}

bool bl_driver_step_commit(bl_driver_step_t *step, double scale, double learning_rate) {
  if (step->offer.attempt != 0 && !bl_offer_is_met(&step->offer, scale, learning_rate)) {
    bl_driver_step_abort(step);
    return false;
  }
  step->commit = (bl_commit_t){.step = step->run.step,
                               .attempt = step->run.attempt,
                               .scale = scale,
                               .learning_rate = learning_rate,
                               .recorder = step->recorder};
  enter(step, BL_DRIVER_COMMITTING);
  return true;
}

void bl_driver_step_close(bl_driver_step_t *step) {
  enter(step, BL_DRIVER_BOUNDARY);
}

void bl_driver_step_abort(bl_driver_step_t *step) {
  step->offer = (bl_offer_t){0};
  step->sweeps = false;
  enter(step, BL_DRIVER_ABORTING);
}

void bl_driver_step_reset(bl_driver_step_t *step, uint64_t applied) {
  step->applied = applied;
  step->commit = (bl_commit_t){0};
  step->offer = (bl_offer_t){0};
  memset(step->plans, 0, sizeof step->plans);
  for (size_t i = 0; i < step->stage_count; i++) {
    bl_stage_report_t fresh = {
        .ours = true, .epoch = step->id.epoch, .applied = applied, .highest_attempt = step->highest_attempt};
    step->peers[i].report = fresh;
  }
}

bl_status_t bl_driver_step_explain(const bl_driver_step_t *step, const char *name, bl_error_t *err) {
  switch (step->end) {
  case BL_DRIVER_END_FENCED:
    return bl_error_set(err, BL_FENCED, "%s follows a newer driver than epoch %" PRIu64 ": this one ends", name,
                        step->id.epoch);
  case BL_DRIVER_END_LOST:
    return bl_error_set(err, BL_DATA_LOSS,
                        "%s no longer has the state of this run (it was restarted), others have applied step "
                        "%" PRIu64 ": restart from a checkpoint, or restart all stages to start from the beginning",
                        name, step->applied);
  case BL_DRIVER_END_DIVERGED:
    return bl_error_set(err, BL_INTERNAL,
                        "%s applied another update than the first: the stages do not belong to one run; restart "
                        "all of them, from a checkpoint if there is one",
                        name);
  case BL_DRIVER_END_NONE:
    break;
  }
  return BL_OK;
}
