// SPDX-License-Identifier: Apache-2.0
#include "loop/loop.h"

#include "loop/loop_uv.h"
#include "sys/log.h"

#include <stdlib.h>

// A close callback of libuv needs one iteration, a signal's up to two; a handle that its owner forgot never goes.
#define CLOSE_ITERATIONS 16

// Appends what was posted to `taken`, in order of posting.
static void take_posted(bl_loop_t *loop) {
  bl_message_t *newest = atomic_exchange_explicit(&loop->posted, NULL, memory_order_acquire);
  bl_message_t *oldest = NULL;
  while (newest != NULL) {
    bl_message_t *next = newest->next;
    newest->next = oldest;
    oldest = newest;
    newest = next;
  }
  bl_message_t **end = &loop->taken;
  while (*end != NULL) {
    end = &(*end)->next;
  }
  *end = oldest;
}

static void handle_taken(bl_loop_t *loop) {
  while (loop->taken != NULL) {
    bl_message_t *message = loop->taken;
    loop->taken = message->next;
    message->next = NULL;
    message->handle(message);
  }
}

void bl_loop_drain(bl_loop_t *loop) {
  BL__ASSERT_LOOP(loop);
  for (take_posted(loop); loop->taken != NULL; take_posted(loop)) {
    handle_taken(loop);
  }
}

// One batch per wake-up: messages that keep arriving must not keep timers and sockets waiting. What is posted from
// here on finds `posted` empty and so wakes the loop again.
static void on_wake(uv_async_t *wake) {
  bl_loop_t *loop = wake->data;
  take_posted(loop);
  handle_taken(loop);
  if (atomic_load_explicit(&loop->stopping, memory_order_acquire)) {
    uv_stop(&loop->uv);
  }
}

bl_status_t bl_loop_create(bl_loop_t **result, bl_error_t *err) {
  bl_loop_t *loop = calloc(1, sizeof *loop);
  if (loop == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "event loop: out of memory");
  }
  int error = uv_loop_init(&loop->uv);
  if (error != 0) {
    free(loop);
    return bl_error_set(err, bl__uv_status(error), "event loop: %s", uv_strerror(error));
  }
  error = uv_async_init(&loop->uv, &loop->wake, on_wake);
  if (error != 0) {
    uv_loop_close(&loop->uv);
    free(loop);
    return bl_error_set(err, bl__uv_status(error), "event loop: wake-up descriptor: %s", uv_strerror(error));
  }
  loop->wake.data = loop;
  atomic_store(&loop->thread, pthread_self());
  *result = loop;
  return BL_OK;
}

static void report_open_handle(uv_handle_t *handle, void *context) {
  (void)context;
  if (!uv_is_closing(handle)) {
    bl_log(BL_LOG_ERROR, "event loop: a %s outlives its loop; its owner must destroy it first",
           uv_handle_type_name(uv_handle_get_type(handle)));
  }
}

void bl_loop_destroy(bl_loop_t *loop) {
  if (loop == NULL) {
    return;
  }
  atomic_store(&loop->thread, pthread_self());
  bl_loop_drain(loop);
  uv_close((uv_handle_t *)&loop->wake, NULL);
  uv_walk(&loop->uv, report_open_handle, NULL);
  int error = UV_EBUSY;
  for (int i = 0; i < CLOSE_ITERATIONS && error == UV_EBUSY; i++) {
    uv_run(&loop->uv, UV_RUN_NOWAIT);
    error = uv_loop_close(&loop->uv);
  }
  if (error == 0) {
    free(loop);
  } // else the handle reported above still points into the loop: leaked rather than freed under it
}

void bl_loop_run(bl_loop_t *loop) {
  atomic_store(&loop->thread, pthread_self());
  while (!atomic_exchange(&loop->stopping, false)) {
    uv_run(&loop->uv, UV_RUN_DEFAULT); // returns after uv_stop; the wake handle keeps it going until then
  }
}

void bl_loop_stop(bl_loop_t *loop) {
  atomic_store_explicit(&loop->stopping, true, memory_order_release);
  uv_async_send(&loop->wake);
}

void bl_loop_post(bl_loop_t *loop, bl_message_t *message) {
  bl_message_t *newest = atomic_load_explicit(&loop->posted, memory_order_relaxed);
  do {
    message->next = newest;
  } while (!atomic_compare_exchange_weak_explicit(&loop->posted, &newest, message, memory_order_release,
                                                  memory_order_relaxed));
  if (newest == NULL) {
    uv_async_send(&loop->wake);
  }
}

bool bl_loop_is_current(const bl_loop_t *loop) {
  bl_loop_t *readable = (bl_loop_t *)loop; // C11's atomic_load takes no pointer to const
  return pthread_equal(atomic_load_explicit(&readable->thread, memory_order_relaxed), pthread_self()) != 0;
}

uint64_t bl_loop_now_ms(const bl_loop_t *loop) {
  return uv_now(&loop->uv);
}

struct uv_loop_s *bl_loop_get_uv(bl_loop_t *loop) {
  return &loop->uv;
}
