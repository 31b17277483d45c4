// SPDX-License-Identifier: Apache-2.0
// Remote calls of one process: what its servers and channels share. gRPC on the wire, protobuf-c messages in memory,
// callbacks on the loop. The first rpc of a process owns one completion queue and the one thread that waits on it; that
// thread only posts to loops. What lives on another loop has an rpc of its own beside it, which shares both.
//
//   bl_rpc_create(loop, &rpc, err);
//   bl_rpc_server_create(rpc, NULL, &server, err);      server.h
//   bl_rpc_channel_create(rpc, "host:port", NULL, &channel, err);   channel.h
//   bl_loop_run(loop);
//   bl_rpc_channel_destroy(channel);
//   bl_rpc_server_destroy(server);                      after its shutdown has finished
//   bl_rpc_destroy(rpc);
//   bl_loop_destroy(loop);
//
// Thread: every function of this library is called on the loop's thread, and every callback fires there.
// Memory: messages handed to callbacks live until the callback (client) or the call (server) ends; what must live
// longer is copied by its user. Unpacking is bounded by `message_limit_bytes` on the wire and `unpack_limit_bytes` in
// memory, so a peer cannot make this process allocate more than that per call.
// Connections are plaintext, on unix sockets and the loopback interface only, until bl_rpc_secure_process or
// bl_rpc_secure says otherwise.
#ifndef BALLAST_RPC_RPC_H
#define BALLAST_RPC_RPC_H

#include "base/error.h"
#include "base/library.h"
#include "loop/loop.h"
#include "tls/tls.h"

#include <stdint.h>

// An address is "unix:/absolute/path", "host:port", "[ipv6]:port".
#define BL_RPC_ADDRESS_BYTES 256

// Largest message on the wire, either way, unless options say otherwise. Control messages are small; the largest are
// job files and traces. Tensors never travel here.
#define BL_RPC_MESSAGE_LIMIT_BYTES (16u << 20)
// Largest memory for one unpacked message: bounds messages that are small on the wire and large in memory (an empty
// sub-message costs 2 bytes there and about 100 here).
#define BL_RPC_UNPACK_LIMIT_BYTES (64u << 20)

// Deadline of a call that may take as long as it takes: a watch. Its end is seen as loss of the connection.
#define BL_RPC_NO_DEADLINE UINT64_MAX

typedef struct bl_rpc bl_rpc_t;

// Also makes the process ignore SIGPIPE. BL_EXHAUSTED: no thread.
BL_MUST_USE bl_status_t bl_rpc_create(bl_loop_t *loop, bl_rpc_t **rpc, bl_error_t *err);
// The same on another loop, whose thread calls this: its events come by the queue and the thread of `first`, which
// outlives it, and its callbacks fire on `loop`. It is secured as bl_rpc_secure_process said. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_rpc_create_beside(bl_rpc_t *first, bl_loop_t *loop, bl_rpc_t **rpc, bl_error_t *err);
// All its servers and channels, and all that were created beside it, must have been destroyed. Waits for the
// completion-queue thread to end, or, beside another, to hand over the last event; that takes what the library needs to
// end cancelled calls (microseconds). NULL is fine.
void bl_rpc_destroy(bl_rpc_t *rpc);
bl_loop_t *bl_rpc_loop(const bl_rpc_t *rpc);

// Whether the owner of a certificate may call a method; asked for every call that comes over TLS. `service` is the full
// name ("ballast.v1.Stage"). Not BL_OK: the call is answered with err. Any thread but one at a time.
typedef bl_status_t (*bl_rpc_access_fn)(const char *service, const char *method, const bl_identity_t *caller,
                                        bl_error_t *err);

typedef struct bl_rpc_security {
  bl_tls_t *tls;           // mutual TLS on every TCP address; NULL: plaintext. A reference is taken
  bool plaintext_ok;       // allows plaintext off the loopback interface, too
  bl_rpc_access_fn access; // NULL: who has a role may call everything
} bl_rpc_security_t;

// What every rpc of this process starts with; a process has one identity. Before the first, from the main thread.
void bl_rpc_secure_process(const bl_rpc_security_t *security);
bl_tls_t *bl_rpc_process_tls(void);     // NULL: plaintext; borrowed
bool bl_rpc_process_plaintext_ok(void); // off the loopback interface
// How servers and channels that are made from now on meet others. Unix sockets stay plaintext: the system guards them.
void bl_rpc_secure(bl_rpc_t *rpc, const bl_rpc_security_t *security);

extern const bl_library_t bl_rpc_library;          // gRPC, by the version of its core
extern const bl_library_t bl_rpc_messages_library; // protobuf-c

#endif
