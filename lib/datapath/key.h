// SPDX-License-Identifier: Apache-2.0
// What a boundary tensor is called. Within one attempt and between two stages a key names one tensor. Plain values: any
// thread.
#ifndef BALLAST_DATAPATH_KEY_H
#define BALLAST_DATAPATH_KEY_H

#include <stdbool.h>
#include <stdint.h>

typedef enum bl_direction {
  BL_FORWARD,  // an activation, towards the head
  BL_BACKWARD, // a gradient, towards the embedding
  BL_EXCHANGE, // gradients of tied weights, both ways
  BL_REDUCE,   // a copy's gradient of a tensor, to the one that updates it
  BL_GATHER,   // a weight, from there to all copies
  BL_SHARE,    // what a rank has of a layer, to another one that shares it
  BL_DIRECTIONS
} bl_direction_t;

typedef struct bl_tensor_key {
  // Of chunks: between virtual stages `boundary` and `boundary + 1`; of copies of a chunk: how deep in the model
  // it is, and as `micro_batch` the tensor's number among the chunk's; of ranks that share
  // a layer: the number of what they do together, `piece` is that of the part.
  uint32_t boundary;
  bl_direction_t direction;
  uint32_t micro_batch;
  uint32_t piece; // for tensors that travel in pieces, else 0
} bl_tensor_key_t;

static inline bool bl_tensor_key_equal(bl_tensor_key_t a, bl_tensor_key_t b) {
  return a.boundary == b.boundary && a.direction == b.direction && a.micro_batch == b.micro_batch && a.piece == b.piece;
}

#endif
