// SPDX-License-Identifier: Apache-2.0
#include "echo_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(bl_status_t status, const bl_error_t *err) {
  if (status != BL_OK) {
    fprintf(stderr, "test fixture: %s: %s\n", bl_status_name(status), err->text);
    abort();
  }
}

static void on_limit(bl_timer_t *timer, void *context) {
  (void)timer;
  fprintf(stderr, "test fixture: waited %d ms for %s\n", WORLD_LIMIT_MS, (const char *)context);
  abort();
}

static void on_poll(bl_timer_t *timer, void *context) {
  (void)timer;
  bl_loop_stop(context);
}

// Runs the loop until *counter >= least, looking every millisecond.
static void run_until(world_t *world, const unsigned *counter, unsigned least, const char *what) {
  bl_timer_t *limit, *poll;
  bl_error_t err;
  check(bl_timer_create(world->loop, on_limit, (void *)(uintptr_t)what, &limit, &err), &err);
  check(bl_timer_create(world->loop, on_poll, world->loop, &poll, &err), &err);
  bl_timer_start(limit, WORLD_LIMIT_MS, 0);
  bl_timer_start(poll, 1, 1);
  while (*counter < least) {
    bl_loop_run(world->loop);
  }
  bl_timer_destroy(limit);
  bl_timer_destroy(poll);
}

void world_wait_for(world_t *world, const unsigned *counter, unsigned least) {
  run_until(world, counter, least, "a counter");
}

void world_wait(world_t *world, outcome_t *outcome) {
  run_until(world, &outcome->done, 1, "the end of a call");
}

void world_run_for(world_t *world, uint64_t duration_ms) {
  bl_timer_t *timer;
  bl_error_t err;
  check(bl_timer_create(world->loop, on_poll, world->loop, &timer, &err), &err);
  bl_timer_start(timer, duration_ms, 0);
  bl_loop_run(world->loop);
  bl_timer_destroy(timer);
}

void world_init(world_t *world, const char *address, const bl_rpc_server_options_t *options) {
  memset(world, 0, sizeof *world);
  bl_error_t err;
  check(bl_loop_create(&world->loop, &err), &err);
  check(bl_rpc_create(world->loop, &world->rpc, &err), &err);
  if (address != NULL) {
    check(echo_server_start(&world->echo, world->rpc, address, options, &err), &err);
    check(bl_rpc_channel_create(world->rpc, world->echo.address, NULL, &world->channel, &err), &err);
  }
}

static void on_stopped(bl_rpc_server_t *server, void *context) {
  bl_rpc_server_destroy(server);
  *(unsigned *)context = 1;
}

void world_stop_server(world_t *world, uint64_t drain_ms) {
  unsigned stopped = 0;
  bl_rpc_server_shutdown(world->echo.server, drain_ms, on_stopped, &stopped);
  world->echo.server = NULL;
  run_until(world, &stopped, 1, "the server's shutdown");
}

void world_cleanup(world_t *world) {
  bl_rpc_channel_destroy(world->channel);
  if (world->echo.server != NULL) {
    world_stop_server(world, 0);
  }
  bl_rpc_destroy(world->rpc);
  bl_loop_destroy(world->loop);
}

static void on_done(const ProtobufCMessage *output, const bl_error_t *err, void *context) {
  outcome_t *outcome = context;
  outcome->request = NULL;
  outcome->done++;
  outcome->err = *err;
  if (output != NULL) {
    echo_response_t response = echo_read_response(output);
    snprintf(outcome->text, sizeof outcome->text, "%s", response.text);
    outcome->payload_bytes = response.payload_bytes;
    outcome->remaining_ms = response.remaining_ms;
  }
  bl_loop_stop(outcome->loop);
}

static void on_message(const ProtobufCMessage *output, void *context) {
  outcome_t *outcome = context;
  echo_response_t response = echo_read_response(output);
  outcome->out_of_order += response.index != outcome->messages;
  outcome->payload_bytes += response.payload_bytes;
  outcome->messages++;
  if (outcome->messages == outcome->hold_at) {
    bl__rpc_request_hold(outcome->request);
  }
}

void world_start(world_t *world, const char *method, const echo_request_t *request, uint64_t deadline_ms,
                 outcome_t *outcome) {
  bl_error_t err;
  memset(outcome, 0, sizeof *outcome);
  outcome->loop = world->loop;
  check(echo_start(world->channel, method, request, deadline_ms, on_done, outcome, &outcome->request, &err), &err);
}

void world_start_stream(world_t *world, const char *method, const echo_request_t *request, uint64_t deadline_ms,
                        outcome_t *outcome) {
  bl_error_t err;
  unsigned hold_at = outcome->hold_at;
  memset(outcome, 0, sizeof *outcome);
  outcome->loop = world->loop;
  outcome->hold_at = hold_at;
  check(echo_start_stream(world->channel, method, request, deadline_ms, on_message, on_done, outcome, &outcome->request,
                          &err),
        &err);
}

void world_call(world_t *world, const char *method, const echo_request_t *request, uint64_t deadline_ms,
                outcome_t *outcome) {
  world_start(world, method, request, deadline_ms, outcome);
  world_wait(world, outcome);
}
