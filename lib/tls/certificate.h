// SPDX-License-Identifier: Apache-2.0
// Certificates and keys read and judged with OpenSSL, inside lib/tls. Every refusal names what, why and what to do.
// Thread: any; objects belong to their caller.
#ifndef BALLAST_TLS_CERTIFICATE_H
#define BALLAST_TLS_CERTIFICATE_H

#include "base/error.h"
#include "tls/identity.h"

#include <openssl/ssl.h>
#include <openssl/x509.h>

// What to do when a certificate cannot be used.
#define BL__TLS_ADVICE "deploy/certificates.sh makes certificates, docs/security.md says how they must look"

// The first certificate of `pem` (the leaf) and the others (may be NULL when not wanted). BL_INVALID: `what` is none.
BL_MUST_USE bl_status_t bl__certificates_parse(const char *pem, const char *what, X509 **leaf, STACK_OF(X509) * *others,
                                               bl_error_t *err);
BL_MUST_USE bl_status_t bl__key_parse(const char *pem, const char *what, EVP_PKEY **key, bl_error_t *err);
// A store that trusts the authorities in `pem` only.
BL_MUST_USE bl_status_t bl__authorities_parse(const char *pem, const char *what, X509_STORE **store, bl_error_t *err);

// The role in a certificate. BL_UNAUTHENTICATED: none, more than one, or one that is wrong.
BL_MUST_USE bl_status_t bl__certificate_identity(X509 *leaf, const char *what, bl_identity_t *identity,
                                                 bl_error_t *err);
// Time, authority and purpose (X509_PURPOSE_SSL_SERVER, ..., or 0 for any). BL_UNAUTHENTICATED with the reason.
BL_MUST_USE bl_status_t bl__certificate_verify(X509 *leaf, STACK_OF(X509) * others, X509_STORE *store, int purpose,
                                               const char *what, bl_error_t *err);
// Puts the reason of a failed verification into words: a code of X509_V_ERR_*.
bl_status_t bl__certificate_explain(int code, X509 *leaf, const char *what, bl_error_t *err);

#endif
