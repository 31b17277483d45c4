// SPDX-License-Identifier: Apache-2.0
#include "driver_core.h"

#include "base/words.h"
#include "sys/clock.h"

#include <inttypes.h>
#include <stdio.h>

// since_ns is left out.
static bl__wait_t present(const bl_driver_t *driver) {
  if (driver->state == BL__RUN_STOPPED) {
    return (bl__wait_t){.kind = BL__WAIT_NONE};
  }
  if (driver->state == BL__RUN_CONNECTING) {
    for (size_t i = 0; i < driver->stage_count; i++) {
      const bl_remote_t *stage = &driver->stages[i];
      if (!stage->met || stage->busy[0] != '\0') {
        return (bl__wait_t){.kind = stage->met ? BL__WAIT_OTHERS : BL__WAIT_ARRIVAL, .stage = i};
      }
    }
  }
  const bool prepares = bl__plans_setting_up(driver);
  if (prepares && !driver->plans.open) {
    return (bl__wait_t){.kind = BL__WAIT_POLICY};
  }
  if (driver->state == BL__RUN_STOPPING || (driver->state == BL__RUN_SETUP && !prepares)) {
    return (bl__wait_t){.kind = BL__WAIT_ROUND, .round = (int)driver->setup.round};
  }
  for (size_t i = 0; i < driver->stage_count; i++) {
    bl_driver_request_t request = bl_driver_step_request(&driver->step, i);
    if (request.kind != BL_DRIVER_REQUEST_NONE) {
      return (bl__wait_t){.kind = BL__WAIT_REQUEST, .stage = i, .request = request};
    }
  }
  return (bl__wait_t){.kind = driver->step.phase == BL_DRIVER_DECIDING ? BL__WAIT_WATCHER : BL__WAIT_NONE};
}

// Another stage of the same round of calls is the same wait.
static bool same(const bl__wait_t *a, const bl__wait_t *b) {
  return a->kind == b->kind && a->round == b->round && a->request.kind == b->request.kind &&
         a->request.run.step == b->request.run.step && a->request.run.attempt == b->request.run.attempt;
}

void bl__wait_note(bl_driver_t *driver) {
  bl__wait_t wait = present(driver);
  wait.since_ns = same(&wait, &driver->wait) ? driver->wait.since_ns : bl_clock_now_ns();
  driver->wait = wait;
}

void bl__wait_describe(const bl_driver_t *driver, bl_driver_view_t *view) {
  static const char *const calls[] = {"nothing", "Takeover", "PreparePlan", "Run", "Commit", "Abort"};
  static const char *const rounds[] = {[BL__ROUND_FORGET] = "Release",
                                       [BL__ROUND_CONFIGURE] = "Configure",
                                       [BL__ROUND_CONNECT] = "Connect",
                                       [BL__ROUND_ABORT] = "Abort",
                                       [BL__ROUND_LEAVE] = "Release or Stop"};
  const bl__wait_t wait = present(driver);
  const bl_remote_t *stage = &driver->stages[wait.stage];
  char *text = view->waiting_for;
  const size_t bytes = sizeof view->waiting_for;
  char name[BL__STAGE_NAME_BYTES], rank_name[BL_GRID_NAME_BYTES];
  switch (wait.kind) {
  case BL__WAIT_NONE:
    return;
  case BL__WAIT_ARRIVAL:
    snprintf(text, bytes, "%.200s to come up%s%.700s", bl__stage_name(stage, name),
             stage->silence[0] != '\0' ? ": " : "", stage->silence);
    break;
  case BL__WAIT_OTHERS:
    snprintf(text, bytes, "the end of another run: %s", stage->busy);
    break;
  case BL__WAIT_POLICY:
    snprintf(text, bytes, "%.1000s", driver->plans.refusal.text);
    break;
  case BL__WAIT_ROUND:
    snprintf(text, bytes, "%zu stage%s: %s", driver->setup.round_open, bl_plural(driver->setup.round_open),
             rounds[wait.round]);
    break;
  case BL__WAIT_REQUEST:
    snprintf(text, bytes, "%s: %s of step %" PRIu64 ", attempt %" PRIu64,
             bl_grid_name(&driver->options.training->grid, (uint32_t)wait.stage, rank_name), calls[wait.request.kind],
             driver->step.run.step, driver->step.run.attempt);
    break;
  case BL__WAIT_WATCHER:
    snprintf(text, bytes, "a watcher that has not acknowledged the last step");
    break;
  }
  view->waiting_ns = same(&wait, &driver->wait) ? bl_clock_now_ns() - driver->wait.since_ns : 0;
}
