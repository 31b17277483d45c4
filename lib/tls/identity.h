// SPDX-License-Identifier: Apache-2.0
// The identity of a certificate's owner: a role and, for some, the only job it is for. The certificate contains it as a
// subjectAltName of the form
//
//   URI:ballast://ROLE        a stage, store, driver or operator, of any job
//   URI:ballast://stage/JOB   a stage of the job with this name only: stores open no session of another job for it
//
// Host names are not checked: services move between hosts, and what they may do is what matters.
// Thread: pure functions, any thread.
#ifndef BALLAST_TLS_IDENTITY_H
#define BALLAST_TLS_IDENTITY_H

#include "base/error.h"

#define BL_IDENTITY_JOB_BYTES  128
#define BL_IDENTITY_TEXT_BYTES 160

typedef enum bl_role {
  BL_ROLE_NONE, // a connection without TLS: the transport restricts who can open it (loopback, unix sockets)
  BL_ROLE_STAGE,
  BL_ROLE_STORE,
  BL_ROLE_DRIVER,
  BL_ROLE_OPERATOR,
  BL_ROLE_COUNT
} bl_role_t;

// Sets of roles.
#define BL_ROLE_BIT(role) (1u << (role))
#define BL_STAGES         BL_ROLE_BIT(BL_ROLE_STAGE)
#define BL_STORES         BL_ROLE_BIT(BL_ROLE_STORE)
#define BL_DRIVERS        BL_ROLE_BIT(BL_ROLE_DRIVER)
#define BL_OPERATORS      BL_ROLE_BIT(BL_ROLE_OPERATOR)
#define BL_EVERY_ROLE     (BL_STAGES | BL_STORES | BL_DRIVERS | BL_OPERATORS)

typedef struct bl_identity {
  bl_role_t role;
  char job[BL_IDENTITY_JOB_BYTES]; // "": any job
} bl_identity_t;

#define BL_IDENTITY_SCHEME "ballast://"

// Formats roles: "stage", "stage or driver". Returns `text`.
const char *bl_roles_format(unsigned roles, char text[BL_IDENTITY_TEXT_BYTES]);
// Formats an identity: "stage of job gpt2", "operator". Returns `text`.
const char *bl_identity_format(const bl_identity_t *identity, char text[BL_IDENTITY_TEXT_BYTES]);

// Parses the URI of a certificate. BL_NOT_FOUND: it has another scheme. BL_INVALID: it has this scheme but is
// malformed.
BL_MUST_USE bl_status_t bl_identity_parse(const char *uri, bl_identity_t *identity, bl_error_t *err);

// Returns whether the identity may act for `job`.
bool bl_identity_is_for_job(const bl_identity_t *identity, const char *job);

#endif
