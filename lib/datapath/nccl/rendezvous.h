// SPDX-License-Identifier: Apache-2.0
// The rendezvous: a state machine by which two stages agree on communicators with each other. It decides who draws the
// unique ids, who sends what when, and what happens when either end fails. Either both ends use the new communicators,
// or neither does.
//
//     lower stage                     higher stage
//     IDS (generation, two ids)  -->                       when it is this pair's turn at the lower end
//     creates both                    creates both         when it is this pair's turn at the higher end
//                                <--  MADE (or why not)
//     USE, or DROP (why not)     -->                       from here on both use them, or neither
//     BROKE (why)               <-->  BROKE (why)          later: both end theirs; the lower end starts over
//
// A generation is never used twice. Messages of an older generation are ignored. Messages of one end arrive in order,
// or the connection that carries them is lost, which ends the rendezvous (bl_nccl_rendezvous_part).
//
// Pure: no clock, no thread, no NCCL. Thread: the caller serializes.
#ifndef BALLAST_DATAPATH_NCCL_RENDEZVOUS_H
#define BALLAST_DATAPATH_NCCL_RENDEZVOUS_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

// X(identifier, name)
#define BL_NCCL_RENDEZVOUS_KIND_TABLE(X)                                                                               \
  X(BL_NCCL_RENDEZVOUS_IDS, "IDS")                                                                                     \
  X(BL_NCCL_RENDEZVOUS_READY, "MADE")                                                                                  \
  X(BL_NCCL_RENDEZVOUS_USE, "USE")                                                                                     \
  X(BL_NCCL_RENDEZVOUS_DROP, "DROP")                                                                                   \
  X(BL_NCCL_RENDEZVOUS_BROKE, "BROKE")

typedef enum bl_nccl_rendezvous_kind {
#define X(identifier, name) identifier,
  BL_NCCL_RENDEZVOUS_KIND_TABLE(X)
#undef X
      BL_NCCL_RENDEZVOUS_KINDS
} bl_nccl_rendezvous_kind_t;

typedef enum bl_nccl_rendezvous_state {
  BL_NCCL_RENDEZVOUS_APART,   // no communicators; `err` says why, if it was tried
  BL_NCCL_RENDEZVOUS_WAITING, // for its turn; at the higher end also for ids
  BL_NCCL_RENDEZVOUS_MAKING,
  BL_NCCL_RENDEZVOUS_MADE, // here; the message of the other end is awaited
  BL_NCCL_RENDEZVOUS_UP,
  BL_NCCL_RENDEZVOUS_ENDING, // the communicators of this end are being closed
} bl_nccl_rendezvous_state_t;

typedef struct bl_nccl_rendezvous {
  bool lower;
  bl_nccl_rendezvous_state_t state;
  // Of the communicators that are being created, or were last.
  uint32_t generation;
  // Higher end, WAITING: the ids of `generation` have arrived.
  bool has_ids;
  bool peer_made; // lower
  bool again;     // ENDING: the rendezvous then starts over
  bl_error_t err; // why it failed last
} bl_nccl_rendezvous_t;

// Actions for the owner after an event, in this order. Any subset may be set.
enum {
  BL_NCCL_RENDEZVOUS_CLOSE = 1, // close the communicators, then bl_nccl_rendezvous_closed
  BL_NCCL_RENDEZVOUS_SAY = 2,   // send the message in bl_nccl_rendezvous_step_t
  // Create both, in order (order.h); then bl_nccl_rendezvous_made or bl_nccl_rendezvous_failed.
  BL_NCCL_RENDEZVOUS_OPEN = 4,
  BL_NCCL_RENDEZVOUS_TELL_UP = 8,     // report: transfers may be posted
  BL_NCCL_RENDEZVOUS_TELL_FAILED = 16 // report: both ends dropped this generation; `err` says why
};
typedef struct bl_nccl_rendezvous_step {
  unsigned acts;
  bl_nccl_rendezvous_kind_t kind; // of SAY, about `generation`, with the status and text of `err`
  uint32_t generation;
  bl_error_t err;
} bl_nccl_rendezvous_step_t;

void bl_nccl_rendezvous_init(bl_nccl_rendezvous_t *rendezvous, bool lower); // WAITING

// Returns whether bl_nccl_rendezvous_turn may be called: communicators are to be created, and this end knows all that
// it needs.
static inline bool bl_nccl_rendezvous_can_begin(const bl_nccl_rendezvous_t *rendezvous) {
  return rendezvous->state == BL_NCCL_RENDEZVOUS_WAITING && (rendezvous->lower || rendezvous->has_ids);
}
// Returns whether communicators are being created, or about to be. Later pairs wait for that.
static inline bool bl_nccl_rendezvous_is_busy(const bl_nccl_rendezvous_t *rendezvous) {
  return bl_nccl_rendezvous_can_begin(rendezvous) || rendezvous->state == BL_NCCL_RENDEZVOUS_MAKING ||
         rendezvous->state == BL_NCCL_RENDEZVOUS_MADE;
}

bl_nccl_rendezvous_step_t bl_nccl_rendezvous_turn(bl_nccl_rendezvous_t *rendezvous); // it is this pair's turn
bl_nccl_rendezvous_step_t bl_nccl_rendezvous_made(bl_nccl_rendezvous_t *rendezvous); // both are ready here
bl_nccl_rendezvous_step_t bl_nccl_rendezvous_failed(bl_nccl_rendezvous_t *rendezvous,
                                                    const bl_error_t *why); // one failed here, in any state
// The communicators are closed at this end.
bl_nccl_rendezvous_step_t bl_nccl_rendezvous_closed(bl_nccl_rendezvous_t *rendezvous);
// Called for a message of the other end. `why` of MADE (BL_OK: created), DROP and BROKE.
bl_nccl_rendezvous_step_t bl_nccl_rendezvous_heard(bl_nccl_rendezvous_t *rendezvous, bl_nccl_rendezvous_kind_t kind,
                                                   uint32_t generation, const bl_error_t *why);
// Requests new communicators after a failure.
void bl_nccl_rendezvous_want(bl_nccl_rendezvous_t *rendezvous);
// Called when the connection to the other end is lost. A new connection starts with bl_nccl_rendezvous_begin.
bl_nccl_rendezvous_step_t bl_nccl_rendezvous_part(bl_nccl_rendezvous_t *rendezvous, const bl_error_t *why);
void bl_nccl_rendezvous_begin(bl_nccl_rendezvous_t *rendezvous);

#endif
