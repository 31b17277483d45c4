// SPDX-License-Identifier: Apache-2.0
#include "simulate/machine.h"

const char *bl_stall_cause_name(bl_stall_cause_t cause) {
  static const char *const names[] = {
#define X(identifier, name) [identifier] = name,
      BL_STALL_TABLE(X)
#undef X
  };
  return names[cause];
}
