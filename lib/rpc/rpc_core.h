// SPDX-License-Identifier: Apache-2.0
// Shared inside lib/rpc: the completion queue, and tags, which are how its events become messages to the loop.
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
  bl_rpc_t *first;              // whose queue and thread these are; itself, where it was not created beside another
  grpc_completion_queue *queue; // of `first`
  unsigned users;               // servers and channels
  bl_tls_t *tls;                // NULL: plaintext
  bool plaintext_ok;
  bl_rpc_access_fn access;
  struct bl_worker *prober;                  // NULL: nothing had to be explained yet
  LIST_HEAD(, bl__explanation) explanations; // under way (explanation.h)
  unsigned explanation_count;
  atomic_uint_fast64_t pending; // armed tags whose event was not handed over, and one while it lives
  bool settled;                 // none is left; under `mutex` of `first`

  // Of the first.
  pthread_t thread;
  atomic_uint_fast64_t armed; // tags so far; hands them to the queue's thread in the C memory model, too
  atomic_uint beside;         // created beside it
  pthread_mutex_t mutex;
  pthread_cond_t changed; // one of these has settled
};

// One operation of gRPC under way. It is embedded in the call or request it belongs to, so that no event allocates, and
// used again once its event was handled.
typedef struct bl__rpc_tag {
  bl_message_t message;
  bl_rpc_t *rpc; // to whose loop it goes
  bool ok;       // the event's success; written by the queue's thread, read by the loop's
} bl__rpc_tag_t;

#define BL__TAG_OWNER(message, type, member)                                                                           \
  BL_MESSAGE_OWNER(BL_MESSAGE_OWNER(message, bl__rpc_tag_t, message), type, member)

// Makes the tag ready to be given to gRPC; `handle` will be called on the loop.
void bl__rpc_tag_arm(bl_rpc_t *rpc, bl__rpc_tag_t *tag, bl_message_fn handle);
// The event has come: the tag goes to its loop. Any thread.
void bl__rpc_hand_over(bl__rpc_tag_t *tag);
// One less to wait for at the end of `rpc`. When that waits it is gone after this. Any thread.
void bl__rpc_settle_one(bl_rpc_t *rpc);
// Starts a batch that ends in an armed tag. A batch that gRPC refuses, which only a mistake in this library can cause,
// is logged and ends as one that failed, so that callers need no second path.
void bl__rpc_start(grpc_call *call, const grpc_op *ops, size_t count, bl__rpc_tag_t *tag);

// Integer arguments of a channel or server.
#define BL__RPC_ARGS 24
typedef struct bl__rpc_args {
  grpc_arg args[BL__RPC_ARGS];
  grpc_channel_args list;
} bl__rpc_args_t;
void bl__rpc_args_add(bl__rpc_args_t *args, const char *key, uint64_t value); // cut to INT_MAX

// The key under which a status travels by its own name beside the gRPC code, which several statuses share.
#define BL__RPC_STATUS_KEY "ballast-status"

#endif
