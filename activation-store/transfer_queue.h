// SPDX-License-Identifier: Apache-2.0
// The link between a machine's devices and the memory of one store, where it is narrow: blocks of all holders on the
// machine move over it one at a time, in the order in which they ask, so that each is through as early as it can be.
// Several at a time would all be late.
//
//   bl_transfer_queue_ask(link, &turn)     an EVICT or LOAD has come. True: it begins now; else `begin` is called when it does
//   bl_transfer_queue_hurry(link, ...)     another request about the same slot has come: what waits of it begins first
//   bl_transfer_queue_end(link, ...)       its bytes have moved, or it was refused
//   bl_transfer_queue_forget(link, ...)    its session is over
//
// A holder that stands still with its block lets the next one pass after BL_TRANSFER_QUEUE_TIMEOUT_MS; until it ends a
// turn again its blocks wait for none and hold nobody up. With a rate the link is as slow
// as that: a turn begins when the bytes before it and its own would be through.
//
// Thread: the loop's.
#ifndef BALLAST_ACTIVATION_STORE_TRANSFER_QUEUE_H
#define BALLAST_ACTIVATION_STORE_TRANSFER_QUEUE_H

#include "datapath/frame.h"
#include "loop/loop.h"

#define BL_TRANSFER_QUEUE_TIMEOUT_MS 500

typedef struct bl_transfer_queue bl_transfer_queue_t;

typedef struct bl_transfer_queue_entry {
  uint64_t session;
  uint64_t bytes; // of the block
  bl_frame_t frame;
} bl_transfer_queue_entry_t;

// BL_EXHAUSTED. `bytes_per_second` 0: as fast as it goes.
BL_MUST_USE bl_status_t bl_transfer_queue_create(bl_loop_t *loop, uint64_t bytes_per_second,
                                                 void (*begin)(void *context, const bl_transfer_queue_entry_t *turn),
                                                 void *context, bl_transfer_queue_t **queue, bl_error_t *err);
void bl_transfer_queue_destroy(bl_transfer_queue_t *queue); // NULL is fine

// What cannot be kept for want of memory begins now.
BL_MUST_USE bool bl_transfer_queue_ask(bl_transfer_queue_t *queue, const bl_transfer_queue_entry_t *turn);
void bl_transfer_queue_hurry(bl_transfer_queue_t *queue, uint64_t session, uint64_t id);
// `session`: who said so, 0: the store did.
void bl_transfer_queue_end(bl_transfer_queue_t *queue, uint64_t session, uint64_t id, uint64_t generation);
void bl_transfer_queue_forget(bl_transfer_queue_t *queue, uint64_t session);

#endif
