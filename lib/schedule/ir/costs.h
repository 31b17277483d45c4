// SPDX-License-Identifier: Apache-2.0
// Costs of operations: times of F, I, W and R per virtual stage, latency of a boundary, time of an evict or load.
// Any unit of time, the same for all. A fused B costs I + W; a recomputation costs F unless given.
// Thread: pure functions, any thread.
#ifndef BALLAST_SCHEDULE_COSTS_H
#define BALLAST_SCHEDULE_COSTS_H

#include "base/error.h"
#include "schedule/ir/op.h"

typedef struct bl_chunk_costs {
  double forward, input, weight, recompute;
} bl_chunk_costs_t;

typedef struct bl_costs {
  bl_chunk_costs_t every;         // of every chunk, if `chunks` is NULL
  const bl_chunk_costs_t *chunks; // [virtual stages] or NULL; borrowed
  // With slices: the costs of every slice, [virtual stages, slice_count], borrowed. NULL: a slice costs what its chunk
  // does. Searches use the costs of the chunk.
  const bl_chunk_costs_t *slices;
  uint32_t slice_count;
  double boundary; // latency between different stages; occupies no stage
  double path;     // of one evict or one load; occupies the path between stage and store
} bl_costs_t;

// Largest cost in a text: sums over any schedule stay far below the range of a double.
#define BL_COSTS_MOST 1e12

// One unit each for F, I, W and R, 0 for the rest: the default when no costs are given.
#define BL_COSTS_UNIT ((bl_costs_t){.every = {1, 1, 1, 1}})

static inline const bl_chunk_costs_t *bl_costs_chunk(const bl_costs_t *costs, uint32_t virtual_stage) {
  return costs->chunks != NULL ? &costs->chunks[virtual_stage] : &costs->every;
}

static inline double bl_costs_of(const bl_costs_t *costs, const bl_chunk_costs_t *chunk, bl_op_type_t type) {
  switch (type) {
  case BL_OP_F:
    return chunk->forward;
  case BL_OP_B:
    return chunk->input + chunk->weight;
  case BL_OP_I:
    return chunk->input;
  case BL_OP_W:
    return chunk->weight;
  case BL_OP_R:
    return chunk->recompute;
  default:
    return costs->path;
  }
}

static inline double bl_costs_op(const bl_costs_t *costs, bl_op_type_t type, uint32_t virtual_stage) {
  return bl_costs_of(costs, bl_costs_chunk(costs, virtual_stage), type);
}

// Returns the cost of an operation of that type for one slice.
static inline double bl_costs_slice(const bl_costs_t *costs, bl_op_type_t type, uint32_t virtual_stage,
                                    uint32_t slice) {
  const bl_chunk_costs_t *chunk = costs->slices != NULL
                                      ? &costs->slices[(size_t)virtual_stage * costs->slice_count + slice]
                                      : bl_costs_chunk(costs, virtual_stage);
  return bl_costs_of(costs, chunk, type);
}

// Reads "F,B,W,COMM" or "F,B,W,COMM,R" as `--cost` gives it (B is the backward for the input; R is F if not given).
// BL_INVALID names the number that is missing, negative, above BL_COSTS_MOST or not a number.
BL_MUST_USE bl_status_t bl_costs_parse(const char *text, bl_costs_t *costs, bl_error_t *err);
// Reads "S=F,B,W" or "S=F,B,W,R" as `--chunk-cost` gives it into chunks[S], of `virtual_stages`. BL_INVALID likewise.
BL_MUST_USE bl_status_t bl_costs_parse_chunk(const char *text, uint32_t virtual_stages, bl_chunk_costs_t *chunks,
                                             bl_error_t *err);
// Reads `count` texts "S-D=X": copies between the stages S and D, and the stores of their devices, take X times as long
// as other copies. *copies [stages * stages] is on the heap; it holds X in both directions, and 1 for pairs that no
// text names. NULL if `count` is 0. BL_INVALID names the text, and the stage that does not exist or the pair that is
// given twice. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_costs_parse_paths(char *const *texts, size_t count, uint32_t stages, double **copies,
                                             bl_error_t *err);
// Checks all costs but `slices`. BL_INVALID unless all are numbers, not negative and so small that their sums are
// finite, and some F is positive; names the virtual stage and the cost.
BL_MUST_USE bl_status_t bl_costs_check(const bl_costs_t *costs, uint32_t virtual_stages, bl_error_t *err);

#endif
