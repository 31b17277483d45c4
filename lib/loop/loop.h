// SPDX-License-Identifier: Apache-2.0
// The event loop: the one thread that owns a service's state. Other threads never touch that state. They post messages,
// and the loop handles the messages of each thread in the order in which that thread posted them.
//
//   bl_loop_t *loop;
//   bl_loop_create(&loop, err);
//   ... create timers, signals, children, rpc servers on it ...
//   bl_loop_run(loop);               // until bl_loop_stop
//   ... destroy what was created on it ...
//   bl_loop_destroy(loop);
//
// Lifetime rules, for everything in this folder:
//   1. Objects are created and destroyed on the loop's thread: the thread that calls bl_loop_run, and before that the
//      thread that called bl_loop_create.
//   2. After x_destroy(x) returns, no callback of x fires, and the caller must not use x. x_destroy may be called in
//      any callback, also in one of x. (The loop later frees what the kernel still holds.)
//   3. If a call returns an error, its callback never fires.
//   4. Objects are destroyed before their loop.
// Thread: only bl_loop_post, bl_loop_stop and bl_loop_is_current may be called from another thread.
#ifndef BALLAST_LOOP_LOOP_H
#define BALLAST_LOOP_LOOP_H

#include "base/error.h"
#include "base/library.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct bl_loop bl_loop_t;

// A message to the loop. It is embedded in the object that it concerns, so that posting never allocates. From
// bl_loop_post until `handle` is called the loop owns it, and it must not be posted a second time. In `handle` the
// receiver owns it and may free or post it.
typedef struct bl_message bl_message_t;
typedef void (*bl_message_fn)(bl_message_t *message);
struct bl_message {
  bl_message_t *next;   // the loop's
  bl_message_fn handle; // on the loop thread
};

// The object of type `type` that contains `message` as its member `member`.
#define BL_MESSAGE_OWNER(message, type, member) ((type *)(void *)((char *)(message)-offsetof(type, member)))

// BL_EXHAUSTED: the system has no descriptors left.
BL_MUST_USE bl_status_t bl_loop_create(bl_loop_t **loop, bl_error_t *err);
// Handles messages that are still queued, then frees the loop. No thread may post to it any more.
void bl_loop_destroy(bl_loop_t *loop);

// Runs events until bl_loop_stop. The calling thread becomes the loop's thread.
void bl_loop_run(bl_loop_t *loop);
// Makes bl_loop_run return soon. If the loop is not running, the next run returns at once. Any thread.
void bl_loop_stop(bl_loop_t *loop);

// Posts a message. Any thread. Never blocks, allocates or fails. Only the first message of a batch wakes the loop.
void bl_loop_post(bl_loop_t *loop, bl_message_t *message);
// Handles all messages posted so far, now. For an orderly end, after a thread that posts was joined.
void bl_loop_drain(bl_loop_t *loop);

bool bl_loop_is_current(const bl_loop_t *loop); // whether the caller is on the loop's thread
uint64_t bl_loop_now_ms(const bl_loop_t *loop); // monotonic; read once per loop iteration

extern const bl_library_t bl_loop_library; // libuv

#endif
