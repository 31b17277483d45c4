// SPDX-License-Identifier: Apache-2.0
// One operation of a schedule, and its text: the cell "<virtual stage><type><micro-batch>" of PyTorch's pipeline CSV.
//
//   bl_op_t op = {.type = BL_OP_F, .virtual_stage = 2, .micro_batch = 7};
//   char cell[BL_OP_TEXT];
//   bl_op_format(op, cell);                                       // "2F7"
//
// Additions to PyTorch's format: the letters R (recompute), E (evict) and L (load); "@store" after the micro-batch of
// an E or L ("0E3@7"); ".slice" after the micro-batch if sequences are cut into slices ("0F3.1").
// Thread: pure functions, any thread.
#ifndef BALLAST_SCHEDULE_OP_H
#define BALLAST_SCHEDULE_OP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// X(identifier, letter, meaning)
#define BL_OP_TYPE_TABLE(X)                                                                                            \
  X(BL_OP_F, 'F', "forward")                                                                                           \
  X(BL_OP_B, 'B', "fused backward: I, then W")                                                                         \
  X(BL_OP_I, 'I', "backward for the input")                                                                            \
  X(BL_OP_W, 'W', "backward for the weights; releases the slot")                                                       \
  X(BL_OP_R, 'R', "recompute the block from its kept input")                                                           \
  X(BL_OP_E, 'E', "evict the block to a store")                                                                        \
  X(BL_OP_L, 'L', "load the block from its store")

typedef enum bl_op_type {
#define X(identifier, letter, meaning) identifier,
  BL_OP_TYPE_TABLE(X)
#undef X
      BL_OP_TYPES
} bl_op_type_t;

#define BL_STORE_NONE UINT16_MAX

typedef struct bl_op {
  uint8_t type;           // bl_op_type_t
  uint8_t slice;          // slice of the sequence, 0 unless the schedule has slices > 1
  uint16_t virtual_stage; // position of the chunk along the model; its stage is bl_schedule_t.stage_of
  uint32_t micro_batch;   // from 0
  uint16_t store; // E and L: index of the store (schedule.h), or BL_STORE_NONE if it is chosen later; other types: 0
} bl_op_t;

char bl_op_type_letter(bl_op_type_t type);
// True for F, B, I, W and R: operations that occupy the stage's compute thread. False for E and L.
static inline bool bl_op_type_computes(bl_op_type_t type) {
  return type != BL_OP_E && type != BL_OP_L;
}
// True for B and I: the operations that start a block's backward.
static inline bool bl_op_type_starts_backward(bl_op_type_t type) {
  return type == BL_OP_B || type == BL_OP_I;
}
// True for B and W: the operations that add to weight gradients and release the block.
static inline bool bl_op_type_ends_block(bl_op_type_t type) {
  return type == BL_OP_B || type == BL_OP_W;
}

#define BL_OP_TEXT 40
// Writes the cell of `op` and returns `text`. The slice is written if it is not 0 or `with_slice` is true.
const char *bl_op_format(bl_op_t op, char text[BL_OP_TEXT]);
const char *bl_op_format_slice(bl_op_t op, bool with_slice, char text[BL_OP_TEXT]);
// Reads one cell of `length` characters without surrounding spaces. Returns false if it is not a valid cell.
bool bl_op_parse(const char *text, size_t length, bl_op_t *op);

#endif
