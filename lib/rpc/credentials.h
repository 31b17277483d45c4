// SPDX-License-Identifier: Apache-2.0
// What connections are made with, inside lib/rpc: plaintext or mutual TLS (lib/tls), and who is at the other end.
// Thread: the loop's; gRPC calls back from threads of its own.
#ifndef BALLAST_RPC_CREDENTIALS_H
#define BALLAST_RPC_CREDENTIALS_H

#include "rpc/address.h"
#include "rpc/rpc_core.h"
#include "tls/tls.h"

#include <grpc/grpc_security.h>

// Plaintext needs no leave on unix sockets and on the loopback interface. BL_DENIED elsewhere, unless it is `allowed`.
BL_MUST_USE bl_status_t bl__plaintext_check(bool allowed, const bl__address_t *address, const char *text,
                                            bl_error_t *err);

// ---- serving

// Of one listener. Lives as long as its server: gRPC asks it for the certificate at every handshake.
typedef struct bl__server_identity {
  bl_tls_t *tls;
  bool given;          // the set of `generation` is in gRPC's hands
  uint64_t generation; // of what it was given
} bl__server_identity_t;

// `identity->tls` is NULL for plaintext.
grpc_server_credentials *bl__server_credentials_create(bl__server_identity_t *identity);

// Who called. BL_OK with BL_ROLE_NONE for a connection without TLS. BL_UNAUTHENTICATED: a certificate without a role.
BL_MUST_USE bl_status_t bl__call_identity(grpc_call *call, bl_identity_t *identity, bl_error_t *err);

// ---- calling

// What a channel demands of a server's certificate, and why it last refused one. Counted: gRPC holds one, too.
typedef struct bl__trust bl__trust_t;
bl__trust_t *bl__trust_create(bl_tls_t *tls, unsigned roles); // NULL: out of memory
void bl__trust_release(bl__trust_t *trust);                   // NULL is fine
bool bl__trust_refusal(bl__trust_t *trust, bl_error_t *err);  // false: none since the last certificate that was good

// Credentials with the process's own certificate as it is now; *generation is its number. NULL: out of memory.
grpc_channel_credentials *bl__channel_credentials_create(bl__trust_t *trust, uint64_t *generation);

#endif
