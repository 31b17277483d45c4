// SPDX-License-Identifier: Apache-2.0
// A training run inside a test: real engines, transports and edge buffers, one thread per stage, in lockstep by a
// barrier, with the driver's part (loss, norm, clipping) done by stage 0's thread. Aborts, saying why, when a stage
// fails that should not.
#ifndef TESTS_EXECUTOR_RIG_H
#define TESTS_EXECUTOR_RIG_H

#include "executor/arena_parking.h"
#include "executor/executor.h"
#include "schedule/balance/balance.h"

#define RIG_STEPS      3
#define RIG_STAGES_MAX 8

// What happens to the second step before it is run again.
typedef enum rig_fault {
  RIG_NONE,
  RIG_CANCEL_FIRST, // stage 0 gives up before its first operation
  RIG_CANCEL_LOAD,  // all stages are interrupted in the middle, at a load of stage 0
  RIG_CHANGED,      // every block comes back changed, on a device, which finds it at the end of the step
  RIG_FLIP_INPUT,   // a bit of the kept input of a parked block flips on stage 0; the block must be lost
} rig_fault_t;

typedef struct rig_setting {
  const char *model; // folder under tests/golden; NULL: GPT-2 of 8 layers, of a shape that leaves padding in its blocks
  uint32_t stages;
  const char *schedule;
  bl_path_t path;
  const char *attention;
  const char *recompute;
  rig_fault_t fault;
  uint32_t micro_batches;       // 0: 4
  const char *more;             // sections of the job beside model, data, train and pipeline; NULL: none
  const char *train, *pipeline; // further keys of these, ", dtype: bf16"; NULL: none
  // Balanced lists of the same schedule, and the slots of a stage to run them in. NULL: the job's own
  const bl_balance_result_t *balanced;
  uint32_t cap;
  arena_parking_options_t parking; // its slots, sizes and hook are the rig's
} rig_setting_t;

typedef struct rig_outcome {
  double losses[RIG_STEPS];
  double norms[RIG_STEPS];
  uint32_t peak_slots[RIG_STAGES_MAX];              // of the last step
  bl_stage_counters_t counters[RIG_STAGES_MAX];     // evicted to recomputed: sums over the steps
  arena_parking_counters_t parking[RIG_STAGES_MAX]; // with repeated steps
  uint64_t drains[RIG_STAGES_MAX];                  // waits for the device in the run of the last step
  uint64_t slot_bytes, arena_bytes;                 // of stage 0: one slot, all of them
  bl_memory_usage_t memory[BL_MEMORY_TAGS];         // of stage 0
} rig_outcome_t;

rig_outcome_t rig_train(rig_setting_t setting);
// Fails, naming setting and step, where losses or norms differ in a bit.
void rig_expect_same(const rig_setting_t *setting, const rig_outcome_t *expected, const rig_outcome_t *found);

#endif
