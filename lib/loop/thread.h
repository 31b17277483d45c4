// SPDX-License-Identifier: Apache-2.0
// A thread that runs an event loop, for work that must not delay the service's own loop: moving tensors and blocks.
//
//   bl_loop_thread_create("transfer", &thread, err);
//   bl_loop_thread_call(thread, make_everything, self);    // on its loop, by rule 1 of loop.h
//   ... bl_loop_post(bl_loop_thread_loop(thread), &self->message) ...
//   bl_loop_thread_call(thread, destroy_everything, self);
//   bl_loop_thread_destroy(thread);
//
// Thread: any but its own, unless a function says otherwise.
#ifndef BALLAST_LOOP_THREAD_H
#define BALLAST_LOOP_THREAD_H

#include "loop/loop.h"

typedef struct bl_loop_thread bl_loop_thread_t;

// `name` is the thread's name (truncated at 15 bytes). The thread takes no signals and may run on every processor of
// the process. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_loop_thread_create(const char *name, bl_loop_thread_t **thread, bl_error_t *err);
// Stops the loop, joins the thread, destroys the loop. The caller has destroyed all objects of the loop. NULL is fine.
void bl_loop_thread_destroy(bl_loop_thread_t *thread);
bl_loop_t *bl_loop_thread_loop(const bl_loop_thread_t *thread);
// Calls `run` on the loop and waits until it returns. On the loop's own thread it calls `run` directly.
void bl_loop_thread_call(bl_loop_thread_t *thread, void (*run)(void *context), void *context);

#endif
