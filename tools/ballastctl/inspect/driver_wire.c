// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/inspect/driver_core_wire.h"

#include "ballastctl/inspect/coords.h"
#include "base/minmax.h"

#include <stdio.h>
#include <stdlib.h>

// ---- life ----

bl_status_t bl_ctl_driver_create(bl_rpc_t *rpc, const char *address, bl_ctl_driver_t **result, bl_error_t *err) {
  bl_ctl_driver_t *driver = calloc(1, sizeof *driver);
  if (driver == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory");
  }
  driver->rpc = rpc;
  bl_status_t status = bl_rpc_channel_create(rpc, address, &(bl_rpc_channel_options_t){.server_roles = BL_DRIVERS},
                                             &driver->channel, err);
  if (status != BL_OK) {
    goto free_driver;
  }
  status = bl_timer_create(bl_rpc_loop(rpc), bl__driver_watch_retry, driver, &driver->retry, err);
  if (status != BL_OK) {
    goto destroy_channel;
  }
  *result = driver;
  return BL_OK;

destroy_channel:
  bl_rpc_channel_destroy(driver->channel);
free_driver:
  free(driver);
  return status;
}

void bl_ctl_driver_destroy(bl_ctl_driver_t *driver) {
  if (driver == NULL) {
    return;
  }
  driver->closing = true;
  bl_rpc_channel_destroy(driver->channel);
  bl_timer_destroy(driver->retry);
  free(driver);
}

// ---- calls ----

// A call in flight, with the callbacks of its caller.
typedef struct call {
  bl_ctl_done_fn done;
  bl_ctl_text_fn text;
  bl_ctl_trace_fn trace;
  bl_ctl_json_fn json;
  void *context;
} call_t;

// Starts a call. `message` is called for each message of a stream; NULL: the method has a single response. `done` frees
// the call_t that is its context.
static bl_status_t call(bl_ctl_driver_t *driver, const char *method, const ProtobufCMessage *request,
                        uint64_t deadline_ms, bl_rpc_message_fn message, bl_rpc_done_fn done, call_t asked,
                        bl_error_t *err) {
  const ProtobufCServiceDescriptor *const service = &ballast__v1__driver__descriptor;
  call_t *kept = malloc(sizeof *kept);
  if (kept == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory");
  }
  *kept = asked;
  bl_status_t status =
      message == NULL
          ? bl_rpc_channel_call(driver->channel, service, method, request, deadline_ms, done, kept, err)
          : bl_rpc_channel_stream(driver->channel, service, method, request, deadline_ms, message, done, kept, err);
  if (status != BL_OK) {
    free(kept);
  }
  return status;
}

static void call_done(const ProtobufCMessage *output, const bl_error_t *err, void *context) {
  (void)output;
  call_t *asked = context;
  asked->done(err, asked->context);
  free(asked);
}

bl_status_t bl_ctl_driver_stop(bl_ctl_driver_t *driver, uint64_t deadline_ms, bl_ctl_done_fn done, void *context,
                               bl_error_t *err) {
  Ballast__V1__DriverStopRequest request = BALLAST__V1__DRIVER_STOP_REQUEST__INIT;
  return call(driver, "Stop", &request.base, deadline_ms, NULL, call_done, (call_t){.done = done, .context = context},
              err);
}

static void generated(const ProtobufCMessage *output, void *context) {
  const call_t *asked = context;
  const Ballast__V1__GenerateResponse *response = (const Ballast__V1__GenerateResponse *)output;
  if (response->text.len > 0) {
    asked->text(response->text.data, response->text.len, asked->context);
    return;
  }
  char number[16]; // there is no tokenizer here: tokens that are not bytes are shown as numbers
  int length = snprintf(number, sizeof number, "%u ", response->token);
  asked->text((const uint8_t *)number, (size_t)length, asked->context);
}

bl_status_t bl_ctl_driver_generate(bl_ctl_driver_t *driver, uint32_t tokens, uint64_t seed, double temperature,
                                   uint64_t deadline_ms, bl_ctl_text_fn text, bl_ctl_done_fn done, void *context,
                                   bl_error_t *err) {
  Ballast__V1__GenerateRequest request = BALLAST__V1__GENERATE_REQUEST__INIT;
  request.tokens = tokens;
  request.seed = seed;
  request.temperature = temperature;
  return call(driver, "Generate", &request.base, deadline_ms, generated, call_done,
              (call_t){.done = done, .text = text, .context = context}, err);
}

bool bl__driver_trace_grid(const Ballast__V1__DriverTraceResponse *response, bl_grid_t *grid) {
  const uint32_t rank = (uint32_t)response->stage, stages = response->replica_stages;
  const bool good = bl_ctl_coords_grid_of(stages > 0 ? stages : rank + 1, bl_max_u32(response->tensor_ranks, 1),
                                          bl_max_u32(response->replicas, 1), grid) &&
                    rank < bl_grid_ranks(grid);
  grid->stages = stages;
  return good;
}

static void traced(const ProtobufCMessage *output, void *context) {
  const call_t *asked = context;
  const Ballast__V1__DriverTraceResponse *response = (const Ballast__V1__DriverTraceResponse *)output;
  bl_grid_t grid;
  const size_t count = bl__driver_trace_grid(response, &grid) ? response->n_events : 0;
  for (size_t i = 0; i < count; i++) {
    const Ballast__V1__TraceEvent *from = response->events[i];
    bl_ctl_trace_event_t event = {.stage = response->stage,
                                  .grid = grid,
                                  .name = from->name,
                                  .wait = from->wait,
                                  .start_ns = from->start_ns,
                                  .end_ns = from->end_ns,
                                  .micro_batch = from->micro_batch,
                                  .slots_in_use = from->slots_in_use,
                                  .waited_ns = from->waited_ns,
                                  .transfer = from->moved_bytes > 0,
                                  .bytes = from->moved_bytes,
                                  .host = response->host};
    asked->trace(&event, asked->context);
  }
}

bl_status_t bl_ctl_driver_trace(bl_ctl_driver_t *driver, uint64_t deadline_ms, bl_ctl_trace_fn event,
                                bl_ctl_done_fn done, void *context, bl_error_t *err) {
  Ballast__V1__DriverTraceRequest request = BALLAST__V1__DRIVER_TRACE_REQUEST__INIT;
  return call(driver, "Trace", &request.base, deadline_ms, traced, call_done,
              (call_t){.done = done, .trace = event, .context = context}, err);
}

static void status_done(const ProtobufCMessage *output, const bl_error_t *err, void *context) {
  call_t *asked = context;
  json_t *value = output != NULL ? bl__driver_status_json((const Ballast__V1__DriverStatusResponse *)output) : NULL;
  bl_error_t failure = *err;
  if (output != NULL && value == NULL) {
    bl_error_set(&failure, BL_INTERNAL, "the driver's status holds text that is not UTF-8, or ranks that no run has");
  }
  asked->json(value, &failure, asked->context);
  json_decref(value);
  free(asked);
}

bl_status_t bl_ctl_driver_status(bl_ctl_driver_t *driver, uint64_t deadline_ms, bl_ctl_json_fn done, void *context,
                                 bl_error_t *err) {
  Ballast__V1__DriverStatusRequest request = BALLAST__V1__DRIVER_STATUS_REQUEST__INIT;
  return call(driver, "Status", &request.base, deadline_ms, NULL, status_done,
              (call_t){.json = done, .context = context}, err);
}
