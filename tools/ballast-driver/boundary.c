// SPDX-License-Identifier: Apache-2.0
#include "driver_core.h"

#include "base/minmax.h"
#include "base/random.h"
#include "base/words.h"
#include "job/rate.h"
#include "sys/clock.h"
#include "sys/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROMPT_TOKENS 16  // of the data, where no prompt is given
#define AHEAD_SHARE   0.9 // of train.clip: where the norm was above, the next one may be clipped

// ---- deciding ------------------------------------------------------------------------------------------------------

// The ballots of all stages for the attempt, borrowed: the vote, or what the last commit kept of it.
static const bl_ballot_t *ballots_of(bl_driver_t *driver, uint64_t attempt) {
  for (size_t i = 0; i < driver->stage_count; i++) {
    const bl_remote_t *stage = &driver->stages[i];
    if (stage->vote.attempt == attempt) {
      driver->ballots[i] = stage->vote;
    } else if (stage->last_vote.attempt == attempt) {
      driver->ballots[i] = stage->last_vote;
    } else {
      return NULL;
    }
  }
  return driver->ballots;
}

static bl_status_t count_votes(bl_driver_t *driver, uint64_t attempt, bl_tally_t *tally, bl_error_t *err) {
  const bl_ballot_t *ballots = ballots_of(driver, attempt);
  if (ballots == NULL) {
    return bl_error_set(err, BL_INTERNAL, "attempt %" PRIu64 ": a vote is missing", attempt);
  }
  return bl_tally_count(ballots, driver->stage_count, driver->options.training->schedule->micro_batches,
                        driver->parameter_count, driver->squares, tally, err);
}

static void report_step(bl_driver_t *driver);

static void decide_training(bl_driver_t *driver) {
  // A predecessor may have left an attempt to decide and, before it, a step that nobody was told of: once this one is
  // applied, the stages no longer know that one.
  report_step(driver);
  bl_tally_t tally = {0};
  if (count_votes(driver, driver->step.run.attempt, &tally, &driver->failure) != BL_OK) {
    driver->fatal = true;
    bl_driver_step_abort(&driver->step);
    return;
  }
  if (driver->options.observer.may_commit != NULL &&
      !driver->options.observer.may_commit(driver->options.observer.context, &driver->step.recorder)) {
    return;
  }
  const bl_job_t *job = driver->options.job;
  uint64_t step = driver->step.run.step;
  driver->norm = tally.grad_norm;
  driver->again = !bl_driver_step_commit(&driver->step, bl_clip_scale(job->train.clip, tally.grad_norm),
                                         bl_rate_of_step(job, step));
  if (driver->again) {
    bl_log(BL_LOG_INFO,
           "step %" PRIu64
           ": its gradients (norm %.6g) are to be clipped to %.6g, stages have applied them as they are: "
           "that is taken back and the step run again",
           step, tally.grad_norm, job->train.clip);
  }
}

static void decide_validation(bl_driver_t *driver) {
  const bl_job_t *job = driver->options.job;
  uint64_t windows = driver->options.training->dataset.validation_windows;
  windows = windows < BL_DRIVER_VALIDATION_WINDOWS ? windows : BL_DRIVER_VALIDATION_WINDOWS;
  uint64_t wanted = windows / (uint64_t)job->train.micro_batch; // micro-batches
  wanted = wanted == 0 ? 1 : wanted;
  for (size_t s = 0; s < driver->stage_count; s++) {
    const bl_ballot_t *vote = &driver->stages[s].vote;
    for (size_t i = 0; i < vote->loss_count && driver->windows_seen < wanted; i++) {
      driver->validation_sum += vote->losses[i];
      driver->windows_seen++;
    }
  }
  bl_driver_step_close(&driver->step);
  if (driver->windows_seen < wanted) {
    return;
  }
  driver->validating = false;
  driver->validated = driver->step.applied;
  bl_validation_event_t event = {.step = driver->step.applied,
                                 .loss = driver->validation_sum / (double)wanted,
                                 .tokens =
                                     wanted * (uint64_t)job->train.micro_batch * driver->options.training->model.seq};
  bl_journal_add_validation(&driver->journal, &event);
  driver->options.observer.changed(driver->options.observer.context);
}

static void decide_generation(bl_driver_t *driver) {
  const bl_schedule_t *schedule = driver->options.training->schedule;
  uint32_t head = schedule->stage_of[bl_schedule_depth(schedule) - 1];
  uint32_t token = driver->stages[head].token;
  bl_driver_step_close(&driver->step);
  driver->drawing = false;
  if (!driver->generating) {
    return; // whoever asked for it has gone
  }
  uint32_t seq = driver->options.training->model.seq;
  if (driver->context_count == seq) {
    memmove(driver->context, driver->context + 1, (seq - 1) * sizeof *driver->context);
    driver->context_count--;
  }
  driver->context[driver->context_count++] = token;
  driver->drawn++;
  driver->generation.drawn(token, driver->generation.context);
  if (driver->generating && driver->drawn >= driver->generation.tokens) {
    bl_error_t none = {.status = BL_OK};
    bl__generation_end(driver, &none);
  }
}

void bl__decide(bl_driver_t *driver) {
  switch (driver->step.run.kind) {
  case BL_RUN_TRAIN:
    decide_training(driver);
    break;
  case BL_RUN_VALIDATE:
    decide_validation(driver);
    break;
  case BL_RUN_GENERATE:
    decide_generation(driver);
    break;
  case BL_RUN_KINDS:
    break;
  }
}

// ---- what is told of a step ----------------------------------------------------------------------------------------

// What stores lost costs time that nobody sees; beyond the budget of the job it is an error.
static void count_recomputes(bl_driver_t *driver, const bl_stage_share_t *shares) {
  const bl_optional_int_t *limit = &driver->options.job->balance.max_recomputes_per_hour;
  uint64_t now_ns = bl_clock_now_ns();
  for (size_t i = 0; i < driver->stage_count; i++) {
    const bl_holdings_t *holdings = &driver->plans.balance.holdings; // what is made again by plan is no loss
    uint32_t planned = i < holdings->devices ? holdings->dropped[i] : 0, made = shares[i].counters.recomputed;
    bl_recomputes_add(&driver->recomputes, now_ns, made > planned ? made - planned : 0);
  }
  uint64_t count = bl_recomputes_count(&driver->recomputes, now_ns);
  if (limit->set && count > (uint64_t)limit->value && !driver->fatal) {
    driver->fatal = true;
    (void)bl_error_set(&driver->failure, BL_EXHAUSTED,
                       "%" PRIu64 " block%s computed again within an hour because stores lost them, "
                       "balance.max_recomputes_per_hour is %lld: look at the stores, or use balance.policy none",
                       count, bl_one_or_many(count, " was", "s were"), (long long)limit->value);
  }
}

// What every stage did in the step; NULL: no memory.
static bl_stage_share_t *stage_shares(const bl_driver_t *driver) {
  bl_stage_share_t *shares = calloc(driver->stage_count, sizeof *shares);
  for (size_t i = 0; shares != NULL && i < driver->stage_count; i++) {
    shares[i] = (bl_stage_share_t){.process = driver->stages[i].process, .counters = driver->ballots[i].counters};
  }
  return shares;
}

static bl_store_share_t *store_shares(const bl_driver_t *driver, size_t count) {
  const bl_holdings_t *holdings = &driver->plans.balance.holdings;
  bl_store_share_t *shares = calloc(count + 1, sizeof *shares);
  for (size_t d = 0; shares != NULL && d < count; d++) {
    shares[d] = (bl_store_share_t){.process = bl_stores_get(driver->stores, d).process,
                                   .lent_slots = d < holdings->devices ? holdings->lent[d] : 0};
    for (size_t i = 0; i < driver->stage_count; i++) {
      shares[d].peak_leased += d < driver->ballots[i].device_count ? driver->ballots[i].leased_peaks[d] : 0;
    }
  }
  return shares;
}

// Of a step that a predecessor began: what its slowest stage did.
static double seconds_of(const bl_driver_t *driver, const bl_stage_share_t *shares) {
  uint64_t longest_ns = 0;
  for (size_t i = 0; i < driver->stage_count; i++) {
    longest_ns = bl_max_u64(longest_ns, shares[i].counters.busy_ns + shares[i].counters.stall_ns);
  }
  const bool ours = driver->attempt_began_ns != 0;
  return (double)(ours ? bl_clock_now_ns() - driver->attempt_began_ns : longest_ns) * 1e-9;
}

// The step that was committed last, once: also one that a predecessor committed and could not tell of.
static void report_step(bl_driver_t *driver) {
  const uint64_t applied = driver->step.applied;
  if (applied == 0 || driver->reported >= applied || driver->step.commit.step != applied) {
    return;
  }
  driver->reported = applied;
  bl_tally_t tally;
  bl_error_t err;
  if (count_votes(driver, driver->step.commit.attempt, &tally, &err) != BL_OK) {
    bl_log(BL_LOG_ERROR, "step %" PRIu64 " cannot be reported: %s", applied, err.text);
    return;
  }
  const size_t store_count = bl_stores_count(driver->stores);
  bl_stage_share_t *shares = stage_shares(driver);
  bl_store_share_t *stores = store_shares(driver, store_count);
  if (shares == NULL || stores == NULL) {
    goto free_shares;
  }
  const double seconds = seconds_of(driver, shares);
  driver->seconds = driver->attempt_began_ns != 0 ? seconds : 0;
  const bl_policy_record_t *policy = bl_policy_book_of_step(bl__plans_book(driver), applied);
  const bl_step_event_t event = {.step = applied,
                                 .loss = tally.loss,
                                 .grad_norm = tally.grad_norm,
                                 .tokens = tally.tokens,
                                 .seconds = seconds,
                                 .policy = policy != NULL ? bl_job_policy_name(policy->policy.kind) : "",
                                 .policy_version = policy != NULL ? policy->version : 0,
                                 .ran_under = policy != NULL ? *policy : (bl_policy_record_t){0},
                                 .stages = shares,
                                 .stage_count = driver->stage_count,
                                 .stores = stores,
                                 .store_count = store_count};
  bl_journal_add_step(&driver->journal, &event);
  count_recomputes(driver, shares);
  driver->failures = 0;
  driver->options.observer.changed(driver->options.observer.context);
free_shares:
  free(stores);
  free(shares);
}

// ---- what comes next -----------------------------------------------------------------------------------------------

// Whether something is to be done with the stages once the step that begins now is committed.
static bool errand_follows(const bl_driver_t *driver) {
  const bl_job_t *job = driver->options.job;
  uint64_t step = driver->step.applied + 1;
  bool validates = driver->plans.texts[BL_RUN_VALIDATE] != NULL && job->train.validate_every > 0 &&
                   step % (uint64_t)job->train.validate_every == 0;
  bool saves =
      job->checkpoint.folder != NULL && job->checkpoint.every > 0 && step % (uint64_t)job->checkpoint.every == 0;
  bool asked = driver->paused || driver->stopping || driver->generating || driver->trace_waits != NULL ||
               driver->save.waits != NULL || driver->plans.changes != NULL;
  return validates || saves || asked || step >= (uint64_t)job->train.steps || bl__automatic_will_look(driver);
}

// Whether stages may apply the step that begins now and go on before it is committed: nothing else follows it, and its
// gradients will hardly be clipped.
static bool may_go_on(const bl_driver_t *driver) {
  const bl_job_t *job = driver->options.job;
  bool clips = job->train.clip > 0 && !(driver->norm > 0 && driver->norm <= AHEAD_SHARE * job->train.clip);
  return job->train.post_validation && driver->life == BL__DRIVING && !clips && !errand_follows(driver);
}

static void start(bl_driver_t *driver, bl_run_kind_t kind) {
  driver->attempt_began_ns = driver->again ? driver->attempt_began_ns : bl_clock_now_ns();
  driver->again = false;
  if (kind == BL_RUN_TRAIN && may_go_on(driver)) {
    bl_driver_step_run_on(&driver->step, 1.0, bl_rate_of_step(driver->options.job, driver->step.applied + 1));
  } else {
    bl_driver_step_run(&driver->step, kind);
  }
  bl_log_step(driver->step.run.step, driver->step.run.attempt);
}

bl_stage_run_text_t bl__run_text(const bl_driver_t *driver, const bl_driver_request_t *request) {
  const bl_run_id_t *run = &request->run;
  bl_stage_run_text_t text = {.run = *run, .offer = request->offer};
  if (run->kind == BL_RUN_VALIDATE) {
    text.first_window = driver->windows_seen * (uint64_t)driver->options.job->train.micro_batch;
  } else if (run->kind == BL_RUN_GENERATE) {
    text.tokens = driver->context;
    text.token_count = driver->context_count;
    text.draw_seed = bl_random_bits(bl_random_key(driver->generation.seed, "generate"), driver->drawn);
    text.temperature = driver->generation.temperature;
  }
  return text;
}

static bool all_steps_done(const bl_driver_t *driver) {
  return driver->step.applied >= (uint64_t)driver->options.job->train.steps;
}

static bool validation_is_due(const bl_driver_t *driver) {
  uint64_t applied = driver->step.applied;
  uint64_t every = (uint64_t)driver->options.job->train.validate_every;
  if (driver->plans.texts[BL_RUN_VALIDATE] == NULL || applied == 0 || driver->validated == applied) {
    return false;
  }
  return all_steps_done(driver) || (every > 0 && applied % every == 0);
}

// The last attempt has been given up: says whether the run goes on.
static bool survives_failure(bl_driver_t *driver) {
  if (driver->failures == 0 && !driver->fatal) {
    return true;
  }
  bool again = bl_status_retryable(driver->failure.status) || driver->failure.status == BL_DATA_LOSS ||
               driver->failure.status == BL_CANCELLED;
  if (!driver->fatal && again && driver->failures < BL_DRIVER_ATTEMPTS_MAX) {
    return true;
  }
  bl__driver_fail(driver, &driver->failure);
  return false;
}

static void hold(bl_driver_t *driver) {
  if (driver->life == BL__DRIVING) {
    bl__driver_set_phase(driver, "paused", "", 0);
  }
  if (driver->held != NULL) {
    bl_driver_held_fn held = driver->held;
    driver->held = NULL;
    held(driver->step.applied, driver->held_context);
  }
}

// One thing that is done with the stages between two steps. True: it has begun, or the run has ended.
static bool next_errand(bl_driver_t *driver) {
  bool looks = validation_is_due(driver) || driver->generating || bl__automatic_wants(driver);
  if ((looks || driver->trace_waits != NULL || all_steps_done(driver)) && !bl__traces_ready(driver)) {
    return true; // of the last step, before something else runs
  }
  bl__automatic_look(driver);
  if (validation_is_due(driver)) {
    if (!driver->validating) {
      driver->validating = true;
      driver->windows_seen = 0;
      driver->validation_sum = 0;
    }
    start(driver, BL_RUN_VALIDATE);
    return true;
  }
  return false;
}

void bl__boundary(bl_driver_t *driver) {
  report_step(driver);
  if (!survives_failure(driver)) {
    return;
  }
  if (driver->step.offer.attempt != 0) { // stages have begun it: whatever was asked for meanwhile comes after it
    start(driver, BL_RUN_TRAIN);
    return;
  }
  if (bl__save_boundary(driver)) {
    return;
  }
  if (driver->stopping && !(all_steps_done(driver) && validation_is_due(driver))) {
    if (bl__save_is_busy(driver)) {
      return;
    }
    bl__driver_leave(driver, all_steps_done(driver) ? 0 : 130);
    return;
  }
  if (next_errand(driver)) {
    return;
  }
  if (all_steps_done(driver) && driver->life == BL__DRIVING) {
    if (bl__save_is_busy(driver)) {
      return;
    }
    if (driver->save.tried == driver->step.applied && driver->save.err.status != BL_OK) {
      bl_error_t err = driver->save.err; // the weights exist in memory only
      (void)bl_error_prefix(&err, "all steps are done, but the result could not be saved");
      bl__driver_fail(driver, &err);
      return;
    }
    driver->life = BL__FINISHED;
    bl__driver_set_phase(driver, "finished", "", 0);
    if (!driver->options.linger) {
      bl__driver_leave(driver, 0);
      return;
    }
  }
  bool held = driver->life == BL__FINISHED || driver->paused;
  if (bl__plans_boundary(driver, held)) {
    return;
  }
  if (held) {
    hold(driver);
    if (driver->generating && !driver->drawing) {
      driver->drawing = true;
      start(driver, BL_RUN_GENERATE);
    }
    return;
  }
  bl__driver_set_phase(driver, "running", "", 0);
  start(driver, BL_RUN_TRAIN);
}

// ---- generation ----------------------------------------------------------------------------------------------------

static bl_status_t take_prompt(bl_driver_t *driver, const bl_generation_t *generation, bl_error_t *err) {
  const bl_training_t *training = driver->options.training;
  uint32_t seq = training->model.seq;
  if (generation->prompt_bytes > 0) {
    if (driver->options.job->data.format != BL_JOB_FORMAT_TEXT) {
      return bl_error_set(err, BL_INVALID, "a prompt needs data.format text: this model's tokens are not bytes");
    }
    size_t skip = generation->prompt_bytes > seq ? generation->prompt_bytes - seq : 0;
    driver->context_count = (uint32_t)(generation->prompt_bytes - skip);
    for (uint32_t i = 0; i < driver->context_count; i++) {
      driver->context[i] = generation->prompt[skip + i];
      if (driver->context[i] >= training->model.vocab) {
        return bl_error_set(err, BL_INVALID, "byte %" PRIu32 " of the prompt is not in the vocabulary", i);
      }
    }
    return BL_OK;
  }
  const bl_tokens_t *tokens =
      training->dataset.validation.count > 0 ? &training->dataset.validation : &training->dataset.train;
  int32_t start_tokens[PROMPT_TOKENS];
  uint64_t count = seq < PROMPT_TOKENS ? seq : PROMPT_TOKENS;
  count = tokens->count < count ? tokens->count : count;
  bl_tokens_read(tokens, 0, count, start_tokens);
  for (uint64_t i = 0; i < count; i++) {
    driver->context[i] = (uint32_t)start_tokens[i];
  }
  driver->context_count = (uint32_t)count;
  return BL_OK;
}

bl_status_t bl_driver_generate(bl_driver_t *driver, const bl_generation_t *generation, bl_error_t *err) {
  bool held = driver->life == BL__FINISHED || (driver->life == BL__DRIVING && strcmp(driver->phase, "paused") == 0);
  if (!held) {
    return bl_error_set(err, BL_PRECONDITION, "the run is %s: text is drawn while it is paused or finished",
                        driver->phase);
  }
  if (driver->generating || driver->drawing) {
    return bl_error_set(err, BL_PRECONDITION, "another text is being drawn: ask again when it is done");
  }
  if (generation->tokens == 0) {
    return bl_error_set(err, BL_INVALID, "tokens: at least 1");
  }
  bl_status_t status = take_prompt(driver, generation, err);
  if (status != BL_OK) {
    return status;
  }
  driver->generation = *generation;
  driver->drawn = 0;
  driver->generating = true;
  bl__driver_pump(driver);
  return BL_OK;
}

void bl__generation_end(bl_driver_t *driver, const bl_error_t *err) {
  if (driver->generating) {
    driver->generating = false;
    driver->generation.done(err, driver->generation.context);
  }
}

void bl_driver_generate_cancel(bl_driver_t *driver, const void *context) {
  if (driver->generating && driver->generation.context == context) {
    driver->generating = false;
  }
}
