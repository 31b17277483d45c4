// SPDX-License-Identifier: Apache-2.0
#include "rpc/rpc.h"

#include "rpc/channel_core.h"
#include "rpc/rpc_core.h"
#include "sys/log.h"
#include "sys/thread.h"

#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <protobuf-c/protobuf-c.h>

#include <signal.h>
#include <stdlib.h>
#include <string.h>

// gRPC logs what it also returns as a status, and we log the status. gRPC's own lines are for debugging.
static void log_from_grpc(gpr_log_func_args *args) {
  bl_log(BL_LOG_DEBUG, "grpc %s:%d: %s", args->file, args->line, args->message);
}

// The completion-queue thread. It only turns every event into a message to its loop (DESIGN.md 4).
static void *queue_main(void *argument) {
  bl_rpc_t *first = argument;
  bl_thread_set_name("rpc-queue");
  for (;;) {
    grpc_event event = grpc_completion_queue_next(first->queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    if (event.type == GRPC_QUEUE_SHUTDOWN) {
      return NULL;
    }
    bl__rpc_tag_t *tag = event.tag;
    (void)atomic_load_explicit(&first->armed, memory_order_acquire); // pairs with the release in bl__rpc_tag_arm
    tag->ok = event.success != 0;
    bl__rpc_hand_over(tag);
  }
}

static bl_rpc_security_t process_security;

static void set_security(bl_rpc_t *rpc, const bl_rpc_security_t *security) {
  bl_tls_t *before = rpc->tls;
  rpc->tls = security->tls != NULL ? bl_tls_acquire(security->tls) : NULL;
  rpc->plaintext_ok = security->plaintext_ok;
  rpc->access = security->access;
  bl_tls_release(before);
}

static bl_rpc_t *alloc_rpc(bl_loop_t *loop, bl_error_t *err) {
  bl_rpc_t *rpc = calloc(1, sizeof *rpc);
  if (rpc == NULL) {
    (void)bl_error_set(err, BL_EXHAUSTED, "rpc: out of memory");
    return NULL;
  }
  rpc->loop = loop;
  atomic_init(&rpc->pending, 1);
  set_security(rpc, &process_security);
  return rpc;
}

static void free_first(bl_rpc_t *rpc) {
  grpc_completion_queue_destroy(rpc->queue);
  grpc_shutdown_blocking(); // grpc_shutdown would finish on another thread, after main has returned
  pthread_cond_destroy(&rpc->changed);
  pthread_mutex_destroy(&rpc->mutex);
  bl_tls_release(rpc->tls);
  free(rpc);
}

bl_status_t bl_rpc_create(bl_loop_t *loop, bl_rpc_t **result, bl_error_t *err) {
  bl_rpc_t *rpc = alloc_rpc(loop, err);
  if (rpc == NULL) {
    return BL_EXHAUSTED;
  }
  signal(SIGPIPE, SIG_IGN); // a write to a closed socket returns an error instead of ending the process
  gpr_set_log_function(log_from_grpc);
  // Uses the system's resolver (hosts file, nsswitch) instead of c-ares, which requests SRV records and leaks at its
  // end.
  (void)setenv("GRPC_DNS_RESOLVER", "native", 0);
  grpc_init(); // counted by gRPC; undone by free_first
  rpc->first = rpc;
  rpc->queue = grpc_completion_queue_create_for_next(NULL);
  pthread_mutex_init(&rpc->mutex, NULL);
  pthread_cond_init(&rpc->changed, NULL);
  // Only the loop's thread takes signals.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int error = pthread_create(&rpc->thread, NULL, queue_main, rpc);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (error != 0) {
    grpc_completion_queue_shutdown(rpc->queue);
    free_first(rpc);
    return bl_error_set(err, bl_status_from_errno(error), "rpc: completion-queue thread: %s", strerror(error));
  }
  *result = rpc;
  return BL_OK;
}

bl_status_t bl_rpc_create_beside(bl_rpc_t *first, bl_loop_t *loop, bl_rpc_t **result, bl_error_t *err) {
  assert(bl_loop_is_current(loop) && first->first == first);
  bl_rpc_t *rpc = alloc_rpc(loop, err);
  if (rpc == NULL) {
    return BL_EXHAUSTED;
  }
  rpc->first = first;
  rpc->queue = first->queue;
  atomic_fetch_add(&first->beside, 1);
  *result = rpc;
  return BL_OK;
}

static void destroy_beside(bl_rpc_t *rpc) {
  bl_rpc_t *first = rpc->first;
  bl__rpc_end_pending(rpc); // the count for its life
  pthread_mutex_lock(&first->mutex);
  while (!rpc->drained) { // cancelled requests have yet to end
    pthread_cond_wait(&first->changed, &first->mutex);
  }
  pthread_mutex_unlock(&first->mutex);
  bl_loop_drain(rpc->loop); // handles their last events
  bl_tls_release(rpc->tls);
  free(rpc);
  atomic_fetch_sub(&first->beside, 1);
}

void bl_rpc_destroy(bl_rpc_t *rpc) {
  if (rpc == NULL) {
    return;
  }
  assert(bl_loop_is_current(rpc->loop));
  const unsigned beside = atomic_load(&rpc->beside);
  if (rpc->users != 0 || beside != 0) {
    bl_log(BL_LOG_ERROR, "rpc: %u servers or channels and %u beside it outlive it; their owner must destroy them first",
           rpc->users, beside);
    return; // leaked, because they still use it
  }
  bl__rpc_requests_end(rpc);
  if (rpc->first != rpc) {
    destroy_beside(rpc);
    return;
  }
  grpc_completion_queue_shutdown(rpc->queue); // cancelled requests end in it first
  pthread_join(rpc->thread, NULL);
  bl_loop_drain(rpc->loop); // handles their last events
  free_first(rpc);
}

bl_loop_t *bl_rpc_loop(const bl_rpc_t *rpc) {
  return rpc->loop;
}

void bl_rpc_secure(bl_rpc_t *rpc, const bl_rpc_security_t *security) {
  assert(bl_loop_is_current(rpc->loop));
  set_security(rpc, security);
}

bl_tls_t *bl_rpc_process_tls(void) {
  return process_security.tls;
}

bool bl_rpc_process_plaintext_ok(void) {
  return process_security.plaintext_ok;
}

void bl_rpc_secure_process(const bl_rpc_security_t *security) {
  bl_tls_t *before = process_security.tls;
  process_security = *security;
  if (security->tls != NULL) {
    bl_tls_acquire(security->tls);
  }
  bl_tls_release(before);
}

const bl_library_t bl_rpc_library = {"grpc", grpc_version_string};
const bl_library_t bl_rpc_messages_library = {"protobuf-c", protobuf_c_version};
