// SPDX-License-Identifier: Apache-2.0
// Where evicted blocks go: the seam between the executor and whatever keeps activation blocks away from the stage (an
// activation-store's client, or memory of the process in tests). Chosen once, before the first run:
//
//   struct keeper { bl_parking_t parking; ... } *keeper;   // `parking` first
//   engine->parking = &keeper->parking;                    // NULL: this stage evicts nothing
//
// What the executor does with it in one attempt:
//   begin(attempt)
//   E:  begin_evict(block, slot)           returns at once; the bytes leave while the stage computes
//       wait(block)                        before the slot is written again, or before L of the same block
//   L:  begin_load(block, slot)            returns at once; the bytes come while the stage computes
//       wait(block)                        before the block's I or B
//   abort(attempt)                         if the attempt ends early
//
// Rules
//   1. begin_evict and begin_load never wait for a peer: they check, queue and return.
//   2. Transfers with one store start in the order of the begin calls, which is the plan's, one after the other or
//      several at a time. A plan counts on it: an eviction may take the room of a load before it (schedule/balance/balance.h),
//      and what finds no room waits, with all that comes after it, until one before it has ended. A begin never comes for
//      memory that an earlier transfer of this parking still uses, so that the order cannot block.
//   3. At most one transfer is under way per slot, so at most as many as the stage has slots. How many of them move
//      bytes at once is the parking's own bound.
//   4. Only the owner of a destination writes it: the source of an eviction is only read, by the parking or by a peer
//      that mapped it read-only; the slot of a load is written by a thread of this process alone. From begin until a
//      wait says how it ended, the slot belongs to the transfer: the executor neither writes the source nor touches the
//      destination. When wait has said BL_OK, or abort has returned, nothing touches it any more. (A store that reads
//      the source of an eviction that was given up reads bytes that fail their checksum; it must not keep them.)
//   5. A block that was parked (eviction BL_PARKING_DONE) is kept until its load or the end of the attempt. The load
//      consumes it whatever its outcome.
//   6. A load is BL_PARKING_DONE only if the bytes in the slot have the checksum that was given with the eviction.
//   7. BL_PARKING_LOST of an eviction: the block never arrived. The executor counts it as dropped, and as long as there
//      is no acceptor begin_evict answers BL_UNAVAILABLE. BL_PARKING_LOST of a load: the block went with its store, came
//      back different, or did not come in time. Either way the executor makes the block again from its kept input and
//      compares the checksum: no outcome here changes a loss.
//   8. wait gives up at its deadline: the transfer is over by rule 4, the outcome BL_PARKING_LOST.
//   9. A transfer with `ready` begins once the device has come to that event, and no other behind it in the order begins
//      before. Whoever begins it does not wait for that; the transfer, its deadline included, is the parking's meanwhile.
//  10. interrupt wakes every wait with BL_CANCELLED, and makes waits and begins of this attempt fail with it, until the
//      next `begin`.
//
// Thread: interrupt from any thread. Everything else from the compute thread; bytes move on the parking's own.
// Memory: nothing here may allocate between two calls of `begin`: what an attempt needs was reserved with its plan.
#ifndef BALLAST_EXECUTOR_PARKING_H
#define BALLAST_EXECUTOR_PARKING_H

#include "base/error.h"
#include "device/device.h"

#include <stdbool.h>
#include <stdint.h>

// Blocks are named by attempt, so that nothing of an older attempt is ever taken for one of this.
typedef struct bl_parking_key {
  uint64_t attempt;
  uint32_t virtual_stage;
  uint32_t micro_batch; // with slices micro_batch x slices + slice (bl_schedule_unit)
} bl_parking_key_t;

typedef struct bl_parked_block {
  bl_parking_key_t key;
  uint32_t micro_batch; // that people are told of
  uint16_t store;       // the plan's choice: index of the device whose store it is (schedule/ir/op.h)
  uint64_t bytes;       // evict_bytes: the prefix of the slot that lives between F and I, padding defined
  uint64_t checksum;    // bl_block_checksum(block, bytes), datapath/block.h, where `hash` is NULL
  // With device_memory, of one that is told ahead: what the device must have come to (NULL: at once), and where the
  // checksum by ops->checksum is then. Both stay as they are until the transfer is over.
  bl_device_event_t *ready;
  const uint64_t *hash;
} bl_parked_block_t;

typedef enum bl_parking_outcome {
  BL_PARKING_DONE,
  BL_PARKING_LOST,
} bl_parking_outcome_t;

typedef struct bl_parking bl_parking_t;

typedef struct bl_parking_ops {
  // From now on only `attempt`, above all before, is valid; blocks of older ones are forgotten. Any status but BL_OK
  // ends the run.
  bl_status_t (*begin)(bl_parking_t *parking, uint64_t attempt, bl_error_t *err);
  // BL_UNAVAILABLE: no store accepts the block now, nothing was begun; the executor drops it. BL_CANCELLED. Any other
  // status ends the run.
  bl_status_t (*begin_evict)(bl_parking_t *parking, const bl_parked_block_t *block, const void *source,
                             bl_error_t *err);
  // The same block as in begin_evict, the slot perhaps another. BL_UNAVAILABLE: it is known to be lost, nothing was
  // begun. BL_CANCELLED. Any other status ends the run.
  bl_status_t (*begin_load)(bl_parking_t *parking, const bl_parked_block_t *block, void *slot, bl_error_t *err);
  // Waits until the block's transfer is over, and forgets the transfer. deadline_ns is on bl_clock_now_ns(). BL_OK sets
  // *outcome; BL_CANCELLED; any other status ends the run.
  bl_status_t (*wait)(bl_parking_t *parking, bl_parking_key_t key, uint64_t deadline_ns, bl_parking_outcome_t *outcome,
                      bl_error_t *err);
  // True when `wait` would return at once.
  bool (*poll)(bl_parking_t *parking, bl_parking_key_t key);
  // Ends every transfer of the attempt and gives back what it has parked. Rule 4 holds when this returns, within a time
  // that does not depend on a peer.
  void (*abort)(bl_parking_t *parking, uint64_t attempt);
  void (*interrupt)(bl_parking_t *parking);
} bl_parking_ops_t;

struct bl_parking {
  const bl_parking_ops_t *ops;
  // Blocks leave from slots on the stage's device and come back there: sources and slots are addresses of the device,
  // the checksum is the device's own, and rule 6 is the executor's. False: memory of the host.
  bool device_memory;
  uint64_t timeout_ns; // deadline of one wait. Longer than a store is given to show that it lives
};

#endif
