// SPDX-License-Identifier: Apache-2.0
// Why no TLS connection to an address can be made, found out by trying one: gRPC keeps the reason to itself.
//
//   bl_tls_probe_t probe = {.host = "10.0.0.2", .port = "7600", .protocol = "h2", .roles = BL_STAGES};
//   if (bl_tls_probe(tls, &probe, 2000, err) != BL_OK) ...   // err says it
//
// Blocks for up to the time given (and for as long as the system takes to look up a name): not on a loop's thread.
// Thread: any.
#ifndef BALLAST_TLS_PROBE_H
#define BALLAST_TLS_PROBE_H

#include "base/error.h"
#include "tls/tls.h"

typedef struct bl_tls_probe {
  const char *host, *port;
  const char *protocol; // to agree on (ALPN); NULL: none
  unsigned roles;       // what the peer may be
} bl_tls_probe_t;

// One handshake, and the peer's first word after it. With `tls` NULL this end speaks plaintext, and the question is
// whether the other one does. BL_OK: nothing is wrong with it now. BL_UNAUTHENTICATED: a certificate is refused, by this
// end or by the other, or one end speaks plaintext to TLS. BL_UNAVAILABLE: the peer speaks no TLS, or nobody answers.
BL_MUST_USE bl_status_t bl_tls_probe(bl_tls_t *tls, const bl_tls_probe_t *probe, uint64_t limit_ms, bl_error_t *err);

#endif
