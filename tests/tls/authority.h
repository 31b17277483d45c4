// SPDX-License-Identifier: Apache-2.0
// Certificates for tests, made by deploy/certificates.sh in a temporary folder.
#ifndef BALLAST_TESTS_TLS_AUTHORITY_H
#define BALLAST_TESTS_TLS_AUTHORITY_H

#include "tls/tls.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct authority {
  char folder[64];
  char ca[128], certificate[128], key[128]; // of the last authority_options
} authority_t;

// Runs the script: `arguments` are roles and options.
static inline void authority_make(const authority_t *authority, const char *arguments) {
  char command[PATH_MAX];
  snprintf(command, sizeof command, "%s/deploy/certificates.sh %s %s 2>/dev/null", BALLAST_SOURCE_DIR,
           authority->folder, arguments);
  if (system(command) != 0) {
    fprintf(stderr, "failed: %s\n", command);
    abort();
  }
}

static inline void authority_init(authority_t *authority, const char *arguments) {
  snprintf(authority->folder, sizeof authority->folder, "/tmp/ballast-tls-XXXXXX");
  if (mkdtemp(authority->folder) == NULL) {
    perror("mkdtemp");
    abort();
  }
  authority_make(authority, arguments);
}

static inline void authority_cleanup(authority_t *authority) {
  char command[128];
  snprintf(command, sizeof command, "rm -rf %s", authority->folder);
  if (system(command) != 0) {
    fprintf(stderr, "failed: %s\n", command);
  }
}

// The files of `name` ("stage", "stage-gpt2"), for a program that may have any role; valid until the next call.
static inline bl_tls_options_t authority_options(authority_t *authority, const char *name) {
  snprintf(authority->ca, sizeof authority->ca, "%s/ca.pem", authority->folder);
  snprintf(authority->certificate, sizeof authority->certificate, "%s/%s.pem", authority->folder, name);
  snprintf(authority->key, sizeof authority->key, "%s/%s.key", authority->folder, name);
  return (bl_tls_options_t){
      .ca = authority->ca, .certificate = authority->certificate, .key = authority->key, .roles = BL_EVERY_ROLE};
}

static inline bl_tls_t *authority_tls(authority_t *authority, const char *name) {
  bl_tls_options_t options = authority_options(authority, name);
  bl_tls_t *tls;
  bl_error_t err;
  if (bl_tls_create(&options, &tls, &err) != BL_OK) {
    fprintf(stderr, "failed: %s\n", err.text);
    abort();
  }
  return tls;
}

// A certificate of `authority` for a program that trusts those of `trusted`, too: it takes their peers, they do not take
// it.
static inline bl_tls_t *authority_tls_trusting(authority_t *authority, const char *name, const authority_t *trusted) {
  char command[512], bundle[128];
  snprintf(bundle, sizeof bundle, "%s/both.pem", authority->folder);
  snprintf(command, sizeof command, "cat %s/ca.pem %s/ca.pem >%s", authority->folder, trusted->folder, bundle);
  bl_tls_options_t options = authority_options(authority, name);
  options.ca = bundle;
  bl_tls_t *tls;
  bl_error_t err;
  if (system(command) != 0 || bl_tls_create(&options, &tls, &err) != BL_OK) {
    fprintf(stderr, "failed: %s\n", command);
    abort();
  }
  return tls;
}

#endif
