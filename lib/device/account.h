// SPDX-License-Identifier: Apache-2.0
// Byte accounting by tag: planned bytes, bytes held now, and peak bytes. The plan is the budget. Memory is first
// planned per tag and then acquired inside that plan. So a planner that forgot something fails at configuration with
// both numbers, never later with an out-of-memory kill.
//
//   bl_memory_account_t account = {0};
//   bl_memory_plan(&account, BL_MEMORY_SLOTS, 4 * slot_bytes);
//   bl_arena_create(device, &account, BL_MEMORY_SLOTS, BL_ARENA_PRIVATE, 4 * slot_bytes, &arena, err); // device.h
//
// Thread: any; counters are atomic. The account belongs to its creator and must outlive what is acquired from it.
#ifndef BALLAST_DEVICE_ACCOUNT_H
#define BALLAST_DEVICE_ACCOUNT_H

#include "base/error.h"

#include <stdatomic.h>
#include <stdint.h>

// X(identifier, name). The planner, the metrics and the driver's table use the same names.
#define BL_MEMORY_TAG_TABLE(X)                                                                                         \
  X(BL_MEMORY_WEIGHTS, "weights")                                                                                      \
  X(BL_MEMORY_GRADIENTS, "gradients")                                                                                  \
  X(BL_MEMORY_OPTIMIZER, "optimizer")                                                                                  \
  X(BL_MEMORY_SLOTS, "slots")                                                                                          \
  X(BL_MEMORY_KV_CACHE, "kv-cache")                                                                                    \
  X(BL_MEMORY_EDGES, "edges")                                                                                          \
  X(BL_MEMORY_WORKSPACE, "workspace")                                                                                  \
  X(BL_MEMORY_DATA, "data")                                                                                            \
  X(BL_MEMORY_CHECKPOINT, "checkpoint")                                                                                \
  X(BL_MEMORY_STAGING, "staging")                                                                                      \
  X(BL_MEMORY_SHADOW, "shadow")                                                                                        \
  X(BL_MEMORY_OPTIMIZER_HOST, "optimizer-host")

typedef enum bl_memory_tag {
#define X(identifier, name) identifier,
  BL_MEMORY_TAG_TABLE(X)
#undef X
      BL_MEMORY_TAGS
} bl_memory_tag_t;

const char *bl_memory_tag_name(bl_memory_tag_t tag); // "slots"; never NULL

typedef struct bl_memory_account { // all zero is an empty account
  _Atomic uint64_t planned_bytes[BL_MEMORY_TAGS];
  _Atomic uint64_t current_bytes[BL_MEMORY_TAGS];
  _Atomic uint64_t peak_bytes[BL_MEMORY_TAGS];
} bl_memory_account_t;

typedef struct bl_memory_usage {
  uint64_t planned_bytes;
  uint64_t current_bytes;
  uint64_t peak_bytes;
} bl_memory_usage_t;

// Adds to the plan of a tag.
void bl_memory_plan(bl_memory_account_t *account, bl_memory_tag_t tag, uint64_t bytes);
void bl_memory_unplan(bl_memory_account_t *account, bl_memory_tag_t tag, uint64_t bytes);
// Counts `bytes` as held. BL_EXHAUSTED if that exceeds the plan of the tag; `err` names the tag and the planned, held
// and wanted bytes.
BL_MUST_USE bl_status_t bl_memory_acquire(bl_memory_account_t *account, bl_memory_tag_t tag, uint64_t bytes,
                                          bl_error_t *err);
// Subtracts bytes that bl_memory_acquire counted.
void bl_memory_release(bl_memory_account_t *account, bl_memory_tag_t tag, uint64_t bytes);
bl_memory_usage_t bl_memory_usage(const bl_memory_account_t *account, bl_memory_tag_t tag);
// Returns the sum over all tags. Its peak is the sum of the tags' peaks, an upper bound of what was held at one
// instant.
bl_memory_usage_t bl_memory_usage_total(const bl_memory_account_t *account);

#endif
