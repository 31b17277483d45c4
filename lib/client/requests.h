// SPDX-License-Identifier: Apache-2.0
// The requests of one session with a store, as a state machine without I/O: what callers ask for, in which order it is
// sent, what is sent again after a connection broke, and what the store's answers mean for slots and operations.
// transfer.c feeds it answers, bytes and time, sends the requests that it names and moves the bytes it points at.
//
// An operation (evict, load, release, show, hide), by the calls that change its state:
//
//   FREE --claim--> CLAIMED --submit--> QUEUED --next--> SENT --answer--> ENDED --take_ended, over--> OVER --free--> FREE
//                                         ^               |  \                ^
//                                         +---try again---+   +-> COPYING ----+     (pull: a load whose block is copied)
//
// tick ends what was cancelled or is late from QUEUED, SENT and COPYING; lose ends all. Between ENDED and OVER the
// caller of this machine lets go of the operation's memory: it never reads or writes it after OVER.
//
// A slot is used by one operation at a time:
//
//   EMPTY --evict--> EVICTING --ok--> FULL --load--> LOADING --ok--> EMPTY (the next generation)
//                                       \--release--> LOADING --ok--> EMPTY
//                                       \--load that keeps--> LOADING --ok--> FULL
//   An evict or release that was given up leaves it UNKNOWN until the answers that are still due, or a reservation, say what
//   became of it.
//
// Rules; tests/client/requests_model_test.c takes each of them out (RULE in requests.c) and sees that it is missed:
//   1. After a connection broke, all unanswered requests are sent again, under their numbers and in their order.
//   2. Releases go out before anything else that is new: what uses a slot next comes after them.
//   3. An evict that was given up is followed by a release of the same generation; its slot is not used before.
//   4. A load that was given up leaves its block in the store; its slot is full again when the answer has come.
//   5. A block that was loaded is released, with the checksum that arrived; its slot is then of the next generation.
//   6. What came over a connection that broke does not count.
//   7. An answer is taken once, and only for the number that it names.
//   8. A block whose checksum differs is not given to its caller.
//   9. What was refused for now (retry_after_ms) is asked again under another number, until its deadline.
//  10. What has ended is not read any more: the rest of its bytes stays here.
//  11. The store is told that a load is over which leaves its block there, because that is wanted or it was given up:
//      until then the block counts as in flight.
//
// Thread: none inside; the client's mutex is held in every call. Memory: all in the structure, but for the table of
// slots.
#ifndef BALLAST_CLIENT_REQUESTS_H
#define BALLAST_CLIENT_REQUESTS_H

#include "client/client.h"
#include "client/sequences.h"
#include "client/slots.h"

#define BL__RELEASES (BL_CLIENT_TICKETS + BL__WINDOW)

// Who moves the bytes of a block, and who computes checksums.
typedef enum bl__transfer_kind {
  BL__PULL,     // shm: each side copies out of the other's memory; verified at both ends
  BL__PULL_GPU, // cuda-ipc: the same by copy engines; not verified
  BL__PUSH,     // tcp: bytes are sent, with checksums
  BL__PAIRED,   // nccl: both queue their end; not verified
} bl__transfer_kind_t;

typedef enum bl__verb { BL__EVICT, BL__LOAD, BL__RELEASE, BL__REGISTER, BL__UNREGISTER } bl__verb_t;

typedef enum bl__operation_state {
  BL__OPERATION_FREE,
  BL__OPERATION_CLAIMED, // its caller fills it in
  BL__OPERATION_QUEUED,
  BL__OPERATION_SENT,
  BL__OPERATION_COPYING,
  BL__OPERATION_ENDED, // `err` says how; its memory is still to be let go of
  BL__OPERATION_OVER,  // a wait takes it
} bl__operation_state_t;

typedef struct bl__operation {
  struct bl__operation *next;  // in the queue, or of those that ended
  struct bl__operation *sends; // push: of those whose bytes go out
  bl__verb_t verb;
  bl__operation_state_t state;
  uint32_t serial;
  bool cancelled;
  bool internal; // nobody waits for it: of opening
  uint64_t deadline_ns;
  bl_error_t err;
  uint64_t slot, generation, bytes;
  const uint8_t *from; // evict
  uint8_t *to;         // load: where what of the block is wanted goes
  uint64_t skip, take; // load: of a part, the bytes before it and its own; of a whole block 0 and all
  uint32_t region;     // evict, show, hide
  uint64_t region_offset;
  int fd; // show
  bl_client_label_t label;
  bool keeps;          // load: the block stays in the store
  bool known;          // evict: its caller gave the checksum
  uint64_t checksum;   // evict: of the block
  uint64_t sequence;   // 0: not sent
  uint64_t at, hash;   // push: bytes that went or came over this connection, and their checksum; paired: all or nothing
  bool corrupt;        // push: a chunk that came does not match
  bool moving;         // paired: our end is queued and not over
  bool wipe;           // load: the destination has bytes that are not the block's
  uint64_t offset;     // pull: where the block lies in the store's memory
  uint64_t wanted;     // pull: the checksum that it must have
  uint64_t timeout_ns; // paired: until when a cancelled load may still end by itself
} bl__operation_t;

// A request that was sent and is not answered: to send it again, and to know what a late answer means for its slot.
typedef struct bl__sent {
  uint64_t sequence;          // 0: unused
  bl__operation_t *operation; // NULL: nobody waits (any more)
  bl__verb_t verb;
  bool out;  // over this connection
  bool sets; // a release: its answer says what state the slot is in
  bool loaded;
  bool keeps; // a release that is none: the block was loaded and stays
  uint64_t id, generation, bytes, checksum;
  const uint8_t *from; // evict: stays readable while its source is shown, whoever waits
  uint32_t region;
  uint64_t region_offset;
  bl_client_label_t label;
} bl__sent_t;

typedef struct bl__release { // the end of a use of a slot, to be told to the store
  uint64_t id, generation, bytes, checksum;
  bool loaded, keeps;
  bool sets; // else the slot is in use again already
} bl__release_t;

typedef struct bl__answer {
  uint64_t sequence;
  bl_status_t status;
  uint64_t id, generation, bytes, offset, checksum;
  uint32_t retry_after_ms;
  const char *text; // why not
} bl__answer_t;

typedef struct bl__requests {
  // Set with each session, then constant.
  bl__transfer_kind_t kind;
  bool verified;       // blocks have checksums that both ends compute
  uint64_t flow_bytes; // that may be in flight; 0: any
  const char *store;   // its address, for messages; borrowed

  bool linked;
  unsigned busy; // operations that are QUEUED, SENT or COPYING
  bl__operation_t operations[BL_CLIENT_TICKETS];
  uint32_t hint;
  bl__operation_t *queue_first, *queue_last;     // wait for their turn
  bl__operation_t *sending_first, *sending_last; // push: evicts whose bytes go out, in order
  bl__operation_t *copying_first, *copying_last; // pull: loads whose blocks are to be copied, in order
  bl__operation_t *ended_first, *ended_last;
  bl__sent_t sent[BL__WINDOW];
  unsigned sent_count;
  bl__release_t releases[BL__RELEASES]; // wait for the window
  unsigned release_count;
  uint64_t flow;           // bytes in flight
  uint64_t pause_until_ns; // nothing new before
  bool cancels;            // something was cancelled since the last tick
  bl__sequences_t sequences;
  bl__slots_t slots;
  bl_client_counters_t counters;
} bl__requests_t;

// A session begins: nothing is sent, no slot is known. Operations must all be FREE, counters and the address stay.
void bl__requests_begin(bl__requests_t *requests, bl__transfer_kind_t kind, bool verified, uint64_t flow_bytes);
void bl__requests_cleanup(bl__requests_t *requests);

// ---- by callers

// A FREE operation, CLAIMED now; NULL: all are in use.
bl__operation_t *bl__requests_claim(bl__requests_t *requests, bl__verb_t verb, uint64_t deadline_ns);
// Begins a use of a slot by an operation that was claimed: it has the slot and its generation then. BL_NOT_FOUND,
// BL_PRECONDITION, BL_INVALID: the operation is FREE again.
BL_MUST_USE bl_status_t bl__requests_use(bl__requests_t *requests, bl__operation_t *operation, uint64_t slot,
                                         uint64_t bytes, bl_error_t *err);
void bl__requests_submit(bl__requests_t *requests, bl__operation_t *operation);
void bl__requests_cancel(bl__requests_t *requests, bl__operation_t *operation);
void bl__requests_free(bl__requests_t *requests, bl__operation_t *operation); // OVER or CLAIMED

// ---- by the thread of the connection

void bl__requests_link_up(bl__requests_t *requests);
void bl__requests_link_down(bl__requests_t *requests);
// The session is lost: every operation ends with the cause.
void bl__requests_lose(bl__requests_t *requests, const bl_error_t *cause);

// What to send next, and with which operation (NULL: none waits for it); *request is then sent, or was sent before over
// a connection that broke. REGISTER and UNREGISTER have no sequence. False: nothing now.
typedef struct bl__request {
  bl__verb_t verb;
  bl__operation_t *operation;
  bl__sent_t sent; // but of REGISTER and UNREGISTER, which have: sent.region, sent.bytes
  uint64_t acknowledged;
} bl__request_t;
bool bl__requests_next(bl__requests_t *requests, uint64_t now_ns, bl__request_t *request);
// The checksum of an evict that was computed when it was sent; it goes with it when that is sent again.
void bl__requests_checked(bl__requests_t *requests, const bl__request_t *request, uint64_t checksum);
// A show whose descriptor does not go out yet: it is the next again.
void bl__requests_put_back(bl__requests_t *requests, bl__operation_t *operation);

// push: bytes of an evict went out, and the checksum of all that did; the first one in sending is done when all have.
void bl__requests_pushed(bl__requests_t *requests, bl__operation_t *operation, uint64_t at, uint64_t hash);
// push: bytes come for the load of this number, at this offset; the operation, or NULL when they are to be skipped.
bl__operation_t *bl__requests_coming(bl__requests_t *requests, uint64_t sequence, uint64_t bytes, uint64_t offset);
// They are there; `matches`: with the checksum that came with them.
void bl__requests_came(bl__requests_t *requests, bl__operation_t *operation, uint64_t bytes, uint64_t hash,
                       bool matches);
void bl__requests_answer(bl__requests_t *requests, const bl__answer_t *answer, uint64_t now_ns);
// REGISTER or UNREGISTER of a region was answered.
void bl__requests_registered(bl__requests_t *requests, bl__verb_t verb, uint32_t region, bl_status_t status,
                             const char *text);
// pull: the load whose block is copied next, from operation->offset of the store's memory; NULL: none.
bl__operation_t *bl__requests_copying(const bl__requests_t *requests);
// It is copied, with this checksum; or not: `err`.
void bl__requests_copied(bl__requests_t *requests, bl__operation_t *operation, uint64_t checksum,
                         const bl_error_t *err);
// paired: a load that must end now is being written by a transfer that only the end of the connection stops.
bool bl__requests_must_cut(bl__requests_t *requests, uint64_t now_ns);
// Ends what was cancelled, and what is late; `why`: what keeps the connection down, or NULL.
void bl__requests_tick(bl__requests_t *requests, uint64_t now_ns, const char *why);
// An operation that ended, out of the list of such; NULL: none. Let go of its memory, then call over.
bl__operation_t *bl__requests_take_ended(bl__requests_t *requests);
void bl__requests_over(bl__requests_t *requests, bl__operation_t *operation);

// Whether time matters: something waits for an answer, its turn or its deadline.
bool bl__requests_waits(const bl__requests_t *requests);

#endif
