// SPDX-License-Identifier: Apache-2.0
// A process's side of mutual TLS: the authorities it trusts, its own certificate and key, and the role in it.
//
//   bl_tls_create(&(bl_tls_options_t){.ca = "ca.pem", .certificate = "stage.pem", .key = "stage.key",
//                                     .roles = BL_STAGES}, &tls, err);
//   bl_rpc_secure(rpc, tls, ...);         control plane (rpc/rpc.h)
//   bl_tls_session_create(tls, ...);      data path (tls/session.h)
//   bl_tls_release(tls);
//
// Both ends of every connection present a certificate, on the control plane and on the data path. New connections
// reread the files if they have changed (checked at most once a second). If the new files cannot be used, that is
// logged once and the previous ones stay in use. Files may therefore be replaced one by one.
// Thread: any. Reference-counted: every user holds a reference.
#ifndef BALLAST_TLS_TLS_H
#define BALLAST_TLS_TLS_H

#include "base/error.h"
#include "base/library.h"
#include "tls/identity.h"

#include <stdint.h>

// Certificates and keys are small. This bounds what a wrong path can make us read.
#define BL_TLS_FILE_LIMIT_BYTES (1u << 20)

typedef struct bl_tls bl_tls_t;

typedef struct bl_tls_options {
  const char *ca;          // PEM: the trusted authorities
  const char *certificate; // PEM: own certificate, then intermediate ones
  const char *key;         // PEM: its key, without a password
  unsigned roles;          // BL_ROLE_BIT: allowed roles of this program
} bl_tls_options_t;

// Reads and judges all files. Failures name the file, the cause and the remedy: BL_NOT_FOUND, BL_DENIED, BL_INVALID (no
// PEM, key of another certificate), BL_UNAUTHENTICATED (expired, of another authority, wrong role). Also makes the
// process ignore SIGPIPE, because OpenSSL writes to sockets as to files.
BL_MUST_USE bl_status_t bl_tls_create(const bl_tls_options_t *options, bl_tls_t **tls, bl_error_t *err);
bl_tls_t *bl_tls_acquire(bl_tls_t *tls); // another reference; returns `tls`
void bl_tls_release(bl_tls_t *tls);      // NULL is fine

void bl_tls_identity(bl_tls_t *tls, bl_identity_t *identity); // of this process

// Rereads the files if they have changed. Returns a number that grows with every set taken into use.
uint64_t bl_tls_refresh(bl_tls_t *tls);

// Copies of the set in use, for libraries that need text. Free them with bl_tls_material_cleanup.
typedef struct bl_tls_material {
  char *ca, *certificate, *key;
  uint64_t generation;
} bl_tls_material_t;
BL_MUST_USE bl_status_t bl_tls_material_init(bl_tls_material_t *material, bl_tls_t *tls, bl_error_t *err);
void bl_tls_material_cleanup(bl_tls_material_t *material); // also wipes the key

// Judges a server's certificate chain (PEM, leaf first): time, authority, purpose, and that its role is one of `roles`.
// BL_UNAUTHENTICATED with the reason.
BL_MUST_USE bl_status_t bl_tls_judge_server(bl_tls_t *tls, const char *chain, unsigned roles, bl_identity_t *identity,
                                            bl_error_t *err);
// Returns why a peer might refuse our own certificate now. BL_OK: no reason was found.
BL_MUST_USE bl_status_t bl_tls_judge_own(bl_tls_t *tls, bl_error_t *err);
// Returns when the own certificate expires, in seconds since 1970. Rereads changed files first.
int64_t bl_tls_expiry(bl_tls_t *tls);

extern const bl_library_t bl_tls_library; // OpenSSL

#endif
