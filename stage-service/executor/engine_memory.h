// SPDX-License-Identifier: Apache-2.0
// The memory of an engine (engine.h): planned by tag, checked against what the device has, made and cut into parts. Not
// for users.
#ifndef BALLAST_EXECUTOR_ENGINE_MEMORY_H
#define BALLAST_EXECUTOR_ENGINE_MEMORY_H

#include "executor/engine.h"

// Whether gradients of a tied embedding go to another stage and come from there.
static inline bool bl__engine_exchanges_tied(const bl_engine_t *engine) {
  return engine->tied != NULL && engine->tied_twin == NULL;
}
// Plans and makes one arena on the engine's device.
BL_MUST_USE bl_status_t bl__engine_reserve(bl_engine_t *engine, bl_memory_tag_t tag, bl_arena_kind_t kind,
                                           uint64_t bytes, bl_arena_t *arena, bl_error_t *err);
// Everything but the snapshot. BL_EXHAUSTED: a tag, or the whole plan by tags where the device has not that much. What was
// made stays for bl__engine_release_all.
BL_MUST_USE bl_status_t bl__engine_reserve_all(bl_engine_t *engine, bl_error_t *err);
// Cuts the arenas into the parts of each chunk.
void bl__engine_hand_out(bl_engine_t *engine);
// After it: lists what the replicas of the stage share, nothing where there is one. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__engine_list_shared(bl_engine_t *engine, bl_error_t *err);
void bl__engine_free_events(bl_engine_t *engine);
void bl__engine_release_all(bl_engine_t *engine);

#endif
