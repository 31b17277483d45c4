// SPDX-License-Identifier: Apache-2.0
// A thread that runs an event loop, for what must not hold up the service's own: moving tensors and blocks.
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

// `name` is what the thread is called (cut at 15 bytes). It takes no signals and may run on every processor of the
// process. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_loop_thread_create(const char *name, bl_loop_thread_t **thread, bl_error_t *err);
// Stops the loop, joins the thread, destroys the loop. What was created on the loop must be gone. NULL is fine.
void bl_loop_thread_destroy(bl_loop_thread_t *thread);
bl_loop_t *bl_loop_thread_loop(const bl_loop_thread_t *thread);
// Runs `run` on the loop and waits until it has returned; on the loop's own thread it is just called.
void bl_loop_thread_call(bl_loop_thread_t *thread, void (*run)(void *context), void *context);

#endif
