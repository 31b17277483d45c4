// SPDX-License-Identifier: Apache-2.0
// Private to lib/rpc: shared by server.c (the server's life) and call.c (the life of one call).
#ifndef BALLAST_RPC_SERVER_CORE_H
#define BALLAST_RPC_SERVER_CORE_H

#include "rpc/arena.h"
#include "rpc/credentials.h"
#include "rpc/listener.h"
#include "rpc/rpc_core.h"
#include "rpc/server.h"

#include "loop/timer.h"

// Maximum number of addresses of one server.
#define BL__SERVER_LISTENERS 4
// Call requests that wait in gRPC per method, so that a burst of calls finds them ready.
#define BL__SERVER_REQUESTS 8
// Calls that may exist beyond max_calls, in order to be refused.
#define BL__SERVER_REFUSALS 64

// A method as clients call it. The entry without a handler receives all unknown methods.
typedef struct bl__method {
  const ProtobufCMethodDescriptor *descriptor; // NULL: unknown methods
  const ProtobufCServiceDescriptor *service;   // NULL: unknown methods
  bl_rpc_handler_fn handle;
  void *context;
  void *registered; // gRPC's handle
  unsigned owed;    // requests not made for lack of a free call structure
} bl__method_t;

typedef enum { BL__SERVER_CREATED, BL__SERVER_SERVING, BL__SERVER_STOPPING, BL__SERVER_STOPPED } bl__server_state_t;

struct bl_rpc_server {
  bl_rpc_t *rpc;
  grpc_server *server;
  bl__server_state_t state;
  size_t message_limit_bytes;
  size_t unpack_limit_bytes;
  unsigned max_calls;
  bl__method_t *methods; // the last entry is for unknown methods; start adds it
  size_t method_count;
  bl__listener_t listeners[BL__SERVER_LISTENERS];
  bl__server_identity_t identities[BL__SERVER_LISTENERS];
  bool plaintext;
  size_t listener_count;

  bl_rpc_call_t *free;    // unused call structures
  bl_rpc_call_t *active;  // calls being served, doubly linked
  unsigned call_total;    // call structures that exist
  unsigned request_count; // waiting in gRPC
  unsigned active_count;

  bl__rpc_tag_t shutdown; // end of gRPC's shutdown
  bool shutdown_done;
  bool drain_over; // remaining calls were cancelled
  bl_timer_t *drain;
  bl_rpc_stopped_fn stopped;
  void *context;
};

struct bl_rpc_call {
  bl_rpc_server_t *server;
  bl__method_t *method;
  bl_rpc_call_t *next;
  bl_rpc_call_t *previous;

  // Set by gRPC when the call arrives.
  grpc_call *call;
  gpr_timespec deadline;
  grpc_call_details details; // of an unknown method
  grpc_metadata_array metadata;
  grpc_byte_buffer *payload; // the first message, later those of reads

  bl__arena_t arena; // holds the input
  bl_identity_t identity;

  bl__rpc_tag_t arrived;
  bl__rpc_tag_t closed;
  bl__rpc_tag_t sent;
  bl__rpc_tag_t received; // a later message of a client's stream
  bl__rpc_tag_t finished;
  unsigned outstanding; // batches whose event has not arrived

  int cancelled_by_peer; // written by gRPC before `closed`
  bool close_requested;
  bool cancelled;
  bool metadata_sent;
  bool finishing; // the handler has finished it
  bool ended;     // the final batch has ended

  grpc_byte_buffer *sending; // in flight
  grpc_byte_buffer *output;  // the last message
  bl_status_t status;
  grpc_slice text;

  bl_rpc_sent_fn on_sent;
  void *sent_context;
  bl_rpc_cancel_fn on_cancel;
  void *cancel_context;
  bl_rpc_handler_fn on_read; // NULL: no read in progress
  void *read_context;
};

// Gives gRPC one more request for a call of `method`, or counts one as owed.
void bl__server_request(bl_rpc_server_t *server, bl__method_t *method);
// Returns an ended call to the pool, and continues a shutdown that waited for it.
void bl__server_release(bl_rpc_call_t *call);
// Takes back a request that gRPC returned unused at shutdown.
void bl__server_unrequest(bl_rpc_call_t *call);

// Handles the arrival of a call (handler of call->arrived).
void bl__call_on_arrived(bl_message_t *message);

#endif
