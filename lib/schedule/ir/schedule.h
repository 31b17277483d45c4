// SPDX-License-Identifier: Apache-2.0
// The schedule of one training step: an ordered list of operations for every stage. Generators (generate.h) and the CSV
// reader (csv.h) create schedules; validation, slots, simulator, balancing and executor read them.
//
//   bl_schedule_t *schedule;
//   bl_schedule_request_t request = {.name = "1f1b", .stages = 4, .micro_batches = 8};
//   bl_status_t status = bl_schedule_generate(&request, &schedule, &err);
//   for (size_t i = 0; i < schedule->lists[2].count; i++)
//     run(schedule->lists[2].ops[i]);
//   bl_schedule_destroy(schedule);
//
// Words: a *stage* is a device of the pipeline, a *chunk* a run of layers, a *virtual stage* the position of a chunk
// along the model. `stage_of` maps virtual stages to stages; a stage holds `chunks` of them.
// A bidirectional schedule has two *pipes*, each a full copy of the model: pipe k consists of the virtual stages
// [k * depth, (k + 1) * depth); a micro-batch passes through one of them.
// Thread: a schedule belongs to one thread while it is built; afterwards it may be read from any.
#ifndef BALLAST_SCHEDULE_SCHEDULE_H
#define BALLAST_SCHEDULE_SCHEDULE_H

#include "base/error.h"
#include "schedule/ir/op.h"

// Limits that keep sizes in 32 bits and refuse absurd requests early.
#define BL_STAGES_MAX         4096
#define BL_VIRTUAL_STAGES_MAX 32768
#define BL_MICRO_BATCHES_MAX  (1 << 20)
#define BL_SLICES_MAX         255
#define BL_SCHEDULE_OPS_MAX   (1u << 27)
#define BL_SCHEDULE_NAME      32

typedef enum bl_placement {
  BL_PLACEMENT_LOOPED,        // virtual stage s on stage s mod p
  BL_PLACEMENT_V,             // 0..p-1, then back p-1..0, and so on
  BL_PLACEMENT_CONTIGUOUS,    // virtual stages s v .. s v + v - 1 on stage s
  BL_PLACEMENT_BIDIRECTIONAL, // two pipes of p: the second runs from the last stage to the first
  BL_PLACEMENT_OTHER,         // as read from a file
} bl_placement_t;

// When E frees the slot of its block, and when L takes one. In the list, an E or L stands before the operation with
// which it starts.
typedef enum bl_transfer_mode {
  BL_TRANSFER_SERIAL,  // E and L run between the operations: E frees its slot before the next one starts
  BL_TRANSFER_OVERLAP, // E and L run during the next computing operation: E frees its slot at the end of that
                       // operation, L takes its slot at the start. An L directly before its block's I or B is *late*:
                       // the I or B starts when the L has ended
} bl_transfer_mode_t;

typedef struct bl_op_list {
  bl_op_t *ops;
  size_t count, capacity;
} bl_op_list_t;

typedef struct bl_schedule {
  char name[BL_SCHEDULE_NAME];
  uint32_t stages;         // p
  uint32_t chunks;         // v: chunks of a stage (the maximum, if they differ in a file)
  uint32_t micro_batches;  // m
  uint32_t slices;         // per sequence; usually 1
  uint32_t pipes;          // 1, or 2 when bidirectional
  uint32_t virtual_stages; // all pipes together
  uint32_t hosts;          // host stores: stores stages ... stages + hosts - 1 lend host memory and belong to no stage
  bl_placement_t placement;
  bl_transfer_mode_t transfers;
  bool forward_only;   // only F's: validation and sampling. A slot is free when its F has ended
  bool forward_slots;  // the F of a recomputed block takes a slot and frees it at its end; otherwise it takes none
  uint16_t *stage_of;  // [virtual_stages]
  bl_op_list_t *lists; // [stages]
} bl_schedule_t;

// Creates an empty schedule of the given shape with its placement filled in (BL_PLACEMENT_OTHER: all on stage 0, for
// the caller to set). `virtual_stages` is stages * chunks; with two pipes chunks must be 2. BL_INVALID: beyond the
// limits above, or the placement does not fit. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_schedule_create(const char *name, bl_placement_t placement, uint32_t stages, uint32_t chunks,
                                           uint32_t micro_batches, bl_schedule_t **schedule, bl_error_t *err);
// Creates an empty schedule with the shape, the placement and all switches of `like`.
BL_MUST_USE bl_status_t bl_schedule_create_like(const bl_schedule_t *like, bl_schedule_t **schedule, bl_error_t *err);
void bl_schedule_destroy(bl_schedule_t *schedule); // NULL is fine
// Reserves space for `count` operations in the list of `stage`. BL_EXHAUSTED without memory.
BL_MUST_USE bl_status_t bl_schedule_reserve(bl_schedule_t *schedule, uint32_t stage, size_t count);
// Appends to the list of `stage`. BL_EXHAUSTED without memory.
BL_MUST_USE bl_status_t bl_schedule_append(bl_schedule_t *schedule, uint32_t stage, bl_op_t op);
// Replaces the lists of `to` by those of `from`, which has as many stages. BL_EXHAUSTED: some may be replaced.
BL_MUST_USE bl_status_t bl_schedule_copy_lists(const bl_schedule_t *from, bl_schedule_t *to);

// Number of stores that an E may name: one of every stage's device, then the host stores.
static inline uint32_t bl_schedule_stores(const bl_schedule_t *schedule) {
  return schedule->stages + schedule->hosts;
}
static inline bool bl_schedule_is_host(const bl_schedule_t *schedule, uint32_t store) {
  return store >= schedule->stages && store < bl_schedule_stores(schedule);
}
// Writes "store of device 3" or "host store 0"; returns `text`.
#define BL_STORE_TEXT 40
const char *bl_store_format(uint32_t stages, uint32_t store, char text[BL_STORE_TEXT]);
// Virtual stages of one pipe.
static inline uint32_t bl_schedule_depth(const bl_schedule_t *schedule) {
  return schedule->virtual_stages / schedule->pipes;
}
static inline uint32_t bl_schedule_pipe(const bl_schedule_t *schedule, uint32_t virtual_stage) {
  return virtual_stage / bl_schedule_depth(schedule);
}
// First or last of its pipe: embedding, or final norm, head and loss.
static inline bool bl_schedule_is_first(const bl_schedule_t *schedule, uint32_t virtual_stage) {
  return virtual_stage % bl_schedule_depth(schedule) == 0;
}
static inline bool bl_schedule_is_last(const bl_schedule_t *schedule, uint32_t virtual_stage) {
  return (virtual_stage + 1) % bl_schedule_depth(schedule) == 0;
}
// Activations that one F stores, in device-micro-batches: 1 / (v slices), or with two pipes 1.
double bl_schedule_block_weight(const bl_schedule_t *schedule);
size_t bl_schedule_op_count(const bl_schedule_t *schedule);
// Key of the block that an operation works on: dense in [0, bl_schedule_block_count).
static inline size_t bl_schedule_block(const bl_schedule_t *schedule, bl_op_t op) {
  return ((size_t)op.virtual_stage * schedule->micro_batches + op.micro_batch) * schedule->slices + op.slice;
}
size_t bl_schedule_block_count(const bl_schedule_t *schedule);
// Index of a block among those of its virtual stage: that of its micro-batch, or with slices that of its slice.
static inline uint32_t bl_schedule_unit(const bl_schedule_t *schedule, uint32_t micro_batch, uint32_t slice) {
  return micro_batch * schedule->slices + slice;
}

#endif
