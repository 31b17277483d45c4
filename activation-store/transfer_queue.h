// SPDX-License-Identifier: Apache-2.0
// Queue for the link between a machine's devices and the memory of one store, if that link is narrow. Blocks of all
// holders on the machine move over it one at a time, in the order in which they ask, so that each ends as early as
// possible. Several at a time would all be late.
//
//   bl_transfer_queue_ask(queue, &request)  an EVICT or LOAD has arrived. True: serve it now; false: `serve` does, later
//   bl_transfer_queue_hurry(queue, ...)     another request for the same slot has arrived: serves the waiting one now
//   bl_transfer_queue_end(queue, ...)       its bytes have moved, or it was refused
//   bl_transfer_queue_forget(queue, ...)    its session is over
//
// Without a rate, a request is served when its turn starts, and occupies the link until the holder or the store reports
// the end. If that takes longer than BL_TRANSFER_QUEUE_TIMEOUT_MS, the next turn starts. Until the holder finishes a
// transfer again, its blocks neither wait for others nor block them.
//
// With a rate, the link is as slow as that: a request occupies it until its bytes would have passed, after those before
// it. Only then is it served.
//
// Thread: the loop's.
#ifndef BALLAST_ACTIVATION_STORE_TRANSFER_QUEUE_H
#define BALLAST_ACTIVATION_STORE_TRANSFER_QUEUE_H

#include "datapath/frame.h"
#include "loop/loop.h"

#define BL_TRANSFER_QUEUE_TIMEOUT_MS  500
#define BL_TRANSFER_QUEUE_SESSION_MAX 64 // requests of a session that wait: its window

typedef struct bl_transfer_queue bl_transfer_queue_t;

typedef struct bl_queued_request {
  uint64_t session;
  uint64_t bytes; // of the block
  bl_frame_t frame;
} bl_queued_request_t;

// BL_EXHAUSTED. `bytes_per_second` 0: unlimited.
BL_MUST_USE bl_status_t bl_transfer_queue_create(bl_loop_t *loop, uint64_t bytes_per_second,
                                                 void (*serve)(void *context, const bl_queued_request_t *request),
                                                 void *context, bl_transfer_queue_t **queue, bl_error_t *err);
void bl_transfer_queue_destroy(bl_transfer_queue_t *queue); // NULL is fine

// A request that cannot be kept, for lack of memory or because its session has too many, is served now.
BL_MUST_USE bool bl_transfer_queue_ask(bl_transfer_queue_t *queue, const bl_queued_request_t *request);
void bl_transfer_queue_hurry(bl_transfer_queue_t *queue, uint64_t session, uint64_t id);
// `session`: the session that reported it; 0: the store.
void bl_transfer_queue_end(bl_transfer_queue_t *queue, uint64_t session, uint64_t id, uint64_t generation);
void bl_transfer_queue_forget(bl_transfer_queue_t *queue, uint64_t session);

#endif
