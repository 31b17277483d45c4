// SPDX-License-Identifier: Apache-2.0
// Exit codes of our programs. A code has the same meaning in every program. status.h maps statuses to codes. The
// manuals, docs/exit-codes.md and the manifests' podFailurePolicy follow this table.
// Thread: any.
#ifndef BALLAST_BASE_EXIT_H
#define BALLAST_BASE_EXIT_H

#include <stdbool.h>
#include <stddef.h>

typedef struct bl_exit {
  int code;
  const char *meaning;
  bool final; // another run would end the same: a cluster does not restart the program
} bl_exit_t;

#define BL_EXITS 12
extern const bl_exit_t bl_exits[BL_EXITS]; // sorted by code

#endif
