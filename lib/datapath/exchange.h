// SPDX-License-Identifier: Apache-2.0
// The tensors of one link: which are announced, posted, moving or done. A pure state machine matches local posts with
// the peer's messages. The transport (boundary.h) passes posts and frames in, sends the frames that the exchange
// returns, and moves the bytes of the tensors that it returns.
//
//   pull (shm)   sender:   post_send -> OFFER ............ ACK -> freed
//                receiver: OFFER + post_receive -> move -> ACK, complete -> consumed
//   push (tcp)   sender:   post_send + CREDIT -> move (DATA chunks; nccl: GO) -> freed
//                receiver: post_receive -> CREDIT ... DATA chunks -> complete -> consumed
//
// Attempts: messages of attempts older than the current one are counted and dropped. Those of newer attempts are kept
// for the begin that will follow. A peer that sends a message of an attempt has completed or aborted all earlier ones.
// A peer may also still be in an attempt that this side has completed, so the ACKs of what it sent are still sent.
//
// Rules. tests/datapath/exchange_model_test.c disables each (RULE in exchange.c) and checks that the violation is
// found:
//   1. What the peer has announced for a newer attempt stays when an attempt begins.
//   2. So does the ACK of a consumed receive: the peer may still wait for it.
//   3. Such a receive is marked as owed. It does not count against the limits and belongs to no local caller.
//   4. A tensor that is moving when its attempt is aborted is stale. Its mover drops it, and until then it does not
//      count.
//   5. Everything else of older attempts is freed.
//   6. Loss of the link does not take complete receives from their waiters.
//   7. A tensor that was announced and is then posted counts as a post only.
//   8. Push: a send moves only once there is credit for it.
//   9. Nothing moves before it is posted here.
//  10. A consumed receive stays until its ACK was sent.
//  11. When a peer begins a newer attempt, its older announcements are freed.
//  12. Announcements and ACKs of older attempts are dropped.
//  13. DATA and GO of older attempts are dropped too.
//  14. Sending the ACK of a consumed receive frees the receive.
//  15. Push: between two chunks a receive is not active.
//  16. A tensor has moved when all of its bytes have moved.
//  17. A launched tensor is not returned to a mover a second time.
//  18. ACKs of attempts that the peer has left are not sent. Otherwise they would pile up.
//
// Thread: none inside; the caller serializes. Memory: all allocated by create; limits are per link.
#ifndef BALLAST_DATAPATH_EXCHANGE_H
#define BALLAST_DATAPATH_EXCHANGE_H

#include "base/status.h"
#include "datapath/frame.h"
#include "datapath/key.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum { BL_TENSOR_SEND, BL_TENSOR_RECEIVE } bl_tensor_role_t;

// One tensor in flight. Callers read it; only the exchange writes it.
typedef struct bl_tensor {
  bl_tensor_key_t key;
  uint64_t attempt;
  uint64_t bytes;
  uint64_t moved_bytes; // copied, received or sent so far
  uint64_t hash;        // of the bytes received so far; the caller's
  bl_tensor_role_t role;
  bool local;            // posted here
  bool remote;           // announced by the peer (OFFER or CREDIT)
  bool active;           // the caller is moving it, so it is not freed
  bool stale;            // active, but of an older attempt: stop moving and call bl_exchange_drop
  bool complete;         // a receive that has all its bytes
  bool consumed;         // ... and was taken by its waiter
  bool owed;             // consumed in an older attempt; only its ACK is still to be sent
  uint8_t *destination;  // receive
  const uint8_t *source; // send
  uint32_t arena;        // pull: the arena of the sender that holds the source
  uint64_t offset;
  // Intrusive lists: indices into the pool; 0: none.
  uint32_t hash_next;
  uint32_t queue_next[2], queue_previous[2];
  bool queued[2];
} bl_tensor_t;

typedef struct bl_exchange bl_exchange_t;

typedef enum { BL_EXCHANGE_PULL, BL_EXCHANGE_PUSH } bl_exchange_kind_t;

// `max_in_flight` bounds, for sends and receives each, the tensors posted here and, separately, the tensors that only
// the peer has announced (so a peer cannot run ahead without end). BL_EXHAUSTED if there is no memory.
BL_MUST_USE bl_status_t bl_exchange_create(uint32_t max_in_flight, bl_exchange_t **out);
void bl_exchange_destroy(bl_exchange_t *exchange);

// Starts with a new link: forgets everything and sets `attempt` (0: none yet). No tensor may be active.
void bl_exchange_reset(bl_exchange_t *exchange, bl_exchange_kind_t kind, uint64_t attempt);
// Begins `attempt`, above the last. Tensors of older attempts are freed, and active ones become stale. Consumed
// receives are still acknowledged.
void bl_exchange_begin(bl_exchange_t *exchange, uint64_t attempt);

// Post a tensor. BL_PRECONDITION: no attempt yet, or the key is already posted; BL_EXHAUSTED: max_in_flight;
// BL_INVALID: the peer announced this tensor with another size, which is in *peer_bytes.
BL_MUST_USE bl_status_t bl_exchange_post_send(bl_exchange_t *exchange, bl_tensor_key_t key, const uint8_t *source,
                                              uint64_t bytes, uint32_t arena, uint64_t offset, uint64_t *peer_bytes);
BL_MUST_USE bl_status_t bl_exchange_post_receive(bl_exchange_t *exchange, bl_tensor_key_t key, uint8_t *destination,
                                                 uint64_t bytes, uint64_t *peer_bytes);
// Returns the posted tensor of the current attempt, NULL if there is none or it is consumed.
bl_tensor_t *bl_exchange_find(bl_exchange_t *exchange, bl_tensor_role_t role, bl_tensor_key_t key);
// Marks a complete receive as taken by its waiter. The entry is freed, if needed once its ACK was sent.
void bl_exchange_consume(bl_exchange_t *exchange, bl_tensor_t *receive);

// Processes an OFFER, ACK or CREDIT from the peer. BL_INVALID: a violation, after which the link must be closed;
// *reason is a fixed text.
BL_MUST_USE bl_status_t bl_exchange_on_frame(bl_exchange_t *exchange, const bl_frame_t *frame, const char **reason);
// Called before a DATA chunk is read (push). *receive is its tensor, now active, or NULL if the chunk must be skipped.
BL_MUST_USE bl_status_t bl_exchange_on_data(bl_exchange_t *exchange, const bl_frame_t *frame, bl_tensor_t **receive,
                                            const char **reason);

// Returns the next frame to send to the peer (OFFER, ACK or CREDIT). False if there is none.
bool bl_exchange_next_frame(bl_exchange_t *exchange, bl_frame_t *frame);
// Returns the tensor to move next, oldest first, and makes it active: a receive to copy (pull) or a send to stream
// (push). Returns the same tensor until it is complete or dropped. NULL if there is nothing to move.
bl_tensor_t *bl_exchange_next_transfer(bl_exchange_t *exchange);
// Marks the tensor of next_transfer as moving by itself until it is complete or dropped. next_transfer then returns the
// tensor after it.
void bl_exchange_launch(bl_exchange_t *exchange, bl_tensor_t *tensor);
// Records that `bytes` more of an active tensor have moved (and, for received chunks, were verified). Returns true if
// the tensor is complete; a send is then freed. Between received chunks the tensor is inactive.
bool bl_exchange_moved(bl_exchange_t *exchange, bl_tensor_t *tensor, uint64_t bytes);
// Frees a stale active tensor.
void bl_exchange_drop(bl_exchange_t *exchange, bl_tensor_t *tensor);
// Called when the link is lost. No tensor is active any more, complete receives stay until consumed, and all other
// tensors are freed.
void bl_exchange_lose(bl_exchange_t *exchange);

uint64_t bl_exchange_stale_count(const bl_exchange_t *exchange); // messages of older attempts dropped so far

#endif
