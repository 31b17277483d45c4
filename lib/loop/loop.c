// SPDX-License-Identifier: Apache-2.0
#include "loop/loop.h"

#include "loop/loop_uv.h"
#include "sys/log.h"

#include <sched.h>
#include <stdlib.h>

// A close callback of libuv needs one iteration, a signal's up to two. A handle that its owner never closes stays open
// forever.
#define CLOSE_ITERATIONS 16

// In a dialogue the loop waits this long for a message without sleeping. A sleep and its wake-up cost 10 to 50 us on a
// virtual machine, and a call with its answer needs several of them. This bounds the CPU time spent after the last
// message.
#define HOT_NS 100000u
// Many messages at a time are not a dialogue: sleeping until more have arrived makes batches.
#define HOT_BATCH  2
#define HOT_STREAK 2

// Appends the posted messages to `taken`, in order of posting.
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
  unsigned count = 0;
  while (loop->taken != NULL) {
    bl_message_t *message = loop->taken;
    loop->taken = message->next;
    message->next = NULL;
    message->handle(message);
    count++;
  }
  if (count > HOT_BATCH) {
    loop->streak = 0;
  }
}

void bl_loop_drain(bl_loop_t *loop) {
  BL__ASSERT_LOOP(loop);
  for (take_posted(loop); loop->taken != NULL; take_posted(loop)) {
    handle_taken(loop);
  }
}

// ---- between messages that arrive in quick succession ---------------------------------------------------------------

static void cool(bl_loop_t *loop) {
  uv_prepare_stop(&loop->look);
  uv_idle_stop(&loop->awake);
  atomic_store(&loop->hot, false); // before the last read of `posted`: a thread that posts from here on wakes the loop
}

static void on_awake(uv_idle_t *awake) {
  (void)awake; // being active is all that it does
}

static void end_if_stopping(bl_loop_t *loop) {
  if (atomic_load_explicit(&loop->stopping, memory_order_acquire)) {
    uv_stop(&loop->uv);
  }
}

// Runs once per iteration. Sockets and timers are served in between, so nothing starves.
static void on_look(uv_prepare_t *look) {
  bl_loop_t *loop = look->data;
  uint64_t now_ns = uv_hrtime();
  if (now_ns - loop->last_wake_ns > HOT_NS || loop->streak == 0) {
    cool(loop);
  }
  if (atomic_load(&loop->posted) == NULL) {
    sched_yield(); // lets other threads use the processor
    return;
  }
  loop->last_wake_ns = now_ns;
  take_posted(loop);
  handle_taken(loop);
  end_if_stopping(loop);
}

static void heat(bl_loop_t *loop) {
  uint64_t now_ns = uv_hrtime();
  loop->streak = now_ns - loop->last_wake_ns < HOT_NS ? loop->streak + 1 : 0;
  loop->last_wake_ns = now_ns;
  if (loop->streak >= HOT_STREAK && !uv_is_active((uv_handle_t *)&loop->look)) {
    uv_prepare_start(&loop->look, on_look);
    uv_idle_start(&loop->awake, on_awake);
    atomic_store(&loop->hot, true);
  }
}

// Handles one batch per wake-up, so that messages that keep arriving do not delay timers and sockets. What is posted
// from here on finds `posted` empty and so wakes the loop.
static void on_wake(uv_async_t *wake) {
  bl_loop_t *loop = wake->data;
  heat(loop);
  take_posted(loop);
  handle_taken(loop);
  end_if_stopping(loop);
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
  uv_prepare_init(&loop->uv, &loop->look);
  uv_idle_init(&loop->uv, &loop->awake);
  loop->wake.data = loop->look.data = loop;
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
  uv_close((uv_handle_t *)&loop->look, NULL);
  uv_close((uv_handle_t *)&loop->awake, NULL);
  uv_walk(&loop->uv, report_open_handle, NULL);
  int error = UV_EBUSY;
  for (int i = 0; i < CLOSE_ITERATIONS && error == UV_EBUSY; i++) {
    uv_run(&loop->uv, UV_RUN_NOWAIT);
    error = uv_loop_close(&loop->uv);
  }
  if (error == 0) {
    free(loop);
  } // else the handle reported above still points into the loop, which is therefore leaked, not freed
}

void bl_loop_run(bl_loop_t *loop) {
  atomic_store(&loop->thread, pthread_self());
  while (!atomic_exchange(&loop->stopping, false)) {
    uv_run(&loop->uv, UV_RUN_DEFAULT); // returns after uv_stop; until then the wake handle keeps it running
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
  } while (!atomic_compare_exchange_weak_explicit(&loop->posted, &newest, message, memory_order_seq_cst,
                                                  memory_order_relaxed));
  // Both accesses are sequentially consistent. Either the loop reads `posted` after this and sees the message, or this
  // thread sees that the loop is about to sleep.
  if (newest == NULL && !atomic_load(&loop->hot)) {
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

const bl_library_t bl_loop_library = {"libuv", uv_version_string};
