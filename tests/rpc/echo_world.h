// SPDX-License-Identifier: Apache-2.0
// What most tests of lib/rpc start from: a loop with an echo server and a channel to it, and calls that wait for their
// end by running the loop. Nothing waits longer than WORLD_LIMIT_MS: then the test process aborts with a message.
#ifndef BALLAST_TESTS_RPC_ECHO_WORLD_H
#define BALLAST_TESTS_RPC_ECHO_WORLD_H

#include "echo_server.h"
#include "echo_wire.h"
#include "loop/timer.h"

#define WORLD_LIMIT_MS 120000

typedef struct world {
  bl_loop_t *loop;
  bl_rpc_t *rpc;
  echo_server_t echo;
  bl_rpc_channel_t *channel;
} world_t;

// One call of a test and what became of it.
typedef struct outcome {
  bl_loop_t *loop;
  bl__rpc_request_t *request;
  unsigned done;     // how often `done` fired
  unsigned messages; // of a stream
  unsigned out_of_order;
  unsigned hold_at; // holds the stream after this many messages; 0: never
  bl_error_t err;
  char text[64]; // of the response
  size_t payload_bytes;
  uint64_t remaining_ms;
} outcome_t;

// Loop, rpc, server at `address` ("127.0.0.1:0"), channel to it. NULL address: no server and no channel.
void world_init(world_t *world, const char *address, const bl_rpc_server_options_t *options);
// Ends all of it: shuts the server down, if it still runs.
void world_cleanup(world_t *world);
// Shuts the server down and destroys it.
void world_stop_server(world_t *world, uint64_t drain_ms);

void world_start(world_t *world, const char *method, const echo_request_t *request, uint64_t deadline_ms,
                 outcome_t *outcome);
void world_start_stream(world_t *world, const char *method, const echo_request_t *request, uint64_t deadline_ms,
                        outcome_t *outcome);
void world_wait(world_t *world, outcome_t *outcome); // until it is done
// Starts and waits.
void world_call(world_t *world, const char *method, const echo_request_t *request, uint64_t deadline_ms,
                outcome_t *outcome);
// Runs the loop until the counter is at least `least`.
void world_wait_for(world_t *world, const unsigned *counter, unsigned least);
// Runs the loop for a while, where the point is that nothing happens.
void world_run_for(world_t *world, uint64_t duration_ms);

#endif
