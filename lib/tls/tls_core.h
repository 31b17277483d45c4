// SPDX-License-Identifier: Apache-2.0
// Shared inside lib/tls: one usable set of authorities, certificate and key.
#ifndef BALLAST_TLS_TLS_CORE_H
#define BALLAST_TLS_TLS_CORE_H

#include "tls/certificate.h"
#include "tls/tls.h"

// Never changed once made; counted, because connections go on with the set that they began with.
typedef struct bl__tls_set bl__tls_set_t;
struct bl__tls_set {
  unsigned users;
  char *ca, *certificate, *key; // texts
  X509 *leaf;
  STACK_OF(X509) * others;
  X509_STORE *authorities;
  SSL_CTX *context; // of the data path, both directions
  bl_identity_t identity;
};

// The set in use, refreshed; give it back.
bl__tls_set_t *bl__tls_take_set(bl_tls_t *tls);
void bl__tls_give_set(bl_tls_t *tls, bl__tls_set_t *set);

// session.c: what connections of the data path are made from.
BL_MUST_USE bl_status_t bl__tls_context_create(bl__tls_set_t *set, EVP_PKEY *key, bl_error_t *err);

#endif
