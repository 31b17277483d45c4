// SPDX-License-Identifier: Apache-2.0
#include "rpc/rpc.h"

#include "rpc/channel_core.h"
#include "rpc/rpc_core.h"
#include "sys/log.h"
#include "sys/thread.h"

#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <protobuf-c/protobuf-c.h>

#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

// gRPC logs what it also returns as a status; the status is what we log. Its own lines are for debugging.
static void log_from_grpc(gpr_log_func_args *args) {
  bl_log(BL_LOG_DEBUG, "grpc %s:%d: %s", args->file, args->line, args->message);
}

// The completion-queue thread: turns every event into a message to the loop, and does nothing else (DESIGN.md 4).
static void *queue_main(void *argument) {
  bl_rpc_t *rpc = argument;
  bl_thread_set_name("rpc-queue");
  for (;;) {
    grpc_event event = grpc_completion_queue_next(rpc->queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    if (event.type == GRPC_QUEUE_SHUTDOWN) {
      return NULL;
    }
    bl__rpc_tag_t *tag = event.tag;
    (void)atomic_load_explicit(&rpc->armed, memory_order_acquire); // with the release in bl__rpc_tag_arm
    tag->ok = event.success != 0;
    bl_loop_post(rpc->loop, &tag->message);
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

bl_status_t bl_rpc_create(bl_loop_t *loop, bl_rpc_t **result, bl_error_t *err) {
  bl_rpc_t *rpc = calloc(1, sizeof *rpc);
  if (rpc == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "rpc: out of memory");
  }
  signal(SIGPIPE, SIG_IGN); // a write to a closed socket is a status, not the end of the process
  gpr_set_log_function(log_from_grpc);
  // The system's resolver (hosts file, nsswitch) instead of c-ares, which asks for SRV records and leaks at its end.
  (void)setenv("GRPC_DNS_RESOLVER", "native", 0);
  set_security(rpc, &process_security);
  grpc_init(); // counted by gRPC; undone by bl_rpc_destroy
  rpc->loop = loop;
  rpc->queue = grpc_completion_queue_create_for_next(NULL);
  // Signals go to the loop's thread only.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int error = pthread_create(&rpc->thread, NULL, queue_main, rpc);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (error != 0) {
    grpc_completion_queue_shutdown(rpc->queue);
    grpc_completion_queue_destroy(rpc->queue);
    grpc_shutdown_blocking();
    bl_tls_release(rpc->tls);
    free(rpc);
    return bl_error_set(err, bl_status_from_errno(error), "rpc: completion-queue thread: %s", strerror(error));
  }
  *result = rpc;
  return BL_OK;
}

void bl_rpc_destroy(bl_rpc_t *rpc) {
  if (rpc == NULL) {
    return;
  }
  assert(bl_loop_is_current(rpc->loop));
  if (rpc->users != 0) {
    bl_log(BL_LOG_ERROR, "rpc: %u servers or channels outlive it; their owner must destroy them first", rpc->users);
    return; // leaked rather than freed under them
  }
  bl__requests_end(rpc);
  grpc_completion_queue_shutdown(rpc->queue); // cancelled requests still end in it
  pthread_join(rpc->thread, NULL);
  bl_loop_drain(rpc->loop); // their last events
  grpc_completion_queue_destroy(rpc->queue);
  grpc_shutdown_blocking(); // grpc_shutdown would finish in a thread of its own, after main has returned
  bl_tls_release(rpc->tls);
  free(rpc);
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

void bl__rpc_tag_arm(bl_rpc_t *rpc, bl__rpc_tag_t *tag, bl_message_fn handle) {
  tag->message.handle = handle;
  tag->ok = false;
  // gRPC orders this before the event as well, but by means that ThreadSanitizer cannot see.
  atomic_fetch_add_explicit(&rpc->armed, 1, memory_order_release);
}

void bl__rpc_start(bl_rpc_t *rpc, grpc_call *call, const grpc_op *ops, size_t count, bl__rpc_tag_t *tag) {
  grpc_call_error error = grpc_call_start_batch(call, ops, count, tag, NULL);
  if (error != GRPC_CALL_OK) {
    bl_log(BL_LOG_ERROR, "rpc: gRPC refused a batch: %s", grpc_call_error_to_string(error));
    bl_loop_post(rpc->loop, &tag->message);
  }
}

void bl__rpc_args_add(bl__rpc_args_t *args, const char *key, uint64_t value) {
  assert(args->list.num_args < BL__RPC_ARGS);
  args->list.args = args->args;
  grpc_arg *arg = &args->args[args->list.num_args++];
  arg->type = GRPC_ARG_INTEGER;
  arg->key = (char *)key; // gRPC takes char * and copies it
  arg->value.integer = value > INT_MAX ? INT_MAX : (int)value;
}

const bl_library_t bl_rpc_library = {"grpc", grpc_version_string};
const bl_library_t bl_rpc_messages_library = {"protobuf-c", protobuf_c_version};
