// SPDX-License-Identifier: Apache-2.0
#include "tls/session.h"

#include "tls/tls_core.h"

#include <openssl/err.h>
#include <openssl/sslerr.h>

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct bl_tls_session {
  pthread_mutex_t mutex; // guards `ssl`: OpenSSL allows one thread at a time
  bl_tls_t *tls;
  bl__tls_set_t *set;
  SSL *ssl;
  unsigned roles;
  bool server;
  bool wants_writable;
  bool was_up;    // the handshake has finished; OpenSSL forgets that after a failure
  bool broken;    // nothing may be sent any more
  bool plaintext; // the peer's first bytes were not TLS
  bl_identity_t peer;
  bl_error_t error;
};

static const char *peer_words(const bl_tls_session_t *session) {
  return session->server ? "the certificate of who connected" : "the certificate of the peer";
}

// OpenSSL calls this with its own verdict for each certificate of the chain, the leaf last. A valid leaf must also have
// a wanted role. The text of a refusal is kept for bl_tls_session_error.
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

// Returns the names of the authorities in a store. NULL (no names are sent): out of memory.
static STACK_OF(X509_NAME) * names_of(X509_STORE *authorities) {
  STACK_OF(X509_NAME) *names = sk_X509_NAME_new_null();
  const STACK_OF(X509_OBJECT) *objects = X509_STORE_get0_objects(authorities);
  for (int i = 0; names != NULL && i < sk_X509_OBJECT_num(objects); i++) {
    const X509 *certificate = X509_OBJECT_get0_X509(sk_X509_OBJECT_value(objects, i));
    X509_NAME *name = certificate != NULL ? X509_NAME_dup(X509_get_subject_name(certificate)) : NULL;
    if (name != NULL && sk_X509_NAME_push(names, name) == 0) {
      X509_NAME_free(name);
    }
  }
  return names;
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
  SSL_CTX_clear_mode(context, SSL_MODE_AUTO_RETRY);                // else a read lasts as long as a peer sends new keys
  SSL_CTX_set_client_CA_list(context, names_of(set->authorities)); // so that a refused client can report why
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_TICKET);
  bool well = SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1 &&
              SSL_CTX_set_num_tickets(context, 0) == 1 && // connections stay open, so there is nothing to resume
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

static void on_progress(const SSL *ssl, int where, int result) {
  (void)result;
  bl_tls_session_t *session = SSL_get_app_data(ssl);
  session->was_up |= (where & SSL_CB_HANDSHAKE_DONE) != 0;
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
  SSL_set_info_callback(session->ssl, on_progress);
  if (server) {
    SSL_set_accept_state(session->ssl);
  } else {
    SSL_set_connect_state(session->ssl);
  }
  *result = session;
  return BL_OK;
}

bl_status_t bl_tls_session_offer(bl_tls_session_t *session, const char *protocol) {
  uint8_t wire[1 + UINT8_MAX];
  const size_t length = strlen(protocol);
  if (length == 0 || length > UINT8_MAX) {
    return BL_INVALID;
  }
  wire[0] = (uint8_t)length;
  memcpy(wire + 1, protocol, length);
  return SSL_set_alpn_protos(session->ssl, wire, (unsigned)length + 1) == 0 ? BL_OK : BL_EXHAUSTED;
}

void bl_tls_session_destroy(bl_tls_session_t *session) {
  if (session == NULL) {
    return;
  }
  if (session->ssl != NULL && !session->broken && SSL_is_init_finished(session->ssl)) {
    (void)SSL_shutdown(session->ssl); // sends one record, if the socket accepts it
    ERR_clear_error();
  }
  SSL_free(session->ssl);
  bl__tls_give_set(session->tls, session->set);
  bl_tls_release(session->tls);
  pthread_mutex_destroy(&session->mutex);
  free(session);
}

// ---- moving bytes ---------------------------------------------------------------------------------------------------

// Returns whether an alert says that the peer refuses our certificate.
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

// Writes "'/CN=a', '/CN=b'", as far as it fits.
static void list_names(const STACK_OF(X509_NAME) * names, char *text, size_t text_bytes) {
  size_t used = 0;
  text[0] = '\0';
  for (int i = 0; i < sk_X509_NAME_num(names) && used < text_bytes; i++) {
    char name[160] = "";
    (void)X509_NAME_oneline(sk_X509_NAME_value(names, i), name, sizeof name);
    int written = snprintf(text + used, text_bytes - used, "%s'%s'", i > 0 ? ", " : "", name);
    used += written > 0 ? (size_t)written : 0;
  }
}

static bool is_issued_by(const bl__tls_set_t *set, const STACK_OF(X509_NAME) * names) {
  for (int i = 0; i < sk_X509_NAME_num(names); i++) {
    const X509_NAME *name = sk_X509_NAME_value(names, i);
    bool issued = X509_NAME_cmp(X509_get_issuer_name(set->leaf), name) == 0;
    for (int k = 0; k < sk_X509_num(set->others); k++) {
      issued = issued || X509_NAME_cmp(X509_get_issuer_name(sk_X509_value(set->others, k)), name) == 0;
    }
    if (issued) {
      return true;
    }
  }
  return false;
}

// Returns whether the peer is sure to refuse our certificate: it has named the authorities that it trusts.
static bool is_distrusted(const bl_tls_session_t *session) {
  const STACK_OF(X509_NAME) *trusted = session->server ? NULL : SSL_get0_peer_CA_list(session->ssl);
  return sk_X509_NAME_num(trusted) > 0 && !is_issued_by(session->set, trusted);
}

// The peer refuses our certificate: reports the authorities that it trusts, and `alert` if one arrived (else 0).
static bl_status_t explain_refusal(const bl_tls_session_t *session, int alert, bl_error_t *err) {
  char own[BL_IDENTITY_TEXT_BYTES], issuer[160] = "", names[400];
  bl_identity_format(&session->set->identity, own);
  (void)X509_NAME_oneline(X509_get_issuer_name(session->set->leaf), issuer, sizeof issuer);
  if (is_distrusted(session)) {
    list_names(SSL_get0_peer_CA_list(session->ssl), names, sizeof names);
    return bl_error_set(err, BL_UNAUTHENTICATED,
                        "the peer refuses this program's certificate: it was issued by '%s', the peer trusts %s; give "
                        "both certificates of one authority, or add this one's to the peer's --tls-ca",
                        issuer, names);
  }
  switch (alert) {
  case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
    return bl_error_set(
        err, BL_UNAUTHENTICATED,
        "the peer refuses this program's certificate: it has expired, by the peer's clock; " BL__TLS_ADVICE);
  case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
    return bl_error_set(err, BL_UNAUTHENTICATED,
                        "the peer refuses this program's certificate: it does not trust its authority, '%s'; give both "
                        "certificates of one authority, or add this one's to the peer's --tls-ca",
                        issuer);
  case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
    return bl_error_set(err, BL_UNAUTHENTICATED, "the peer wants a certificate and was shown none; " BL__TLS_ADVICE);
  case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
  case SSL_R_TLSV1_ALERT_ACCESS_DENIED:
    return bl_error_set(err, BL_UNAUTHENTICATED,
                        "the peer refuses this program's certificate, which is for the role %s: another role is wanted "
                        "there, as the peer's log says; correct the address or --tls-certificate",
                        own);
  default:
    return bl_error_set(err, BL_UNAUTHENTICATED,
                        "the peer refuses this program's certificate (role %s, issued by '%s'): is it expired by the "
                        "peer's clock, or not for clientAuth? its log says why",
                        own, issuer);
  }
}

bl_status_t bl_tls_session_explain_end(bl_tls_session_t *session, bl_error_t *err) {
  pthread_mutex_lock(&session->mutex);
  const bl_status_t known = session->error.status;
  if (known == BL_UNAUTHENTICATED || known == BL_DATA_LOSS) {
    *err = session->error;
  } else if (is_distrusted(session)) {
    (void)explain_refusal(session, 0, err);
  } else {
    char own[BL_IDENTITY_TEXT_BYTES], issuer[160] = "";
    bl_identity_format(&session->set->identity, own);
    (void)X509_NAME_oneline(X509_get_issuer_name(session->set->leaf), issuer, sizeof issuer);
    (void)bl_error_set(err, BL_UNAVAILABLE,
                       "the peer closed the connection right after the TLS handshake: it ended or was killed, or it "
                       "refuses this program's certificate (role %s, issued by '%s'), as its log says then",
                       own, issuer);
  }
  pthread_mutex_unlock(&session->mutex);
  return err->status;
}

static void explain(bl_tls_session_t *session) {
  if (session->error.status != BL_OK) {
    return; // judge_peer has set the text
  }
  unsigned long code = ERR_peek_error();
  const char *text = ERR_reason_error_string(code);
  text = text != NULL ? text : "no reason given";
  int reason = ERR_GET_REASON(code);
  session->plaintext = !session->was_up && (reason == SSL_R_WRONG_VERSION_NUMBER || reason == SSL_R_HTTP_REQUEST);
  if (is_refusal(reason)) {
    (void)explain_refusal(session, reason, &session->error);
  } else if (session->plaintext) {
    (void)bl_error_set(&session->error, BL_UNAVAILABLE,
                       "the peer does not speak TLS; give both ends certificates (--tls-ca, --tls-certificate, "
                       "--tls-key), or neither");
  } else if (!session->was_up) {
    (void)bl_error_set(&session->error, BL_UNAVAILABLE,
                       "the TLS handshake failed (%s); give both ends certificates (--tls-ca, --tls-certificate, "
                       "--tls-key), or neither",
                       text);
  } else if (reason == SSL_R_UNEXPECTED_EOF_WHILE_READING) {
    (void)bl_error_set(&session->error, BL_UNAVAILABLE, "the peer closed the connection: it ended or was killed");
  } else {
    (void)bl_error_set(&session->error, BL_DATA_LOSS, "the TLS connection is broken: %s", text);
  }
}

// Maps the result of an OpenSSL call that moved nothing to errno and a return value.
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
    // A call after a failure has no reason of its own.
    errno = session->error.status != BL_OK ? EPROTO : errno_value != 0 ? errno_value : ECONNRESET;
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

// The connection broke during a write. An alert with the reason may have arrived before.
static void find_last_words(bl_tls_session_t *session) {
  const int errno_value = errno;
  char byte;
  ERR_clear_error();
  const int result = SSL_read(session->ssl, &byte, 1);
  if (result <= 0 && SSL_get_error(session->ssl, result) == SSL_ERROR_SSL &&
      is_refusal(ERR_GET_REASON(ERR_peek_error()))) {
    explain(session);
  }
  ERR_clear_error();
  errno = session->error.status == BL_OK ? errno_value : EPROTO;
}

ssize_t bl_tls_session_write(bl_tls_session_t *session, const void *bytes, size_t size_bytes) {
  pthread_mutex_lock(&session->mutex);
  ERR_clear_error();
  errno = 0;
  int result = SSL_write(session->ssl, bytes, size_bytes < INT_MAX ? (int)size_bytes : INT_MAX);
  ssize_t moved = result > 0 ? result : outcome(session, result, errno);
  if (moved < 0 && session->broken && session->error.status == BL_OK) {
    find_last_words(session);
  }
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

bool bl_tls_session_is_plaintext(const bl_tls_session_t *session) {
  return session->plaintext;
}

bool bl_tls_session_is_up(const bl_tls_session_t *session) {
  return session->was_up;
}

const bl_error_t *bl_tls_session_error(const bl_tls_session_t *session) {
  return &session->error;
}

const bl_identity_t *bl_tls_session_peer(const bl_tls_session_t *session) {
  return &session->peer;
}
