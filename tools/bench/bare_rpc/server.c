// SPDX-License-Identifier: Apache-2.0
#include "bare_rpc/echo.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define REQUESTS BL_BARE_IN_FLIGHT_MAX

typedef struct echo {
  grpc_call *call; // NULL: waits for a call
  gpr_timespec deadline;
  grpc_metadata_array metadata;
  grpc_byte_buffer *payload;
  int cancelled;
} echo_t;

struct bl_bare_server {
  grpc_server *server;
  grpc_completion_queue *queue;
  void *method;
  pthread_t thread;
  int port;
  bool stopping;
  echo_t echoes[REQUESTS];
};

static void request(bl_bare_server_t *server, echo_t *echo) {
  memset(echo, 0, sizeof *echo);
  grpc_metadata_array_init(&echo->metadata);
  grpc_server_request_registered_call(server->server, server->method, &echo->call, &echo->deadline, &echo->metadata,
                                      &echo->payload, server->queue, server->queue, echo);
}

static void answer(echo_t *echo) {
  grpc_op ops[4];
  memset(ops, 0, sizeof ops);
  ops[0].op = GRPC_OP_SEND_INITIAL_METADATA;
  ops[1].op = GRPC_OP_SEND_MESSAGE;
  ops[1].data.send_message.send_message = echo->payload;
  ops[2].op = GRPC_OP_SEND_STATUS_FROM_SERVER;
  ops[2].data.send_status_from_server.status = GRPC_STATUS_OK;
  ops[3].op = GRPC_OP_RECV_CLOSE_ON_SERVER;
  ops[3].data.recv_close_on_server.cancelled = &echo->cancelled;
  grpc_call_start_batch(echo->call, ops, 4, (char *)echo + 1, NULL); // an odd tag: the answer is sent
}

static void release(echo_t *echo) {
  grpc_byte_buffer_destroy(echo->payload);
  grpc_metadata_array_destroy(&echo->metadata);
  grpc_call_unref(echo->call);
}

static void *serve(void *argument) {
  bl_bare_server_t *server = argument;
  for (;;) {
    grpc_event event = grpc_completion_queue_next(server->queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    if (event.type == GRPC_QUEUE_SHUTDOWN) {
      return NULL;
    }
    if (event.tag == server) { // the server has shut down
      grpc_completion_queue_shutdown(server->queue);
    } else if ((uintptr_t)event.tag % 2 == 1) {
      echo_t *echo = (echo_t *)(void *)((char *)event.tag - 1);
      release(echo);
      request(server, echo);
    } else if (event.success) {
      answer(event.tag);
    } else { // a waiting request, returned at shutdown
      grpc_metadata_array_destroy(&((echo_t *)event.tag)->metadata);
    }
  }
}

bl_status_t bl_bare_server_start(const char *method, bl_bare_server_t **result) {
  bl_bare_server_t *server = calloc(1, sizeof *server);
  if (server == NULL) {
    return BL_EXHAUSTED;
  }
  grpc_init();
  grpc_arg arg = {.type = GRPC_ARG_INTEGER, .key = (char *)GRPC_ARG_ENABLE_CHANNELZ, .value.integer = 0};
  const grpc_channel_args args = {.num_args = 1, .args = &arg};
  server->queue = grpc_completion_queue_create_for_next(NULL);
  server->server = grpc_server_create(&args, NULL);
  grpc_server_register_completion_queue(server->server, server->queue, NULL);
  server->method =
      grpc_server_register_method(server->server, method, NULL, GRPC_SRM_PAYLOAD_READ_INITIAL_BYTE_BUFFER, 0);
  grpc_server_credentials *credentials = grpc_insecure_server_credentials_create();
  server->port = grpc_server_add_http2_port(server->server, "127.0.0.1:0", credentials);
  grpc_server_credentials_release(credentials);
  grpc_server_start(server->server);
  for (unsigned i = 0; i < REQUESTS; i++) {
    request(server, &server->echoes[i]);
  }
  *result = server;
  if (server->port == 0 || pthread_create(&server->thread, NULL, serve, server) != 0) {
    return BL_UNAVAILABLE; // the benchmark ends here
  }
  return BL_OK;
}

void bl_bare_server_stop(bl_bare_server_t *server) {
  grpc_server_shutdown_and_notify(server->server, server->queue, server);
  pthread_join(server->thread, NULL);
  grpc_server_destroy(server->server);
  grpc_completion_queue_destroy(server->queue);
  free(server);
  grpc_shutdown_blocking();
}

int bl_bare_server_port(const bl_bare_server_t *server) {
  return server->port;
}
