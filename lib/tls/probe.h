// SPDX-License-Identifier: Apache-2.0
// Determines why no TLS connection to an address can be made, by trying one: gRPC does not report the reason.
//
//   bl_tls_probe_t probe = {.host = "10.0.0.2", .port = "7600", .protocol = "h2", .roles = BL_STAGES};
//   if (bl_tls_probe(tls, &probe, 2000, err) != BL_OK) ...   // err has the reason
//
// Blocks for up to the time limit (and while the system looks up a name): do not call it on a loop's thread.
// Thread: any.
#ifndef BALLAST_TLS_PROBE_H
#define BALLAST_TLS_PROBE_H

#include "base/error.h"
#include "tls/tls.h"

typedef struct bl_tls_probe {
  const char *host, *port;
  const char *protocol; // protocol to negotiate (ALPN); NULL: none
  unsigned roles;       // allowed roles of the peer
} bl_tls_probe_t;

// Makes a handshake and waits for the peer's first bytes after it. If `tls` is NULL, this end uses plaintext, and the
// probe checks whether the peer uses TLS. BL_OK: no fault was found. BL_UNAUTHENTICATED: one end refuses the other's
// certificate, or the peer ends two connections right after the handshake, or `tls` is NULL and the peer uses TLS.
// BL_UNAVAILABLE: the peer does not use TLS, or does not answer, or ended.
BL_MUST_USE bl_status_t bl_tls_probe(bl_tls_t *tls, const bl_tls_probe_t *probe, uint64_t limit_ms, bl_error_t *err);

#endif
