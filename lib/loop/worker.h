// SPDX-License-Identifier: Apache-2.0
// A worker thread. It runs tasks one after the other and returns each to the loop.
//
//   typedef struct { bl_task_t task; ... } update_t;
//   static void update_run(bl_task_t *task);    // on the worker's thread
//   static void update_done(bl_task_t *task);   // on the loop thread
//   bl_task_init(&update->task, update_run, update_done);
//   bl_worker_submit(worker, &update->task);
//
// Thread: create, submit and destroy on the loop's thread. Tasks are embedded in the objects that they concern, so that
// submitting does not allocate. From submit until `done` the task belongs to the worker.
#ifndef BALLAST_LOOP_WORKER_H
#define BALLAST_LOOP_WORKER_H

#include "base/error.h"
#include "loop/loop.h"

#include <stdint.h>
#include <sys/queue.h>

typedef struct bl_worker bl_worker_t;
typedef struct bl_task bl_task_t;
typedef void (*bl_task_fn)(bl_task_t *task);

struct bl_task {
  STAILQ_ENTRY(bl_task) queued; // the worker's
  bl_task_fn run, done;         // on the worker's thread; then on the loop's
  bl_message_t message;         // the worker's
};

static inline void bl_task_init(bl_task_t *task, bl_task_fn run, bl_task_fn done) {
  *task = (bl_task_t){.run = run, .done = done};
}

#define BL_TASK_OWNER(task_pointer, type, member) ((type *)(void *)((char *)(task_pointer)-offsetof(type, member)))

// `name` is the thread's name (truncated at 15 bytes). BL_EXHAUSTED: no memory or thread.
BL_MUST_USE bl_status_t bl_worker_create(bl_loop_t *loop, const char *name, bl_worker_t **worker, bl_error_t *err);
// For rare tasks: the thread exists only while there are tasks. If it cannot be started, the loop's thread runs the
// tasks. BL_EXHAUSTED: no memory.
BL_MUST_USE bl_status_t bl_worker_create_resting(bl_loop_t *loop, const char *name, bl_worker_t **worker,
                                                 bl_error_t *err);
// Waits for the running task. Queued tasks that have not begun are dropped without `done`. Call bl_loop_drain
// afterwards if a `done` may be in flight. NULL is fine.
void bl_worker_destroy(bl_worker_t *worker);
void bl_worker_submit(bl_worker_t *worker, bl_task_t *task);

#endif
