// SPDX-License-Identifier: Apache-2.0
#include "tls/probe.h"

#include "sys/clock.h"
#include "tls/session.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static bool wait_for(int fd, short events, uint64_t deadline_ns) {
  const uint64_t now_ns = bl_clock_now_ns();
  struct pollfd poll_fd = {.fd = fd, .events = events};
  return now_ns < deadline_ns && poll(&poll_fd, 1, (int)((deadline_ns - now_ns) / BL_NS_PER_MS) + 1) > 0;
}

// Returns a connected socket, or -1 with errno.
static int open_connection(const bl_tls_probe_t *probe, uint64_t deadline_ns) {
  struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV}, *found = NULL;
  int fd = -1, errno_value = EHOSTUNREACH;
  if (getaddrinfo(probe->host, probe->port, &hints, &found) != 0) {
    errno = errno_value;
    return -1;
  }
  for (const struct addrinfo *place = found; place != NULL && fd < 0; place = place->ai_next) {
    fd = socket(place->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
      errno_value = errno;
      continue;
    }
    errno_value = connect(fd, place->ai_addr, place->ai_addrlen) == 0 ? 0 : errno;
    if (errno_value == EINPROGRESS) {
      socklen_t size = sizeof errno_value;
      const bool there = wait_for(fd, POLLOUT, deadline_ns);
      errno_value = there && getsockopt(fd, SOL_SOCKET, SO_ERROR, &errno_value, &size) == 0 ? errno_value : ETIMEDOUT;
    }
    if (errno_value != 0) {
      close(fd);
      fd = -1;
    }
  }
  freeaddrinfo(found);
  errno = errno_value;
  return fd;
}

// ---- plaintext at this end ------------------------------------------------------------------------------------------

// Returns whether a handshake without a certificate gets as far as the peer's part of it.
static bool is_spoken(int fd, uint64_t deadline_ns) {
  SSL_CTX *context = SSL_CTX_new(TLS_method());
  SSL *ssl = context != NULL ? SSL_new(context) : NULL;
  bool spoken = false, waits = ssl != NULL && SSL_set_fd(ssl, fd) == 1;
  while (waits) {
    const int result = SSL_connect(ssl);
    const int reason = result == 1 ? SSL_ERROR_NONE : SSL_get_error(ssl, result);
    spoken = result == 1;
    waits = (reason == SSL_ERROR_WANT_READ && wait_for(fd, POLLIN, deadline_ns)) ||
            (reason == SSL_ERROR_WANT_WRITE && wait_for(fd, POLLOUT, deadline_ns));
  }
  ERR_clear_error();
  SSL_free(ssl);
  SSL_CTX_free(context);
  return spoken;
}

// ---- TLS at this end ------------------------------------------------------------------------------------------------

// Waits for the peer's first bytes after the handshake. Only then does TLS 1.3 report to a client that its certificate
// is refused. *ambiguous: the end of the connection may have been that.
static bl_status_t hear_first_word(bl_tls_session_t *session, int fd, uint64_t deadline_ns, bool *ambiguous,
                                   bl_error_t *err) {
  for (;;) {
    char byte;
    const ssize_t got = bl_tls_session_read(session, &byte, 1);
    if (got > 0) {
      return BL_OK;
    }
    if (got == 0 || errno != EAGAIN) {
      const bl_status_t status = bl_tls_session_explain_end(session, err);
      *ambiguous = status == BL_UNAVAILABLE;
      return status;
    }
    if (!wait_for(fd, bl_tls_session_wants_writable(session) ? POLLOUT : POLLIN, deadline_ns)) {
      return BL_OK; // the peer sends nothing, but has not closed the connection
    }
  }
}

static bl_status_t try_handshake(bl_tls_t *tls, int fd, const bl_tls_probe_t *probe, uint64_t deadline_ns,
                                 bool *ambiguous, bl_error_t *err) {
  bl_tls_session_t *session;
  bl_status_t status = bl_tls_session_create(tls, fd, false, probe->roles, &session, err);
  if (status != BL_OK) {
    return status;
  }
  if (probe->protocol != NULL) {
    status = bl_tls_session_offer(session, probe->protocol);
  }
  while (status == BL_OK && !bl_tls_session_handshake(session)) {
    if (errno == EPROTO) {
      *err = *bl_tls_session_error(session);
      status = err->status;
    } else if (errno != EAGAIN) {
      status = bl_error_set(err, BL_UNAVAILABLE, "it closed the connection in the TLS handshake");
    } else if (!wait_for(fd, bl_tls_session_wants_writable(session) ? POLLOUT : POLLIN, deadline_ns)) {
      status = bl_error_set(err, BL_UNAVAILABLE, "the TLS handshake did not end in time; does it speak TLS there?");
    }
  }
  if (status == BL_OK) {
    status = hear_first_word(session, fd, deadline_ns, ambiguous, err);
  }
  bl_tls_session_destroy(session);
  return status;
}

static bl_status_t try_once(bl_tls_t *tls, const bl_tls_probe_t *probe, uint64_t deadline_ns, bool *ambiguous,
                            bl_error_t *err) {
  const int fd = open_connection(probe, deadline_ns);
  if (fd < 0) {
    return bl_error_set(err, BL_UNAVAILABLE, "connect: %s", strerror(errno));
  }
  bl_status_t status = BL_OK;
  if (tls != NULL) {
    status = try_handshake(tls, fd, probe, deadline_ns, ambiguous, err);
  } else if (is_spoken(fd, deadline_ns)) {
    status = bl_error_set(err, BL_UNAUTHENTICATED,
                          "it speaks TLS there, and this program does not: give --tls-ca, --tls-certificate and "
                          "--tls-key");
  }
  close(fd);
  return status;
}

// A server of gRPC refuses a certificate without an alert, which looks like the end of its process. A process ends once.
bl_status_t bl_tls_probe(bl_tls_t *tls, const bl_tls_probe_t *probe, uint64_t limit_ms, bl_error_t *err) {
  const uint64_t deadline_ns = bl_clock_now_ns() + limit_ms * BL_NS_PER_MS;
  bool ambiguous = false;
  bl_status_t status = try_once(tls, probe, deadline_ns, &ambiguous, err);
  if (ambiguous) {
    ambiguous = false;
    status = try_once(tls, probe, deadline_ns, &ambiguous, err);
  }
  if (ambiguous) {
    status = err->status = BL_UNAUTHENTICATED;
  }
  return status;
}
