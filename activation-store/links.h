// SPDX-License-Identifier: Apache-2.0
// The data path of a store's sessions on shared memory: who is connected (lib/datapath/door.h), and the memory that each
// showed, mapped read-only on a transfer thread. Memory is unmapped once its owner is gone and no transfer reads it.
// Thread: the loop's.
#ifndef BALLAST_ACTIVATION_STORE_LINKS_H
#define BALLAST_ACTIVATION_STORE_LINKS_H

#include "lease/token.h"
#include "loop/loop.h"
#include "pool.h"

typedef struct bl_links bl_links_t;
typedef struct bl_link bl_link_t;

typedef struct bl_links_room { // what a visitor may see
  uint32_t job;
  int fd;
  uint64_t bytes;
} bl_links_room_t;
typedef bl_status_t (*bl_links_admit_fn)(void *context, uint64_t session, const bl_incarnation_t *key,
                                         bl_links_room_t *room, bl_error_t *err);

BL_MUST_USE bl_status_t bl_links_create(bl_loop_t *loop, bl_pool_t *pool, const char *address, bl_links_admit_fn admit,
                                        void *context, bl_links_t **links, bl_error_t *err);
// After the pool is gone and its messages are handled. NULL is fine.
void bl_links_destroy(bl_links_t *links);
const char *bl_links_address(const bl_links_t *links);

// The link of a session that is up, kept until bl_link_release; NULL when there is none.
bl_link_t *bl_link_acquire(bl_links_t *links, uint64_t session);
void bl_link_release(bl_links_t *links, bl_link_t *link);
uint32_t bl_link_job(const bl_link_t *link);
// `bytes` (> 0) at an offset of an arena that the holder showed; NULL when they lie outside.
const uint8_t *bl_link_map(const bl_link_t *link, uint32_t arena, uint64_t offset_bytes, uint64_t bytes);

// The session is over: its link goes.
void bl_links_end(bl_links_t *links, uint64_t session);
const char *bl_links_path(const bl_links_t *links, uint64_t session); // "shm", "connecting", "none"

#endif
