// SPDX-License-Identifier: Apache-2.0
#include "rpc/rpc_core.h"

#include "sys/log.h"

#include <limits.h>

void bl__rpc_end_pending(bl_rpc_t *rpc) {
  bl_rpc_t *first = rpc->first;
  if (atomic_fetch_sub(&rpc->pending, 1) == 1) {
    pthread_mutex_lock(&first->mutex);
    rpc->drained = true;
    pthread_cond_broadcast(&first->changed);
    pthread_mutex_unlock(&first->mutex);
  }
}

void bl__rpc_hand_over(bl__rpc_tag_t *tag) {
  bl_rpc_t *rpc = tag->rpc;
  bl_loop_post(rpc->loop, &tag->message); // from here on the receiver owns the tag
  bl__rpc_end_pending(rpc);
}

void bl__rpc_tag_arm(bl_rpc_t *rpc, bl__rpc_tag_t *tag, bl_message_fn handle) {
  tag->message.handle = handle;
  tag->rpc = rpc;
  tag->ok = false;
  atomic_fetch_add_explicit(&rpc->pending, 1, memory_order_relaxed);
  // gRPC also orders this before the event, but in a way that ThreadSanitizer cannot see.
  atomic_fetch_add_explicit(&rpc->first->armed, 1, memory_order_release);
}

void bl__rpc_start(grpc_call *call, const grpc_op *ops, size_t count, bl__rpc_tag_t *tag) {
  grpc_call_error error = grpc_call_start_batch(call, ops, count, tag, NULL);
  if (error != GRPC_CALL_OK) {
    bl_log(BL_LOG_ERROR, "rpc: gRPC refused a batch: %s", grpc_call_error_to_string(error));
    bl__rpc_hand_over(tag);
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
