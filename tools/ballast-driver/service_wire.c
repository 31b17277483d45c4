// SPDX-License-Identifier: Apache-2.0
#include "service_wire.h"

#include "loop/timer.h"
#include "messages_wire.h"
#include "policy_wire.h"
#include "sys/log.h"

#include "ballast/v1/driver.pb-c.h"

#include <stdlib.h>
#include <string.h>

#define TRACE_BATCH    512   // events of one message: about 20 KiB
#define GENERATION_MAX 65536 // tokens of one text: bounds what is kept for a slow reader
// How long commits wait for a recorder that has gone to come back, before the run goes on without a record.
#define RECORDER_PATIENCE_MS 10000

typedef struct watcher {
  struct watcher *next;
  bl_driver_service_t *service;
  bl_rpc_call_t *call;
  uint64_t sent;         // revision
  uint64_t record;       // 0: it does not acknowledge
  uint64_t acknowledged; // revision
} watcher_t;

// A text being drawn. What the reader has not taken yet is kept.
typedef struct text {
  bl_driver_service_t *service;
  bl_rpc_call_t *call;
  uint32_t *tokens;
  size_t count, sent;
  bool bytes; // tokens are bytes
  bool done;
  bl_error_t err;
} text_t;

typedef struct tracing {
  struct tracing *next;
  bl_driver_service_t *service;
  bl_rpc_call_t *call;
  bl_stage_trace_t *traces; // a copy, once collected
  size_t stages, stage, record;
} tracing_t;

struct bl_driver_service {
  const char *run;
  const char *page; // address; NULL or "": none
  bl_driver_t *driver;
  watcher_t *watchers;
  tracing_t *tracings;
  text_t *text;             // at most one is drawn at a time
  uint64_t seen, last_step; // revisions
  uint64_t recorder;        // whose acknowledgement commits wait for; 0: nobody's
  bl_timer_t *patience;     // runs while the recorder is away and a commit waits for it
  bool recorder_known;      // else the last commit says who it is
  bool waiting, ended;
};

static void recorder_stays_away(bl_timer_t *timer, void *context);

bl_status_t bl_driver_service_create(bl_loop_t *loop, const char *run, bl_driver_service_t **service, bl_error_t *err) {
  bl_driver_service_t *made = calloc(1, sizeof *made);
  if (made == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for the service");
  }
  made->run = run;
  bl_status_t status = bl_timer_create(loop, recorder_stays_away, made, &made->patience, err);
  if (status != BL_OK) {
    free(made);
    return status;
  }
  *service = made;
  return BL_OK;
}

void bl_driver_service_destroy(bl_driver_service_t *service) {
  if (service != NULL) {
    bl_timer_destroy(service->patience);
    free(service);
  }
}

void bl_driver_service_set_page(bl_driver_service_t *service, const char *address) {
  service->page = address;
}

void bl_driver_service_set_driver(bl_driver_service_t *service, bl_driver_t *driver) {
  service->driver = driver;
}

// Ends calls that cannot be served: too early, too late, or given up before they were read.
static bool refuse_early(bl_driver_service_t *service, bl_rpc_call_t *call) {
  if (bl_rpc_call_is_cancelled(call)) {
    bl_rpc_call_finish(call, BL_CANCELLED, "the caller has gone");
    return true;
  }
  if (service->driver != NULL && !service->ended) {
    return false;
  }
  bl_rpc_call_finish(call, BL_PRECONDITION, service->ended ? "the run has ended" : "the driver is starting");
  return true;
}

bl_driver_t *bl_driver_service_enter(bl_driver_service_t *service, bl_rpc_call_t *call) {
  return refuse_early(service, call) ? NULL : service->driver;
}

// ---- watchers ------------------------------------------------------------------------------------------------------

static void watcher_remove(watcher_t *watcher) {
  for (watcher_t **link = &watcher->service->watchers; *link != NULL; link = &(*link)->next) {
    if (*link == watcher) {
      *link = watcher->next;
      break;
    }
  }
  free(watcher);
}

static void watcher_feed(watcher_t *watcher);

static void watcher_sent(bl_rpc_call_t *call, void *context) {
  (void)call;
  watcher_feed(context);
}

static void watcher_feed(watcher_t *watcher) {
  bl_driver_service_t *service = watcher->service;
  if (!bl_rpc_call_can_send(watcher->call)) {
    return;
  }
  const bl_event_t *event = bl_journal_after(bl_driver_journal(service->driver), watcher->sent);
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
    bl_log(BL_LOG_ERROR, "a watcher could not be told of event %lu", (unsigned long)event->revision);
    watcher->sent = event->revision;
  }
  bl_watch_message_destroy(message);
}

static void watcher_gone(bl_rpc_call_t *call, void *context) {
  watcher_t *watcher = context;
  bl_driver_t *driver = watcher->service->driver;
  bool ended = watcher->service->ended;
  bl_rpc_call_finish(call, BL_CANCELLED, "the watcher has gone");
  watcher_remove(watcher);
  if (!ended) {
    bl_driver_poke(driver); // its acknowledgement may be what a commit waits for
  }
}

static void handle_watch(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  bl_driver_service_t *service = context;
  const Ballast__V1__WatchRequest *request = (const Ballast__V1__WatchRequest *)input;
  if (service->driver == NULL || bl_rpc_call_is_cancelled(call)) {
    (void)refuse_early(service, call);
    return;
  }
  watcher_t *watcher = malloc(sizeof *watcher);
  if (watcher == NULL) {
    bl_rpc_call_finish(call, BL_EXHAUSTED, "no memory for a watcher");
    return;
  }
  *watcher = (watcher_t){.next = service->watchers,
                         .service = service,
                         .call = call,
                         .sent = request->after_revision,
                         .record = request->record,
                         .acknowledged = request->after_revision};
  service->watchers = watcher;
  if (request->record != 0) {
    service->recorder = request->record;
    service->recorder_known = true;
  }
  bl_rpc_call_on_cancel(call, watcher_gone, watcher);
  watcher_feed(watcher);
}

void bl_driver_service_changed(void *context) {
  bl_driver_service_t *service = context;
  if (service->driver == NULL) {
    return;
  }
  const bl_journal_t *journal = bl_driver_journal(service->driver);
  for (const bl_event_t *event; (event = bl_journal_after(journal, service->seen)) != NULL;) {
    service->seen = event->revision;
    service->last_step = event->kind == BL_EVENT_STEP ? event->revision : service->last_step;
  }
  for (watcher_t *watcher = service->watchers, *next; watcher != NULL; watcher = next) {
    next = watcher->next;
    watcher_feed(watcher);
  }
}

static void stop_waiting(bl_driver_service_t *service) {
  if (service->waiting) {
    service->waiting = false;
    bl_timer_stop(service->patience);
  }
}

static void recorder_stays_away(bl_timer_t *timer, void *context) {
  (void)timer;
  bl_driver_service_t *service = context;
  service->waiting = false;
  bl_log(BL_LOG_WARNING, "whoever kept the record of this run has been away for %d s: going on without it",
         RECORDER_PATIENCE_MS / 1000);
  service->recorder = 0;
  bl_driver_poke(service->driver);
}

bool bl_driver_service_may_commit(bl_driver_service_t *service, uint64_t *recorder) {
  if (!service->recorder_known) {
    service->recorder = bl_driver_recorder(service->driver); // of the driver before this one
    service->recorder_known = true;
  }
  *recorder = service->recorder;
  if (*recorder == 0) {
    return true;
  }
  for (const watcher_t *watcher = service->watchers; watcher != NULL; watcher = watcher->next) {
    if (watcher->record == *recorder) {
      stop_waiting(service);
      return watcher->acknowledged >= service->last_step;
    }
  }
  if (!service->waiting) {
    service->waiting = true;
    bl_timer_start(service->patience, RECORDER_PATIENCE_MS, 0);
  }
  return false;
}

static void handle_acknowledge(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  bl_driver_service_t *service = context;
  const Ballast__V1__AcknowledgeRequest *request = (const Ballast__V1__AcknowledgeRequest *)input;
  for (watcher_t *watcher = service->watchers; watcher != NULL; watcher = watcher->next) {
    // More than was sent is meant for a driver before this one, which counted otherwise.
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
}

// ---- control -------------------------------------------------------------------------------------------------------

static void handle_status(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  (void)input;
  bl_driver_service_t *service = context;
  if (service->driver == NULL) {
    (void)refuse_early(service, call);
    return;
  }
  bl_driver_view_t view = bl_driver_look(service->driver);
  size_t count = bl_driver_stage_count(service->driver);
  bl_policies_view_t policies = bl_driver_policies(service->driver);
  Ballast__V1__DriverStatusResponse output = BALLAST__V1__DRIVER_STATUS_RESPONSE__INIT;
  Ballast__V1__DriverIdentity identity = BALLAST__V1__DRIVER_IDENTITY__INIT;
  identity.epoch = view.id.epoch;
  identity.id = view.id.id;
  char page[BL_RPC_ADDRESS_BYTES + 32] = "";
  if (service->page != NULL && service->page[0] != '\0') {
    snprintf(page, sizeof page, "http://%s/", service->page);
  }
  output.page = page;
  output.run = (char *)service->run;
  output.phase = (char *)view.phase;
  output.driver = &identity;
  output.step = view.step;
  output.steps = view.steps;
  output.revision = bl_driver_journal(service->driver)->revision;
  output.waiting_for = view.waiting_for;
  output.waiting_ns = view.waiting_ns;
  output.error = (char *)view.error;
  Ballast__V1__StageHealth *stages = calloc(count, sizeof *stages);
  Ballast__V1__StageHealth **pointers = calloc(count, sizeof(Ballast__V1__StageHealth *));
  for (size_t i = 0; stages != NULL && pointers != NULL && i < count; i++) {
    bl_stage_view_t stage = bl_driver_stage(service->driver, i);
    stages[i] = (Ballast__V1__StageHealth)BALLAST__V1__STAGE_HEALTH__INIT;
    stages[i].stage = (int32_t)i;
    stages[i].address = (char *)stage.address;
    stages[i].reachable = stage.reachable;
    stages[i].own_slots = i < policies.holdings->devices ? policies.holdings->own[i] : 0;
    stages[i].status = stage.status == NULL
                           ? NULL
                           : ballast__v1__stage_status_response__unpack(NULL, stage.status_bytes, stage.status);
    pointers[i] = &stages[i];
    output.n_stages = i + 1;
  }
  output.stages = pointers;
  const bl_stores_t *known = bl_driver_stores(service->driver);
  Ballast__V1__StoreHealth *stores = calloc(bl_stores_count(known) + 1, sizeof *stores);
  Ballast__V1__StoreHealth **store_pointers = calloc(bl_stores_count(known) + 1, sizeof(void *));
  for (size_t d = 0; stores != NULL && store_pointers != NULL && d < bl_stores_count(known); d++) {
    bl_store_view_t store = bl_stores_get(known, d);
    stores[d] = (Ballast__V1__StoreHealth)BALLAST__V1__STORE_HEALTH__INIT;
    stores[d].store = (uint32_t)d;
    stores[d].address = (char *)store.address;
    stores[d].reachable = store.reachable;
    stores[d].draining = store.draining;
    stores[d].process = store.process;
    store_pointers[d] = &stores[d];
    output.n_stores = d + 1;
  }
  output.stores = store_pointers;
  bl_rpc_call_reply(call, &output.base);
  free(stores);
  free(store_pointers);
  for (size_t i = 0; i < output.n_stages; i++) {
    if (stages[i].status != NULL) {
      ballast__v1__stage_status_response__free_unpacked(stages[i].status, NULL);
    }
  }
  free(stages);
  free(pointers);
}

// A pause whose client gives up is still a pause: the answer goes nowhere, the call waits for it.
static void paused(uint64_t step, void *context) {
  bl_rpc_call_t *call = context;
  Ballast__V1__PauseResponse output = BALLAST__V1__PAUSE_RESPONSE__INIT;
  output.step = step;
  bl_rpc_call_reply(call, &output.base);
}

static void handle_pause(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  bl_driver_service_t *service = context;
  const Ballast__V1__PauseRequest *request = (const Ballast__V1__PauseRequest *)input;
  if (!refuse_early(service, call)) {
    bl_driver_pause(service->driver, request->paused, paused, call);
  }
}

// As a pause: a checkpoint whose client gives up is taken all the same.
static void saved(uint64_t step, const char *folder, const bl_error_t *err, void *context) {
  bl_rpc_call_t *call = context;
  if (err->status != BL_OK) {
    bl_rpc_call_fail(call, err);
    return;
  }
  Ballast__V1__CheckpointResponse output = BALLAST__V1__CHECKPOINT_RESPONSE__INIT;
  output.step = step;
  output.folder = (char *)folder;
  bl_rpc_call_reply(call, &output.base);
}

static void handle_checkpoint(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  (void)input;
  bl_driver_service_t *service = context;
  bl_error_t err;
  if (!refuse_early(service, call) && bl_driver_checkpoint(service->driver, saved, call, &err) != BL_OK) {
    bl_rpc_call_fail(call, &err);
  }
}

static void handle_stop(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  (void)input;
  bl_driver_service_t *service = context;
  if (refuse_early(service, call)) {
    return;
  }
  Ballast__V1__DriverStopResponse output = BALLAST__V1__DRIVER_STOP_RESPONSE__INIT;
  bl_rpc_call_reply(call, &output.base);
  bl_driver_stop(service->driver);
}

// ---- generation ----------------------------------------------------------------------------------------------------

static void text_free(text_t *text) {
  if (text->service->text == text) {
    text->service->text = NULL;
  }
  free(text->tokens);
  free(text);
}

static void text_feed(text_t *text);

static void text_sent(bl_rpc_call_t *call, void *context) {
  (void)call;
  text_feed(context);
}

static void text_feed(text_t *text) {
  if (!bl_rpc_call_can_send(text->call)) {
    return;
  }
  if (text->sent == text->count) {
    if (text->done) {
      bl_rpc_call_finish(text->call, text->err.status, text->err.status == BL_OK ? "" : text->err.text);
      text_free(text);
    }
    return;
  }
  uint8_t byte = (uint8_t)text->tokens[text->sent];
  Ballast__V1__GenerateResponse output = BALLAST__V1__GENERATE_RESPONSE__INIT;
  output.token = text->tokens[text->sent];
  if (text->bytes) {
    output.text = (ProtobufCBinaryData){.data = &byte, .len = 1};
  }
  text->sent++;
  (void)!bl_rpc_call_send(text->call, &output.base, text_sent, text); // cancelled: text_gone follows
}

static void text_drawn(uint32_t token, void *context) {
  text_t *text = context;
  text->tokens[text->count++] = token;
  text_feed(text);
}

static void text_done(const bl_error_t *err, void *context) {
  text_t *text = context;
  text->done = true;
  text->err = *err;
  text_feed(text);
}

static void text_gone(bl_rpc_call_t *call, void *context) {
  text_t *text = context;
  bl_driver_generate_cancel(text->service->driver, text);
  bl_rpc_call_finish(call, BL_CANCELLED, "the reader has gone");
  text_free(text);
}

static void handle_generate(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  bl_driver_service_t *service = context;
  const Ballast__V1__GenerateRequest *request = (const Ballast__V1__GenerateRequest *)input;
  if (refuse_early(service, call)) {
    return;
  }
  if (request->tokens > GENERATION_MAX) {
    bl_rpc_call_finish(call, BL_INVALID, "tokens: at most 65536");
    return;
  }
  if (service->text != NULL) {
    bl_rpc_call_finish(call, BL_PRECONDITION, "another text is being drawn: ask again when it is done");
    return;
  }
  text_t *text = calloc(1, sizeof *text);
  uint32_t *tokens = calloc(request->tokens + 1, sizeof *tokens);
  if (text == NULL || tokens == NULL) {
    free(text);
    free(tokens);
    bl_rpc_call_finish(call, BL_EXHAUSTED, "no memory for a text");
    return;
  }
  *text = (text_t){.service = service,
                   .call = call,
                   .tokens = tokens,
                   .bytes = bl_driver_job(service->driver)->data.format == BL_JOB_FORMAT_TEXT};
  service->text = text;
  bl_generation_t generation = {.prompt = request->prompt.data,
                                .prompt_bytes = request->prompt.len,
                                .tokens = request->tokens,
                                .seed = request->seed,
                                .temperature = request->temperature,
                                .drawn = text_drawn,
                                .done = text_done,
                                .context = text};
  bl_error_t err;
  bl_rpc_call_on_cancel(call, text_gone, text);
  if (bl_driver_generate(service->driver, &generation, &err) != BL_OK) {
    bl_rpc_call_fail(call, &err);
    text_free(text);
  }
}

// ---- traces --------------------------------------------------------------------------------------------------------

static void tracing_free(tracing_t *tracing) {
  for (tracing_t **link = &tracing->service->tracings; *link != NULL; link = &(*link)->next) {
    if (*link == tracing) {
      *link = tracing->next;
      break;
    }
  }
  for (size_t i = 0; tracing->traces != NULL && i < tracing->stages; i++) {
    free(tracing->traces[i].records);
  }
  free(tracing->traces);
  free(tracing);
}

static void tracing_feed(tracing_t *tracing);

static void tracing_sent(bl_rpc_call_t *call, void *context) {
  (void)call;
  tracing_feed(context);
}

static void tracing_feed(tracing_t *tracing) {
  while (tracing->stage < tracing->stages && tracing->record >= tracing->traces[tracing->stage].count) {
    tracing->stage++;
    tracing->record = 0;
  }
  if (tracing->stage == tracing->stages) {
    bl_rpc_call_finish(tracing->call, BL_OK, "");
    tracing_free(tracing);
    return;
  }
  Ballast__V1__TraceEvent events[TRACE_BATCH], *pointers[TRACE_BATCH];
  const bl_stage_trace_t *trace = &tracing->traces[tracing->stage];
  Ballast__V1__DriverTraceResponse output = BALLAST__V1__DRIVER_TRACE_RESPONSE__INIT;
  output.stage = (int32_t)tracing->stage;
  output.events = pointers;
  while (output.n_events < TRACE_BATCH && tracing->record < trace->count) {
    bl_trace_record_t *record = &trace->records[tracing->record++];
    Ballast__V1__TraceEvent *event = &events[output.n_events];
    *event = (Ballast__V1__TraceEvent)BALLAST__V1__TRACE_EVENT__INIT;
    event->name = record->name;
    event->wait = record->item.wait;
    event->start_ns = record->item.start_ns;
    event->end_ns = record->item.end_ns;
    event->micro_batch = record->item.micro_batch;
    event->slots_in_use = record->item.slots_in_use;
    pointers[output.n_events++] = event;
  }
  (void)!bl_rpc_call_send(tracing->call, &output.base, tracing_sent, tracing); // cancelled: tracing_gone follows
}

static bl_status_t copy_traces(tracing_t *tracing, const bl_stage_trace_t *traces, size_t stages) {
  tracing->traces = calloc(stages + 1, sizeof *tracing->traces);
  if (tracing->traces == NULL) {
    return BL_EXHAUSTED;
  }
  tracing->stages = stages;
  for (size_t i = 0; i < stages; i++) {
    bl_stage_trace_t *copy = &tracing->traces[i];
    copy->records = malloc((traces[i].count + 1) * sizeof *copy->records);
    if (copy->records == NULL) {
      return BL_EXHAUSTED;
    }
    copy->count = traces[i].count;
    if (copy->count > 0) {
      memcpy(copy->records, traces[i].records, copy->count * sizeof *copy->records);
    }
  }
  return BL_OK;
}

static void traced(const bl_stage_trace_t *traces, size_t stages, const bl_error_t *err, void *context) {
  tracing_t *tracing = context;
  bl_error_t failure = *err;
  if (failure.status == BL_OK && copy_traces(tracing, traces, stages) != BL_OK) {
    (void)bl_error_set(&failure, BL_EXHAUSTED, "no memory for the trace");
  }
  if (failure.status != BL_OK) {
    bl_rpc_call_fail(tracing->call, &failure);
    tracing_free(tracing);
    return;
  }
  tracing_feed(tracing);
}

static void tracing_gone(bl_rpc_call_t *call, void *context) {
  tracing_t *tracing = context;
  bl_driver_trace_cancel(tracing->service->driver, tracing);
  bl_rpc_call_finish(call, BL_CANCELLED, "the reader has gone");
  tracing_free(tracing);
}

static void handle_trace(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  (void)input;
  bl_driver_service_t *service = context;
  if (refuse_early(service, call)) {
    return;
  }
  tracing_t *tracing = calloc(1, sizeof *tracing);
  if (tracing == NULL) {
    bl_rpc_call_finish(call, BL_EXHAUSTED, "no memory for the trace");
    return;
  }
  *tracing = (tracing_t){.next = service->tracings, .service = service, .call = call};
  service->tracings = tracing;
  bl_rpc_call_on_cancel(call, tracing_gone, tracing);
  bl_driver_trace(service->driver, traced, tracing);
}

// ---- the service ---------------------------------------------------------------------------------------------------

bl_status_t bl_driver_service_serve(bl_driver_service_t *service, bl_rpc_server_t *server, bl_error_t *err) {
  static const bl_rpc_method_t methods[] = {
      {"Status", handle_status},
      {"Watch", handle_watch},
      {"Acknowledge", handle_acknowledge},
      {"Pause", handle_pause},
      {"Stop", handle_stop},
      {"Generate", handle_generate},
      {"Trace", handle_trace},
      {"Checkpoint", handle_checkpoint},
      {"SetPolicy", bl_policy_handle_set},
      {"GetPolicy", bl_policy_handle_get},
      {"PolicyHistory", bl_policy_handle_history},
  };
  return bl_rpc_server_add_service(server, &ballast__v1__driver__descriptor, methods,
                                   sizeof methods / sizeof methods[0], service, err);
}

void bl_driver_service_end(bl_driver_service_t *service) {
  service->ended = true;
  bl_driver_service_changed(service);
}
