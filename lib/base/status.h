// SPDX-License-Identifier: Apache-2.0
// The one status type of the project: what went wrong, in as many cases as callers treat differently.
//
// Inner code returns a bl_status_t alone. If a person will read the message, the last argument is a bl_error_t
// (error.h). One table gives every status its name, its text, whether a retry can help, its gRPC code and the exit code
// of a program that ends with it (DESIGN.md section 7).
//
// Thread: pure functions, any thread.
#ifndef BALLAST_BASE_STATUS_H
#define BALLAST_BASE_STATUS_H

#include <stdbool.h>

// X(identifier, name, text, retryable, grpc_code, exit_code)
#define BL_STATUS_TABLE(X)                                                                                             \
  X(BL_OK, "OK", "ok", false, 0, 0)                                                                                    \
  X(BL_INTERNAL, "INTERNAL", "internal error", false, 13, 1)                                                           \
  X(BL_INVALID, "INVALID", "invalid argument or job", false, 3, 2)                                                     \
  X(BL_NOT_FOUND, "NOT_FOUND", "not found", false, 5, 3)                                                               \
  X(BL_PRECONDITION, "PRECONDITION", "not possible in this state", false, 9, 4)                                        \
  X(BL_FENCED, "FENCED", "fenced: a newer holder exists", false, 10, 4)                                                \
  X(BL_UNAVAILABLE, "UNAVAILABLE", "peer unavailable", true, 14, 5)                                                    \
  X(BL_DEADLINE, "DEADLINE", "deadline passed", true, 4, 6)                                                            \
  X(BL_DENIED, "DENIED", "permission denied", false, 7, 7)                                                             \
  X(BL_UNAUTHENTICATED, "UNAUTHENTICATED", "not authenticated", false, 16, 7)                                          \
  X(BL_EXHAUSTED, "EXHAUSTED", "resource exhausted", true, 8, 8)                                                       \
  X(BL_UNHEALTHY, "UNHEALTHY", "unhealthy", false, 9, 9)                                                               \
  X(BL_PARTIAL, "PARTIAL", "partly done", false, 2, 10)                                                                \
  X(BL_CANCELLED, "CANCELLED", "cancelled", false, 1, 130)                                                             \
  X(BL_DATA_LOSS, "DATA_LOSS", "data corrupted or lost", false, 15, 1)                                                 \
  X(BL_UNIMPLEMENTED, "UNIMPLEMENTED", "not supported", false, 12, 2)                                                  \
  X(BL_IO, "IO", "input or output failed", false, 2, 1)

typedef enum bl_status {
#define X(identifier, name, text, retryable, grpc_code, exit_code) identifier,
  BL_STATUS_TABLE(X)
#undef X
      BL_STATUS_COUNT
} bl_status_t;

// The caller must use a result of this type.
#define BL_MUST_USE __attribute__((warn_unused_result))

const char *bl_status_name(bl_status_t status); // "NOT_FOUND"; never NULL
const char *bl_status_text(bl_status_t status); // for people
bool bl_status_retryable(bl_status_t status);
int bl_status_grpc_code(bl_status_t status);
int bl_status_exit_code(bl_status_t status);
// Returns the status for a gRPC code that a peer sent. Unknown codes are BL_INTERNAL.
bl_status_t bl_status_from_grpc_code(int grpc_code);
// Returns the status for an errno value: ENOENT is BL_NOT_FOUND, ENOMEM and ENOSPC are BL_EXHAUSTED, ...
bl_status_t bl_status_from_errno(int errno_value);

#endif
