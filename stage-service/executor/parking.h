// SPDX-License-Identifier: Apache-2.0
// Where evicted blocks are kept: the interface between the executor and the code that keeps activation blocks outside
// of the stage (the client of an activation-store, or memory of the process in tests). It is chosen once, before the
// first run:
//
//   struct keeper { bl_parking_t parking; ... } *keeper;   // `parking` first
//   engine->parking = &keeper->parking;                    // NULL: this stage evicts nothing
//
// What the executor calls in one attempt:
//   begin(attempt)
//   E:  begin_evict(block, slot)           returns at once; the bytes leave while the stage computes
//       wait(block)                        before the slot is written again, or before L of the same block
//   L:  begin_load(block, slot)            returns at once; the bytes come while the stage computes
//       wait(block)                        before the block's I or B
//   abort(attempt)                         if the attempt ends early
//
// Rules
//   1. begin_evict and begin_load never wait for a peer: they check, queue and return.
//   2. Transfers with one store start in the order of the begin calls, which is the plan's order, one after the other
//      or several at a time. A plan relies on it: an eviction may need the space that an earlier load frees
//      (schedule/balance/balance.h). A transfer without space waits, with all that follow it, until an earlier one has
//      ended. A begin never names memory that an earlier transfer of this parking still uses, so the order cannot
//      deadlock.
//   3. At most one transfer is in flight per slot, so at most as many as the stage has slots. The parking itself bounds
//      how many of them move bytes at once.
//   4. Only the owner of a destination writes it. The source of an eviction is only read, by the parking or by a peer
//      that mapped it read-only. Only a thread of this process writes the slot of a load. From begin, or once the device
//      has reached `ready`, until wait returns its outcome, the slot belongs to the transfer: the executor neither
//      writes the source nor touches the destination. After wait returned BL_OK, or abort returned, nothing touches the slot any more. (A store that
//      reads the source of a cancelled eviction reads bytes that fail their checksum; it must not keep them.)
//   5. A block that was parked (eviction BL_PARKING_DONE) is kept until its load or the end of the attempt. The load
//      consumes it whatever its outcome.
//   6. A load is BL_PARKING_DONE only if the bytes in the slot have the checksum that was passed with the eviction.
//   7. BL_PARKING_LOST of an eviction: the block never arrived. The executor counts it as dropped. As long as a
//      store takes no blocks, begin_evict returns BL_UNAVAILABLE. BL_PARKING_LOST of a load: the block was lost with
//      its store, was returned changed, or did not arrive in time. In both cases the executor recomputes the block from
//      its kept input and compares the checksum: no outcome changes a loss.
//   8. At its deadline wait ends the transfer by rule 4 with the outcome BL_PARKING_LOST.
//   9. A transfer with `ready` begins once the device has reached that event, and no later transfer in the order begins
//      before it. The caller of begin does not wait for that. Until then the transfer, its deadline included, is the
//      parking's responsibility.
//  10. interrupt wakes every wait with BL_CANCELLED, and makes waits and begins of this attempt fail with it, until the
//      next `begin`.
//
// Thread: any thread may call interrupt. Everything else is called on the compute thread. Bytes move on the parking's
// own threads.
// Memory: nothing allocates between two calls of `begin`. What an attempt needs was reserved with its plan.
#ifndef BALLAST_EXECUTOR_PARKING_H
#define BALLAST_EXECUTOR_PARKING_H

#include "base/error.h"
#include "device/device.h"

#include <stdbool.h>
#include <stdint.h>

// The key contains the attempt, so that a block of an older attempt is never mistaken for one of this attempt.
typedef struct bl_parking_key {
  uint64_t attempt;
  uint32_t virtual_stage;
  uint32_t micro_batch; // with slices micro_batch x slices + slice (bl_schedule_unit)
} bl_parking_key_t;

typedef struct bl_parked_block {
  bl_parking_key_t key;
  uint32_t micro_batch; // number for messages
  uint16_t store;       // chosen by the plan: index of the device whose store it is (schedule/ir/op.h)
  uint64_t bytes;       // evict_bytes: the prefix of the slot that lives between F and I, padding defined
  uint64_t checksum;    // bl_block_checksum(block, bytes), datapath/block.h, where `ready` is NULL
  // On an asynchronous device. ready: the event that the device must have reached (NULL: begin at once). hash: where
  // the checksum by ops->checksum is then; without device_memory NULL: the parking computes bl_block_checksum then.
  // Both stay valid until the transfer has ended.
  bl_device_event_t *ready;
  const uint64_t *hash;
} bl_parked_block_t;

typedef enum bl_parking_outcome {
  BL_PARKING_DONE,
  BL_PARKING_LOST,
} bl_parking_outcome_t;

// On bl_clock_now_ns(). A transfer that the device has not reached is requested when it has.
typedef struct bl_parking_span {
  uint64_t asked_ns, ended_ns;
} bl_parking_span_t;

typedef struct bl_parking bl_parking_t;

typedef struct bl_parking_ops {
  // From now on only `attempt`, higher than all before, is valid; blocks of older ones are forgotten. Any status but
  // BL_OK ends the run.
  bl_status_t (*begin)(bl_parking_t *parking, uint64_t attempt, bl_error_t *err);
  // BL_UNAVAILABLE: no store accepts the block now, and nothing was begun; the executor drops the block. BL_CANCELLED.
  // Any other status ends the run.
  bl_status_t (*begin_evict)(bl_parking_t *parking, const bl_parked_block_t *block, const void *source,
                             bl_error_t *err);
  // The same block as in begin_evict; the slot may be another one. BL_UNAVAILABLE: the block is known to be lost, and
  // nothing was begun. BL_CANCELLED. Any other status ends the run.
  bl_status_t (*begin_load)(bl_parking_t *parking, const bl_parked_block_t *block, void *slot, bl_error_t *err);
  // Waits until the block's transfer has ended, and forgets the transfer. deadline_ns is on bl_clock_now_ns(). BL_OK
  // sets *outcome; BL_CANCELLED; any other status ends the run.
  bl_status_t (*wait)(bl_parking_t *parking, bl_parking_key_t key, uint64_t deadline_ns, bl_parking_outcome_t *outcome,
                      bl_error_t *err);
  // True if `wait` would return at once.
  bool (*poll)(bl_parking_t *parking, bl_parking_key_t key);
  // When the transfer that `wait` returned last for this block was requested, and when it was over, until the block's
  // next begin. NULL: not known.
  bl_parking_span_t (*span)(bl_parking_t *parking, bl_parking_key_t key);
  // Ends every transfer of the attempt and releases the blocks that it parked. Rule 4 holds when this returns, within a
  // time that does not depend on a peer.
  void (*abort)(bl_parking_t *parking, uint64_t attempt);
  void (*interrupt)(bl_parking_t *parking);
} bl_parking_ops_t;

struct bl_parking {
  const bl_parking_ops_t *ops;
  // Blocks leave from slots on the stage's device and are loaded there. Sources and slots are device addresses, the
  // checksum is the device's own, and the executor enforces rule 6. False: memory of the host.
  bool device_memory;
  uint64_t timeout_ns; // deadline of one wait; longer than the time after which a silent store counts as dead
};

#endif
