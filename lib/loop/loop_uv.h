// SPDX-License-Identifier: Apache-2.0
// Private to lib/loop: the loop's structure, and the mapping of libuv's status codes to ours.
#ifndef BALLAST_LOOP_LOOP_UV_H
#define BALLAST_LOOP_LOOP_UV_H

#include "loop/loop.h"

#include <uv.h>

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>

struct bl_loop {
  uv_loop_t uv;
  uv_async_t wake;                // sent by a thread that posts while `posted` is empty
  _Atomic(bl_message_t *) posted; // newest first; any thread pushes, the loop takes all
  // While messages arrive in quick succession the loop does not sleep between them. It polls `posted`, and posting
  // threads need not wake it. Both handles are active only during that time. The idle handle keeps libuv from blocking.
  uv_prepare_t look;
  uv_idle_t awake;
  atomic_bool hot;       // posting threads need not wake the loop
  uint64_t last_wake_ns; // when messages were last found
  unsigned streak;       // consecutive wake-ups that were a dialogue: soon after the one before, with few messages
  bl_message_t *taken;   // oldest first; used by the loop only; a member, so that a handler may drain too
  atomic_bool stopping;
  _Atomic(pthread_t) thread;
};

#define BL__ASSERT_LOOP(loop) assert(bl_loop_is_current(loop))

// `error` is negative, as libuv returns it.
static inline bl_status_t bl__uv_status(int error) {
  return bl_status_from_errno(-error);
}

#endif
