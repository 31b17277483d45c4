// SPDX-License-Identifier: Apache-2.0
// Private to lib/rpc: the completion queue, and tags, which turn its events into messages to the loop.
#ifndef BALLAST_RPC_RPC_CORE_H
#define BALLAST_RPC_RPC_CORE_H

#include "rpc/rpc.h"

#include <grpc/grpc.h>

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/queue.h>

typedef struct bl__explanation bl__explanation_t;

struct bl_rpc {
  bl_loop_t *loop;
  bl_rpc_t *first;              // owns the queue and the thread; itself unless created by bl_rpc_create_beside
  grpc_completion_queue *queue; // of `first`
  unsigned users;               // servers and channels
  bl_tls_t *tls;                // NULL: plaintext
  bool plaintext_ok;
  bl_rpc_access_fn access;
  struct bl_worker *prober;                  // NULL: nothing had to be explained so far
  LIST_HEAD(, bl__explanation) explanations; // in progress (explanation.h)
  unsigned explanation_count;
  atomic_uint_fast64_t pending; // armed tags whose event was not handed over, plus one during its life
  bool drained;                 // `pending` is 0; guarded by `mutex` of `first`

  // Used only in the first rpc.
  pthread_t thread;
  atomic_uint_fast64_t armed; // tags armed so far; also passes them to the queue's thread in the C memory model
  atomic_uint beside;         // number of rpcs created by bl_rpc_create_beside
  pthread_mutex_t mutex;
  pthread_cond_t changed; // one of them has drained
};

// One gRPC operation in flight. It is embedded in the call or request that it belongs to, so that no event allocates.
// It is reused after its event was handled.
typedef struct bl__rpc_tag {
  bl_message_t message;
  bl_rpc_t *rpc; // the event is posted to its loop
  bool ok;       // the event's success; written by the queue's thread, read by the loop's
} bl__rpc_tag_t;

#define BL__TAG_OWNER(message, type, member)                                                                           \
  BL_MESSAGE_OWNER(BL_MESSAGE_OWNER(message, bl__rpc_tag_t, message), type, member)

// Prepares the tag for gRPC. `handle` will be called on the loop.
void bl__rpc_tag_arm(bl_rpc_t *rpc, bl__rpc_tag_t *tag, bl_message_fn handle);
// Posts the tag to its loop when its event has arrived. Any thread.
void bl__rpc_hand_over(bl__rpc_tag_t *tag);
// Decrements the pending count. If bl_rpc_destroy waits, `rpc` may be freed as soon as this returns. Any thread.
void bl__rpc_end_pending(bl_rpc_t *rpc);
// Starts a batch that ends in an armed tag. gRPC refuses a batch only because of a mistake in this library. That is
// logged, and the batch ends as a failed one, so that callers need no second path.
void bl__rpc_start(grpc_call *call, const grpc_op *ops, size_t count, bl__rpc_tag_t *tag);

// Integer arguments of a channel or server.
#define BL__RPC_ARGS 24
typedef struct bl__rpc_args {
  grpc_arg args[BL__RPC_ARGS];
  grpc_channel_args list;
} bl__rpc_args_t;
void bl__rpc_args_add(bl__rpc_args_t *args, const char *key, uint64_t value); // clamped to INT_MAX

// The metadata key of the status name. It is sent in addition to the gRPC code, which several statuses share.
#define BL__RPC_STATUS_KEY "ballast-status"

#endif
