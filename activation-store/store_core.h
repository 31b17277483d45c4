// SPDX-License-Identifier: Apache-2.0
// Private to activation-store: the structure behind store.h, shared by store.c (life cycle, arenas, sessions) and
// requests.c (the path of a request).
#ifndef BALLAST_ACTIVATION_STORE_STORE_CORE_H
#define BALLAST_ACTIVATION_STORE_STORE_CORE_H

#include "store.h"

#include "arenas.h"
#include "holders.h"
#include "loop/timer.h"
#include "pool.h"
#include "transfer_queue.h"

struct bl_store {
  bl_loop_t *loop;
  bl_lease_table_t *table;
  bl_store_observer_t observer;
  bl_pool_t *pool;
  bl_connections_t *connections;
  bl_transfer_queue_t *queue; // NULL: blocks of any number of holders move at the same time
  bl_holders_t *holders;
  bl_timer_t *timer;
  bl_arenas_t *arenas;
  bl_device_t *device;
  bl_nccl_engine_t *nccl; // NULL: none
  bl_block_memory_t block_memory;
  uint64_t seen_revision;
  char machine[96];
};

// requests.c; callbacks of connections.h
void bl__on_request(void *context, bl_connection_t *connection, const bl_frame_t *frame);
void bl__on_turn(void *context, const bl_queued_request_t *request); // callback of transfer_queue.h
void bl__on_moved(void *context, const bl_leased_block_t *leased, bool whole, uint64_t computed_checksum);
void bl__on_answered(void *context, bl_frame_kind_t kind, uint64_t began_ns);
// Sends the table's answer to a request that had to wait.
void bl__on_later_answer(bl_store_t *store, uint64_t session, uint64_t sequence, const bl_lease_answer_t *answer);

#endif
