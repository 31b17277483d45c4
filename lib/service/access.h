// SPDX-License-Identifier: Apache-2.0
// Access control: one table of every method of every service and the roles that may call it (access.c). A test fails if
// proto/ has a method without a row.
// Thread: pure, any.
#ifndef BALLAST_SERVICE_ACCESS_H
#define BALLAST_SERVICE_ACCESS_H

#include "base/error.h"
#include "tls/identity.h"

#include <stddef.h>

typedef struct bl_access_row {
  const char *service, *method;
  unsigned roles;
} bl_access_row_t;

const bl_access_row_t *bl_access_table(size_t *count);

// For bl_rpc_security_t. BL_DENIED names the caller's role and the allowed ones. No role may call a method without a
// row.
bl_status_t bl_access_check(const char *service, const char *method, const bl_identity_t *caller, bl_error_t *err);

#endif
