// SPDX-License-Identifier: Apache-2.0
// The lifecycle of one two-rank communicator as a state machine: which operations are allowed when, how long each step
// may take, and when the communicator must be aborted. Events and times are passed in. At most one action is returned.
//
//   NONE -> CREATING -> READY <-> IN_USE          every step with a deadline
//              |          |         |
//              +----------+---------+--> ABORTING -> DEAD          a failure, a deadline, or a cancel by the owner
//                                            |         ^
//                                            +-> STUCK-+           the abort itself does not return
//
// A communicator is never finalized, because that waits for the peer, which may be dead. It is always aborted, even if
// idle. A launched transfer is over only once it has completed, or once the abort has returned. Until then it may touch
// memory. STUCK means that memory of this process may be touched without end, so the process has to end.
//
// Pure: no clock, no thread, no NCCL. Thread: the caller serializes.
#ifndef BALLAST_DATAPATH_NCCL_LIFE_H
#define BALLAST_DATAPATH_NCCL_LIFE_H

#include "base/status.h"
#include "datapath/nccl/api.h"

#include <stdbool.h>
#include <stdint.h>

// X(identifier, name)
#define BL_NCCL_STATE_TABLE(X)                                                                                         \
  X(BL_NCCL_NONE, "none")                                                                                              \
  X(BL_NCCL_CREATING, "creating")                                                                                      \
  X(BL_NCCL_READY, "ready")                                                                                            \
  X(BL_NCCL_IN_USE, "in use")                                                                                          \
  X(BL_NCCL_ABORTING, "aborting")                                                                                      \
  X(BL_NCCL_STUCK, "stuck")                                                                                            \
  X(BL_NCCL_DEAD, "dead")

typedef enum bl_nccl_state {
#define X(identifier, name) identifier,
  BL_NCCL_STATE_TABLE(X)
#undef X
      BL_NCCL_STATES
} bl_nccl_state_t;
const char *bl_nccl_state_name(bl_nccl_state_t state); // "in use"; never NULL
// Returns whether it is of no use any more.
static inline bool bl_nccl_state_has_ended(bl_nccl_state_t state) {
  return state == BL_NCCL_ABORTING || state == BL_NCCL_STUCK || state == BL_NCCL_DEAD;
}

typedef enum bl_nccl_event {
  BL_NCCL_EVENT_CREATE,   // create the communicator
  BL_NCCL_EVENT_CREATED,  // it is created
  BL_NCCL_EVENT_LAUNCHED, // a transfer of `bytes` was launched
  BL_NCCL_EVENT_OVER,     // the oldest transfer is over
  BL_NCCL_EVENT_FAILED,   // a call or the communicator failed, with `cause`
  BL_NCCL_EVENT_CANCEL,   // its owner closes it, with `cause`
  BL_NCCL_EVENT_ABORTED,  // the abort has returned
  BL_NCCL_EVENT_TICK,     // time has passed
  BL_NCCL_EVENTS
} bl_nccl_event_t;

typedef enum bl_nccl_act {
  BL_NCCL_ACT_NONE,
  BL_NCCL_ACT_CREATE,     // call create, then poll until CREATED or FAILED
  BL_NCCL_ACT_TELL_READY, // report: transfers may be launched
  BL_NCCL_ACT_ABORT,      // make no more calls; abort it on another thread, then ABORTED
  BL_NCCL_ACT_TELL_DEAD,  // report: everything that was launched has ended with `cause`
  BL_NCCL_ACT_TELL_STUCK, // report: the process has to end
} bl_nccl_act_t;

typedef struct bl_nccl_deadlines { // 0: BL_NCCL_*_NS below
  uint64_t create_ns;              // for the creation, by both ranks
  uint64_t transfer_ns;            // for one transfer, in addition to the time for its bytes
  uint64_t bytes_per_second;       // lowest rate that is allowed
  uint64_t abort_ns;               // for the abort
} bl_nccl_deadlines_t;

#define BL_NCCL_CREATE_NS        (UINT64_C(60) * 1000000000)
#define BL_NCCL_TRANSFER_NS      (UINT64_C(5) * 1000000000)
#define BL_NCCL_BYTES_PER_SECOND UINT64_C(50000000) // a slow socket; NVLink moves a thousand times that
#define BL_NCCL_ABORT_NS         (UINT64_C(5) * 1000000000)
#define BL_NCCL_WAITING_ABORT_NS (UINT64_C(600) * 1000000000) // the same, behind work that waits for peers

typedef struct bl_nccl_life {
  bl_nccl_deadlines_t deadlines;
  bl_nccl_state_t state;
  bl_status_t cause;    // of ABORTING, STUCK and DEAD; BL_OK before
  bool late;            // the cause is a deadline
  uint64_t deadline_ns; // of the state; UINT64_MAX: none
  // When the state began; in use: when the oldest transfer could begin.
  uint64_t since_ns;
  // How often bl_nccl_life_excuse has extended this state.
  uint32_t excused;
  uint32_t first, in_flight;
  // Of launched transfers, a ring from `first`.
  uint64_t bytes[BL_NCCL_IN_FLIGHT];
} bl_nccl_life_t;

void bl_nccl_life_init(bl_nccl_life_t *life, const bl_nccl_deadlines_t *deadlines); // NULL: all defaults
// Processes an event, with `cause` of FAILED and CANCEL and `bytes` of LAUNCHED. An event that has no meaning in the
// state changes nothing.
bl_nccl_act_t bl_nccl_life_on(bl_nccl_life_t *life, bl_nccl_event_t event, uint64_t now_ns, bl_status_t cause,
                              uint64_t bytes);
// Called when this process did not run for a while. Restarts the deadline of the state, up to BL_NCCL_EXCUSES times, so
// that a machine which is always late still ends.
#define BL_NCCL_EXCUSES 3u
void bl_nccl_life_excuse(bl_nccl_life_t *life, uint64_t now_ns);
// Returns whether a transfer may be launched now.
bool bl_nccl_life_takes(const bl_nccl_life_t *life);

#endif
