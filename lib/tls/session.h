// SPDX-License-Identifier: Apache-2.0
// One TLS connection of the data path over a non-blocking socket. Reads and writes behave as recv and send do. The
// first of them makes the handshake. Data of the peer is delivered only after its certificate was judged: time,
// authority, purpose and role.
//
//   bl_tls_session_create(tls, fd, true, BL_STAGES, &session, err);
//   ssize_t got = bl_tls_session_read(session, bytes, size);
//   if (got < 0 && errno == EPROTO) ... bl_tls_session_error(session) has the reason
//
// Thread: one may read while another writes; all other calls one at a time. TLS 1.3 only: both ends are ours.
#ifndef BALLAST_TLS_SESSION_H
#define BALLAST_TLS_SESSION_H

#include "base/error.h"
#include "tls/tls.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct bl_tls_session bl_tls_session_t;

// Returns whether these bytes can begin a TLS connection: a handshake record.
static inline bool bl_tls_is_record(const uint8_t first[2]) {
  return first[0] == 0x16 && first[1] == 0x03;
}

// The caller keeps `fd`, which must outlive the session. `roles`: allowed roles of the peer. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_tls_session_create(bl_tls_t *tls, int fd, bool server, unsigned roles,
                                              bl_tls_session_t **session, bl_error_t *err);
// Before the handshake: sets the protocol to negotiate (ALPN), such as "h2". BL_INVALID: not a protocol name.
// BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_tls_session_offer(bl_tls_session_t *session, const char *protocol);
void bl_tls_session_destroy(bl_tls_session_t *session); // sends a close, does not wait; NULL is fine

// As recv and send: return the bytes moved, 0 at the end of the stream (read), or -1 with errno: EAGAIN, EPROTO (see
// bl_tls_session_error), or that of the socket. A write that gave EAGAIN must be retried with the same bytes. More
// bytes may follow them.
ssize_t bl_tls_session_read(bl_tls_session_t *session, void *bytes, size_t size_bytes);
ssize_t bl_tls_session_write(bl_tls_session_t *session, const void *bytes, size_t size_bytes);
// After EAGAIN of either: returns whether to wait until the socket is writable. Otherwise wait until it is readable.
bool bl_tls_session_wants_writable(const bl_tls_session_t *session);
// Bytes that TLS has already decrypted do not make the socket readable: read until EAGAIN.

// Advances only the handshake. Returns true when it has finished, else false with errno as above.
bool bl_tls_session_handshake(bl_tls_session_t *session);
bool bl_tls_session_is_up(const bl_tls_session_t *session); // whether the handshake has finished
// The status and text for EPROTO. BL_UNAUTHENTICATED: a refused certificate. BL_UNAVAILABLE: the handshake failed, for
// example because the peer does not use TLS. BL_DATA_LOSS: a TLS error after the handshake.
const bl_error_t *bl_tls_session_error(const bl_tls_session_t *session);
// Returns whether a handshake failed because the peer sent plaintext. No data of the session was sent then.
bool bl_tls_session_is_plaintext(const bl_tls_session_t *session);
// Returns the reason why a peer closed the connection before its first bytes. TLS 1.3 reports only after the handshake
// that it refuses our certificate. BL_UNAUTHENTICATED: it does, by an alert or by the authorities that it trusts.
// BL_UNAVAILABLE: it ended, or the alert was lost (with a reset) or not sent. BL_DATA_LOSS: a TLS error.
bl_status_t bl_tls_session_explain_end(bl_tls_session_t *session, bl_error_t *err);
const bl_identity_t *bl_tls_session_peer(const bl_tls_session_t *session); // after the handshake

#endif
