// SPDX-License-Identifier: Apache-2.0
// The event loop: the one thread that owns a service's state. Other threads never touch that state, they post
// messages; the loop handles them in the order in which they were posted by each thread.
//
//   bl_loop_t *loop;
//   bl_loop_create(&loop, err);
//   ... create timers, signals, children, rpc servers on it ...
//   bl_loop_run(loop);               // until bl_loop_stop
//   ... destroy what was created on it ...
//   bl_loop_destroy(loop);
//
// Lifetime rules, for everything in this folder:
//   1. Objects are created and destroyed on the loop's thread; that is the thread which calls bl_loop_run, and before
//      that the one which called bl_loop_create.
//   2. After x_destroy(x) returns, no callback of x fires, and x is gone for the caller. It may be called in any
//      callback, its own included. (What the kernel still holds is freed by the loop later.)
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

// One message to the loop. It is embedded in what it is about, so that posting never allocates. From bl_loop_post
// until `handle` is called it belongs to the loop and must not be posted again; in `handle` it is the receiver's, who
// may free it, or post it again.
typedef struct bl_message bl_message_t;
typedef void (*bl_message_fn)(bl_message_t *message);
struct bl_message {
  bl_message_t *next;   // the loop's
  bl_message_fn handle; // on the loop thread
};

// The object of type `type` in which `message` is the member `member`.
#define BL_MESSAGE_OWNER(message, type, member) ((type *)(void *)((char *)(message)-offsetof(type, member)))

// BL_EXHAUSTED when the system has no descriptors left.
BL_MUST_USE bl_status_t bl_loop_create(bl_loop_t **loop, bl_error_t *err);
// Handles messages that are still queued, then frees the loop. No thread may post any more.
void bl_loop_destroy(bl_loop_t *loop);

// Runs events until bl_loop_stop. The calling thread becomes the loop's thread.
void bl_loop_run(bl_loop_t *loop);
// Makes bl_loop_run return soon; when it is not running, the next run returns at once. Any thread.
void bl_loop_stop(bl_loop_t *loop);

// Any thread, never blocks, never allocates, never fails. Only the first message of a batch wakes the loop.
void bl_loop_post(bl_loop_t *loop, bl_message_t *message);
// Handles all messages posted so far, now. For orderly ends, where a thread that posted has just been joined.
void bl_loop_drain(bl_loop_t *loop);

bool bl_loop_is_current(const bl_loop_t *loop); // is the caller on the loop's thread
uint64_t bl_loop_now_ms(const bl_loop_t *loop); // monotonic, as of this loop iteration

extern const bl_library_t bl_loop_library; // libuv

#endif
