// SPDX-License-Identifier: Apache-2.0
#include "datapath/path.h"

#include <string.h>

static const char *const names[BL_PATHS] = {
#define X(identifier, name) [identifier] = name,
    BL_PATH_TABLE(X)
#undef X
};

const char *bl_path_name(bl_path_t path) {
  return (unsigned)path < BL_PATHS ? names[path] : "unknown";
}

bool bl_path_parse(const char *name, bl_path_t *path) {
  for (int p = 0; p < BL_PATHS; p++) {
    if (strcmp(name, names[p]) == 0) {
      *path = (bl_path_t)p;
      return true;
    }
  }
  return false;
}
