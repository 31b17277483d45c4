// SPDX-License-Identifier: Apache-2.0
#include "service_core_wire.h"

#include <stdlib.h>
#include <string.h>

#define TRACE_BATCH 512 // events per message: about 20 KiB

typedef struct bl__tracing {
  bl_driver_service_t *service;
  bl_rpc_call_t *call;
  bl_stage_trace_t *traces; // a copy, when collected
  size_t stages, stage, event;
} bl__tracing_t;

static void tracing_free(bl__tracing_t *tracing) {
  for (size_t i = 0; tracing->traces != NULL && i < tracing->stages; i++) {
    free(tracing->traces[i].events);
  }
  free(tracing->traces);
  free(tracing);
}

static void tracing_feed(bl__tracing_t *tracing);

static void tracing_sent(bl_rpc_call_t *call, void *context) {
  (void)call;
  tracing_feed(context);
}

static void tracing_feed(bl__tracing_t *tracing) {
  while (tracing->stage < tracing->stages && tracing->event >= tracing->traces[tracing->stage].count) {
    tracing->stage++;
    tracing->event = 0;
  }
  if (tracing->stage == tracing->stages) {
    bl_rpc_call_finish(tracing->call, BL_OK, "");
    tracing_free(tracing);
    return;
  }
  Ballast__V1__TraceEvent events[TRACE_BATCH], *pointers[TRACE_BATCH];
  const bl_stage_trace_t *trace = &tracing->traces[tracing->stage];
  Ballast__V1__DriverTraceResponse output = BALLAST__V1__DRIVER_TRACE_RESPONSE__INIT;
  const bl_training_t *training = bl_driver_training(tracing->service->driver);
  const bl_grid_t *grid = &training->grid;
  output.stage = (int32_t)tracing->stage;
  output.replica_stages = grid->stages;
  output.tensor_ranks = grid->tensor;
  output.replicas = grid->data;
  output.host = training->hosts.count > 0 ? training->hosts.of_rank[tracing->stage] : 0;
  output.events = pointers;
  while (output.n_events < TRACE_BATCH && tracing->event < trace->count) {
    const bl_trace_event_t *from = &trace->events[tracing->event++];
    Ballast__V1__TraceEvent *event = &events[output.n_events];
    *event = (Ballast__V1__TraceEvent)BALLAST__V1__TRACE_EVENT__INIT;
    event->name = (char *)from->name;
    event->wait = from->wait;
    event->start_ns = from->start_ns;
    event->end_ns = from->end_ns;
    event->micro_batch = from->micro_batch;
    event->slots_in_use = from->slots_in_use;
    event->moved_bytes = from->moved_bytes;
    event->waited_ns = from->waited_ns;
    pointers[output.n_events++] = event;
  }
  (void)!bl_rpc_call_send(tracing->call, &output.base, tracing_sent, tracing); // cancelled: tracing_gone follows
}

static bl_status_t copy_traces(bl__tracing_t *tracing, const bl_stage_trace_t *traces, size_t stages) {
  tracing->traces = calloc(stages + 1, sizeof *tracing->traces);
  if (tracing->traces == NULL) {
    return BL_EXHAUSTED;
  }
  tracing->stages = stages;
  for (size_t i = 0; i < stages; i++) {
    bl_stage_trace_t *copy = &tracing->traces[i];
    copy->events = malloc((traces[i].count + 1) * sizeof *copy->events);
    if (copy->events == NULL) {
      return BL_EXHAUSTED;
    }
    copy->count = traces[i].count;
    if (copy->count > 0) {
      memcpy(copy->events, traces[i].events, copy->count * sizeof *copy->events);
    }
  }
  return BL_OK;
}

static void traced(const bl_stage_trace_t *traces, size_t stages, const bl_error_t *err, void *context) {
  bl__tracing_t *tracing = context;
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
  bl__tracing_t *tracing = context;
  bl_driver_trace_cancel(tracing->service->driver, tracing);
  bl_rpc_call_finish(call, BL_CANCELLED, "the reader has gone");
  tracing_free(tracing);
}

void bl__handle_trace(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  (void)input;
  bl_driver_service_t *service = context;
  if (bl__refuse_early(service, call)) {
    return;
  }
  bl__tracing_t *tracing = calloc(1, sizeof *tracing);
  if (tracing == NULL) {
    bl_rpc_call_finish(call, BL_EXHAUSTED, "no memory for the trace");
    return;
  }
  *tracing = (bl__tracing_t){.service = service, .call = call};
  bl_rpc_call_on_cancel(call, tracing_gone, tracing);
  bl_driver_trace(service->driver, traced, tracing);
}
