// SPDX-License-Identifier: Apache-2.0
// The memory of jobs: one arena per job of the lease table, with memory of every tier (the store's device, and
// pinned host memory next to it). Arenas are created, filled and closed without blocking the loop.
//
//   bl_arenas_make(arenas, job, tier_bytes, false);      // then the callback, and bl_arenas_get
//   bl_arenas_close(arenas, job);                        // whatever is in progress
//
// With `later` set, creation maps addresses and returns a descriptor at once. bl_arenas_fill, or each arriving block
// (bl_arena_fill), commits the memory. So the arena of a job's next plan can exist next to the current one without the
// memory of both. A large arena is created in the same way if the machine has the memory, so that no caller waits until
// all of it has been touched. On a GPU memory is committed at creation.
//
// Thread: the loop's.
#ifndef BALLAST_ACTIVATION_STORE_ARENAS_H
#define BALLAST_ACTIVATION_STORE_ARENAS_H

#include "device/device.h"
#include "lease/table.h"
#include "pool.h"

#include <stdbool.h>

typedef struct bl_arenas bl_arenas_t;

// Called when creation of a job's arena has succeeded or failed. Not called if the arena was closed first.
typedef void (*bl_arena_made_fn)(void *context, uint32_t job, const bl_error_t *err);

BL_MUST_USE bl_status_t bl_arenas_create(bl_pool_t *pool, bl_device_t *device, uint32_t max_jobs, bl_arena_made_fn made,
                                         void *context, bl_arenas_t **arenas, bl_error_t *err);
// Stops filling. Call it before the pool is destroyed. NULL is fine.
void bl_arenas_stop(bl_arenas_t *arenas);
// Call it after the pool is gone and its messages are handled. NULL is fine.
void bl_arenas_destroy(bl_arenas_t *arenas);

// Starts to create the arena of a job. False: no memory for the work item; the job then has no arena.
BL_MUST_USE bool bl_arenas_make(bl_arenas_t *arenas, uint32_t job, const uint64_t bytes[BL_LEASE_TIERS], bool later);
bool bl_arenas_is_making(const bl_arenas_t *arenas, uint32_t job);
// Commits the memory of an arena created `later`, if the machine has it now. Otherwise blocks commit it one by one.
void bl_arenas_fill(bl_arenas_t *arenas, uint32_t job);
void bl_arenas_close(bl_arenas_t *arenas, uint32_t job); // nothing may use it any more
// Returns the memory of a tier. NULL: none (yet). Valid until it is closed.
const bl_arena_t *bl_arenas_get(const bl_arenas_t *arenas, uint32_t job, uint32_t tier);

#endif
