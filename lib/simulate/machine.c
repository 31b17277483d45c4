// SPDX-License-Identifier: Apache-2.0
#include "simulate/machine.h"

#include <string.h>

uint32_t bl_machine_shared_cores(uint32_t cores, uint32_t stages, uint32_t planes) {
  if (cores == 0 || cores >= stages * planes) {
    return 0;
  }
  const uint32_t share = cores > planes ? cores / planes : 1;
  return share < stages ? share : 0;
}

const char *bl_stall_cause_name(bl_stall_cause_t cause) {
  static const char *const names[] = {
#define X(identifier, name) [identifier] = name,
      BL_STALL_TABLE(X)
#undef X
  };
  return names[cause];
}

bl_stall_cause_t bl_stall_cause_of(const char *wait) {
  static const struct {
    const char *begins;
    bl_stall_cause_t cause;
  } waits[] = {{"activation", BL_STALL_ACTIVATION}, {"gradient", BL_STALL_GRADIENT}, {"load", BL_STALL_LOAD},
               {"eviction", BL_STALL_SLOT},         {"core", BL_STALL_CORE},         {"gather", BL_STALL_GATHER},
               {"reduction", BL_STALL_REDUCTION}};
  for (size_t i = 0; i < sizeof waits / sizeof waits[0]; i++) {
    if (strncmp(wait, waits[i].begins, strlen(waits[i].begins)) == 0) {
      return waits[i].cause;
    }
  }
  return BL_STALL_CAUSES;
}
