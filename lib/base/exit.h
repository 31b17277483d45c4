// SPDX-License-Identifier: Apache-2.0
// Exit codes of our programs: what each says, whichever program ended with it. Statuses become codes by status.h; manuals,
// docs/exit-codes.md and the manifests' podFailurePolicy follow this table. Thread: any.
#ifndef BALLAST_BASE_EXIT_H
#define BALLAST_BASE_EXIT_H

#include <stdbool.h>
#include <stddef.h>

typedef struct bl_exit {
  int code;
  const char *meaning;
  bool final; // the same again would end the same: a cluster does not start the program again
} bl_exit_t;

#define BL_EXITS 12
extern const bl_exit_t bl_exits[BL_EXITS]; // by code

#endif
