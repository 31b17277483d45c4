// SPDX-License-Identifier: Apache-2.0
// One TLS connection of the data path over a non-blocking socket. Reads and writes behave as recv and send do; the
// handshake happens inside the first of them. Nothing of the peer is delivered before its certificate was judged: time,
// authority, purpose and role.
//
//   bl_tls_session_create(tls, fd, true, BL_STAGES, &session, err);
//   ssize_t got = bl_tls_session_read(session, bytes, size);
//   if (got < 0 && errno == EPROTO) ... bl_tls_session_error(session) says why
//
// Thread: one may read while another writes; anything else one at a time. TLS 1.3 only: both ends are ours.
#ifndef BALLAST_TLS_SESSION_H
#define BALLAST_TLS_SESSION_H

#include "base/error.h"
#include "tls/tls.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct bl_tls_session bl_tls_session_t;

// Whether these bytes may begin a TLS connection: a record of a handshake.
static inline bool bl_tls_is_record(const uint8_t first[2]) {
  return first[0] == 0x16 && first[1] == 0x03;
}

// `fd` stays the caller's and outlives the session. `roles`: what the peer may be. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_tls_session_create(bl_tls_t *tls, int fd, bool server, unsigned roles,
                                              bl_tls_session_t **session, bl_error_t *err);
// Before the handshake: the protocol to agree on (ALPN), such as "h2". BL_INVALID: no name of one; BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_tls_session_offer(bl_tls_session_t *session, const char *protocol);
void bl_tls_session_destroy(bl_tls_session_t *session); // tells the peer, does not wait; NULL is fine

// As recv and send: bytes moved, 0 at the end of the stream (read), or -1 with errno: EAGAIN, EPROTO (see error), or what
// the socket said. A write that gave EAGAIN must be tried again with the same bytes, more may follow them.
ssize_t bl_tls_session_read(bl_tls_session_t *session, void *bytes, size_t size_bytes);
ssize_t bl_tls_session_write(bl_tls_session_t *session, const void *bytes, size_t size_bytes);
// After EAGAIN of either: whether to wait until the socket is writable; else until it is readable.
bool bl_tls_session_wants_writable(const bl_tls_session_t *session);
// What TLS has decrypted already makes no socket readable again: read until EAGAIN.

// Reads and writes nothing but the handshake: true when it is over, else as above with errno.
bool bl_tls_session_handshake(bl_tls_session_t *session);
bool bl_tls_session_is_up(const bl_tls_session_t *session); // the handshake is over
// The status and words for EPROTO: BL_UNAUTHENTICATED for certificates, BL_UNAVAILABLE for what is no TLS.
const bl_error_t *bl_tls_session_error(const bl_tls_session_t *session);
// Whether a failed handshake met a peer that sent plaintext: nothing of the session was sent then.
bool bl_tls_session_is_plaintext(const bl_tls_session_t *session);
// Why a peer has closed the connection before its first word: it refuses our certificate, which TLS 1.3 tells a client
// only after the handshake, and its alert may be lost with the connection. BL_UNAUTHENTICATED.
bl_status_t bl_tls_session_explain_end(bl_tls_session_t *session, bl_error_t *err);
const bl_identity_t *bl_tls_session_peer(const bl_tls_session_t *session); // once it is up

#endif
