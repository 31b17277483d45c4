// SPDX-License-Identifier: Apache-2.0
// What the members of a group on one machine tell each other beside their windows: how far each has come. Every member
// has a page at the start of its exchange arena that it alone writes, and read-only maps of the pages of the others; so
// a collective costs no message, and a member that is late or dead can write to nobody.
//
//   bl_group_progress_init(&progress, page, rank, members);
//   bl_group_progress_set_peer(&progress, peer, its_page);           // of every peer that is on this machine
//   bl_group_progress_begin(&progress, attempt);
//   bl_group_progress_wait_taken(&progress, peer, before, &wait, err);   // every peer; `before` used the same window last
//   ... write the own window ...
//   bl_group_progress_publish(&progress, n);
//   bl_group_progress_wait_ready(&progress, peer, n, &wait, err);        // every peer
//   ... read the peer's window ...
//   bl_group_progress_take(&progress, n);
//
// Collectives of an attempt are numbered from 1. A page has two flags, each (attempt, n): `ready`, what the member
// contributes up to n is in its windows; `taken`, it reads nobody's windows any more for collectives up to n.
//
// Rules of windows:
//   1. A window is read once its member is ready, in this very attempt,
//   2. and written again once every peer has taken the collective that used it last, or is in a later attempt.
//   3. A member that has taken all collectives of an attempt begins the next one when every peer has taken the last of
//      them, too, or is in a later attempt. One that gave its attempt up begins at once: what is read of it then is of an
//      attempt that cannot count, because it will not vote for it.
//   4. Publish when the own window is written, take when all reading is over.
//   5. Who waits for a peer that is in a later attempt waits in vain: to be ready is nothing it will be (BL_UNAVAILABLE),
//      what it had to take it has left (BL_OK). One in an earlier attempt is waited for.
// An attempt counts when all members have ended it well (lib/step). So a peer in a later attempt may have given ours up
// or have ended it; who has taken everything need not know which.
//
// Thread: the compute thread of the member; a wait can be cancelled from any.
#ifndef BALLAST_COLLECTIVE_PROGRESS_H
#define BALLAST_COLLECTIVE_PROGRESS_H

#include "base/error.h"

#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define BL_GROUP_PROGRESS_MEMBERS 64                 // of a group, at most
#define BL_GROUP_PROGRESS_NUMBERS (1u << 24)         // collectives of an attempt are below this
#define BL_GROUP_PROGRESS_SPIN_NS UINT64_C(20000)    // a wait that is shorter ends without a sleep
#define BL_GROUP_PROGRESS_SLOW_NS UINT64_C(50000)    // a longer one is worth giving a core away
#define BL_GROUP_PROGRESS_LOOK_NS UINT64_C(20000000) // how often who sleeps looks whether to give up

// attempt << 24 | n. Whoever waits sleeps on the lower half, which changes with every n.
typedef struct bl_group_page {
  alignas(64) _Atomic uint64_t ready;
  alignas(64) _Atomic uint64_t taken;
} bl_group_page_t;

typedef struct bl_group_progress {
  bl_group_page_t *page;
  uint32_t rank, members;
  uint64_t attempt;
  const bl_group_page_t *pages[BL_GROUP_PROGRESS_MEMBERS]; // NULL: not on this machine, it is reached another way
} bl_group_progress_t;

// When a wait is over, beside its end; what it is left to do meanwhile. Callbacks are on the thread that waits.
typedef struct bl_group_progress_wait {
  uint64_t deadline_ns;         // on bl_clock_now_ns(); 0: does not wait, UINT64_MAX: no deadline
  const atomic_bool *cancelled; // by another thread; seen within BL_GROUP_PROGRESS_LOOK_NS. NULL: never
  void (*slow)(void *user);     // once, after BL_GROUP_PROGRESS_SLOW_NS: give a core back. NULL: nothing to do
  bool (*lost)(void *user,
               uint32_t member); // asked every BL_GROUP_PROGRESS_LOOK_NS: its page is not written any more. NULL:
                                 // never
  void *user;
} bl_group_progress_wait_t;

// `page` is the own one, writable, and is cleared; members <= BL_GROUP_PROGRESS_MEMBERS, rank < members.
void bl_group_progress_init(bl_group_progress_t *progress, bl_group_page_t *page, uint32_t rank, uint32_t members);
// Where the page of a peer is mapped: valid until it is set again. NULL: it is not on this machine.
void bl_group_progress_set_peer(bl_group_progress_t *progress, uint32_t member, const bl_group_page_t *page);
// Both flags to (attempt, 0); above the last one. By rule 3.
void bl_group_progress_begin(bl_group_progress_t *progress, uint64_t attempt);
// Above the last n of the attempt. By rule 4. What was written before is seen by who waited for it.
void bl_group_progress_publish(bl_group_progress_t *progress, uint32_t n);
void bl_group_progress_take(bl_group_progress_t *progress, uint32_t n);

// Waits until `member` (on this machine) is ready for n. BL_CANCELLED; BL_UNAVAILABLE: it is lost, or in a later
// attempt; BL_DEADLINE. Spins briefly, then sleeps.
BL_MUST_USE bl_status_t bl_group_progress_wait_ready(const bl_group_progress_t *progress, uint32_t member, uint32_t n,
                                                     const bl_group_progress_wait_t *wait, bl_error_t *err);
// Waits until it has taken n, or is in a later attempt. n = 0: nothing to wait for. Failures as above.
BL_MUST_USE bl_status_t bl_group_progress_wait_taken(const bl_group_progress_t *progress, uint32_t member, uint32_t n,
                                                     const bl_group_progress_wait_t *wait, bl_error_t *err);

#endif
