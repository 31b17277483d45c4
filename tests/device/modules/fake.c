// SPDX-License-Identifier: Apache-2.0
// A module (device/module.h) that needs nothing, made well or badly as the build defines say.
#include "device/module.h"

#include <string.h>

#ifndef FAKE_ABI
#define FAKE_ABI BL_MODULE_ABI
#endif
#ifndef FAKE_VERSION
#define FAKE_VERSION BALLAST_VERSION
#endif

typedef struct fake_table {
  int answer;
} fake_table_t;

static const void *interface(const char *name, size_t table_bytes) {
  static const fake_table_t table = {.answer = 42};
  return strcmp(name, "answer") == 0 && table_bytes == sizeof table ? &table : NULL;
}

#ifdef FAKE_SYMBOL
#define bl_module FAKE_SYMBOL
#endif
extern const bl_module_info_t bl_module;
BL_MODULE_EXPORT const bl_module_info_t bl_module = {.abi = FAKE_ABI,
                                                     .info_bytes = sizeof bl_module,
                                                     .name = FAKE_NAME,
                                                     .version = FAKE_VERSION,
                                                     .built_with = "nothing",
                                                     .interface = interface};
