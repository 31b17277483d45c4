// SPDX-License-Identifier: Apache-2.0
// The ranks of a run: a grid of pipeline stages and replicas.
//
// A replica is a whole pipeline; the replicas of a stage, its data group, hold the same layers and see different
// micro-batches of a step. The tensor ranks of a stage, its tensor group, share every layer of it (model/split.h). One
// process per rank. Ranks count replica by replica, in each stage by stage, in each tensor rank by tensor rank, so that
// ranks that talk most are neighbours and a run of one replica and whole layers numbers its stages. The ranks of one replica
// and one tensor rank are a plane: a pipeline with boundaries, stores and a policy of its own.
//
// Bits depend on `data_parts` and `tensor_parts`, never on `data`, `tensor` or `stages`: a step's gradient is defined as
// that many parts, each the sum over a run of consecutive micro-batches in their order, added in one fixed tree, and a layer
// likewise. A copy of a chunk computes as many of them as any other one, a tensor rank tensor_parts / tensor.
//
// Pure. Thread: values, any thread.
#ifndef BALLAST_MODEL_GRID_H
#define BALLAST_MODEL_GRID_H

#include <stdbool.h>
#include <stdint.h>

#define BL_GRID_MOST_REPLICAS     64 // a data group adds what all of it sends: bounds staging and connections
#define BL_GRID_MOST_TENSOR_RANKS 64
#define BL_GRID_MOST_RANKS        512 // the driver asks every rank in every step

typedef struct bl_grid {
  uint32_t stages;       // of the pipeline
  uint32_t tensor;       // ranks that share a layer
  uint32_t data;         // replicas
  uint32_t tensor_parts; // of a layer; a multiple of `tensor`
  uint32_t data_parts;   // of a step's gradient; a multiple of the copies of a chunk
  uint32_t pipes;        // of the schedule, each with a copy of the model: 2; 0 or 1: one (schedule/ir/schedule.h)
} bl_grid_t;

// The copies of every chunk: one on each replica, and in each of them one for each pipe. Pipe 1 runs from the last stage to
// the first, so that its copy of what stage s holds for pipe 0 is on stage `stages - 1 - s`. Copies count replica by
// replica, in each pipe by pipe; copy c sees the micro-batches of part c of as many as there are copies.
typedef struct bl_copies {
  uint32_t replicas, pipes; // 0: one
} bl_copies_t;

static inline uint32_t bl_copies_pipes(bl_copies_t copies) {
  return copies.pipes > 1 ? copies.pipes : 1;
}
static inline uint32_t bl_copies_count(bl_copies_t copies) {
  return (copies.replicas > 1 ? copies.replicas : 1) * bl_copies_pipes(copies);
}
static inline uint32_t bl_copies_number(bl_copies_t copies, uint32_t replica, uint32_t pipe) {
  return replica * bl_copies_pipes(copies) + pipe;
}

typedef struct bl_seat {
  uint32_t stage;
  uint32_t tensor; // tensor rank
  uint32_t data;   // replica
} bl_seat_t;

static inline uint32_t bl_grid_ranks(const bl_grid_t *grid) {
  return grid->stages * grid->tensor * grid->data;
}

static inline bl_copies_t bl_grid_copies(const bl_grid_t *grid) {
  return (bl_copies_t){.replicas = grid->data, .pipes = grid->pipes};
}

// Parts of a step's gradient that one copy of a chunk adds up.
static inline uint32_t bl_grid_copy_parts(const bl_grid_t *grid) {
  return grid->data_parts / bl_copies_count(bl_grid_copies(grid));
}

static inline uint32_t bl_grid_rank(const bl_grid_t *grid, bl_seat_t seat) {
  return (seat.data * grid->stages + seat.stage) * grid->tensor + seat.tensor;
}

// `rank` < bl_grid_ranks.
static inline bl_seat_t bl_grid_seat(const bl_grid_t *grid, uint32_t rank) {
  const uint32_t stage = rank / grid->tensor;
  return (bl_seat_t){.stage = stage % grid->stages, .tensor = rank % grid->tensor, .data = stage / grid->stages};
}

#define BL_GRID_NAME_BYTES 72
// What people call a rank, "stage 2", "tensor rank 1 of stage 2" where layers are shared, "stage 2 of replica 0" where there
// are replicas, in `text`, which is returned.
const char *bl_grid_name(const bl_grid_t *grid, uint32_t rank, char text[BL_GRID_NAME_BYTES]);

// Squares of gradients are told apart by parameter and part: a parameter that is not cut has part 0.
static inline uint32_t bl_square_number(uint32_t parameter, uint32_t part, uint32_t parts) {
  return parameter * parts + part;
}

static inline bool bl_grid_is_power_of_two(uint32_t count) {
  return count > 0 && (count & (count - 1)) == 0;
}

#endif
