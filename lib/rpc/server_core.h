// SPDX-License-Identifier: Apache-2.0
// Shared between server.c (the server's life) and call.c (the life of one call).
#ifndef BALLAST_RPC_SERVER_CORE_H
#define BALLAST_RPC_SERVER_CORE_H

#include "rpc/arena.h"
#include "rpc/credentials.h"
#include "rpc/listener.h"
#include "rpc/rpc_core.h"
#include "rpc/server.h"

#include "loop/timer.h"

// Addresses of one server.
#define BL__SERVER_LISTENERS 4
// Requests for calls that wait in gRPC per method, so that a burst of calls finds them ready.
#define BL__SERVER_REQUESTS 8
// Calls that may exist beyond max_calls: those being refused.
#define BL__SERVER_REFUSALS 64

// A method as clients call it. The one without a handler catches all unknown ones.
typedef struct bl__method {
  const ProtobufCMethodDescriptor *descriptor; // NULL: unknown methods
  const ProtobufCServiceDescriptor *service;   // NULL: unknown methods
  bl_rpc_handler_fn handle;
  void *context;
  void *registered; // gRPC's handle
  unsigned owed;    // requests not made because there was no call structure free
} bl__method_t;

typedef enum { BL__SERVER_CREATED, BL__SERVER_SERVING, BL__SERVER_STOPPING, BL__SERVER_STOPPED } bl__server_state_t;

struct bl_rpc_server {
  bl_rpc_t *rpc;
  grpc_server *server;
  bl__server_state_t state;
  size_t message_limit_bytes;
  size_t unpack_limit_bytes;
  unsigned max_calls;
  bl__method_t *methods; // the last is the one for unknown methods, added by start
  size_t method_count;
  bl__listener_t listeners[BL__SERVER_LISTENERS];
  bl__server_identity_t identities[BL__SERVER_LISTENERS];
  bool plaintext;
  size_t listener_count;

  bl_rpc_call_t *free;    // calls without work
  bl_rpc_call_t *active;  // calls being served, doubly linked
  unsigned call_total;    // that exist
  unsigned request_count; // waiting in gRPC
  unsigned active_count;

  bl__rpc_tag_t shutdown; // gRPC's end of serving
  bool shutdown_done;
  bool drain_over; // calls were cancelled
  bl_timer_t *drain;
  bl_rpc_stopped_fn stopped;
  void *context;
};

struct bl_rpc_call {
  bl_rpc_server_t *server;
  bl__method_t *method;
  bl_rpc_call_t *next;
  bl_rpc_call_t *previous;

  // Filled by gRPC with the call's arrival.
  grpc_call *call;
  gpr_timespec deadline;
  grpc_call_details details; // unknown methods
  grpc_metadata_array metadata;
  grpc_byte_buffer *payload; // the first message, then those of reads

  bl__arena_t arena; // holds the input
  bl_identity_t identity;

  bl__rpc_tag_t arrived;
  bl__rpc_tag_t closed;
  bl__rpc_tag_t sent;
  bl__rpc_tag_t received; // a further message of a client's stream
  bl__rpc_tag_t finished;
  unsigned outstanding; // batches whose event is still to come

  int cancelled_by_peer; // written by gRPC before `closed`
  bool close_requested;
  bool cancelled;
  bool metadata_sent;
  bool finishing; // the handler is done with it
  bool ended;     // gRPC is done with the final batch

  grpc_byte_buffer *sending; // in flight
  grpc_byte_buffer *output;  // the last message
  bl_status_t status;
  grpc_slice text;

  bl_rpc_sent_fn on_sent;
  void *sent_context;
  bl_rpc_cancel_fn on_cancel;
  void *cancel_context;
  bl_rpc_handler_fn on_read; // NULL: nobody reads
  void *read_context;
};

// Gives gRPC one more request for a call of `method`, or notes that one is owed.
void bl__server_request(bl_rpc_server_t *server, bl__method_t *method);
// A call is over: back to the pool, and on with a shutdown that waited for it.
void bl__server_release(bl_rpc_call_t *call);
// A request that gRPC gave back unused, at shutdown.
void bl__server_unrequest(bl_rpc_call_t *call);

// A call arrived (handler of call->arrived).
void bl__call_on_arrived(bl_message_t *message);

#endif
