// SPDX-License-Identifier: Apache-2.0
// Private to lib/rpc: shared by channel.c (connections) and request.c (one call being made).
#ifndef BALLAST_RPC_CHANNEL_CORE_H
#define BALLAST_RPC_CHANNEL_CORE_H

#include "rpc/arena.h"
#include "rpc/credentials.h"
#include "rpc/request.h"
#include "rpc/rpc_core.h"

// Request structures kept for later calls. More than the stages of a driver or the calls that a bench has in flight.
#define BL__CHANNEL_FREE_REQUESTS 64

// A gRPC channel with the certificate that it presents. After a change of certificate, new requests use a new line. The
// old line lives as long as requests that began on it.
typedef struct bl__line {
  grpc_channel *channel;
  unsigned users; // the channel and requests
  uint64_t generation;
} bl__line_t;

struct bl_rpc_channel {
  bl_rpc_t *rpc;
  bl__line_t *line;
  bl__trust_t *trust; // NULL: plaintext
  bl_tls_t *tls;
  bl__address_t peer;
  bl_rpc_channel_options_t options;
  size_t message_limit_bytes;
  size_t unpack_limit_bytes;
  bl__rpc_request_t *requests; // in flight, doubly linked
  bl__rpc_request_t *free;
  unsigned free_count;
  char address[BL_RPC_ADDRESS_BYTES];
};

struct bl__rpc_request {
  bl_rpc_channel_t *channel; // NULL when the request outlives the channel, which only its last events do
  bl_rpc_t *rpc;
  bl__line_t *line;
  bl__rpc_request_t *next;
  bl__rpc_request_t *previous;
  const ProtobufCMethodDescriptor *method;
  grpc_call *call;
  bl__arena_t arena; // holds the message passed to the callback

  bl__rpc_tag_t started;  // what we send and, for a unary call, all that is received
  bl__rpc_tag_t received; // a message of a stream
  bl__rpc_tag_t ended;    // the status of a stream
  unsigned outstanding;   // batches whose event has not arrived

  grpc_byte_buffer *input;
  grpc_byte_buffer *output;
  grpc_metadata_array initial;
  grpc_metadata_array trailing;
  grpc_status_code code;
  grpc_slice text;

  bool stream;
  bool receiving; // `received` is armed
  bool held;
  bool in_message; // the message callback runs
  bool exhausted;  // no further message will arrive
  bool explaining; // ended, but the cause is still being determined
  bool cancelled;  // by this side
  bool has_status;
  bl_rpc_message_fn message;
  bl_rpc_done_fn done; // NULL after it was called
  void *context;
  bl_error_t failure; // of this side, while unpacking; overrides gRPC's status
};

// Returns the line for a request that starts now. The request releases it.
bl__line_t *bl__channel_take_line(bl_rpc_channel_t *channel);
void bl__line_release(bl__line_t *line);
// Replaces an error of the connection by its cause, if this side knows it: a refused certificate, or TLS at one end
// only. Returns true if the cause is unknown but an attempt may find it (explanation.h).
bool bl__channel_explain(bl_rpc_channel_t *channel, bl_error_t *err);
unsigned bl__channel_server_roles(const bl_rpc_channel_t *channel);

// Frees requests that outlived their channel and wait for an explanation.
void bl__rpc_requests_end(bl_rpc_t *rpc);
// Cancels and answers a request whose channel is destroyed.
void bl__rpc_request_abandon(bl__rpc_request_t *request);

#endif
