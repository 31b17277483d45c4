// SPDX-License-Identifier: Apache-2.0
// The TLS flags of a command line, the same for every program: --tls-ca, --tls-certificate, --tls-key, --plaintext.
// Thread: any; pure except for reading the files.
#ifndef BALLAST_TLS_FLAGS_H
#define BALLAST_TLS_FLAGS_H

#include "tls/tls.h"

typedef struct bl_tls_flags {
  char *ca, *certificate, *key; // NULL: not given
  bool plaintext;
} bl_tls_flags_t;

// Rows of an option table (config/options.h). `member_` is a bl_tls_flags_t in `type_`.
#define BL_TLS_ROWS(type_, member_)                                                                                    \
  {.name = "tls-ca",                                                                                                   \
   .type = BL_OPTION_TEXT,                                                                                             \
   .offset = offsetof(type_, member_.ca),                                                                              \
   .argument = "FILE",                                                                                                 \
   .help = "The authorities whose certificates are trusted, as PEM. With this every TCP address of the control plane " \
           "and of the data path is mutual TLS; docs/security.md says more."},                                         \
      {.name = "tls-certificate",                                                                                      \
       .type = BL_OPTION_TEXT,                                                                                         \
       .offset = offsetof(type_, member_.certificate),                                                                 \
       .argument = "FILE",                                                                                             \
       .help = "This program's certificate, as PEM, with its role in a subjectAltName. Read again when it changes."},  \
      {.name = "tls-key",                                                                                              \
       .type = BL_OPTION_TEXT,                                                                                         \
       .offset = offsetof(type_, member_.key),                                                                         \
       .argument = "FILE",                                                                                             \
       .help = "The certificate's key, as PEM without a password."},                                                   \
  {                                                                                                                    \
    .name = "plaintext", .type = BL_OPTION_BOOL, .offset = offsetof(type_, member_.plaintext),                         \
    .help = "Allow plaintext on addresses that are neither loopback nor unix sockets."                                 \
  }

// Sets *tls to NULL if no file is given, else to a reference. BL_INVALID: only some files are given. Further errors are
// those of bl_tls_create.
BL_MUST_USE bl_status_t bl_tls_create_from_flags(const bl_tls_flags_t *flags, unsigned roles, bl_tls_t **tls,
                                                 bl_error_t *err);

#endif
