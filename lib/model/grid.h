// SPDX-License-Identifier: Apache-2.0
// The ranks of a run: a grid of pipeline stages and replicas.
//
// A replica is a whole pipeline; the replicas of a stage, its data group, hold the same layers and see different
// micro-batches of a step. One process per rank. Ranks count replica by replica, so that the ranks of a replica follow each
// other and one replica is numbered as a run without them.
//
// Bits depend on `data_parts`, never on `data`: a step's gradient is defined as that many parts, each the sum over a run
// of consecutive micro-batches in their order, added in one fixed tree. A replica computes data_parts / data of them.
//
// Pure. Thread: values, any thread.
#ifndef BALLAST_MODEL_GRID_H
#define BALLAST_MODEL_GRID_H

#include <stdbool.h>
#include <stdint.h>

#define BL_GRID_MOST_REPLICAS 64  // a data group adds what all of it sends: bounds staging and connections
#define BL_GRID_MOST_RANKS    512 // the driver asks every rank in every step

typedef struct bl_grid {
  uint32_t stages;     // of the pipeline
  uint32_t data;       // replicas
  uint32_t data_parts; // of a step's gradient; a multiple of `data`
} bl_grid_t;

typedef struct bl_seat {
  uint32_t stage;
  uint32_t data; // replica
} bl_seat_t;

static inline uint32_t bl_grid_ranks(const bl_grid_t *grid) {
  return grid->stages * grid->data;
}

static inline uint32_t bl_grid_rank(const bl_grid_t *grid, bl_seat_t seat) {
  return seat.data * grid->stages + seat.stage;
}

// `rank` < bl_grid_ranks.
static inline bl_seat_t bl_grid_seat(const bl_grid_t *grid, uint32_t rank) {
  return (bl_seat_t){.stage = rank % grid->stages, .data = rank / grid->stages};
}

#define BL_GRID_NAME_BYTES 48
// What people call a rank, "stage 2" or, where there are replicas, "stage 2 of replica 0", in `text`, which is returned.
const char *bl_grid_name(const bl_grid_t *grid, uint32_t rank, char text[BL_GRID_NAME_BYTES]);

static inline bool bl_grid_is_power_of_two(uint32_t count) {
  return count > 0 && (count & (count - 1)) == 0;
}

#endif
