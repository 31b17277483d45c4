// SPDX-License-Identifier: Apache-2.0
// Whatever a stranger sends to a data path over TLS, nothing of it is delivered and the session ends with words or waits for
// more. Certificates are made at the start, by deploy/certificates.sh.
#include "target.h"

#include "tls/authority.h"
#include "tls/session.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

static authority_t authority;
static bl_tls_t *tls;

static void cleanup(void) {
  bl_tls_release(tls);
  authority_cleanup(&authority);
}

static void init(void) {
  if (tls == NULL) {
    authority_init(&authority, "stage");
    tls = authority_tls(&authority, "stage");
    atexit(cleanup);
  }
}

static void feed(const uint8_t *bytes, size_t size_bytes, bool server) {
  int fds[2];
  FUZZ_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
  bl_tls_session_t *session;
  FUZZ_CHECK(bl_tls_session_create(tls, fds[0], server, BL_STAGES, &session, NULL) == BL_OK);
  size_t sent = 0;
  bool over = false;
  for (int round = 0; round < 64 && !over; round++) {
    if (sent < size_bytes) {
      ssize_t part = send(fds[1], bytes + sent, size_bytes - sent, MSG_NOSIGNAL);
      sent += part > 0 ? (size_t)part : 0;
    }
    uint8_t got[256];
    ssize_t moved = bl_tls_session_read(session, got, sizeof got);
    FUZZ_CHECK(moved <= 0); // a stranger has no certificate of ours
    FUZZ_CHECK(!bl_tls_session_is_up(session));
    over = moved == 0 || errno != EAGAIN;
    FUZZ_CHECK(moved == 0 || errno != EPROTO || bl_tls_session_error(session)->text[0] != '\0');
    over |= sent == size_bytes && round > 2;
  }
  bl_tls_session_destroy(session);
  close(fds[0]);
  close(fds[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes) {
  init();
  const bool hello = size_bytes > 5 && bytes[0] == 22 && bytes[5] == 1; // of a client: it is for servers
  feed(bytes, size_bytes, true);
  if (!hello) {
    feed(bytes, size_bytes, false);
  }
  return 0;
}
