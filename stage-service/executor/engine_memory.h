// SPDX-License-Identifier: Apache-2.0
// Private to the engine: its memory (engine.h), planned by tag, checked against the memory of the device, allocated and
// divided.
#ifndef BALLAST_EXECUTOR_ENGINE_MEMORY_H
#define BALLAST_EXECUTOR_ENGINE_MEMORY_H

#include "executor/engine.h"

// Whether gradients of a tied embedding are exchanged with another stage.
static inline bool bl__engine_exchanges_tied(const bl_engine_t *engine) {
  return engine->tied != NULL && engine->tied_partner == NULL;
}
// Plans and allocates one arena on the engine's device.
BL_MUST_USE bl_status_t bl__engine_reserve(bl_engine_t *engine, bl_memory_tag_t tag, bl_arena_kind_t kind,
                                           uint64_t bytes, bl_arena_t *arena, bl_error_t *err);
// Allocates everything but the snapshot. BL_EXHAUSTED: names a tag, or the whole plan by tags if the device has less
// memory. bl__engine_release_all frees what was allocated before a failure.
BL_MUST_USE bl_status_t bl__engine_reserve_all(bl_engine_t *engine, bl_error_t *err);
// Divides the arenas among the chunks.
void bl__engine_hand_out(bl_engine_t *engine);
// Called after bl__engine_hand_out. Lists what the copies of the stage's chunks share; nothing if there is one copy.
// BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__engine_list_shared(bl_engine_t *engine, bl_error_t *err);
void bl__engine_free_events(bl_engine_t *engine);
void bl__engine_release_all(bl_engine_t *engine);

#endif
