// SPDX-License-Identifier: Apache-2.0
// Serving calls: protobuf-c service descriptors and tables of handlers. Rules common to this library: rpc.h.
//
//   static void status(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
//     Ballast__V1__StageStatusResponse output = BALLAST__V1__STAGE_STATUS_RESPONSE__INIT;
//     bl_rpc_call_reply(call, &output.base);
//   }
//   static const bl_rpc_method_t methods[] = {{"Status", status}, ...};
//
//   bl_rpc_server_create(rpc, NULL, &server, err);
//   bl_rpc_server_add_service(server, &ballast__v1__stage__descriptor, methods, count, self, err);
//   bl_rpc_server_listen(server, "127.0.0.1:0", address, sizeof address, err);
//   bl_rpc_server_start(server, err);
//   ...
//   bl_rpc_server_shutdown(server, 2000, stopped, self);    // stopped() may destroy the server
//
// A handler answers at once or later. Rules for calls:
//   1. Every call is finished exactly once, also after it was cancelled: bl_rpc_call_reply, bl_rpc_call_fail or
//      bl_rpc_call_finish. The call, its input and its callbacks no longer exist when that function returns.
//   2. A call is cancelled if the client cancelled it, its deadline passed, the connection was lost, or the shutdown's
//      deadline passed. `on_cancel` reports it at most once, never after the call is finished.
//   3. A handler is called with the first message. Later messages of a client's stream are read one by one.
//   4. A stream has at most one message in flight: call bl_rpc_call_send again only after `sent` (back-pressure).
// Methods without a row in the table and unknown methods answer UNIMPLEMENTED.
#ifndef BALLAST_RPC_SERVER_H
#define BALLAST_RPC_SERVER_H

#include "rpc/rpc.h"

#include <protobuf-c/protobuf-c.h>

typedef struct bl_rpc_server bl_rpc_server_t;
typedef struct bl_rpc_call bl_rpc_call_t; // one call being served

// `input` is valid until the call is finished.
typedef void (*bl_rpc_handler_fn)(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context);

typedef struct bl_rpc_method {
  const char *name; // as in the .proto
  bl_rpc_handler_fn handle;
} bl_rpc_method_t;

typedef struct bl_rpc_server_options {
  uint32_t message_limit_bytes; // 0: BL_RPC_MESSAGE_LIMIT_BYTES
  uint32_t unpack_limit_bytes;  // 0: BL_RPC_UNPACK_LIMIT_BYTES
  uint32_t max_calls;           // maximum number of unfinished calls; further calls are answered RESOURCE_EXHAUSTED. 0:
                                // 1024
  bool plaintext;               // never TLS: for services open to all callers, such as health
} bl_rpc_server_options_t;

BL_MUST_USE bl_status_t bl_rpc_server_create(bl_rpc_t *rpc, const bl_rpc_server_options_t *options,
                                             bl_rpc_server_t **server, bl_error_t *err);
// Only before start, or after `stopped` of shutdown fired (also from within it). NULL is fine.
void bl_rpc_server_destroy(bl_rpc_server_t *server);

// Before start. `service` and `methods` are borrowed for the server's life. BL_INVALID: the service lacks one of them.
BL_MUST_USE bl_status_t bl_rpc_server_add_service(bl_rpc_server_t *server, const ProtobufCServiceDescriptor *service,
                                                  const bl_rpc_method_t *methods, size_t method_count, void *context,
                                                  bl_error_t *err);

// Before start; several addresses are allowed. Port 0 picks a free port. Writes the address for clients to `bound`
// (BL_RPC_ADDRESS_BYTES; NULL: not wanted). A unix socket gets mode 0600 and is removed at shutdown. A socket of a dead
// process is replaced, that of a live process never: the server holds a lock on "PATH.lock". BL_PRECONDITION: another
// process listens at the address. BL_INVALID: not an address. BL_DENIED (plaintext is not allowed, or the folder),
// BL_NOT_FOUND (folder), BL_IO.
BL_MUST_USE bl_status_t bl_rpc_server_listen(bl_rpc_server_t *server, const char *address, char *bound,
                                             size_t bound_bytes, bl_error_t *err);
// Starts serving. BL_PRECONDITION: no address to listen on.
BL_MUST_USE bl_status_t bl_rpc_server_start(bl_rpc_server_t *server, bl_error_t *err);

typedef void (*bl_rpc_stopped_fn)(bl_rpc_server_t *server, void *context);
// Refuses new calls at once, lets running calls finish for `drain_ms`, then cancels them. `stopped` fires once, after
// all calls have finished and all listeners have closed. Once per server, after start.
void bl_rpc_server_shutdown(bl_rpc_server_t *server, uint64_t drain_ms, bl_rpc_stopped_fn stopped, void *context);

// ---- calls ----------------------------------------------------------------------------------------------------------

// Sends the one message of a unary call, or the last message of a stream, and OK.
void bl_rpc_call_reply(bl_rpc_call_t *call, const ProtobufCMessage *output);
// Ends the call with a status and text. BL_OK ends a stream successfully. A unary call must not end BL_OK without a
// message.
void bl_rpc_call_finish(bl_rpc_call_t *call, bl_status_t status, const char *text);
// Ends the call with err's status and text.
void bl_rpc_call_fail(bl_rpc_call_t *call, const bl_error_t *err);

typedef void (*bl_rpc_sent_fn)(bl_rpc_call_t *call, void *context);
// Sends a message of a stream. `output` is packed before this returns. `sent` (may be NULL) fires when the connection
// has taken the message and the next may be sent. It does not fire if the call is cancelled or finished first.
// BL_PRECONDITION: the previous message is still in flight. BL_CANCELLED. BL_EXHAUSTED: larger than the message limit.
BL_MUST_USE bl_status_t bl_rpc_call_send(bl_rpc_call_t *call, const ProtobufCMessage *output, bl_rpc_sent_fn sent,
                                         void *context);
bool bl_rpc_call_can_send(const bl_rpc_call_t *call); // no message in flight and not cancelled

// Reads the next message of a client's stream. `read` fires once: with the message, which is valid until the next read
// or the end of the call, or with NULL after the client's last message or its loss. The first read invalidates the
// input given to the handler. One read at a time. If a message cannot be unpacked, the call ends with that status
// instead.
void bl_rpc_call_read(bl_rpc_call_t *call, bl_rpc_handler_fn read, void *context);

typedef void (*bl_rpc_cancel_fn)(bl_rpc_call_t *call, void *context);
// Sets the callback for cancellation. If the call is cancelled already, it fires before this returns. NULL: none any
// more.
void bl_rpc_call_on_cancel(bl_rpc_call_t *call, bl_rpc_cancel_fn cancelled, void *context);
bool bl_rpc_call_is_cancelled(const bl_rpc_call_t *call);
// Returns the milliseconds until the client's deadline. BL_RPC_NO_DEADLINE: it has none. 0: the deadline has passed.
uint64_t bl_rpc_call_remaining_ms(const bl_rpc_call_t *call);
// "ipv4:10.0.0.2:41234" or "unix:..."; for logs, not for decisions. Returns `text`.
const char *bl_rpc_call_peer(const bl_rpc_call_t *call, char text[BL_RPC_ADDRESS_BYTES]);
bl_rpc_server_t *bl_rpc_call_server(const bl_rpc_call_t *call);
// Returns the identity of the caller's certificate. BL_ROLE_NONE: no TLS.
const bl_identity_t *bl_rpc_call_identity(const bl_rpc_call_t *call);

#endif
