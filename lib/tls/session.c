// SPDX-License-Identifier: Apache-2.0
#include "tls/session.h"

#include "tls/tls_core.h"

#include <openssl/err.h>
#include <openssl/sslerr.h>

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>

struct bl_tls_session {
  pthread_mutex_t mutex; // of the connection: OpenSSL wants one thread at a time
  bl_tls_t *tls;
  bl__tls_set_t *set;
  SSL *ssl;
  unsigned roles;
  bool server;
  bool wants_writable;
  bool broken; // nothing may be sent any more
  bl_identity_t peer;
  bl_error_t error;
};

static const char *peer_words(const bl_tls_session_t *session) {
  return session->server ? "the certificate of who connected" : "the certificate of the peer";
}

// OpenSSL's own verdict comes with each certificate of the chain, the leaf last; a good leaf must also have a role that
// is wanted. The words for the refusal are kept for bl_tls_session_error.
static int judge_peer(int good, X509_STORE_CTX *context) {
  SSL *ssl = X509_STORE_CTX_get_ex_data(context, SSL_get_ex_data_X509_STORE_CTX_idx());
  bl_tls_session_t *session = SSL_get_app_data(ssl);
  X509 *certificate = X509_STORE_CTX_get_current_cert(context);
  if (good == 0) {
    (void)bl__certificate_explain(X509_STORE_CTX_get_error(context), certificate, peer_words(session), &session->error);
    return 0;
  }
  if (X509_STORE_CTX_get_error_depth(context) > 0) {
    return 1;
  }
  bl_status_t status = bl__certificate_identity(certificate, peer_words(session), &session->peer, &session->error);
  if (status == BL_OK && (session->roles & BL_ROLE_BIT(session->peer.role)) == 0) {
    char have[BL_IDENTITY_TEXT_BYTES], want[BL_IDENTITY_TEXT_BYTES];
    status = bl_error_set(&session->error, BL_UNAUTHENTICATED, "%s is for the role %s, but a %s is wanted here",
                          peer_words(session), bl_identity_format(&session->peer, have),
                          bl_roles_format(session->roles, want));
  }
  if (status != BL_OK) {
    X509_STORE_CTX_set_error(context, X509_V_ERR_CERT_REJECTED);
    return 0;
  }
  return 1;
}

bl_status_t bl__tls_context_create(bl__tls_set_t *set, EVP_PKEY *key, bl_error_t *err) {
  SSL_CTX *context = SSL_CTX_new(TLS_method());
  if (context == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "TLS: out of memory");
  }
  X509_STORE_up_ref(set->authorities);
  SSL_CTX_set_cert_store(context, set->authorities);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, judge_peer);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_TICKET);
  bool well = SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1 &&
              SSL_CTX_set_num_tickets(context, 0) == 1 && // both ends stay connected: nothing to resume
              SSL_CTX_use_certificate(context, set->leaf) == 1 && SSL_CTX_use_PrivateKey(context, key) == 1;
  for (int i = 0; well && i < sk_X509_num(set->others); i++) {
    well = SSL_CTX_add1_chain_cert(context, sk_X509_value(set->others, i)) == 1;
  }
  if (!well) {
    const char *reason = ERR_reason_error_string(ERR_peek_error());
    (void)bl_error_set(err, BL_INVALID, "TLS: OpenSSL does not take the certificate and its key: %s; " BL__TLS_ADVICE,
                       reason != NULL ? reason : "out of memory");
    ERR_clear_error();
    SSL_CTX_free(context);
    return BL_INVALID;
  }
  set->context = context;
  return BL_OK;
}

bl_status_t bl_tls_session_create(bl_tls_t *tls, int fd, bool server, unsigned roles, bl_tls_session_t **result,
                                  bl_error_t *err) {
  bl_tls_session_t *session = calloc(1, sizeof *session);
  if (session == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "TLS: out of memory");
  }
  pthread_mutex_init(&session->mutex, NULL);
  session->tls = bl_tls_acquire(tls);
  session->set = bl__tls_take_set(tls);
  session->server = server;
  session->roles = roles;
  session->ssl = SSL_new(session->set->context);
  if (session->ssl == NULL || SSL_set_fd(session->ssl, fd) != 1) {
    ERR_clear_error();
    bl_tls_session_destroy(session);
    return bl_error_set(err, BL_EXHAUSTED, "TLS: out of memory");
  }
  SSL_set_app_data(session->ssl, session);
  if (server) {
    SSL_set_accept_state(session->ssl);
  } else {
    SSL_set_connect_state(session->ssl);
  }
  *result = session;
  return BL_OK;
}

void bl_tls_session_destroy(bl_tls_session_t *session) {
  if (session == NULL) {
    return;
  }
  if (session->ssl != NULL && !session->broken && SSL_is_init_finished(session->ssl)) {
    (void)SSL_shutdown(session->ssl); // one record, if the socket takes it
    ERR_clear_error();
  }
  SSL_free(session->ssl);
  bl__tls_give_set(session->tls, session->set);
  bl_tls_release(session->tls);
  pthread_mutex_destroy(&session->mutex);
  free(session);
}

// ---- moving bytes --------------------------------------------------------------------------------------------------

// Alerts by which a peer says that it does not take our certificate.
static bool is_refusal(int reason) {
  switch (reason) {
  case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
  case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
  case SSL_R_SSLV3_ALERT_CERTIFICATE_REVOKED:
  case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
  case SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE:
  case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
  case SSL_R_TLSV1_ALERT_ACCESS_DENIED:
  case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
    return true;
  default:
    return false;
  }
}

static void explain(bl_tls_session_t *session) {
  if (session->error.status != BL_OK) {
    return; // judge_peer had the words
  }
  unsigned long code = ERR_peek_error();
  const char *text = ERR_reason_error_string(code);
  text = text != NULL ? text : "no reason given";
  int reason = ERR_GET_REASON(code);
  if (is_refusal(reason)) {
    (void)bl_error_set(
        &session->error, BL_UNAUTHENTICATED,
        "the peer refuses this program's TLS certificate (%s): is it expired, of another authority or for "
        "another role?",
        text);
  } else if (!SSL_is_init_finished(session->ssl)) {
    (void)bl_error_set(&session->error, BL_UNAVAILABLE,
                       "the TLS handshake failed (%s); give both ends certificates (--tls-ca, --tls-certificate, "
                       "--tls-key), or neither",
                       text);
  } else {
    (void)bl_error_set(&session->error, BL_DATA_LOSS, "the TLS connection is broken: %s", text);
  }
}

// What a call of OpenSSL that moved nothing means, as errno and a result.
static ssize_t outcome(bl_tls_session_t *session, int result, int errno_value) {
  switch (SSL_get_error(session->ssl, result)) {
  case SSL_ERROR_WANT_READ:
    session->wants_writable = false;
    errno = EAGAIN;
    return -1;
  case SSL_ERROR_WANT_WRITE:
    session->wants_writable = true;
    errno = EAGAIN;
    return -1;
  case SSL_ERROR_ZERO_RETURN:
    return 0;
  case SSL_ERROR_SYSCALL:
    session->broken = true;
    ERR_clear_error();
    errno = errno_value != 0 ? errno_value : ECONNRESET;
    return -1;
  default:
    session->broken = true;
    explain(session);
    ERR_clear_error();
    errno = session->error.status == BL_OK ? ECONNRESET : EPROTO;
    return -1;
  }
}

ssize_t bl_tls_session_read(bl_tls_session_t *session, void *bytes, size_t size_bytes) {
  pthread_mutex_lock(&session->mutex);
  ERR_clear_error();
  errno = 0;
  int result = SSL_read(session->ssl, bytes, size_bytes < INT_MAX ? (int)size_bytes : INT_MAX);
  ssize_t moved = result > 0 ? result : outcome(session, result, errno);
  pthread_mutex_unlock(&session->mutex);
  return moved;
}

ssize_t bl_tls_session_write(bl_tls_session_t *session, const void *bytes, size_t size_bytes) {
  pthread_mutex_lock(&session->mutex);
  ERR_clear_error();
  errno = 0;
  int result = SSL_write(session->ssl, bytes, size_bytes < INT_MAX ? (int)size_bytes : INT_MAX);
  ssize_t moved = result > 0 ? result : outcome(session, result, errno);
  pthread_mutex_unlock(&session->mutex);
  return moved;
}

bool bl_tls_session_handshake(bl_tls_session_t *session) {
  pthread_mutex_lock(&session->mutex);
  ERR_clear_error();
  errno = 0;
  int result = SSL_do_handshake(session->ssl);
  bool over = result == 1;
  if (!over && outcome(session, result, errno) == 0) {
    errno = ECONNRESET;
  }
  pthread_mutex_unlock(&session->mutex);
  return over;
}

bool bl_tls_session_wants_writable(const bl_tls_session_t *session) {
  return session->wants_writable;
}

bool bl_tls_session_has_pending(bl_tls_session_t *session) {
  pthread_mutex_lock(&session->mutex);
  bool pending = SSL_pending(session->ssl) > 0;
  pthread_mutex_unlock(&session->mutex);
  return pending;
}

bool bl_tls_session_is_up(const bl_tls_session_t *session) {
  return SSL_is_init_finished(session->ssl) == 1;
}

const bl_error_t *bl_tls_session_error(const bl_tls_session_t *session) {
  return &session->error;
}

const bl_identity_t *bl_tls_session_peer(const bl_tls_session_t *session) {
  return &session->peer;
}
