// SPDX-License-Identifier: Apache-2.0
// Private to lib/tls: reads and judges certificates and keys with OpenSSL. Every refusal names the object, the cause
// and the remedy.
// Thread: any; objects belong to their caller.
#ifndef BALLAST_TLS_CERTIFICATE_H
#define BALLAST_TLS_CERTIFICATE_H

#include "base/error.h"
#include "tls/identity.h"

#include <openssl/ssl.h>
#include <openssl/x509.h>

// The remedy for a certificate that cannot be used.
#define BL__TLS_ADVICE "deploy/certificates.sh makes certificates, docs/security.md says how they must look"

// Sets the first certificate of `pem` (the leaf) and the others (NULL: not wanted). BL_INVALID: `what` is not a
// certificate.
BL_MUST_USE bl_status_t bl__certificates_parse(const char *pem, const char *what, X509 **leaf, STACK_OF(X509) * *others,
                                               bl_error_t *err);
BL_MUST_USE bl_status_t bl__key_parse(const char *pem, const char *what, EVP_PKEY **key, bl_error_t *err);
// Creates a store that trusts only the authorities in `pem`.
BL_MUST_USE bl_status_t bl__authorities_parse(const char *pem, const char *what, X509_STORE **store, bl_error_t *err);

// Sets the role in a certificate. BL_UNAUTHENTICATED: no role, more than one, or an invalid one.
BL_MUST_USE bl_status_t bl__certificate_identity(X509 *leaf, const char *what, bl_identity_t *identity,
                                                 bl_error_t *err);
// Checks time, authority and purpose (X509_PURPOSE_SSL_SERVER, ..., or 0 for any). BL_UNAUTHENTICATED with the reason.
BL_MUST_USE bl_status_t bl__certificate_verify(X509 *leaf, STACK_OF(X509) * others, X509_STORE *store, int purpose,
                                               const char *what, bl_error_t *err);
// Formats the reason of a failed verification: a code of X509_V_ERR_*.
bl_status_t bl__certificate_explain(int code, X509 *leaf, const char *what, bl_error_t *err);

#endif
