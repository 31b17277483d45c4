// SPDX-License-Identifier: Apache-2.0
#include "tls/certificate.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <string.h>

// Refuses files with a password, which would wait for a person.
// NOLINTNEXTLINE(readability-non-const-parameter): the type is OpenSSL's
static int no_password(char *buffer, int size, int writing, void *context) {
  (void)buffer, (void)size, (void)writing, (void)context;
  return 0;
}

static BIO *open_text(const char *pem) {
  return BIO_new_mem_buf(pem, (int)strlen(pem));
}

static bl_status_t no_memory(bl_error_t *err) {
  ERR_clear_error();
  return bl_error_set(err, BL_EXHAUSTED, "TLS: out of memory");
}

bl_status_t bl__certificates_parse(const char *pem, const char *what, X509 **leaf, STACK_OF(X509) * *others,
                                   bl_error_t *err) {
  BIO *text = open_text(pem);
  STACK_OF(X509) *rest = sk_X509_new_null();
  X509 *first = NULL, *next;
  bl_status_t status = text != NULL && rest != NULL ? BL_OK : no_memory(err);
  while (status == BL_OK && (next = PEM_read_bio_X509(text, NULL, no_password, NULL)) != NULL) {
    if (first == NULL) {
      first = next;
    } else if (sk_X509_push(rest, next) == 0) {
      X509_free(next);
      status = no_memory(err);
    }
  }
  ERR_clear_error(); // OpenSSL reports the end of the text as an error
  if (status == BL_OK && first == NULL) {
    status = bl_error_set(err, BL_INVALID, "%s holds no certificate in PEM form; " BL__TLS_ADVICE, what);
  }
  BIO_free(text);
  if (status != BL_OK || others == NULL) {
    sk_X509_pop_free(rest, X509_free);
  } else {
    *others = rest;
  }
  if (status == BL_OK) {
    *leaf = first;
  } else {
    X509_free(first);
  }
  return status;
}

bl_status_t bl__key_parse(const char *pem, const char *what, EVP_PKEY **key, bl_error_t *err) {
  BIO *text = open_text(pem);
  EVP_PKEY *read = text != NULL ? PEM_read_bio_PrivateKey(text, NULL, no_password, NULL) : NULL;
  BIO_free(text);
  ERR_clear_error();
  if (read == NULL) {
    return bl_error_set(err, BL_INVALID, "%s holds no private key in PEM form without a password; " BL__TLS_ADVICE,
                        what);
  }
  *key = read;
  return BL_OK;
}

bl_status_t bl__authorities_parse(const char *pem, const char *what, X509_STORE **store, bl_error_t *err) {
  X509 *first;
  STACK_OF(X509) * others;
  bl_status_t status = bl__certificates_parse(pem, what, &first, &others, err);
  if (status != BL_OK) {
    return status;
  }
  X509_STORE *made = X509_STORE_new();
  bool well = made != NULL && X509_STORE_add_cert(made, first) == 1;
  for (int i = 0; well && i < sk_X509_num(others); i++) {
    well = X509_STORE_add_cert(made, sk_X509_value(others, i)) == 1;
  }
  X509_free(first);
  sk_X509_pop_free(others, X509_free);
  if (!well) {
    X509_STORE_free(made);
    return no_memory(err);
  }
  *store = made;
  return BL_OK;
}

// ---- identity -------------------------------------------------------------------------------------------------------

// Returns the URI of a subjectAltName. NULL: another kind of name, or not plain text.
static const char *uri_of(const GENERAL_NAME *name) {
  if (name->type != GEN_URI) {
    return NULL;
  }
  const char *text = (const char *)ASN1_STRING_get0_data(name->d.uniformResourceIdentifier);
  return strlen(text) == (size_t)ASN1_STRING_length(name->d.uniformResourceIdentifier) ? text : NULL;
}

bl_status_t bl__certificate_identity(X509 *leaf, const char *what, bl_identity_t *identity, bl_error_t *err) {
  GENERAL_NAMES *names = X509_get_ext_d2i(leaf, NID_subject_alt_name, NULL, NULL);
  unsigned found = 0;
  bl_status_t status = BL_OK;
  for (int i = 0; status == BL_OK && i < sk_GENERAL_NAME_num(names); i++) { // the count is -1 for NULL
    const char *uri = uri_of(sk_GENERAL_NAME_value(names, i));
    bl_status_t read = uri != NULL ? bl_identity_parse(uri, identity, err) : BL_NOT_FOUND;
    found += read == BL_OK;
    if (read == BL_INVALID) {
      bl_error_prefix(err, "%s", what);
      status = BL_UNAUTHENTICATED;
    }
  }
  GENERAL_NAMES_free(names);
  if (status == BL_OK && found != 1) {
    status = bl_error_set(err, BL_UNAUTHENTICATED,
                          "%s names %s: it must have one subjectAltName URI such as " BL_IDENTITY_SCHEME
                          "stage; " BL__TLS_ADVICE,
                          what, found == 0 ? "no role" : "more than one role");
  }
  if (err != NULL && status != BL_OK) {
    err->status = status;
  }
  return status;
}

// ---- verification ---------------------------------------------------------------------------------------------------

// Formats a time as OpenSSL does ("Jan 31 12:00:00 2026 GMT"), without libc's time functions.
static void format_time(const ASN1_TIME *when, char *text, size_t text_bytes) {
  BIO *out = BIO_new(BIO_s_mem());
  int length = 0;
  if (out != NULL && ASN1_TIME_print(out, when) == 1) {
    length = BIO_read(out, text, (int)text_bytes - 1);
  }
  text[length > 0 ? length : 0] = '\0';
  BIO_free(out);
}

static void format_name(X509_NAME *name, char *text, size_t text_bytes) {
  text[0] = '\0';
  (void)X509_NAME_get_text_by_NID(name, NID_commonName, text, (int)text_bytes);
}

bl_status_t bl__certificate_explain(int code, X509 *leaf, const char *what, bl_error_t *err) {
  char when[64] = "", name[128] = "", issuer[128] = "";
  if (leaf != NULL) {
    format_name(X509_get_subject_name(leaf), name, sizeof name);
    format_name(X509_get_issuer_name(leaf), issuer, sizeof issuer);
  }
  switch (code) {
  case X509_V_ERR_CERT_HAS_EXPIRED:
    format_time(X509_get0_notAfter(leaf), when, sizeof when);
    return bl_error_set(err, BL_UNAUTHENTICATED,
                        "%s (%s) has expired on %s; make a new one (deploy/certificates.sh): it is taken up without a "
                        "restart",
                        what, name, when);
  case X509_V_ERR_CERT_NOT_YET_VALID:
    format_time(X509_get0_notBefore(leaf), when, sizeof when);
    return bl_error_set(err, BL_UNAUTHENTICATED, "%s (%s) is not valid before %s; are the clocks of both hosts right?",
                        what, name, when);
  case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
  case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
  case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
  case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
  case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
  case X509_V_ERR_CERT_SIGNATURE_FAILURE:
    return bl_error_set(err, BL_UNAUTHENTICATED,
                        "%s (%s) was issued by another authority (%s) than those trusted here (--tls-ca); give both "
                        "ends certificates of one authority",
                        what, name, issuer);
  case X509_V_ERR_INVALID_PURPOSE:
    return bl_error_set(err, BL_UNAUTHENTICATED,
                        "%s (%s) is not meant for this: its extendedKeyUsage must have serverAuth and "
                        "clientAuth; " BL__TLS_ADVICE,
                        what, name);
  default:
    return bl_error_set(err, BL_UNAUTHENTICATED, "%s (%s) is refused: %s; " BL__TLS_ADVICE, what, name,
                        X509_verify_cert_error_string(code));
  }
}

bl_status_t bl__certificate_verify(X509 *leaf, STACK_OF(X509) * others, X509_STORE *store, int purpose,
                                   const char *what, bl_error_t *err) {
  X509_STORE_CTX *context = X509_STORE_CTX_new();
  if (context == NULL || X509_STORE_CTX_init(context, store, leaf, others) != 1) {
    X509_STORE_CTX_free(context);
    return no_memory(err);
  }
  if (purpose != 0) {
    X509_STORE_CTX_set_purpose(context, purpose);
  }
  bl_status_t status = BL_OK;
  if (X509_verify_cert(context) != 1) {
    X509 *at = X509_STORE_CTX_get_current_cert(context);
    status = bl__certificate_explain(X509_STORE_CTX_get_error(context), at != NULL ? at : leaf, what, err);
  }
  X509_STORE_CTX_free(context);
  ERR_clear_error();
  return status;
}
