// SPDX-License-Identifier: Apache-2.0
// A process's side of mutual TLS: the authorities it trusts, its own certificate and key, and the role in it.
//
//   bl_tls_create(&(bl_tls_options_t){.ca = "ca.pem", .certificate = "stage.pem", .key = "stage.key",
//                                     .roles = BL_STAGES}, &tls, err);
//   bl_rpc_secure(rpc, tls, ...);         control plane (rpc/rpc.h)
//   bl_tls_session_create(tls, ...);      data path (tls/session.h)
//   bl_tls_release(tls);
//
// Both ends of every connection show a certificate, on both planes. The files are read again when they change, at the
// next connection that is made (looked at once a second at most); a set that cannot be used is logged once and the one
// before stays in use, so that files that are replaced one by one do no harm.
// Thread: any. Reference counted: what uses it holds a reference.
#ifndef BALLAST_TLS_TLS_H
#define BALLAST_TLS_TLS_H

#include "base/error.h"
#include "base/library.h"
#include "tls/identity.h"

#include <stdint.h>

// Certificates and keys are small; bounds what a wrong path can make us read.
#define BL_TLS_FILE_LIMIT_BYTES (1u << 20)

typedef struct bl_tls bl_tls_t;

typedef struct bl_tls_options {
  const char *ca;          // PEM: the authorities that are trusted
  const char *certificate; // PEM: own certificate, then intermediate ones
  const char *key;         // PEM: its key, without a password
  unsigned roles;          // BL_ROLE_BIT: what this program may be
} bl_tls_options_t;

// Also makes the process ignore SIGPIPE, because OpenSSL writes to sockets as to files.
// Reads and judges everything. Failures name the file, the cause and what to do: BL_NOT_FOUND, BL_DENIED, BL_INVALID
// (no PEM, key of another certificate), BL_UNAUTHENTICATED (expired, of another authority, wrong role).
BL_MUST_USE bl_status_t bl_tls_create(const bl_tls_options_t *options, bl_tls_t **tls, bl_error_t *err);
bl_tls_t *bl_tls_acquire(bl_tls_t *tls); // another reference; returns `tls`
void bl_tls_release(bl_tls_t *tls);      // NULL is fine

void bl_tls_identity(bl_tls_t *tls, bl_identity_t *identity); // own

// Looks whether the files have changed and takes them up. Returns a number that grows with every set taken up.
uint64_t bl_tls_refresh(bl_tls_t *tls);

// Copies of the set in use, for libraries that want text; free with bl_tls_material_cleanup.
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
// Why our own certificate might be refused by others right now. BL_OK: it looks well.
BL_MUST_USE bl_status_t bl_tls_judge_own(bl_tls_t *tls, bl_error_t *err);
// When the own certificate ends, in seconds since 1970. Files that have changed are taken up first.
int64_t bl_tls_expiry(bl_tls_t *tls);

extern const bl_library_t bl_tls_library; // OpenSSL

#endif
