// SPDX-License-Identifier: Apache-2.0
// Private to lib/rpc: credentials of connections, plaintext or mutual TLS (lib/tls), and the identity of the peer.
// Thread: the loop's; gRPC calls back on threads of its own.
#ifndef BALLAST_RPC_CREDENTIALS_H
#define BALLAST_RPC_CREDENTIALS_H

#include "rpc/address.h"
#include "rpc/rpc_core.h"
#include "tls/tls.h"

#include <grpc/grpc_security.h>

// Plaintext is always allowed on unix sockets and on the loopback interface. BL_DENIED elsewhere, unless it is
// `allowed`.
BL_MUST_USE bl_status_t bl__plaintext_check(bool allowed, const bl__address_t *address, const char *text,
                                            bl_error_t *err);

// ---- serving

// The identity of one listener. Lives as long as its server: gRPC reads the certificate from it at every handshake.
typedef struct bl__server_identity {
  bl_tls_t *tls;
  bool given;          // gRPC has the certificates of `generation`
  uint64_t generation; // of the certificates that gRPC has
} bl__server_identity_t;

// `identity->tls` is NULL for plaintext.
grpc_server_credentials *bl__server_credentials_create(bl__server_identity_t *identity);

// Sets the identity of the caller. BL_OK with BL_ROLE_NONE: a connection without TLS. BL_UNAUTHENTICATED: a certificate
// without a role.
BL_MUST_USE bl_status_t bl__call_identity(grpc_call *call, bl_identity_t *identity, bl_error_t *err);

// ---- calling

// What a channel demands of a server's certificate, and why it last refused one. Reference-counted: gRPC holds one too.
typedef struct bl__trust bl__trust_t;
bl__trust_t *bl__trust_create(bl_tls_t *tls, unsigned roles); // NULL: out of memory
void bl__trust_release(bl__trust_t *trust);                   // NULL is fine
bool bl__trust_refusal(bl__trust_t *trust, bl_error_t *err);  // false: the last certificate was accepted

// Returns credentials with the process's own certificate as it is now, and its number in *generation. NULL: out of
// memory.
grpc_channel_credentials *bl__channel_credentials_create(bl__trust_t *trust, uint64_t *generation);

#endif
