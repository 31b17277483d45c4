// SPDX-License-Identifier: Apache-2.0
// The memory of jobs, an arena per job of the lease table with a part per tier of memory (the store's device; pinned memory
// of the host beside it): made, filled and closed without holding the loop up.
//
//   bl_arenas_make(arenas, job, tier_bytes, false);      // then the callback, and bl_arenas_get
//   bl_arenas_close(arenas, job);                   // whatever is under way
//
// An arena may be made `later`: addresses and a descriptor at once, memory by bl_arenas_fill, or block by block as they
// come (bl_arena_fill). So the arena of a job's next plan is there beside that of the present one without the memory of
// both. A large one is made so, too, if the machine has the memory, so that nobody waits until all of it has been touched. On a
// GPU memory is there from the start.
//
// Thread: the loop's.
#ifndef BALLAST_ACTIVATION_STORE_ARENAS_H
#define BALLAST_ACTIVATION_STORE_ARENAS_H

#include "device/device.h"
#include "lease/table.h"
#include "pool.h"

#include <stdbool.h>

typedef struct bl_arenas bl_arenas_t;

// How the making of a job's arena ended; not called for one that was closed meanwhile.
typedef void (*bl_arena_made_fn)(void *context, uint32_t job, const bl_error_t *err);

BL_MUST_USE bl_status_t bl_arenas_create(bl_pool_t *pool, bl_device_t *device, uint32_t max_jobs, bl_arena_made_fn made,
                                         void *context, bl_arenas_t **arenas, bl_error_t *err);
// Nothing more is filled. Before the pool is destroyed. NULL is fine.
void bl_arenas_stop(bl_arenas_t *arenas);
// After the pool is gone and its messages are handled. NULL is fine.
void bl_arenas_destroy(bl_arenas_t *arenas);

// False: no memory to begin. The job has none.
BL_MUST_USE bool bl_arenas_make(bl_arenas_t *arenas, uint32_t job, const uint64_t bytes[BL_LEASE_TIERS], bool later);
bool bl_arenas_is_making(const bl_arenas_t *arenas, uint32_t job);
// Takes the memory of an arena that was made later, if the machine has it now; else it goes on block by block.
void bl_arenas_fill(bl_arenas_t *arenas, uint32_t job);
void bl_arenas_close(bl_arenas_t *arenas, uint32_t job); // nothing may use it any more
// The part of a tier. NULL: there is none (yet). Stays where it is until it is closed.
const bl_arena_t *bl_arenas_get(const bl_arenas_t *arenas, uint32_t job, uint32_t tier);

#endif
