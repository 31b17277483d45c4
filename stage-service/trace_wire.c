// SPDX-License-Identifier: Apache-2.0
#include "service_core_wire.h"

#include <stdlib.h>

#define TRACE_BATCH 512 // events of one message: about 20 KiB

// A stream of batches, read from the ring while nothing runs.
typedef struct {
  bl_service_t *service;
  size_t next;
} trace_reader_t;

static void send_trace(bl_rpc_call_t *call, void *context);

static void end_trace(bl_rpc_call_t *call, trace_reader_t *reader, bl_status_t status, const char *text) {
  free(reader);
  bl_rpc_call_finish(call, status, text);
}

static void trace_cancelled(bl_rpc_call_t *call, void *context) {
  end_trace(call, context, BL_CANCELLED, "the caller gave up");
}

static void send_trace(bl_rpc_call_t *call, void *context) {
  trace_reader_t *reader = context;
  bl_stage_t *stage = reader->service->stage;
  const bl_engine_t *engine = bl_stage_engine(stage);
  if (engine == NULL || bl_stage_step_is_running(bl_stage_step(stage))) {
    end_trace(call, reader, BL_PRECONDITION,
              engine == NULL ? "not configured" : "a step is running: ask between steps");
    return;
  }
  if (reader->next > bl_trace_count(engine->trace)) {
    end_trace(call, reader, BL_PRECONDITION, "another step has run meanwhile: ask again");
    return;
  }
  size_t left = bl_trace_count(engine->trace) - reader->next;
  size_t count = left < TRACE_BATCH ? left : TRACE_BATCH;
  if (count == 0) {
    end_trace(call, reader, BL_OK, "");
    return;
  }
  static Ballast__V1__TraceEvent
      events[TRACE_BATCH]; // used on the loop's thread only: packed before bl_rpc_call_send returns
  static Ballast__V1__TraceEvent *pointers[TRACE_BATCH];
  for (size_t i = 0; i < count; i++) {
    const bl_trace_event_t *event = bl_trace_get(engine->trace, reader->next + i);
    events[i] = (Ballast__V1__TraceEvent)BALLAST__V1__TRACE_EVENT__INIT;
    events[i].name = (char *)event->name;
    events[i].wait = event->wait;
    events[i].start_ns = event->start_ns;
    events[i].end_ns = event->end_ns;
    events[i].micro_batch = event->micro_batch;
    events[i].slots_in_use = event->slots_in_use;
    events[i].moved_bytes = event->moved_bytes;
    events[i].waited_ns = event->waited_ns;
    pointers[i] = &events[i];
  }
  reader->next += count;
  Ballast__V1__StageTraceResponse output = BALLAST__V1__STAGE_TRACE_RESPONSE__INIT;
  output.events = pointers;
  output.n_events = count;
  bl_status_t status = bl_rpc_call_send(call, &output.base, send_trace, reader);
  if (status != BL_OK) {
    end_trace(call, reader, status, "the trace could not be sent");
  }
}

void bl__handle_trace(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  (void)input;
  trace_reader_t *reader = bl_rpc_call_is_cancelled(call) ? NULL : calloc(1, sizeof *reader);
  if (reader == NULL) {
    bl_rpc_call_finish(call, BL_EXHAUSTED, "no memory to send a trace, or nobody to send it to");
    return;
  }
  reader->service = context;
  bl_rpc_call_on_cancel(call, trace_cancelled, reader);
  send_trace(call, reader);
}
