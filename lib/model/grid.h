// SPDX-License-Identifier: Apache-2.0
// The ranks of a run: a grid of pipeline stages, tensor ranks and replicas. Every rank is one process.
//
// A replica is a whole pipeline. The replicas of a stage, its data group, hold the same layers and see different
// micro-batches of a step. The tensor ranks of a stage, its tensor group, share every layer of it
// (model/layer_parts.h). Ranks are numbered with the tensor rank running fastest, then the stage, then the replica. So
// ranks that exchange the most data are neighbours, and in a run with one replica and whole layers the rank is the
// stage. The ranks of one replica and one tensor rank are a plane: a pipeline with boundaries, stores and a policy of
// its own.
//
// Bits depend on `data_parts` and `tensor_parts`, never on `data`, `tensor` or `stages`. A step's gradient is defined
// as `data_parts` parts. Each part is the sum over consecutive micro-batches in their order, and the parts are added in
// one fixed tree. A layer is likewise defined as `tensor_parts` parts. All copies of a chunk compute equally many of
// the data parts; a tensor rank computes tensor_parts / tensor parts of a layer.
//
// Pure. Thread: values, any thread.
#ifndef BALLAST_MODEL_GRID_H
#define BALLAST_MODEL_GRID_H

#include <stdbool.h>
#include <stdint.h>

#define BL_GRID_REPLICAS_MAX     64 // bounds staging and connections: a rank receives from its data group
#define BL_GRID_TENSOR_RANKS_MAX 64
#define BL_GRID_RANKS_MAX        512 // the driver calls every rank in every step

typedef struct bl_grid {
  uint32_t stages;       // of the pipeline
  uint32_t tensor;       // ranks that share a layer
  uint32_t data;         // replicas
  uint32_t tensor_parts; // of a layer; a multiple of `tensor`
  uint32_t data_parts;   // of a step's gradient; a multiple of the copies of a chunk
  uint32_t pipes;        // of the schedule, each with a copy of the model. 2: two; 0 or 1: one (schedule/ir/schedule.h)
} bl_grid_t;

// The copies of every chunk: one for each pipe of each replica. Pipe 1 runs from the last stage to the first, so its
// copy of the chunk that stage s holds for pipe 0 is on stage `stages - 1 - s`. Copies are numbered with the pipe
// running fastest, then the replica. The micro-batches of a step are divided into as many equal ranges as there are
// copies; copy c sees range c, which is bl_grid_copy_parts parts of the gradient.
typedef struct bl_copies {
  uint32_t replicas, pipes; // 0: one
  uint32_t parts;           // bl_grid_t.data_parts; 0: as many as copies
} bl_copies_t;

static inline uint32_t bl_copies_pipes(bl_copies_t copies) {
  return copies.pipes > 1 ? copies.pipes : 1;
}
static inline uint32_t bl_copies_count(bl_copies_t copies) {
  return (copies.replicas > 1 ? copies.replicas : 1) * bl_copies_pipes(copies);
}
static inline uint32_t bl_copies_parts(bl_copies_t copies) {
  return copies.parts > 0 ? copies.parts : bl_copies_count(copies);
}
static inline uint32_t bl_copies_number(bl_copies_t copies, uint32_t replica, uint32_t pipe) {
  return replica * bl_copies_pipes(copies) + pipe;
}

typedef struct bl_coords {
  uint32_t stage;
  uint32_t tensor; // tensor rank
  uint32_t data;   // replica
} bl_coords_t;

static inline uint32_t bl_grid_ranks(const bl_grid_t *grid) {
  return grid->stages * grid->tensor * grid->data;
}

static inline bl_copies_t bl_grid_copies(const bl_grid_t *grid) {
  return (bl_copies_t){.replicas = grid->data, .pipes = grid->pipes, .parts = grid->data_parts};
}

// Returns the number of parts of a step's gradient that one copy of a chunk adds up.
static inline uint32_t bl_grid_copy_parts(const bl_grid_t *grid) {
  return grid->data_parts / bl_copies_count(bl_grid_copies(grid));
}

static inline uint32_t bl_grid_rank(const bl_grid_t *grid, bl_coords_t coords) {
  return (coords.data * grid->stages + coords.stage) * grid->tensor + coords.tensor;
}

// `rank` < bl_grid_ranks.
static inline bl_coords_t bl_grid_coords(const bl_grid_t *grid, uint32_t rank) {
  const uint32_t stage = rank / grid->tensor;
  return (bl_coords_t){.stage = stage % grid->stages, .tensor = rank % grid->tensor, .data = stage / grid->stages};
}

#define BL_GRID_NAME_BYTES 72
// Writes the name of a rank to `text` and returns `text`: "stage 2", "tensor rank 1 of stage 2" if layers are shared,
// "stage 2 of replica 0" if there are replicas.
const char *bl_grid_name(const bl_grid_t *grid, uint32_t rank, char text[BL_GRID_NAME_BYTES]);

#define BL_GRID_FEWEST_SHARES 16 // so that copies can have equally much of few matrices
// Returns into how many shares a matrix is cut (model/shard.h). The order in which the squares of its gradient are added
// follows from this number, so it depends on `data_parts` alone. It is a multiple of `data_parts`, so that every copy
// can have the same number of shares.
static inline uint32_t bl_grid_shares(uint32_t data_parts) {
  return data_parts > 1 ? (BL_GRID_FEWEST_SHARES + data_parts - 1) / data_parts * data_parts : 1;
}

// Returns the number of a sum of squared gradients, which parameter, part of the layer and share identify. A parameter
// that is not cut has part 0, and a vector share 0. Numbers are below bl_square_numbers.
static inline uint32_t bl_square_number(const bl_grid_t *grid, uint32_t parameter, uint32_t part, uint32_t share) {
  return (parameter * grid->tensor_parts + part) * bl_grid_shares(grid->data_parts) + share;
}
static inline uint32_t bl_square_numbers(const bl_grid_t *grid, uint32_t parameters) {
  return bl_square_number(grid, parameters, 0, 0);
}

static inline bool bl_grid_is_power_of_two(uint32_t count) {
  return count > 0 && (count & (count - 1)) == 0;
}

#endif
