// SPDX-License-Identifier: Apache-2.0
// Shared inside lib/loop: the loop's structure, and libuv's status codes as ours.
#ifndef BALLAST_LOOP_LOOP_UV_H
#define BALLAST_LOOP_LOOP_UV_H

#include "loop/loop.h"

#include <uv.h>

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>

struct bl_loop {
  uv_loop_t uv;
  uv_async_t wake;                // sent by the poster that finds `posted` empty
  _Atomic(bl_message_t *) posted; // newest first; pushed by any thread, taken whole by the loop
  // While messages come in quick succession the loop does not sleep between them: it looks at `posted` itself, and posters
  // need not wake it. Both handles are active exactly then; the idle one keeps libuv from blocking.
  uv_prepare_t look;
  uv_idle_t awake;
  atomic_bool hot;       // posters need not wake
  uint64_t last_wake_ns; // when messages were found last
  unsigned streak;       // such times in a row that were a dialogue: close to the one before, and few messages
  bl_message_t *taken;   // oldest first; the loop's alone, so that a handler may drain again
  atomic_bool stopping;
  _Atomic(pthread_t) thread;
};

#define BL__ASSERT_LOOP(loop) assert(bl_loop_is_current(loop))

// `error` is negative, as libuv returns it.
static inline bl_status_t bl__uv_status(int error) {
  return bl_status_from_errno(-error);
}

#endif
