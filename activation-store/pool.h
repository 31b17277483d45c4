// SPDX-License-Identifier: Apache-2.0
// The transfer threads of a store: work that would block the loop too long (copying blocks, creating and mapping
// memory) runs here, and is reported back to the loop.
//
//   static void pull(bl_work_t *work) { ... BL_WORK_OWNER(work, transfer_t, work), on a transfer thread ... }
//   static void pulled(bl_message_t *message) { ... BL_MESSAGE_OWNER(message, transfer_t, work.done), on the loop ... }
//   self->work = (bl_work_t){.run = pull, .done = {.handle = pulled}};
//   bl_pool_submit(pool, &self->work);
//
// Work begins in the order in which it was submitted. Nothing allocates after create.
// Thread: create, submit and destroy on the loop's; `run` on one of the pool's, `done.handle` on the loop's.
#ifndef BALLAST_ACTIVATION_STORE_POOL_H
#define BALLAST_ACTIVATION_STORE_POOL_H

#include "loop/loop.h"

#include <sys/queue.h>

typedef struct bl_pool bl_pool_t;

typedef struct bl_work bl_work_t;
struct bl_work {
  void (*run)(bl_work_t *work);
  bl_message_t done;            // posted when run has returned
  STAILQ_ENTRY(bl_work) queued; // the pool's
};
// The object of type `type` in which `work_pointer` is the member `member`.
#define BL_WORK_OWNER(work_pointer, type, member) ((type *)(void *)((char *)(work_pointer)-offsetof(type, member)))

#define BL_POOL_THREADS_MAX 64

// BL_INVALID: not 1 to BL_POOL_THREADS_MAX threads. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_pool_create(bl_loop_t *loop, unsigned threads, bl_pool_t **pool, bl_error_t *err);
// Finishes all submitted work and joins the threads. Their completion messages are still queued in the loop. NULL is
// fine.
void bl_pool_destroy(bl_pool_t *pool);
void bl_pool_submit(bl_pool_t *pool, bl_work_t *work);
// Returns whether work waits for a thread: long work then does a part and lets other work go first. Any thread.
bool bl_pool_has_waiting(const bl_pool_t *pool);

#endif
