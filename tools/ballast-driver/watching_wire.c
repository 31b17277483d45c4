// SPDX-License-Identifier: Apache-2.0
#include "service_core_wire.h"

#include "messages_wire.h"
#include "sys/log.h"

#include <stdlib.h>

// Time for a recorder that has disconnected to reconnect. Commits wait for it, then the run continues without a record.
#define RECORDER_TIMEOUT_MS 10000

typedef struct bl__watcher {
  LIST_ENTRY(bl__watcher) listed;
  bl_driver_service_t *service;
  bl_rpc_call_t *call;
  bool greeted, refused; // whether "starting" and "failed" were sent
  uint64_t sent;         // revision
  uint64_t record;       // its name in WatchRequest; 0: it does not acknowledge
  uint64_t acknowledged; // revision
} bl__watcher_t;

// ---- watchers

static void watcher_remove(bl__watcher_t *watcher) {
  LIST_REMOVE(watcher, listed);
  free(watcher);
}

static void watcher_feed(bl__watcher_t *watcher);

static void watcher_sent(bl_rpc_call_t *call, void *context) {
  (void)call;
  watcher_feed(context);
}

static void tell_phase(bl__watcher_t *watcher, const char *phase, const bl_error_t *err) {
  Ballast__V1__WatchResponse message = BALLAST__V1__WATCH_RESPONSE__INIT;
  Ballast__V1__PhaseEvent event = BALLAST__V1__PHASE_EVENT__INIT;
  event.phase = (char *)phase;
  event.error = (char *)err->text;
  event.exit_code = bl_status_exit_code(err->status);
  message.event_case = BALLAST__V1__WATCH_RESPONSE__EVENT_PHASE;
  message.phase = &event;
  (void)!bl_rpc_call_send(watcher->call, &message.base, watcher_sent, watcher); // cancelled: watcher_gone follows
}

// Before there is a driver: sends a new watcher that the driver is starting, and the failure if the run ends there.
static void feed_at_start(bl__watcher_t *watcher) {
  const bl_driver_service_t *service = watcher->service;
  if (!watcher->greeted) {
    watcher->greeted = true;
    tell_phase(watcher, BL_DRIVER_STARTING, &(bl_error_t){.status = BL_OK});
  } else if (service->ended && service->failure.status != BL_OK && !watcher->refused) {
    watcher->refused = true;
    tell_phase(watcher, "failed", &service->failure);
  } else if (service->ended) {
    bl_rpc_call_finish(watcher->call, BL_OK, "");
    watcher_remove(watcher);
  }
}

static void watcher_feed(bl__watcher_t *watcher) {
  bl_driver_service_t *service = watcher->service;
  if (!bl_rpc_call_can_send(watcher->call)) {
    return;
  }
  if (service->driver == NULL) {
    feed_at_start(watcher);
    return;
  }
  const bl_event_t *event = bl_run_journal_after(bl_driver_journal(service->driver), watcher->sent);
  if (event == NULL) {
    if (service->ended) {
      bl_rpc_call_finish(watcher->call, BL_OK, "");
      watcher_remove(watcher);
    }
    return;
  }
  Ballast__V1__WatchResponse *message = bl_watch_message_create(service->driver, event);
  bl_status_t status =
      message == NULL ? BL_EXHAUSTED : bl_rpc_call_send(watcher->call, &message->base, watcher_sent, watcher);
  if (status == BL_OK) {
    watcher->sent = event->revision;
  } else if (status != BL_CANCELLED) {
    bl_log(BL_LOG_ERROR, "a watcher could not be sent event %lu", (unsigned long)event->revision);
    watcher->sent = event->revision;
  }
  bl_watch_message_destroy(message);
}

// Returns whether the recorder, if it is connected, has acknowledged all events. A driver that ends waits for that.
static bool is_recorded(const bl_driver_service_t *service) {
  const uint64_t newest = service->driver != NULL ? bl_driver_journal(service->driver)->revision : 0;
  const bl__watcher_t *watcher;
  LIST_FOREACH(watcher, &service->watchers, listed) {
    if (service->recorder != 0 && watcher->record == service->recorder && watcher->acknowledged < newest) {
      return false;
    }
  }
  return true;
}

static void end_when_recorded(bl_driver_service_t *service, bool too_long) {
  void (*recorded)(void *context) = service->recorded;
  if (recorded != NULL && (too_long || is_recorded(service))) {
    service->recorded = NULL;
    bl_timer_stop(service->recorder_timer);
    recorded(service->recorded_context);
  }
}

static void watcher_gone(bl_rpc_call_t *call, void *context) {
  bl__watcher_t *watcher = context;
  bl_driver_service_t *service = watcher->service;
  bl_driver_t *driver = service->driver;
  bool ended = service->ended;
  bl_rpc_call_finish(call, BL_CANCELLED, "the watcher has gone");
  watcher_remove(watcher);
  if (driver != NULL && !ended) {
    bl_driver_poke(driver); // a commit may be waiting for its acknowledgement
  }
  end_when_recorded(service, false);
}

void bl__handle_watch(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  bl_driver_service_t *service = context;
  const Ballast__V1__WatchRequest *request = (const Ballast__V1__WatchRequest *)input;
  if (bl_rpc_call_is_cancelled(call)) {
    (void)bl__refuse_early(service, call);
    return;
  }
  bl__watcher_t *watcher = malloc(sizeof *watcher);
  if (watcher == NULL) {
    bl_rpc_call_finish(call, BL_EXHAUSTED, "no memory for a watcher");
    return;
  }
  *watcher = (bl__watcher_t){.service = service,
                             .call = call,
                             .sent = request->after_revision,
                             .record = request->record,
                             .acknowledged = request->after_revision};
  LIST_INSERT_HEAD(&service->watchers, watcher, listed);
  if (request->record != 0) {
    service->recorder = request->record;
    service->recorder_known = true;
  }
  bl_rpc_call_on_cancel(call, watcher_gone, watcher);
  watcher_feed(watcher);
}

void bl_driver_service_changed(void *context) {
  bl_driver_service_t *service = context;
  const bl_run_journal_t *journal = service->driver != NULL ? bl_driver_journal(service->driver) : NULL;
  for (const bl_event_t *event; journal != NULL && (event = bl_run_journal_after(journal, service->seen)) != NULL;) {
    service->seen = event->revision;
    service->last_step = event->kind == BL_EVENT_STEP ? event->revision : service->last_step;
  }
  for (bl__watcher_t *watcher = LIST_FIRST(&service->watchers), *next; watcher != NULL; watcher = next) {
    next = LIST_NEXT(watcher, listed);
    watcher_feed(watcher);
  }
}

// ---- the recorder

static void stop_waiting(bl_driver_service_t *service) {
  if (service->waiting) {
    service->waiting = false;
    bl_timer_stop(service->recorder_timer);
  }
}

void bl__recorder_took_too_long(bl_timer_t *timer, void *context) {
  (void)timer;
  bl_driver_service_t *service = context;
  if (service->recorded != NULL) {
    bl_log(BL_LOG_WARNING, "the recorder of this run has not acknowledged its end for %d s: ending without it",
           RECORDER_TIMEOUT_MS / 1000);
    end_when_recorded(service, true);
    return;
  }
  service->waiting = false;
  bl_log(BL_LOG_WARNING, "the recorder of this run has been away for %d s: continuing without it",
         RECORDER_TIMEOUT_MS / 1000);
  service->recorder = 0;
  bl_driver_poke(service->driver);
}

bool bl_driver_service_may_commit(bl_driver_service_t *service, uint64_t *recorder) {
  if (!service->recorder_known) {
    service->recorder = bl_driver_recorder(service->driver); // as the driver before this one set it
    service->recorder_known = true;
  }
  *recorder = service->recorder;
  if (*recorder == 0) {
    return true;
  }
  const bl__watcher_t *watcher;
  LIST_FOREACH(watcher, &service->watchers, listed) {
    if (watcher->record == *recorder) {
      stop_waiting(service);
      return watcher->acknowledged >= service->last_step;
    }
  }
  if (!service->waiting) {
    service->waiting = true;
    bl_timer_start(service->recorder_timer, RECORDER_TIMEOUT_MS, 0);
  }
  return false;
}

void bl__handle_acknowledge(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  bl_driver_service_t *service = context;
  const Ballast__V1__AcknowledgeRequest *request = (const Ballast__V1__AcknowledgeRequest *)input;
  bl__watcher_t *watcher;
  LIST_FOREACH(watcher, &service->watchers, listed) {
    // A revision above what was sent is meant for an earlier driver, which counted its events separately.
    bool meant = watcher->record == request->record && request->record != 0 && request->revision <= watcher->sent;
    if (meant && watcher->acknowledged < request->revision) {
      watcher->acknowledged = request->revision;
    }
  }
  Ballast__V1__AcknowledgeResponse output = BALLAST__V1__ACKNOWLEDGE_RESPONSE__INIT;
  bl_rpc_call_reply(call, &output.base);
  if (service->driver != NULL && !service->ended) {
    bl_driver_poke(service->driver);
  }
  end_when_recorded(service, false);
}

void bl_driver_service_when_recorded(bl_driver_service_t *service, void (*recorded)(void *context), void *context) {
  service->waiting = false; // no more commits follow
  service->recorded = recorded;
  service->recorded_context = context;
  bl_timer_start(service->recorder_timer, RECORDER_TIMEOUT_MS, 0);
  end_when_recorded(service, false);
}
