// SPDX-License-Identifier: Apache-2.0
// Progress flags of the members of a group on one machine. Every member has a page at the start of its exchange arena
// that it alone writes, and read-only maps of its peers' pages. So a collective costs no message, and a member that is
// late or dead cannot write into any other member's memory.
//
//   bl_group_progress_init(&progress, page, rank, members);
//   bl_group_progress_set_peer(&progress, peer, its_page);           // for every peer that is on this machine
//   bl_group_progress_begin(&progress, attempt);
//   bl_group_progress_wait_taken(&progress, peer, before, &wait, err);   // every peer; `before` last used this window
//   ... write the own window ...
//   bl_group_progress_publish(&progress, n);
//   bl_group_progress_wait_ready(&progress, peer, n, &wait, err);        // every peer
//   ... read the peer's window ...
//   bl_group_progress_take(&progress, n);
//
// Collectives of an attempt are numbered from 1. A page has two flags, each (attempt, n). `ready`: what the member
// contributes to collectives up to n is in its windows. `taken`: the member no longer reads any window for collectives
// up to n.
//
// Rules of windows:
//   1. A window is read only after its member is ready in the reader's own attempt.
//   2. A window is rewritten only after every peer has taken the collective that last used it, or is in a later
//      attempt.
//   3. A member that has taken all collectives of an attempt begins the next attempt when every peer has taken the last
//      of them too, or is in a later attempt. A member that aborted its attempt begins the next one at once. What a
//      peer then reads from it belongs to an attempt that cannot count, because the member will not vote for it.
//   4. A member publishes when its own window is written, and takes when all its reading is over.
//   5. If a peer is in a later attempt, it will never be ready for ours (BL_UNAVAILABLE), and it no longer reads our
//      windows (BL_OK). A wait for a peer in an earlier attempt continues.
// An attempt counts when all members have completed it (lib/step). So a peer in a later attempt may have aborted ours
// or have completed it. A member that has taken everything need not know which.
//
// Thread: the compute thread of the member. Any thread may cancel a wait.
#ifndef BALLAST_COLLECTIVE_PROGRESS_H
#define BALLAST_COLLECTIVE_PROGRESS_H

#include "base/error.h"

#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define BL_GROUP_PROGRESS_MEMBERS 64              // of a group, at most
#define BL_GROUP_PROGRESS_SPIN_NS UINT64_C(20000) // shorter waits end without a sleep
#define BL_GROUP_PROGRESS_SLOW_NS UINT64_C(50000) // for longer waits it pays to release a core
// Interval at which a sleeping wait checks for loss and cancellation.
#define BL_GROUP_PROGRESS_LOOK_NS UINT64_C(20000000)

// Flags are attempt << 32 | n. A waiter sleeps (futex) on the lower half, which changes with every n.
typedef struct bl_group_page {
  alignas(64) _Atomic uint64_t ready;
  alignas(64) _Atomic uint64_t taken;
} bl_group_page_t;

typedef struct bl_group_progress {
  bl_group_page_t *page;
  uint32_t rank, members;
  uint64_t attempt;
  const bl_group_page_t *pages[BL_GROUP_PROGRESS_MEMBERS]; // NULL: not on this machine, reached through messages
} bl_group_progress_t;

// What ends a wait early, and what to do during it. The waiting thread makes the callbacks.
typedef struct bl_group_progress_wait {
  uint64_t deadline_ns; // on bl_clock_now_ns(); 0: does not wait, UINT64_MAX: no deadline
  // Set by another thread. The wait sees it within BL_GROUP_PROGRESS_LOOK_NS. NULL: never.
  const atomic_bool *cancelled;
  // Called once, after BL_GROUP_PROGRESS_SLOW_NS, to release a core. NULL: nothing to do.
  void (*slow)(void *user);
  // Calls `slow` at once and does not spin: the member cannot become ready before it has a core.
  bool at_once;
  // Called every BL_GROUP_PROGRESS_LOOK_NS. True: the page of `member` is no longer written. NULL: never lost.
  bool (*lost)(void *user, uint32_t member);
  void *user;
} bl_group_progress_wait_t;

// `page` is the member's own, writable page, which the call clears. members <= BL_GROUP_PROGRESS_MEMBERS, rank <
// members.
void bl_group_progress_init(bl_group_progress_t *progress, bl_group_page_t *page, uint32_t rank, uint32_t members);
// Sets where the page of a peer is mapped; the map stays valid until it is set again. NULL: the peer is not on this
// machine.
void bl_group_progress_set_peer(bl_group_progress_t *progress, uint32_t member, const bl_group_page_t *page);
// Sets both flags to (attempt, 0). `attempt` is above the last one. By rule 3.
void bl_group_progress_begin(bl_group_progress_t *progress, uint64_t attempt);
// `n` is above the last one of the attempt. By rule 4. A peer that waited for `n` sees all that was written before.
void bl_group_progress_publish(bl_group_progress_t *progress, uint32_t n);
void bl_group_progress_take(bl_group_progress_t *progress, uint32_t n);

// Waits until `member` (on this machine) is ready for n. Spins briefly, then sleeps. BL_CANCELLED; BL_UNAVAILABLE: the
// member is lost, or in a later attempt; BL_DEADLINE.
BL_MUST_USE bl_status_t bl_group_progress_wait_ready(const bl_group_progress_t *progress, uint32_t member, uint32_t n,
                                                     const bl_group_progress_wait_t *wait, bl_error_t *err);
// Waits until `member` has taken n, or is in a later attempt. n = 0: nothing to wait for. Failures as above.
BL_MUST_USE bl_status_t bl_group_progress_wait_taken(const bl_group_progress_t *progress, uint32_t member, uint32_t n,
                                                     const bl_group_progress_wait_t *wait, bl_error_t *err);

#endif
