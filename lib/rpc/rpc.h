// SPDX-License-Identifier: Apache-2.0
// Remote calls of one process: what its servers and channels share. gRPC on the wire, protobuf-c messages in memory,
// callbacks on the loop. The first rpc of a process owns one completion queue and the one thread that waits on it. That
// thread only posts to loops. Each further loop has an rpc of its own (bl_rpc_create_beside), which shares the queue
// and the thread.
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
// Memory: messages passed to callbacks live until the callback (client) or the call (server) ends. Their user copies
// what must live longer. Unpacking is bounded by `message_limit_bytes` on the wire and `unpack_limit_bytes` in memory,
// so a peer cannot make this process allocate more than that per call.
// Connections are plaintext, and only on unix sockets and the loopback interface, until bl_rpc_secure_process or
// bl_rpc_secure changes that.
#ifndef BALLAST_RPC_RPC_H
#define BALLAST_RPC_RPC_H

#include "base/error.h"
#include "base/library.h"
#include "loop/loop.h"
#include "tls/tls.h"

#include <stdint.h>

// An address is "unix:/absolute/path", "host:port", "[ipv6]:port".
#define BL_RPC_ADDRESS_BYTES 256

// Maximum size of a message on the wire, either way, unless options change it. Control messages are small. The largest
// are job files and traces. Tensors never travel here.
#define BL_RPC_MESSAGE_LIMIT_BYTES (16u << 20)
// Maximum memory for one unpacked message. It bounds messages that are small on the wire and large in memory (an empty
// sub-message takes 2 bytes on the wire and about 100 in memory).
#define BL_RPC_UNPACK_LIMIT_BYTES (64u << 20)

// Deadline of a call without a time limit: a watch. Its end is detected as loss of the connection.
#define BL_RPC_NO_DEADLINE UINT64_MAX

typedef struct bl_rpc bl_rpc_t;

// Also makes the process ignore SIGPIPE. BL_EXHAUSTED: no thread.
BL_MUST_USE bl_status_t bl_rpc_create(bl_loop_t *loop, bl_rpc_t **rpc, bl_error_t *err);
// Creates an rpc for another loop, on that loop's thread. Its events arrive by the queue and the thread of `first`,
// which must outlive it, and its callbacks fire on `loop`. It starts with the security of bl_rpc_secure_process.
// BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_rpc_create_beside(bl_rpc_t *first, bl_loop_t *loop, bl_rpc_t **rpc, bl_error_t *err);
// All its servers and channels must have been destroyed, and before the first rpc all further ones. Waits until the
// completion-queue thread ends or, for a further rpc, until that thread has posted its last event. The library needs
// microseconds to end cancelled calls. NULL is fine.
void bl_rpc_destroy(bl_rpc_t *rpc);
bl_loop_t *bl_rpc_loop(const bl_rpc_t *rpc);

// Decides whether the owner of a certificate may call a method. Called for every call over TLS. `service` is the full
// name ("ballast.v1.Stage"). If it does not return BL_OK, the call is answered with err. Any thread, but one at a time.
typedef bl_status_t (*bl_rpc_access_fn)(const char *service, const char *method, const bl_identity_t *caller,
                                        bl_error_t *err);

typedef struct bl_rpc_security {
  bl_tls_t *tls;           // mutual TLS on every TCP address; NULL: plaintext. The rpc takes a reference
  bool plaintext_ok;       // also allows plaintext off the loopback interface
  bl_rpc_access_fn access; // NULL: a caller with any role may call every method
} bl_rpc_security_t;

// Sets the security that every rpc of this process starts with: a process has one identity. Call it before the first
// rpc is created, on the main thread.
void bl_rpc_secure_process(const bl_rpc_security_t *security);
bl_tls_t *bl_rpc_process_tls(void);     // NULL: plaintext; borrowed
bool bl_rpc_process_plaintext_ok(void); // off the loopback interface
// Sets the security of servers and channels created from now on. Unix sockets stay plaintext: the system protects them.
void bl_rpc_secure(bl_rpc_t *rpc, const bl_rpc_security_t *security);

extern const bl_library_t bl_rpc_library;          // gRPC; the version is that of its core
extern const bl_library_t bl_rpc_messages_library; // protobuf-c

#endif
