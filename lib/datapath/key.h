// SPDX-License-Identifier: Apache-2.0
// Keys of boundary tensors. Within one attempt and between two stages a key names one tensor. Plain values: any thread.
#ifndef BALLAST_DATAPATH_KEY_H
#define BALLAST_DATAPATH_KEY_H

#include <stdbool.h>
#include <stdint.h>

typedef enum bl_direction {
  BL_FORWARD,  // an activation, towards the head
  BL_BACKWARD, // a gradient, towards the embedding
  BL_TIED,     // gradients of tied weights, both ways
  BL_REDUCE,   // gradients, from one copy to the owner, which updates the weights
  BL_GATHER,   // updated weights, from the owner to all copies
  BL_SHARE,    // data that tensor ranks which share a layer exchange
  BL_DIRECTIONS
} bl_direction_t;

typedef struct bl_tensor_key {
  // Chunks: the boundary is between virtual stages `boundary` and `boundary + 1`. Copies of a chunk (BL_REDUCE,
  // BL_GATHER): `boundary` is the chunk's depth in the model, `micro_batch` the number of the message in the chunk, and
  // `piece` the copy that updates what is sent.
  // Tensor ranks (BL_SHARE): `boundary` is the number of the collective, and `piece` the number of the part.
  uint32_t boundary;
  bl_direction_t direction;
  uint32_t micro_batch;
  uint32_t piece; // for tensors that are sent in pieces (slices, parts), else 0
} bl_tensor_key_t;

static inline bool bl_tensor_key_equal(bl_tensor_key_t a, bl_tensor_key_t b) {
  return a.boundary == b.boundary && a.direction == b.direction && a.micro_batch == b.micro_batch && a.piece == b.piece;
}

#endif
