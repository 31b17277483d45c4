// SPDX-License-Identifier: Apache-2.0
#include "base/status.h"

#include <errno.h>
#include <stddef.h>

typedef struct {
  const char *name;
  const char *text;
  bool retryable;
  int grpc_code;
  int exit_code;
} status_row_t;

static const status_row_t rows[BL_STATUS_COUNT] = {
#define X(identifier, name, text, retryable, grpc_code, exit_code)                                                     \
  [identifier] = {name, text, retryable, grpc_code, exit_code},
    BL_STATUS_TABLE(X)
#undef X
};

static const status_row_t *row_of(bl_status_t status) {
  return &rows[(unsigned)status < BL_STATUS_COUNT ? status : BL_INTERNAL];
}

const char *bl_status_name(bl_status_t status) {
  return row_of(status)->name;
}

const char *bl_status_text(bl_status_t status) {
  return row_of(status)->text;
}

bool bl_status_retryable(bl_status_t status) {
  return row_of(status)->retryable;
}

int bl_status_grpc_code(bl_status_t status) {
  return row_of(status)->grpc_code;
}

int bl_status_exit_code(bl_status_t status) {
  return row_of(status)->exit_code;
}

bl_status_t bl_status_from_grpc_code(int grpc_code) {
  if (grpc_code == 2) {
    return BL_INTERNAL; // UNKNOWN gives a caller nothing to act on
  }
  // Several statuses share code 9. A peer means the first of them in table order.
  for (size_t i = 0; i < BL_STATUS_COUNT; i++) {
    if (rows[i].grpc_code == grpc_code) {
      return (bl_status_t)i;
    }
  }
  return BL_INTERNAL;
}

bl_status_t bl_status_from_errno(int errno_value) {
  switch (errno_value) {
  case 0:
    return BL_OK;
  case ENOENT:
  case ENOTDIR:
    return BL_NOT_FOUND;
  case EACCES:
  case EPERM:
  case EROFS:
    return BL_DENIED;
  case ENOMEM:
  case ENOSPC:
  case EMFILE:
  case ENFILE:
  case EDQUOT:
    return BL_EXHAUSTED;
  case EINVAL:
    return BL_INVALID;
  case ETIMEDOUT:
    return BL_DEADLINE;
  case ECONNREFUSED:
  case ECONNRESET:
  case EPIPE:
  case ENOTCONN:
  case EHOSTUNREACH:
  case ENETUNREACH:
    return BL_UNAVAILABLE;
  case ECANCELED:
    return BL_CANCELLED;
  default:
    return BL_IO;
  }
}
