// SPDX-License-Identifier: Apache-2.0
// Verifies TLS on non-blocking sockets: bytes arrive whole in both directions; who has the wrong role, authority or no TLS
// at all is refused with the reason at both ends, before it is delivered anything; what breaks later is told from a peer
// that was killed, and from a failed handshake; and a peer that ends right after the handshake from one that refuses us.
#include "authority.h"
#include "tls/session.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>
#include <openssl/ssl.h>

#define TURNS 100000 // of one thread that runs both ends: many more than a handshake takes

static authority_t ours, others;

static int start(void **state) {
  (void)state;
  authority_init(&ours, "");
  authority_init(&others, "stage");
  return 0;
}

static int stop(void **state) {
  (void)state;
  authority_cleanup(&ours);
  authority_cleanup(&others);
  return 0;
}

typedef struct ends {
  int fds[2];
  bl_tls_session_t *client, *server;
} ends_t;

static void ends_init(ends_t *ends, bl_tls_t *client, unsigned client_wants, bl_tls_t *server, unsigned server_wants) {
  assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends->fds), 0);
  assert_int_equal(bl_tls_session_create(client, ends->fds[0], false, client_wants, &ends->client, NULL), BL_OK);
  assert_int_equal(bl_tls_session_create(server, ends->fds[1], true, server_wants, &ends->server, NULL), BL_OK);
}

static void ends_cleanup(ends_t *ends) {
  bl_tls_session_destroy(ends->client);
  bl_tls_session_destroy(ends->server);
  close(ends->fds[0]);
  close(ends->fds[1]);
}

static bool waits(ssize_t moved) {
  return moved < 0 && errno == EAGAIN;
}

// Moves `size` bytes from one end to the other; both stay non-blocking.
static void carry(bl_tls_session_t *from, bl_tls_session_t *to, size_t size) {
  uint8_t *sent = malloc(size), *got = calloc(1, size);
  assert_non_null(sent);
  assert_non_null(got);
  for (size_t i = 0; i < size; i++) {
    sent[i] = (uint8_t)(i * 7 + i / 251);
  }
  size_t out = 0, in = 0;
  for (int turn = 0; in < size; turn++) {
    assert_in_range(turn, 0, TURNS);
    if (out < size) {
      ssize_t moved = bl_tls_session_write(from, sent + out, size - out);
      assert_true(moved > 0 || waits(moved));
      out += moved > 0 ? (size_t)moved : 0;
    }
    ssize_t moved;
    do {
      moved = bl_tls_session_read(to, got + in, size - in < 4000 ? size - in : 4000);
      assert_true(moved > 0 || waits(moved));
      in += moved > 0 ? (size_t)moved : 0;
    } while (in < size && moved > 0);
  }
  assert_memory_equal(sent, got, size);
  free(sent);
  free(got);
}

static void bytes_arrive_whole(void **state) {
  (void)state;
  bl_tls_t *zero = authority_tls(&ours, "stage"), *one = authority_tls(&ours, "store");
  ends_t ends;
  ends_init(&ends, zero, BL_STORES, one, BL_STAGES);
  // Who only reads brings the handshake on as well.
  uint8_t byte;
  for (int turn = 0; turn < 8; turn++) {
    assert_true(waits(bl_tls_session_read(ends.client, &byte, 1)));
    assert_true(waits(bl_tls_session_read(ends.server, &byte, 1)));
  }
  assert_true(bl_tls_session_is_up(ends.client));
  assert_true(bl_tls_session_is_up(ends.server));
  assert_int_equal(bl_tls_session_peer(ends.client)->role, BL_ROLE_STORE);
  assert_int_equal(bl_tls_session_peer(ends.server)->role, BL_ROLE_STAGE);
  carry(ends.client, ends.server, 1);
  carry(ends.server, ends.client, 3u << 20);
  carry(ends.client, ends.server, 300001);
  bl_tls_session_destroy(ends.client); // says so
  ends.client = NULL;
  assert_int_equal(bl_tls_session_read(ends.server, &byte, 1), 0);
  ends_cleanup(&ends);
  bl_tls_release(zero);
  bl_tls_release(one);
}

// Runs both ends until each has failed.
static void run_to_failure(ends_t *ends) {
  bool client_over = false, server_over = false;
  uint8_t byte = 1;
  for (int turn = 0; !(client_over && server_over); turn++) {
    assert_in_range(turn, 0, TURNS);
    if (!client_over) {
      ssize_t moved = bl_tls_session_write(ends->client, &byte, 1);
      moved = moved < 0 && errno != EAGAIN ? moved : bl_tls_session_read(ends->client, &byte, 1);
      client_over = moved == 0 || (moved < 0 && errno != EAGAIN);
      if (client_over) {
        shutdown(ends->fds[0], SHUT_WR);
      }
    }
    if (!server_over) {
      ssize_t moved = bl_tls_session_read(ends->server, &byte, 1);
      assert_true(moved <= 0); // nothing of a refused peer is delivered
      server_over = moved == 0 || errno != EAGAIN;
      if (server_over) {
        shutdown(ends->fds[1], SHUT_WR);
      }
    }
  }
}

static void refused(const char *client, authority_t *client_of, unsigned client_wants, const char *server,
                    authority_t *server_of, unsigned server_wants, const char *at_client, const char *at_server) {
  bl_tls_t *one = authority_tls(client_of, client), *two = authority_tls(server_of, server);
  ends_t ends;
  ends_init(&ends, one, client_wants, two, server_wants);
  run_to_failure(&ends);
  const bl_error_t *client_err = bl_tls_session_error(ends.client), *server_err = bl_tls_session_error(ends.server);
  if (strstr(client_err->text, at_client) == NULL || strstr(server_err->text, at_server) == NULL) {
    fail_msg("client: '%s', server: '%s'; wanted '%s' and '%s'", client_err->text, server_err->text, at_client,
             at_server);
  }
  ends_cleanup(&ends);
  bl_tls_release(one);
  bl_tls_release(two);
}

static void wrong_certificates_are_refused_at_both_ends(void **state) {
  (void)state;
  refused("stage", &ours, BL_STORES, "stage", &ours, BL_STAGES, "a store is wanted", "refuses this program's");
  refused("operator", &ours, BL_STAGES, "stage", &ours, BL_STAGES, "refuses this program's", "a stage is wanted");
  refused("stage", &ours, BL_STAGES, "stage", &others, BL_STAGES, "another authority", "refuses this program's");
}

static void what_is_no_tls_is_named(void **state) {
  (void)state;
  bl_tls_t *tls = authority_tls(&ours, "stage");
  ends_t ends;
  ends_init(&ends, tls, BL_STAGES, tls, BL_STAGES);
  assert_int_equal(write(ends.fds[0], "BLSTplain bytes of another protocol", 35), 35);
  uint8_t byte;
  ssize_t moved = bl_tls_session_read(ends.server, &byte, 1);
  assert_int_equal(moved, -1);
  assert_int_equal(errno, EPROTO);
  assert_non_null(strstr(bl_tls_session_error(ends.server)->text, "or neither"));
  ends_cleanup(&ends);
  bl_tls_release(tls);
}

// Creates two ends and makes their handshake.
static void ends_up(ends_t *ends, bl_tls_t *tls) {
  uint8_t byte;
  ends_init(ends, tls, BL_STAGES, tls, BL_STAGES);
  for (int turn = 0; turn < 8; turn++) {
    assert_true(waits(bl_tls_session_read(ends->client, &byte, 1)));
    assert_true(waits(bl_tls_session_read(ends->server, &byte, 1)));
  }
}

// As often as it is tried.
static void read_fails(ends_t *ends, bl_status_t status, const char *part) {
  uint8_t byte;
  for (int i = 0; i < 3; i++) {
    assert_int_equal(bl_tls_session_read(ends->server, &byte, 1), -1);
    assert_int_equal(errno, EPROTO);
  }
  const bl_error_t *err = bl_tls_session_error(ends->server);
  if (err->status != status || strstr(err->text, part) == NULL) {
    fail_msg("%s: '%s'; wanted %s with '%s'", bl_status_name(err->status), err->text, bl_status_name(status), part);
  }
}

static void what_breaks_later_is_no_failed_handshake(void **state) {
  (void)state;
  const uint8_t records[][32] = {
      {0x17, 0x03, 0x03, 0, 27},           // does not decrypt
      {0x16, 0x03, 0x03, 0, 27, 1},        // a handshake in the clear
      {'B', 'L', 'S', 'T', 'p', 'l', 'a'}, // no record
  };
  bl_tls_t *tls = authority_tls(&ours, "stage");
  ends_t ends;
  ends_up(&ends, tls);
  assert_int_equal(shutdown(ends.fds[0], SHUT_WR), 0); // as the kernel does for a process that ends
  read_fails(&ends, BL_UNAVAILABLE, "it ended or was killed");
  ends_cleanup(&ends);
  for (size_t i = 0; i < sizeof records / sizeof *records; i++) {
    ends_up(&ends, tls);
    assert_int_equal(write(ends.fds[0], records[i], sizeof *records), sizeof *records);
    read_fails(&ends, BL_DATA_LOSS, "the TLS connection is broken");
    assert_false(bl_tls_session_is_plaintext(ends.server));
    ends_cleanup(&ends);
  }
  bl_tls_release(tls);
}

typedef enum end { END_KILLED, END_CLOSED, END_RESET } end_t;

// The server ends before its first bytes: the client's reason.
static void ends(bl_tls_t *client, bl_tls_t *server, end_t end, bl_status_t status, const char *part) {
  ends_t ends;
  bl_error_t err = {0};
  uint8_t byte = 1;
  ends_init(&ends, client, BL_STAGES, server, BL_STAGES);
  for (int turn = 0; !bl_tls_session_is_up(ends.client); turn++) {
    assert_in_range(turn, 0, TURNS);
    assert_true(waits(bl_tls_session_read(ends.client, &byte, 1)));
    assert_true(bl_tls_session_is_up(ends.client) || waits(bl_tls_session_read(ends.server, &byte, 1)));
  }
  if (end != END_RESET) { // what it has not read resets the connection
    assert_true(end == END_KILLED || waits(bl_tls_session_read(ends.server, &byte, 1)));
  }
  if (end == END_KILLED) {
    assert_int_equal(shutdown(ends.fds[1], SHUT_RDWR), 0);
  }
  bl_tls_session_destroy(ends.server);
  ends.server = NULL;
  close(ends.fds[1]);
  const ssize_t got = bl_tls_session_read(ends.client, &byte, 1);
  assert_true(end == END_CLOSED ? got == 0 : got < 0);
  if (end == END_RESET) {
    assert_int_equal(errno, ECONNRESET);
  }
  const bl_status_t why = bl_tls_session_explain_end(ends.client, &err);
  if (why != status || err.status != status || strstr(err.text, part) == NULL) {
    fail_msg("end %d: %s: '%s'; wanted %s with '%s'", (int)end, bl_status_name(why), err.text, bl_status_name(status),
             part);
  }
  bl_tls_session_destroy(ends.client);
  close(ends.fds[0]);
}

static void who_ends_early_does_not_refuse(void **state) {
  (void)state;
  bl_tls_t *tls = authority_tls(&ours, "stage"), *foreign = authority_tls_trusting(&others, "stage", &ours);
  for (end_t end = END_KILLED; end <= END_RESET; end++) {
    ends(tls, tls, end, BL_UNAVAILABLE, "it ended or was killed, or it refuses this program's certificate");
  }
  ends(foreign, tls, END_RESET, BL_UNAUTHENTICATED, "the peer trusts '/CN=Ballast authority");
  bl_tls_release(tls);
  bl_tls_release(foreign);
}

// A client of OpenSSL's own, connected to a server of ours.
static SSL *foreign_client(SSL_CTX *context, bl_tls_session_t *server, int fd) {
  uint8_t byte;
  SSL *ssl = SSL_new(context);
  assert_non_null(ssl);
  assert_int_equal(SSL_set_fd(ssl, fd), 1);
  for (int turn = 0; SSL_connect(ssl) != 1 || !bl_tls_session_is_up(server); turn++) {
    assert_in_range(turn, 0, TURNS);
    assert_true(waits(bl_tls_session_read(server, &byte, 1)));
  }
  return ssl;
}

static void new_keys_without_end_do_not_keep_a_read(void **state) {
  (void)state;
  enum { UPDATES = 40 };
  bl_tls_t *tls = authority_tls(&ours, "stage");
  const bl_tls_options_t files = authority_options(&ours, "stage");
  SSL_CTX *context = SSL_CTX_new(TLS_client_method());
  assert_int_equal(SSL_CTX_use_certificate_chain_file(context, files.certificate), 1);
  assert_int_equal(SSL_CTX_use_PrivateKey_file(context, files.key, SSL_FILETYPE_PEM), 1);
  ends_t ends;
  ends_init(&ends, tls, BL_STAGES, tls, BL_STAGES);
  SSL *ssl = foreign_client(context, ends.server, ends.fds[0]);
  for (int i = 0; i < UPDATES; i++) {
    assert_int_equal(SSL_key_update(ssl, SSL_KEY_UPDATE_REQUESTED), 1);
    assert_int_equal(SSL_do_handshake(ssl), 1);
  }
  assert_int_equal(SSL_write(ssl, "x", 1), 1);
  uint8_t byte = 0;
  int waited = 0;
  for (ssize_t moved; (moved = bl_tls_session_read(ends.server, &byte, 1)) != 1; waited++) {
    assert_true(waits(moved));
    assert_in_range(waited, 0, TURNS);
  }
  assert_int_equal(byte, 'x');
  assert_in_range(waited, UPDATES, 2 * UPDATES); // others may be served after each
  SSL_free(ssl);
  SSL_CTX_free(context);
  ends_cleanup(&ends);
  bl_tls_release(tls);
}

int main(void) {
  signal(SIGPIPE, SIG_IGN);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(bytes_arrive_whole),
      cmocka_unit_test(wrong_certificates_are_refused_at_both_ends),
      cmocka_unit_test(what_is_no_tls_is_named),
      cmocka_unit_test(what_breaks_later_is_no_failed_handshake),
      cmocka_unit_test(who_ends_early_does_not_refuse),
      cmocka_unit_test(new_keys_without_end_do_not_keep_a_read),
  };
  return cmocka_run_group_tests(tests, start, stop);
}
