// SPDX-License-Identifier: Apache-2.0
#include "bare_rpc/echo.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/support/time.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct slot {
  grpc_call *call;
  grpc_metadata_array initial;
  grpc_metadata_array trailing;
  grpc_byte_buffer *input;
  grpc_byte_buffer *output;
  grpc_status_code code;
  grpc_slice text;
} slot_t;

struct bl_bare_client {
  grpc_channel *channel;
  grpc_completion_queue *queue;
  grpc_slice method;
  slot_t slots[BL_BARE_IN_FLIGHT_MAX];
};

static void start(bl_bare_client_t *client, slot_t *slot, const void *bytes, size_t size_bytes) {
  memset(slot, 0, sizeof *slot);
  grpc_metadata_array_init(&slot->initial);
  grpc_metadata_array_init(&slot->trailing);
  gpr_timespec deadline =
      gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(BL_BARE_DEADLINE_MS, GPR_TIMESPAN));
  slot->call = grpc_channel_create_call(client->channel, NULL, GRPC_PROPAGATE_DEFAULTS, client->queue, client->method,
                                        NULL, deadline, NULL);
  grpc_slice slice = grpc_slice_from_copied_buffer(bytes, size_bytes);
  slot->input = grpc_raw_byte_buffer_create(&slice, 1);
  grpc_slice_unref(slice);
  grpc_op ops[6];
  memset(ops, 0, sizeof ops);
  ops[0].op = GRPC_OP_SEND_INITIAL_METADATA;
  ops[1].op = GRPC_OP_SEND_MESSAGE;
  ops[1].data.send_message.send_message = slot->input;
  ops[2].op = GRPC_OP_SEND_CLOSE_FROM_CLIENT;
  ops[3].op = GRPC_OP_RECV_INITIAL_METADATA;
  ops[3].data.recv_initial_metadata.recv_initial_metadata = &slot->initial;
  ops[4].op = GRPC_OP_RECV_MESSAGE;
  ops[4].data.recv_message.recv_message = &slot->output;
  ops[5].op = GRPC_OP_RECV_STATUS_ON_CLIENT;
  ops[5].data.recv_status_on_client.trailing_metadata = &slot->trailing;
  ops[5].data.recv_status_on_client.status = &slot->code;
  ops[5].data.recv_status_on_client.status_details = &slot->text;
  grpc_call_start_batch(slot->call, ops, 6, slot, NULL);
}

static bool finish(slot_t *slot, size_t size_bytes) {
  bool echoed =
      slot->code == GRPC_STATUS_OK && slot->output != NULL && grpc_byte_buffer_length(slot->output) == size_bytes;
  grpc_byte_buffer_destroy(slot->input);
  grpc_byte_buffer_destroy(slot->output);
  grpc_slice_unref(slot->text);
  grpc_metadata_array_destroy(&slot->initial);
  grpc_metadata_array_destroy(&slot->trailing);
  grpc_call_unref(slot->call);
  return echoed;
}

bl_status_t bl_bare_client_create(int port, const char *method, bl_bare_client_t **result) {
  bl_bare_client_t *client = calloc(1, sizeof *client);
  if (client == NULL) {
    return BL_EXHAUSTED;
  }
  grpc_init();
  grpc_arg options[] = {
      {.type = GRPC_ARG_INTEGER, .key = (char *)GRPC_ARG_ENABLE_CHANNELZ, .value.integer = 0},
      {.type = GRPC_ARG_INTEGER, .key = (char *)GRPC_ARG_ENABLE_RETRIES, .value.integer = 0},
      {.type = GRPC_ARG_INTEGER, .key = (char *)GRPC_ARG_ENABLE_HTTP_PROXY, .value.integer = 0},
  };
  const grpc_channel_args args = {.num_args = sizeof options / sizeof options[0], .args = options};
  char target[32];
  snprintf(target, sizeof target, "ipv4:127.0.0.1:%d", port);
  grpc_channel_credentials *credentials = grpc_insecure_credentials_create();
  client->queue = grpc_completion_queue_create_for_next(NULL);
  client->channel = grpc_channel_create(target, credentials, &args);
  grpc_channel_credentials_release(credentials);
  client->method = grpc_slice_from_copied_string(method);
  *result = client;
  return BL_OK;
}

void bl_bare_client_destroy(bl_bare_client_t *client) {
  grpc_channel_destroy(client->channel);
  grpc_completion_queue_shutdown(client->queue);
  while (grpc_completion_queue_next(client->queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL).type !=
         GRPC_QUEUE_SHUTDOWN) {
  }
  grpc_completion_queue_destroy(client->queue);
  grpc_slice_unref(client->method);
  free(client);
  grpc_shutdown_blocking();
}

bl_status_t bl_bare_client_run(bl_bare_client_t *client, const void *bytes, size_t size_bytes, unsigned in_flight,
                               unsigned calls) {
  unsigned started = 0, finished = 0;
  bool fine = true;
  while (started < in_flight && started < calls) {
    start(client, &client->slots[started++], bytes, size_bytes);
  }
  while (finished < started) {
    grpc_event event = grpc_completion_queue_next(client->queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    slot_t *slot = event.tag;
    fine = finish(slot, size_bytes) && fine;
    finished++;
    if (started < calls && fine) {
      started++;
      start(client, slot, bytes, size_bytes);
    }
  }
  return fine ? BL_OK : BL_UNAVAILABLE;
}
