// SPDX-License-Identifier: Apache-2.0
#include "driver/watcher_wire.h"

#include "driver/driver_world.h"

#include "ballast/v1/driver.pb-c.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

static void watched(const ProtobufCMessage *output, void *context) {
  watcher_t *watcher = context;
  const Ballast__V1__WatchResponse *event = (const Ballast__V1__WatchResponse *)output;
  if (event->revision != 0) {                                 // else of a driver that is still to come
    assert_int_equal(event->revision, watcher->revision + 1); // none twice, none left out
    watcher->revision = event->revision;
  }
  if (event->event_case == BALLAST__V1__WATCH_RESPONSE__EVENT_STEP) {
    assert_int_equal(event->step->step, ++watcher->steps);
    assert_int_equal(event->step->n_stages, WORLD_STAGES);
    assert_string_equal(event->step->policy, "none");
    watcher->last_step_revision = event->revision;
  } else if (event->event_case == BALLAST__V1__WATCH_RESPONSE__EVENT_PLAN) {
    const Ballast__V1__PlanEvent *plan = event->plan;
    watcher->plan = true;
    assert_int_equal(plan->n_stages, WORLD_STAGES);
    assert_int_equal(plan->stages[1]->chunks[0]->first_layer, 1);
    assert_int_equal(plan->stages[0]->parameters + plan->stages[1]->parameters, plan->parameters);
  } else if (event->event_case == BALLAST__V1__WATCH_RESPONSE__EVENT_PHASE) {
    snprintf(watcher->phase, sizeof watcher->phase, "%s", event->phase->phase);
    watcher->exit_code = event->phase->exit_code;
  }
}

static void watch_ended(const ProtobufCMessage *output, const bl_error_t *err, void *context) {
  (void)output;
  watcher_t *watcher = context;
  assert_int_equal(err->status, BL_OK);
  watcher->ended = true;
}

void watcher_follow(watcher_t *watcher, uint64_t record) {
  bl_error_t err;
  Ballast__V1__WatchRequest request = BALLAST__V1__WATCH_REQUEST__INIT;
  request.after_revision = watcher->revision;
  request.record = record;
  assert_int_equal(bl_rpc_channel_stream(watcher->channel, &ballast__v1__driver__descriptor, "Watch", &request.base,
                                         BL_RPC_NO_DEADLINE, watched, watch_ended, watcher, &err),
                   BL_OK);
}

static void answered(const ProtobufCMessage *output, const bl_error_t *err, void *context) {
  watcher_t *watcher = context;
  assert_int_equal(err->status, BL_OK);
  watcher->answered = true;
  if (output->descriptor == &ballast__v1__driver_status_response__descriptor) {
    const Ballast__V1__DriverStatusResponse *status = (const Ballast__V1__DriverStatusResponse *)output;
    snprintf(watcher->run, sizeof watcher->run, "%s", status->run);
    snprintf(watcher->waiting_for, sizeof watcher->waiting_for, "%s", status->waiting_for);
    watcher->stage_count = status->n_stages;
    for (size_t i = 0; i < status->n_stages && watcher->plan; i++) {
      assert_true(status->stages[i]->reachable);
      assert_non_null(status->stages[i]->status);
    }
  }
}

static void call(watcher_t *watcher, const char *method, const ProtobufCMessage *input) {
  bl_error_t err;
  watcher->answered = false;
  assert_int_equal(bl_rpc_channel_call(watcher->channel, &ballast__v1__driver__descriptor, method, input, 5000,
                                       answered, watcher, &err),
                   BL_OK);
}

void watcher_ask_status(watcher_t *watcher) {
  Ballast__V1__DriverStatusRequest request = BALLAST__V1__DRIVER_STATUS_REQUEST__INIT;
  call(watcher, "Status", &request.base);
}

void watcher_acknowledge(watcher_t *watcher, uint64_t record) {
  Ballast__V1__AcknowledgeRequest request = BALLAST__V1__ACKNOWLEDGE_REQUEST__INIT;
  request.record = record;
  request.revision = watcher->last_step_revision;
  call(watcher, "Acknowledge", &request.base);
}

void watcher_stop_run(watcher_t *watcher) {
  Ballast__V1__DriverStopRequest request = BALLAST__V1__DRIVER_STOP_REQUEST__INIT;
  call(watcher, "Stop", &request.base);
}

void watcher_pause(watcher_t *watcher) {
  Ballast__V1__PauseRequest request = BALLAST__V1__PAUSE_REQUEST__INIT;
  request.paused = true;
  call(watcher, "Pause", &request.base);
}
