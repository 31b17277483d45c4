// SPDX-License-Identifier: Apache-2.0
// How two stages come to have communicators with each other, as a state machine: who draws the unique ids, who says
// what when, and what happens when either end fails. Both ends use what was made, or neither does.
//
//     lower stage                     higher stage
//     IDS (generation, two ids)  -->                       when it is this pair's turn at the lower end
//     makes both                      makes both           when it is this pair's turn at the higher end
//                                <--  MADE (or why not)
//     USE, or DROP (why not)     -->                       from here on both use them, or neither
//     BROKE (why)               <-->  BROKE (why)          later: both end what they have; the lower end begins again
//
// A generation is never used twice; what is said of an older one is not heard. Messages of one end arrive in order, or
// the connection that carries them is lost, which ends the rendezvous (bl_nccl_rendezvous_part).
//
// Pure: no clock, no thread, no NCCL. Thread: the caller serializes.
#ifndef BALLAST_DATAPATH_NCCL_RENDEZVOUS_H
#define BALLAST_DATAPATH_NCCL_RENDEZVOUS_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

// X(identifier, name)
#define BL_NCCL_RENDEZVOUS_VERB_TABLE(X)                                                                               \
  X(BL_NCCL_RENDEZVOUS_IDS, "IDS")                                                                                     \
  X(BL_NCCL_RENDEZVOUS_READY, "MADE")                                                                                  \
  X(BL_NCCL_RENDEZVOUS_USE, "USE")                                                                                     \
  X(BL_NCCL_RENDEZVOUS_DROP, "DROP")                                                                                   \
  X(BL_NCCL_RENDEZVOUS_BROKE, "BROKE")

typedef enum bl_nccl_rendezvous_verb {
#define X(identifier, name) identifier,
  BL_NCCL_RENDEZVOUS_VERB_TABLE(X)
#undef X
      BL_NCCL_RENDEZVOUS_VERBS
} bl_nccl_rendezvous_verb_t;

typedef enum bl_nccl_rendezvous_state {
  BL_NCCL_RENDEZVOUS_APART,   // nothing is there; `err` says why, if it was tried
  BL_NCCL_RENDEZVOUS_WAITING, // for its turn; at the higher end also for ids
  BL_NCCL_RENDEZVOUS_MAKING,
  BL_NCCL_RENDEZVOUS_MADE, // here; the other end's word is awaited
  BL_NCCL_RENDEZVOUS_UP,
  BL_NCCL_RENDEZVOUS_ENDING, // what was made here is being ended
} bl_nccl_rendezvous_state_t;

typedef struct bl_nccl_rendezvous {
  bool lower;
  bl_nccl_rendezvous_state_t state;
  uint32_t generation; // of what is made, or was last
  bool has_ids;        // higher, WAITING: of `generation`
  bool peer_made;      // lower
  bool again;          // ENDING: then it begins anew
  bl_error_t err;      // why it failed last
} bl_nccl_rendezvous_t;

// What the owner does after an event, in this order; any of them.
enum {
  BL_NCCL_RENDEZVOUS_CLOSE = 1, // end what was made, then bl_nccl_rendezvous_closed
  BL_NCCL_RENDEZVOUS_SAY = 2,   // send what bl_nccl_rendezvous_step_t says
  BL_NCCL_RENDEZVOUS_OPEN =
      4, // make both, in the order of the ways; then bl_nccl_rendezvous_made or bl_nccl_rendezvous_failed
  BL_NCCL_RENDEZVOUS_TELL_UP = 8,     // transfers may be given to it
  BL_NCCL_RENDEZVOUS_TELL_FAILED = 16 // this generation is given up, by both ends; `err` says why
};
typedef struct bl_nccl_rendezvous_step {
  unsigned acts;
  bl_nccl_rendezvous_verb_t verb; // of SAY, about `generation`, with the status and text of `err`
  uint32_t generation;
  bl_error_t err;
} bl_nccl_rendezvous_step_t;

void bl_nccl_rendezvous_init(bl_nccl_rendezvous_t *rendezvous, bool lower); // WAITING

// Whether bl_nccl_rendezvous_turn may be called: something is to be made, and this end knows all that it needs.
static inline bool bl_nccl_rendezvous_can_begin(const bl_nccl_rendezvous_t *rendezvous) {
  return rendezvous->state == BL_NCCL_RENDEZVOUS_WAITING && (rendezvous->lower || rendezvous->has_ids);
}
// Whether something is being made, or about to be: later pairs wait for it.
static inline bool bl_nccl_rendezvous_is_busy(const bl_nccl_rendezvous_t *rendezvous) {
  return bl_nccl_rendezvous_can_begin(rendezvous) || rendezvous->state == BL_NCCL_RENDEZVOUS_MAKING ||
         rendezvous->state == BL_NCCL_RENDEZVOUS_MADE;
}

bl_nccl_rendezvous_step_t bl_nccl_rendezvous_turn(bl_nccl_rendezvous_t *rendezvous); // it is this pair's turn
bl_nccl_rendezvous_step_t bl_nccl_rendezvous_made(bl_nccl_rendezvous_t *rendezvous); // both are ready here
bl_nccl_rendezvous_step_t bl_nccl_rendezvous_failed(bl_nccl_rendezvous_t *rendezvous,
                                                    const bl_error_t *why);            // one failed here, in any state
bl_nccl_rendezvous_step_t bl_nccl_rendezvous_closed(bl_nccl_rendezvous_t *rendezvous); // nothing of it is left here
// The other end said this. `why` of MADE (BL_OK: it is), DROP and BROKE.
bl_nccl_rendezvous_step_t bl_nccl_rendezvous_heard(bl_nccl_rendezvous_t *rendezvous, bl_nccl_rendezvous_verb_t verb,
                                                   uint32_t generation, const bl_error_t *why);
// It is wanted again after it failed.
void bl_nccl_rendezvous_want(bl_nccl_rendezvous_t *rendezvous);
// The connection to the other end is lost. A new one begins with bl_nccl_rendezvous_begin.
bl_nccl_rendezvous_step_t bl_nccl_rendezvous_part(bl_nccl_rendezvous_t *rendezvous, const bl_error_t *why);
void bl_nccl_rendezvous_begin(bl_nccl_rendezvous_t *rendezvous);

#endif
