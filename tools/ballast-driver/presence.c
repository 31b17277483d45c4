// SPDX-License-Identifier: Apache-2.0
#include "driver_core.h"

#include "base/words.h"
#include "sys/clock.h"
#include "sys/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define ALIVE_MS   3000 // a driver calls its stages every second: three calls missed
#define BUSY_MS    6000 // until a driver that has ended has been silent for ALIVE_MS, plus a margin
#define SILENCE_MS 6000 // a process that exists and does not answer: three answers missed, reported within 10 s

// Rejects two addresses of one process: it would hold one stage and lose the other.
static bl_status_t check_distinct(const bl_driver_t *driver, bl_error_t *err) {
  for (size_t i = 0; i < driver->stage_count; i++) {
    for (size_t k = 0; k < i; k++) {
      if (driver->stages[i].incarnation == driver->stages[k].incarnation) {
        char name[BL__STAGE_NAME_BYTES], other[BL__STAGE_NAME_BYTES];
        return bl_error_set(err, BL_INVALID,
                            "%s and %s are one process, pid %" PRId64
                            "; every stage needs a stage-service of its own: correct services.stages",
                            bl__stage_name(&driver->stages[k], other), bl__stage_name(&driver->stages[i], name),
                            driver->stages[i].process);
      }
    }
  }
  return BL_OK;
}

// Sets stage->busy if the stage runs another job for a driver that is alive.
static void note_business(bl_remote_t *stage, const bl_stage_said_t *said) {
  bl_configure_request_t ours = stage->configuration;
  ours.resume_digest = said->resumed;
  bool other = said->configured != 0 && said->configured != bl_configure_request_digest(&ours);
  stage->busy[0] = '\0';
  if (other && said->epoch != 0 && said->driver_silent_ms != 0 && said->driver_silent_ms < ALIVE_MS) {
    char name[BL__STAGE_NAME_BYTES];
    snprintf(stage->busy, sizeof stage->busy, "%.200s is busy with run '%.100s', driven from %.150s",
             bl__stage_name(stage, name), said->run,
             said->driver_address[0] != '\0' ? said->driver_address : "elsewhere");
  }
}

// Returns whether stages belong to another run. They are checked repeatedly for a while, because a driver that has just
// ended may have called them a moment ago.
static bool waits_for_others(bl_driver_t *driver) {
  const bl_remote_t *busy = NULL;
  for (size_t i = 0; i < driver->stage_count && busy == NULL; i++) {
    busy = driver->stages[i].busy[0] != '\0' ? &driver->stages[i] : NULL;
  }
  if (busy == NULL) {
    return false;
  }
  uint64_t now = bl__driver_now_ms(driver);
  driver->busy_since_ms = driver->busy_since_ms == 0 ? now : driver->busy_since_ms;
  if (now - driver->busy_since_ms >= BUSY_MS) {
    bl_error_t err;
    (void)bl_error_set(&err, BL_PRECONDITION, "%s: wait until it ends, stop it there, or name other stages",
                       busy->busy);
    bl__driver_fail(driver, &err);
  }
  return true;
}

// All stages have answered for the first time: takes them over with an epoch above that of any driver they follow.
static void begin_takeover(bl_driver_t *driver) {
  bl_error_t err;
  if (check_distinct(driver, &err) != BL_OK) {
    bl__driver_fail(driver, &err);
    return;
  }
  bl_driver_id_t id = {.epoch = 1};
  for (size_t i = 0; i < driver->stage_count; i++) {
    uint64_t epoch = driver->step.peers[i].report.epoch;
    id.epoch = epoch >= id.epoch ? epoch + 1 : id.epoch;
  }
  if (getrandom(&id.id, sizeof id.id, 0) != (ssize_t)sizeof id.id) {
    id.id = bl_clock_wall_ns();
  }
  bl_driver_step_init(&driver->step, id, driver->peers, driver->stage_count);
  driver->step.may_start_over = driver->options.start_over;
  driver->state = BL__RUN_TAKEOVER;
  bl_log(BL_LOG_INFO, "%zu stage%s there; taking over with epoch %" PRIu64, driver->stage_count,
         bl_one_or_many(driver->stage_count, " is", "s are"), id.epoch);
  bl__driver_pump(driver);
}

static void keep_status(bl_remote_t *stage, const bl_stage_answer_t *answer) {
  void *copy = malloc(answer->packed_bytes + 1);
  if (copy == NULL || answer->packed == NULL) {
    free(copy);
    return;
  }
  memcpy(copy, answer->packed, answer->packed_bytes);
  free(stage->status);
  stage->status = copy;
  stage->status_bytes = answer->packed_bytes;
  stage->status_ms = bl__driver_now_ms(stage->driver);
}

static void probe(bl_remote_t *stage);

// It is still the process that was met at first.
static void count_blame_answer(bl_remote_t *stage) {
  if (stage->blame_answers == 0) {
    return;
  }
  if (--stage->blame_answers > 0) {
    probe(stage);
    return;
  }
  bl__driver_fail(stage->driver, &stage->blame);
}

static void met(bl_remote_t *stage, const bl_stage_answer_t *answer) {
  bl_driver_t *driver = stage->driver;
  keep_status(stage, answer);
  // Before the takeover it has nothing to lose yet.
  if (driver->state > BL__RUN_CONNECTING && stage->incarnation != answer->said.incarnation) {
    char name[BL__STAGE_NAME_BYTES];
    bl_error_t err;
    (void)bl_error_set(&err, BL_UNAVAILABLE,
                       "%s was restarted and has lost its weights and optimizer state: restart from a checkpoint, or "
                       "restart all stages to start from the beginning",
                       bl__stage_name(stage, name));
    bl__driver_fail(driver, &err);
    return;
  }
  stage->incarnation = answer->said.incarnation;
  stage->process = answer->said.process;
  driver->peers[stage->index].report.epoch = driver->state == BL__RUN_CONNECTING ? answer->said.epoch : 0;
  stage->met = true;
  stage->silent_since_ms = 0;
  if (driver->state != BL__RUN_CONNECTING) {
    count_blame_answer(stage);
    return;
  }
  note_business(stage, &answer->said);
  for (size_t i = 0; i < driver->stage_count; i++) {
    if (!driver->stages[i].met) {
      return;
    }
  }
  if (!waits_for_others(driver)) {
    begin_takeover(driver);
  }
}

static void give_up(bl_remote_t *stage, uint64_t silent_ms) {
  char name[BL__STAGE_NAME_BYTES];
  bl_error_t err;
  if (!stage->met) {
    (void)bl_error_set(&err, BL_UNAVAILABLE, "%s did not come up within %d s: %s; start it, or correct services.stages",
                       bl__stage_name(stage, name), BL_DRIVER_ARRIVAL_MS / 1000, stage->silence);
  } else {
    (void)bl_error_set(
        &err, BL_UNAVAILABLE, "%s, pid %" PRId64 ", is gone: no answer for %" PRIu64 ".%" PRIu64 " s: %s",
        bl__stage_name(stage, name), stage->process, silent_ms / 1000, silent_ms % 1000 / 100, stage->silence);
  }
  bl__driver_fail(stage->driver, &err);
}

static void missed(bl_remote_t *stage, const bl_error_t *err) {
  bl_driver_t *driver = stage->driver;
  uint64_t now = bl__driver_now_ms(driver);
  if (stage->silent_since_ms == 0) {
    // A call that timed out has been awaited for at least this long. No more is assumed, or a driver that was stopped
    // for a minute would blame its stages.
    bool awaited = err->status == BL_DEADLINE && now > BL_STAGE_STATUS_MS;
    stage->silent_since_ms = awaited ? now - BL_STAGE_STATUS_MS : now;
  }
  stage->refuses = err->status == BL_UNAVAILABLE;
  snprintf(stage->silence, sizeof stage->silence, "%s", err->text);
  stage->probe_at_ms = now + BL__RETRY_MS;
  uint64_t silent = now - stage->silent_since_ms;
  uint64_t startup = !stage->met ? BL_DRIVER_ARRIVAL_MS : stage->refuses ? BL_DRIVER_TIMEOUT_MS : SILENCE_MS;
  if (silent >= startup) {
    give_up(stage, silent);
  }
}

static void probed(const bl_stage_answer_t *answer, void *context) {
  bl_remote_t *stage = context;
  bl_driver_t *driver = stage->driver;
  stage->probing = false;
  if (driver->state >= BL__RUN_STOPPING) {
    return;
  }
  stage->probe_at_ms = bl__driver_now_ms(driver) + BL__PROBE_MS;
  switch (answer->err->status) {
  case BL_OK:
    met(stage, answer);
    break;
  case BL_UNAVAILABLE:
  case BL_DEADLINE:
    missed(stage, answer->err);
    break;
  case BL_CANCELLED:
    break;
  default: {
    char name[BL__STAGE_NAME_BYTES];
    bl_error_t err = *answer->err;
    (void)bl_error_prefix(&err, "%s", bl__stage_name(stage, name));
    bl__driver_fail(driver, &err);
    break;
  }
  }
}

static void probe(bl_remote_t *stage) {
  if (!stage->probing) {
    stage->probing = true;
    bool drives = stage->driver->state > BL__RUN_CONNECTING;
    bl_stage_client_status(stage->client, drives ? stage->driver->step.id : (bl_driver_id_t){0}, probed, stage);
  }
}

void bl__presence_begin(bl_driver_t *driver) {
  for (size_t i = 0; i < driver->stage_count; i++) {
    probe(&driver->stages[i]);
  }
}

void bl__presence_tick(bl_driver_t *driver) {
  uint64_t now = bl__driver_now_ms(driver);
  for (size_t i = 0; i < driver->stage_count; i++) {
    if (now >= driver->stages[i].probe_at_ms) {
      probe(&driver->stages[i]);
    }
  }
}

void bl__presence_doubt(bl_remote_t *stage) {
  probe(stage);
}

void bl__presence_blame(bl_remote_t *stage, const bl_error_t *err) {
  if (stage->blame_answers == 0) {
    stage->blame = *err;
    stage->blame_answers = stage->probing ? 2 : 1; // an answer in flight may be of the process before
    probe(stage);
  }
}
