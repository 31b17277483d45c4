// SPDX-License-Identifier: Apache-2.0
// A building block that a person writes down (Qi et al., "Pipeline Parallelism with Controllable Memory", NeurIPS
// 2024): the times at which one micro-batch passes every virtual stage, and the interval after which the next one
// follows. The schedule is the block repeated for every micro-batch and then squeezed: each operation starts as early
// as its order allows.
//
//   static const uint32_t placement[] = {0, 1}, forward[] = {0, 1}, backward[] = {4, 2};
//   bl_block_pattern_t block = {.name = "mine", .stages = 2, .virtual_stages = 2, .interval = 3, .lengths = {1, 1, 1},
//                               .placement = placement, .forward = forward, .input = backward};
//   status = bl_block_pattern_check(&block, &err);
//   status = bl_block_pattern_repeat(&block, micro_batches, &schedule, &err);
//
// All times are whole numbers of one unit, which the user chooses. Thread: pure functions, any thread.
#ifndef BALLAST_SCHEDULE_BLOCK_PATTERN_H
#define BALLAST_SCHEDULE_BLOCK_PATTERN_H

#include "schedule/ir/schedule.h"

#define BL_BLOCK_PATTERN_TIME_MAX 1000000000 // maximum of an offset, a length and the interval: sums fit 32 bits

// Arrays are borrowed, [virtual_stages] each.
typedef struct bl_block_pattern {
  const char *name;
  uint32_t stages, virtual_stages;
  uint32_t interval;         // T: from one micro-batch to the next
  uint32_t lengths[3];       // of F, I and W; a fused B takes I + W
  const uint32_t *placement; // the stage that holds the virtual stage
  const uint32_t *forward;   // when F starts
  const uint32_t *input;     // when I starts, or B if `weight` is NULL
  const uint32_t *weight;    // when W starts; NULL: the backward is fused
} bl_block_pattern_t;

// BL_INVALID names the virtual stage and the mistake: a stage that does not exist or holds no virtual stage; an
// operation that starts before what it needs has ended; two operations that collide on a stage when the block is
// repeated, with stage, operations and time.
BL_MUST_USE bl_status_t bl_block_pattern_check(const bl_block_pattern_t *block, bl_error_t *err);

// Creates the schedule of `micro_batches`. Precondition: the block was checked. BL_INVALID, BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_block_pattern_repeat(const bl_block_pattern_t *block, uint32_t micro_batches,
                                                bl_schedule_t **schedule, bl_error_t *err);

// Returns an upper bound of the memory of a stage, in device-micro-batches, from the building block alone: a chunk
// whose activations live for l is held at most ceil(l / T) times at once, each time with a chunk's activations (the
// paper's ceil(l / T) m, summed over the chunks of the stage).
double bl_block_pattern_bound(const bl_block_pattern_t *block, uint32_t stage);

#endif
