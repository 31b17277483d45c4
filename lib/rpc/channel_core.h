// SPDX-License-Identifier: Apache-2.0
// Shared between channel.c (connections) and request.c (one call being made).
#ifndef BALLAST_RPC_CHANNEL_CORE_H
#define BALLAST_RPC_CHANNEL_CORE_H

#include "rpc/arena.h"
#include "rpc/channel.h"
#include "rpc/credentials.h"
#include "rpc/rpc_core.h"

// Request structures kept for the next call; more than a driver has stages or a bench calls in flight.
#define BL__CHANNEL_FREE_REQUESTS 64

// gRPC's channel, with the certificate it shows. A new certificate makes a new line for requests that start from then
// on; the older one lives as long as requests that began on it.
typedef struct bl__line {
  grpc_channel *channel;
  unsigned users; // the channel, requests
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
  bl_rpc_request_t *requests; // under way, doubly linked
  bl_rpc_request_t *free;
  unsigned free_count;
  char address[BL_RPC_ADDRESS_BYTES];
};

struct bl_rpc_request {
  bl_rpc_channel_t *channel; // NULL when the request outlives it, which only its last events do
  bl_rpc_t *rpc;
  bl__line_t *line;
  bl_rpc_request_t *next;
  bl_rpc_request_t *previous;
  const ProtobufCMethodDescriptor *method;
  grpc_call *call;
  bl__arena_t arena; // holds the message given to the callback

  bl__rpc_tag_t started;  // what we send, and, for a unary call, all that comes back
  bl__rpc_tag_t received; // a message of a stream
  bl__rpc_tag_t ended;    // the status of a stream
  unsigned outstanding;   // batches whose event is still to come

  grpc_byte_buffer *input;
  grpc_byte_buffer *output;
  grpc_metadata_array initial;
  grpc_metadata_array trailing;
  grpc_status_code code;
  grpc_slice text;

  bool stream;
  bool receiving; // `received` is out
  bool held;
  bool in_message; // its callback runs
  bool exhausted;  // no further message will come
  bool explaining; // over, but it is being found out why
  bool cancelled;  // by this side
  bool has_status;
  bl_rpc_message_fn message;
  bl_rpc_done_fn done; // NULL once it was called
  void *context;
  bl_error_t failure; // of this side, while unpacking; then it wins over gRPC's status
};

// The line for a request that starts now; give it back.
bl__line_t *bl__channel_take_line(bl_rpc_channel_t *channel);
void bl__line_release(bl__line_t *line);
// Puts what this side knows about it in place of an error of the connection: a certificate refused, TLS at one end only.
// True: it knows nothing, but may find out by trying (explanation.h).
bool bl__channel_explain(bl_rpc_channel_t *channel, bl_error_t *err);
unsigned bl__channel_server_roles(const bl_rpc_channel_t *channel);

// Frees requests whose channels have gone and that still wait for an explanation.
void bl__requests_end(bl_rpc_t *rpc);
// Cancels and answers a request whose channel goes away.
void bl__request_abandon(bl_rpc_request_t *request);

#endif
