// SPDX-License-Identifier: Apache-2.0
#include "loop/thread.h"

#include "sys/thread.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct bl_loop_thread {
  bl_loop_t *loop;
  pthread_t thread;
  char name[16];
};

static void *run_loop(void *argument) {
  const bl_loop_thread_t *self = argument;
  bl_thread_set_name(self->name);
  bl_thread_unpin(); // otherwise a thread created by a pinned compute thread competes with it while other processors
                     // idle
  bl_loop_run(self->loop);
  return NULL;
}

bl_status_t bl_loop_thread_create(const char *name, bl_loop_thread_t **thread, bl_error_t *err) {
  bl_loop_thread_t *made = calloc(1, sizeof *made);
  if (made == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for the %s thread", name);
  }
  snprintf(made->name, sizeof made->name, "%s", name);
  bl_status_t status = bl_loop_create(&made->loop, err);
  if (status != BL_OK) {
    goto free_made;
  }
  sigset_t all, before;
  sigfillset(&all); // signals are handled by the service's own loop
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int failed = pthread_create(&made->thread, NULL, run_loop, made);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (failed != 0) {
    status = bl_error_set(err, BL_EXHAUSTED, "cannot start the %s thread: %s", name, strerror(failed));
    goto destroy_loop;
  }
  *thread = made;
  return BL_OK;
destroy_loop:
  bl_loop_destroy(made->loop);
free_made:
  free(made);
  return status;
}

void bl_loop_thread_destroy(bl_loop_thread_t *thread) {
  if (thread == NULL) {
    return;
  }
  bl_loop_stop(thread->loop);
  pthread_join(thread->thread, NULL);
  bl_loop_destroy(thread->loop);
  free(thread);
}

bl_loop_t *bl_loop_thread_loop(const bl_loop_thread_t *thread) {
  return thread->loop;
}

typedef struct call {
  bl_message_t message;
  void (*run)(void *context);
  void *context;
  pthread_mutex_t mutex;
  pthread_cond_t returned;
  bool done; // guarded by mutex
} call_t;

static void on_call(bl_message_t *message) {
  call_t *call = BL_MESSAGE_OWNER(message, call_t, message);
  call->run(call->context);
  pthread_mutex_lock(&call->mutex);
  call->done = true;
  pthread_cond_signal(&call->returned);
  pthread_mutex_unlock(&call->mutex); // `call` may be gone from here on
}

void bl_loop_thread_call(bl_loop_thread_t *thread, void (*run)(void *context), void *context) {
  if (pthread_equal(thread->thread, pthread_self())) {
    run(context);
    return;
  }
  call_t call = {.message = {.handle = on_call},
                 .run = run,
                 .context = context,
                 .mutex = PTHREAD_MUTEX_INITIALIZER,
                 .returned = PTHREAD_COND_INITIALIZER};
  bl_loop_post(thread->loop, &call.message);
  pthread_mutex_lock(&call.mutex);
  while (!call.done) {
    pthread_cond_wait(&call.returned, &call.mutex);
  }
  pthread_mutex_unlock(&call.mutex);
  pthread_cond_destroy(&call.returned);
  pthread_mutex_destroy(&call.mutex);
}
