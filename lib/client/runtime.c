// SPDX-License-Identifier: Apache-2.0
#include "client/runtime.h"

#include "client/client_core.h"
#include "client/runtime_options.h"

#include <stdlib.h>

typedef struct start {
  bl_client_runtime_t *runtime;
  bl_rpc_t *beside;
  bl_error_t err;
} start_t;

static void create_rpc(void *context) {
  start_t *start = context;
  bl_client_runtime_t *runtime = start->runtime;
  bl_loop_t *loop = bl_loop_thread_loop(runtime->thread);
  start->err.status = start->beside != NULL ? bl_rpc_create_beside(start->beside, loop, &runtime->rpc, &start->err)
                                            : bl_rpc_create(loop, &runtime->rpc, &start->err);
}

static void destroy_rpc(void *context) {
  bl_client_runtime_t *runtime = context;
  bl_rpc_destroy(runtime->rpc);
}

bl_status_t bl_client_runtime_create(const bl_client_runtime_options_t *options, bl_client_runtime_t **runtime,
                                     bl_error_t *err) {
  static const bl_client_runtime_options_t none;
  options = options != NULL ? options : &none;
  if (bl__forks() > 0) {
    return bl_error_set(
        err, BL_PRECONDITION,
        "this process was forked from one that had a client, and gRPC does not live through that: start it "
        "as a program of its own (exec; spawn instead of fork)");
  }
  bl_client_runtime_t *made = calloc(1, sizeof *made);
  if (made == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for clients of stores");
  }
  pthread_mutex_init(&made->mutex, NULL);
  pthread_cond_init(&made->changed, NULL);
  made->forks = bl__forks();
  made->thread = options->thread;
  made->owns_thread = options->thread == NULL;
  bl_status_t status = made->owns_thread ? bl_loop_thread_create("store-client", &made->thread, err) : BL_OK;
  if (status == BL_OK) {
    start_t start = {.runtime = made, .beside = options->beside};
    bl_loop_thread_call(made->thread, create_rpc, &start);
    status = start.err.status;
    if (status != BL_OK && err != NULL) {
      *err = start.err;
    }
  }
  if (status != BL_OK) {
    bl_client_runtime_destroy(made);
    return status;
  }
  *runtime = made;
  return BL_OK;
}

void bl_client_runtime_wait(bl_client_runtime_t *runtime) {
  if (runtime->forks != bl__forks()) {
    return; // its clients are the parent's
  }
  pthread_mutex_lock(&runtime->mutex);
  while (runtime->closing > 0) {
    pthread_cond_wait(&runtime->changed, &runtime->mutex);
  }
  pthread_mutex_unlock(&runtime->mutex);
}

void bl_client_runtime_destroy(bl_client_runtime_t *runtime) {
  if (runtime == NULL || runtime->forks != bl__forks()) {
    return;
  }
  if (runtime->rpc != NULL) {
    bl_client_runtime_wait(runtime);
    bl_loop_thread_call(runtime->thread, destroy_rpc, runtime);
  }
  if (runtime->owns_thread) {
    bl_loop_thread_destroy(runtime->thread);
  }
  pthread_cond_destroy(&runtime->changed);
  pthread_mutex_destroy(&runtime->mutex);
  free(runtime);
}
