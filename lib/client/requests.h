// SPDX-License-Identifier: Apache-2.0
// The requests of one session with a store, as a state machine without I/O: what callers ask for, in which order it is
// sent, what is resent after a connection broke, and what the store's answers mean for slots and operations. transfer.c
// passes it answers, bytes and the time, sends the requests that it returns, and moves the bytes that it points at.
//
// States of an operation (evict, load, release, register, unregister), and the calls that change them:
//
// FREE --claim--> CLAIMED --submit--> QUEUED --next--> SENT --answer--> ENDED --take_ended, over--> OVER --free--> FREE
//                                       ^               |  \                ^
//                                       +---try again---+   +-> COPYING ----+     (pull: a load whose block is copied)
//
// tick aborts operations in QUEUED, SENT and COPYING that were cancelled or passed their deadline; lose ends all.
// Between ENDED and OVER transfer.c releases the operation's memory, and never reads or writes it after OVER.
//
// A slot is used by one operation at a time:
//
//   EMPTY --evict--> EVICTING --ok--> FULL --load--> LOADING --ok--> EMPTY (the next generation)
//                                       \--release--> LOADING --ok--> EMPTY
//                                       \--load that keeps--> LOADING --ok--> FULL
//   An evict or release that is aborted leaves it UNKNOWN until the answers that are still due, or a reservation, say
//   what became of it.
//
// Rules. tests/client/requests_model_test.c disables each of them (RULE in requests.c) and checks that its absence is
// detected:
//   1. After a connection broke, all unanswered requests are resent, under their numbers and in their order.
//   2. Releases are sent before any other new request: the next use of a slot follows them.
//   3. An evict that is aborted is followed by a release of the same generation; its slot is not used before.
//   4. A load that is aborted leaves its block in the store; its slot is full again when the answer has arrived.
//   5. A loaded block is released with the checksum that arrived; its slot then has the next generation.
//   6. Bytes that moved over a connection that broke do not count.
//   7. An answer is accepted once, and only for the number that it names.
//   8. A block whose checksum differs is not passed to its caller.
//   9. A request that is refused for now (retry_after_ms) is retried under another number, until its deadline.
//  10. The memory of an operation that has ended is not read any more: the rest of its bytes is not sent.
//  11. A load that leaves its block in the store, because the caller wants that or because it was aborted, is reported
//      to the store as over: until then the block counts as in flight.
//
// Thread: none of its own; the caller holds the client's mutex. Memory: all in the structure, except the table of
// slots.
#ifndef BALLAST_CLIENT_REQUESTS_H
#define BALLAST_CLIENT_REQUESTS_H

#include "client/client.h"
#include "client/sequences.h"
#include "client/slots.h"

#define BL__RELEASES (BL_CLIENT_TICKETS + BL__WINDOW)

// How the bytes of a block move, and which side computes checksums.
typedef enum bl__transfer_kind {
  BL__PULL,     // shm: each side copies out of the other's memory; verified at both ends
  BL__PULL_GPU, // cuda-ipc: the same by copy engines; not verified
  BL__PUSH,     // tcp: bytes are sent, with checksums
  BL__PAIRED,   // nccl: both sides queue their end; not verified
} bl__transfer_kind_t;

typedef enum bl__operation_type { BL__EVICT, BL__LOAD, BL__RELEASE, BL__REGISTER, BL__UNREGISTER } bl__operation_type_t;

typedef enum bl__operation_state {
  BL__OPERATION_FREE,
  BL__OPERATION_CLAIMED, // the caller fills it in
  BL__OPERATION_QUEUED,
  BL__OPERATION_SENT,
  BL__OPERATION_COPYING,
  BL__OPERATION_ENDED, // `err` has the outcome; its memory is not released yet
  BL__OPERATION_OVER,  // a wait can take it
} bl__operation_state_t;

typedef struct bl__operation {
  struct bl__operation *next;  // in the queue, or in the list of copying or ended ones
  struct bl__operation *sends; // push: in the list of evicts that are being sent
  bl__operation_type_t type;
  bl__operation_state_t state;
  uint32_t serial;
  bool cancelled;
  bool internal; // of opening: no caller waits for it
  uint64_t deadline_ns;
  bl_error_t err;
  uint64_t slot, generation, bytes;
  const uint8_t *from; // evict
  uint8_t *to;         // load: destination of the wanted bytes
  uint64_t skip, take; // load: of a part, the bytes before it and its own; of a whole block 0 and all
  uint32_t region;     // evict, register, unregister
  uint64_t region_offset;
  int fd; // register
  bl_client_label_t label;
  bool keeps;          // load: the block stays in the store
  bool known;          // evict: the caller gave the checksum
  uint64_t checksum;   // evict: of the block
  uint64_t sequence;   // 0: not sent
  uint64_t at, hash;   // push: bytes sent or received over this connection, and their checksum; paired: all or nothing
  bool corrupt;        // push: a received chunk does not match its checksum
  bool moving;         // paired: this end is queued and not over
  bool wipe;           // load: the destination has bytes that are not the block's, and must be zeroed
  uint64_t offset;     // pull: where the block lies in the store's memory
  uint64_t wanted;     // pull: the checksum that the block must have
  uint64_t timeout_ns; // paired: until when a cancelled load may still end on its own
} bl__operation_t;

// A request that was sent and is not answered. It is needed to resend it, and to apply a late answer to its slot.
typedef struct bl__sent {
  uint64_t sequence;          // 0: unused
  bl__operation_t *operation; // NULL: no operation waits (any more)
  bl__operation_type_t type;
  bool out;  // sent over this connection
  bool sets; // a release: its answer determines the slot's state
  bool loaded;
  bool keeps; // sent as a release, but the loaded block stays
  uint64_t id, generation, bytes, checksum;
  const uint8_t *from; // evict: stays readable while its region is registered, even if no operation waits
  uint32_t region;
  uint64_t region_offset;
  bl_client_label_t label;
} bl__sent_t;

typedef struct bl__release { // the end of a use of a slot, to be reported to the store
  uint64_t id, generation, bytes, checksum;
  bool loaded, keeps;
  bool sets; // false: the slot is in use again already
} bl__release_t;

typedef struct bl__answer {
  uint64_t sequence;
  bl_status_t status;
  uint64_t id, generation, bytes, offset, checksum;
  uint32_t retry_after_ms;
  const char *text; // the cause of a refusal
} bl__answer_t;

typedef struct bl__requests {
  // Set with each session, then constant.
  bl__transfer_kind_t kind;
  bool verified;       // blocks have checksums that both ends compute
  uint64_t flow_bytes; // limit of bytes in flight; 0: none
  const char *store;   // its address, for messages; borrowed

  bool linked;
  unsigned busy; // operations that are QUEUED, SENT or COPYING
  bl__operation_t operations[BL_CLIENT_TICKETS];
  uint32_t hint;
  bl__operation_t *queue_first, *queue_last;     // wait to be sent
  bl__operation_t *sending_first, *sending_last; // push: evicts that are being sent, in order
  bl__operation_t *copying_first, *copying_last; // pull: loads whose blocks are to be copied, in order
  bl__operation_t *ended_first, *ended_last;
  bl__sent_t sent[BL__WINDOW];
  unsigned sent_count;
  bl__release_t releases[BL__RELEASES]; // wait for space in the window
  unsigned release_count;
  uint64_t flow;           // bytes in flight
  uint64_t pause_until_ns; // no new request is sent before
  bool cancels;            // an operation was cancelled since the last tick
  bl__sequences_t sequences;
  bl__slots_t slots;
  bl_client_counters_t counters;
} bl__requests_t;

// Begins a session: nothing is sent, no slot is known. All operations must be FREE. Counters and the address stay.
void bl__requests_begin(bl__requests_t *requests, bl__transfer_kind_t kind, bool verified, uint64_t flow_bytes);
void bl__requests_cleanup(bl__requests_t *requests);

// ---- by callers

// Claims a FREE operation. NULL: all are in use.
bl__operation_t *bl__requests_claim(bl__requests_t *requests, bl__operation_type_t type, uint64_t deadline_ns);
// Begins a use of a slot by a claimed operation, and sets the operation's slot and generation. BL_NOT_FOUND,
// BL_PRECONDITION, BL_INVALID: the operation is FREE again.
BL_MUST_USE bl_status_t bl__requests_use(bl__requests_t *requests, bl__operation_t *operation, uint64_t slot,
                                         uint64_t bytes, bl_error_t *err);
void bl__requests_submit(bl__requests_t *requests, bl__operation_t *operation);
void bl__requests_cancel(bl__requests_t *requests, bl__operation_t *operation);
void bl__requests_free(bl__requests_t *requests, bl__operation_t *operation); // OVER or CLAIMED

// ---- by the loop's thread

void bl__requests_link_up(bl__requests_t *requests);
void bl__requests_link_down(bl__requests_t *requests);
// The session is lost: ends every operation with the cause.
void bl__requests_lose(bl__requests_t *requests, const bl_error_t *cause);

// Returns what to send next. It then counts as sent; or it was sent before, over a connection that broke. `operation`
// NULL: none waits for it. REGISTER and UNREGISTER have no sequence. False: nothing to send now.
typedef struct bl__request {
  bl__operation_type_t type;
  bl__operation_t *operation;
  bl__sent_t sent; // REGISTER and UNREGISTER have only sent.region and sent.bytes
  uint64_t acknowledged;
} bl__request_t;
bool bl__requests_next(bl__requests_t *requests, uint64_t now_ns, bl__request_t *request);
// Records the checksum of an evict, computed when it was sent, for the case that it is resent.
void bl__requests_checked(bl__requests_t *requests, const bl__request_t *request, uint64_t checksum);
// Puts back a REGISTER whose descriptor cannot be sent yet: it is the next request again.
void bl__requests_put_back(bl__requests_t *requests, bl__operation_t *operation);

// push: the first `at` bytes of an evict are sent, and `hash` is their checksum. After the last byte it leaves
// `sending`.
void bl__requests_pushed(bl__requests_t *requests, bl__operation_t *operation, uint64_t at, uint64_t hash);
// push: `bytes` arrive for the load of this number, at this offset. Returns its operation. NULL: they are to be
// skipped.
bl__operation_t *bl__requests_coming(bl__requests_t *requests, uint64_t sequence, uint64_t bytes, uint64_t offset);
// They have arrived. `matches`: with the checksum that came with them.
void bl__requests_came(bl__requests_t *requests, bl__operation_t *operation, uint64_t bytes, uint64_t hash,
                       bool matches);
void bl__requests_answer(bl__requests_t *requests, const bl__answer_t *answer, uint64_t now_ns);
// Ends the operation whose REGISTER or UNREGISTER was answered.
void bl__requests_registered(bl__requests_t *requests, bl__operation_type_t type, uint32_t region, bl_status_t status,
                             const char *text);
// pull: returns the load whose block is copied next, from operation->offset of the store's memory. NULL: none.
bl__operation_t *bl__requests_copying(const bl__requests_t *requests);
// The copy has ended, with this checksum, or with an error `err`.
void bl__requests_copied(bl__requests_t *requests, bl__operation_t *operation, uint64_t checksum,
                         const bl_error_t *err);
// paired: returns whether a load that must end now is being written by a transfer that only the end of the connection
// stops.
bool bl__requests_must_cut(bl__requests_t *requests, uint64_t now_ns);
// Aborts what was cancelled or is past its deadline. `why`: what keeps the connection down, or NULL.
void bl__requests_tick(bl__requests_t *requests, uint64_t now_ns, const char *why);
// Takes an operation that has ended off their list. NULL: none. Release its memory, then call over.
bl__operation_t *bl__requests_take_ended(bl__requests_t *requests);
void bl__requests_over(bl__requests_t *requests, bl__operation_t *operation);

// Returns whether time matters: something waits to be sent, for an answer or for its deadline.
bool bl__requests_waits(const bl__requests_t *requests);

#endif
