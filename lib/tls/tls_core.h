// SPDX-License-Identifier: Apache-2.0
// Private to lib/tls: one usable set of authorities, certificate and key.
#ifndef BALLAST_TLS_TLS_CORE_H
#define BALLAST_TLS_TLS_CORE_H

#include "tls/certificate.h"
#include "tls/tls.h"

// Immutable and reference-counted, because a connection keeps the set that it began with.
typedef struct bl__tls_set bl__tls_set_t;
struct bl__tls_set {
  unsigned users;
  char *ca, *certificate, *key; // texts (PEM)
  X509 *leaf;
  STACK_OF(X509) * others;
  X509_STORE *authorities;
  SSL_CTX *context; // for the data path, both directions
  bl_identity_t identity;
};

// Returns the set in use after a refresh. Release it with bl__tls_give_set.
bl__tls_set_t *bl__tls_take_set(bl_tls_t *tls);
void bl__tls_give_set(bl_tls_t *tls, bl__tls_set_t *set);

// In session.c: creates the context for connections of the data path.
BL_MUST_USE bl_status_t bl__tls_context_create(bl__tls_set_t *set, EVP_PKEY *key, bl_error_t *err);

#endif
