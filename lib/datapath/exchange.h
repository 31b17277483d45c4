// SPDX-License-Identifier: Apache-2.0
// Which tensors of one link are announced, posted, moving or done: the matching of local posts with the peer's
// messages, as a pure state machine. The transport (boundary.h) feeds it posts and frames, sends the frames it asks for
// and moves the bytes it points at.
//
//   pull (shm)   sender:   post_send -> OFFER ............ ACK -> gone
//                receiver: OFFER + post_receive -> move -> ACK, complete -> consumed
//   push (tcp)   sender:   post_send + CREDIT -> move (DATA chunks; nccl: GO) -> gone
//                receiver: post_receive -> CREDIT ... DATA chunks -> complete -> consumed
//
// Attempts: messages of older attempts than the current one are counted and dropped; those of newer ones are kept for
// the begin that will come. A peer that speaks of attempt a has ended or given up all before it. One that has ended it
// may be behind: the ACK of what it sent still goes out.
//
// Rules; tests/datapath/exchange_model_test.c takes each of them out (RULE in exchange.c) and sees that it is missed:
//   1. What the peer has announced for a newer attempt stays when one begins.
//   2. So does the ACK of what was consumed: the peer may still wait for it.
//   3. That one is known as owed: it takes no room and belongs to nobody here.
//   4. What is being moved when an attempt is given up is stale: its mover lets go of it, and it takes no room meanwhile.
//   5. Everything else of older attempts goes.
//   6. A link that is lost does not take receives that are whole from their waiters.
//   7. What was announced and is then posted takes the room of posts alone.
//   8. Push: a send moves once there is credit for it.
//   9. Nothing moves before it is posted here.
//  10. A receive that is consumed stays until its ACK has left.
//  11. A peer that moves on takes its old announcements with it.
//  12. Announcements and ACKs of older attempts are dropped.
//  13. So are their bytes.
//  14. The ACK of a receive that was consumed takes it along.
//  15. Push: between two chunks a receive is not active.
//  16. A tensor has moved when all of its bytes have.
//  17. What was launched is not given to a mover again.
//  18. ACKs of attempts that the peer has left do not go out: they would pile up.
//
// Thread: none inside; the caller serializes. Memory: all allocated by init; limits are per link.
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
  uint64_t moved_bytes; // what has been copied, received or sent so far
  uint64_t hash;        // of what has been received so far: the caller's
  bl_tensor_role_t role;
  bool local;            // posted here
  bool remote;           // announced by the peer (OFFER or CREDIT)
  bool active;           // the caller is moving it: not freed behind its back
  bool stale;            // active, but of an older attempt: stop moving and call bl_exchange_drop
  bool complete;         // a receive that is whole
  bool consumed;         // ... and that its waiter has taken
  bool owed;             // of an older attempt, consumed: nothing is left of it but the ACK that must still go out
  uint8_t *destination;  // receive
  const uint8_t *source; // send
  uint32_t arena;        // pull: where the source lies, in the sender's arenas
  uint64_t offset;
  // Intrusive links, indices + 1 into the pool; 0 is none.
  uint32_t hash_next;
  uint32_t queue_next[2], queue_previous[2];
  bool queued[2];
} bl_tensor_t;

typedef struct bl_exchange bl_exchange_t;

typedef enum { BL_EXCHANGE_PULL, BL_EXCHANGE_PUSH } bl_exchange_kind_t;

// `max_in_flight` bounds, for sends and receives each, tensors posted here and, separately, tensors that only the peer
// has announced (a peer that runs ahead without end). BL_EXHAUSTED when memory is short.
BL_MUST_USE bl_status_t bl_exchange_create(uint32_t max_in_flight, bl_exchange_t **out);
void bl_exchange_destroy(bl_exchange_t *exchange);

// A new link: forgets everything and starts at `attempt` (0: none yet). Nothing may be active.
void bl_exchange_reset(bl_exchange_t *exchange, bl_exchange_kind_t kind, uint64_t attempt);
// Moves on to `attempt`, above the last: tensors of older ones go, active ones become stale; what was consumed is still
// acknowledged.
void bl_exchange_begin(bl_exchange_t *exchange, uint64_t attempt);

// Posts. BL_PRECONDITION: no attempt yet or the key is already posted; BL_EXHAUSTED: max_in_flight; BL_INVALID: the
// peer announced this tensor with another size (*peer_bytes has it).
BL_MUST_USE bl_status_t bl_exchange_post_send(bl_exchange_t *exchange, bl_tensor_key_t key, const uint8_t *source,
                                              uint64_t bytes, uint32_t arena, uint64_t offset, uint64_t *peer_bytes);
BL_MUST_USE bl_status_t bl_exchange_post_receive(bl_exchange_t *exchange, bl_tensor_key_t key, uint8_t *destination,
                                                 uint64_t bytes, uint64_t *peer_bytes);
// The tensor of the current attempt, NULL when there is none.
bl_tensor_t *bl_exchange_find(bl_exchange_t *exchange, bl_tensor_role_t role, bl_tensor_key_t key);
// The waiter has its complete receive: the entry goes (once its ACK has left).
void bl_exchange_consume(bl_exchange_t *exchange, bl_tensor_t *receive);

// An OFFER, ACK or CREDIT from the peer. BL_INVALID on a violation (the link must go), *reason is a fixed text.
BL_MUST_USE bl_status_t bl_exchange_on_frame(bl_exchange_t *exchange, const bl_frame_t *frame, const char **reason);
// A DATA chunk is about to be read (push): *receive is its tensor, now active, or NULL when it must be skipped.
BL_MUST_USE bl_status_t bl_exchange_on_data(bl_exchange_t *exchange, const bl_frame_t *frame, bl_tensor_t **receive,
                                            const char **reason);

// The next frame to send to the peer (OFFER, ACK or CREDIT; session is the caller's); false when there is none.
bool bl_exchange_next_frame(bl_exchange_t *exchange, bl_frame_t *frame);
// The tensor to move next, oldest first, now active: a receive to copy (pull) or a send to stream (push). The same one
// until it is complete or dropped. NULL when there is nothing to move.
bl_tensor_t *bl_exchange_next_transfer(bl_exchange_t *exchange);
// The tensor of next_transfer moves by itself from now on, until it is complete or dropped: the next one is the one
// behind.
void bl_exchange_launch(bl_exchange_t *exchange, bl_tensor_t *tensor);
// `bytes` more of an active tensor have moved (and, for received chunks, were verified). True when that completes it:
// a send is gone then. A received chunk leaves the tensor inactive until the next one.
bool bl_exchange_moved(bl_exchange_t *exchange, bl_tensor_t *tensor, uint64_t bytes);
// Lets go of a stale active tensor.
void bl_exchange_drop(bl_exchange_t *exchange, bl_tensor_t *tensor);
// The link is lost: nothing is active any more, complete receives stay until consumed, the rest goes.
void bl_exchange_lose(bl_exchange_t *exchange);

uint64_t bl_exchange_stale_count(const bl_exchange_t *exchange); // messages of older attempts dropped so far

#endif
