// SPDX-License-Identifier: Apache-2.0
// The two communicators of a data connection, one per direction: between two stages, and between a client and its
// store.
//
//   first end (lower stage, client)                       second end (higher stage, store)
//   bl_nccl_pair_draw(engine, ids, err), ids travel   ->  (nccl/rendezvous_message.h)
//   bl_nccl_pair_open(&pair, engine, BL_PAIR_OUT ...)     bl_nccl_pair_open(&pair, engine, BL_PAIR_IN, ...)
//   bl_nccl_pair_open(&pair, engine, BL_PAIR_IN, ...)     bl_nccl_pair_open(&pair, engine, BL_PAIR_OUT, ...)
//   bl_nccl_pair_made(&pair, err) == BL_OK                the same
//   bl_nccl_pair_post(&pair, BL_PAIR_OUT, &transfer, err) bl_nccl_pair_post(&pair, BL_PAIR_IN, &transfer, err)
//   bl_nccl_pair_close(&pair)                             the same
//
// They live and die together: who sees one fail aborts both. A transfer is posted only when both ends are ready for it,
// in the order in which one of them says GO (frame.h), so that no half waits on a device for one that comes late or
// never.
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

// Which of the channels, and of the ids, this direction is here.
static inline unsigned bl_nccl_pair_index(const bl_nccl_pair_t *pair, bl_pair_direction_t direction) {
  return (direction == BL_PAIR_OUT) == pair->first ? 0 : 1;
}
// Ids for both. BL_IO.
BL_MUST_USE bl_status_t bl_nccl_pair_draw(bl_nccl_engine_t *engine,
                                          uint8_t ids[BL_RENDEZVOUS_CHANNELS][BL_FRAME_ID_BYTES], bl_error_t *err);
// Begins to make the communicator of one direction; of the options id and rank are set here.
BL_MUST_USE bl_status_t bl_nccl_pair_open(bl_nccl_pair_t *pair, bl_nccl_engine_t *engine, bl_pair_direction_t direction,
                                          const uint8_t ids[BL_RENDEZVOUS_CHANNELS][BL_FRAME_ID_BYTES],
                                          const bl_nccl_channel_options_t *options, bl_error_t *err);
// What both are together: that of one that has failed, with its cause in `err` (may be NULL); else of that which is
// behind.
bl_nccl_state_t bl_nccl_pair_state(const bl_nccl_pair_t *pair, bl_error_t *err);
// Whether both are made. BL_DEADLINE: not yet; anything else: one failed, with the cause.
BL_MUST_USE bl_status_t bl_nccl_pair_made(const bl_nccl_pair_t *pair, bl_error_t *err);
BL_MUST_USE bl_status_t bl_nccl_pair_post(bl_nccl_pair_t *pair, bl_pair_direction_t direction,
                                          bl_nccl_transfer_t *transfer, bl_error_t *err);
void bl_nccl_pair_abort(const bl_nccl_pair_t *pair, bl_status_t cause, const char *why); // returns at once
// After an abort: frees what is dead, without a wait. True: nothing is left.
bool bl_nccl_pair_sweep(bl_nccl_pair_t *pair);
void bl_nccl_pair_close(bl_nccl_pair_t *pair); // waits until nothing of it touches memory any more

#endif
