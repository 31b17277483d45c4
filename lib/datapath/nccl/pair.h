// SPDX-License-Identifier: Apache-2.0
// The two communicators of a data connection, one per direction: between two stages, and between a client and its
// store.
//
//   first end (lower stage, client)                       second end (higher stage, store)
//   bl_nccl_pair_draw(engine, ids, err), ids are sent ->  (nccl/rendezvous_message.h)
//   bl_nccl_pair_open(&pair, engine, BL_PAIR_OUT ...)     bl_nccl_pair_open(&pair, engine, BL_PAIR_IN, ...)
//   bl_nccl_pair_open(&pair, engine, BL_PAIR_IN, ...)     bl_nccl_pair_open(&pair, engine, BL_PAIR_OUT, ...)
//   bl_nccl_pair_made(&pair, err) == BL_OK                the same
//   bl_nccl_pair_post(&pair, BL_PAIR_OUT, &transfer, err) bl_nccl_pair_post(&pair, BL_PAIR_IN, &transfer, err)
//   bl_nccl_pair_close(&pair)                             the same
//
// They live and die together: an end that sees one fail aborts both. A transfer is posted only when both ends are ready
// for it, in the order in which one of them sends GO (frame.h), so that no half waits on a device for one that is late
// or missing.
//
// Thread: the caller serializes; rules of transfers and callbacks as in engine.h.
#ifndef BALLAST_DATAPATH_NCCL_PAIR_H
#define BALLAST_DATAPATH_NCCL_PAIR_H

#include "datapath/nccl/engine.h"
#include "datapath/nccl/rendezvous_message.h"

typedef enum bl_pair_direction { BL_PAIR_OUT, BL_PAIR_IN } bl_pair_direction_t;

typedef struct bl_nccl_pair {
  bool first;                                          // this is the first end
  bl_nccl_channel_t *channels[BL_RENDEZVOUS_CHANNELS]; // from the first to the second end, and back; NULL: none
} bl_nccl_pair_t;

// Returns the index of this direction among the channels, and among the ids.
static inline unsigned bl_nccl_pair_index(const bl_nccl_pair_t *pair, bl_pair_direction_t direction) {
  return (direction == BL_PAIR_OUT) == pair->first ? 0 : 1;
}
// Draws ids for both. BL_IO.
BL_MUST_USE bl_status_t bl_nccl_pair_draw(bl_nccl_engine_t *engine,
                                          uint8_t ids[BL_RENDEZVOUS_CHANNELS][BL_FRAME_ID_BYTES], bl_error_t *err);
// Starts to create the communicator of one direction. This sets id and rank of the options.
BL_MUST_USE bl_status_t bl_nccl_pair_open(bl_nccl_pair_t *pair, bl_nccl_engine_t *engine, bl_pair_direction_t direction,
                                          const uint8_t ids[BL_RENDEZVOUS_CHANNELS][BL_FRAME_ID_BYTES],
                                          const bl_nccl_channel_options_t *options, bl_error_t *err);
// Returns the state of the pair: that of a failed channel, with its cause in `err` (may be NULL), else that of the
// channel which has advanced less.
bl_nccl_state_t bl_nccl_pair_state(const bl_nccl_pair_t *pair, bl_error_t *err);
// Returns BL_OK if both are created. BL_DEADLINE: not yet; any other status: one failed, with the cause.
BL_MUST_USE bl_status_t bl_nccl_pair_made(const bl_nccl_pair_t *pair, bl_error_t *err);
BL_MUST_USE bl_status_t bl_nccl_pair_post(bl_nccl_pair_t *pair, bl_pair_direction_t direction,
                                          bl_nccl_transfer_t *transfer, bl_error_t *err);
void bl_nccl_pair_abort(const bl_nccl_pair_t *pair, bl_status_t cause, const char *why); // returns at once
// Called after an abort. Frees dead channels, without a wait. Returns true if none is left.
bool bl_nccl_pair_sweep(bl_nccl_pair_t *pair);
void bl_nccl_pair_close(bl_nccl_pair_t *pair); // waits until nothing of it touches memory any more

#endif
