// SPDX-License-Identifier: Apache-2.0
#include "datapath/nccl/pair.h"

#include <string.h>

bl_status_t bl_nccl_pair_draw(bl_nccl_engine_t *engine, uint8_t ids[BL_RENDEZVOUS_CHANNELS][BL_FRAME_ID_BYTES],
                              bl_error_t *err) {
  bl_status_t status = BL_OK;
  for (unsigned i = 0; i < BL_RENDEZVOUS_CHANNELS && status == BL_OK; i++) {
    status = bl_nccl_engine_new_id(engine, ids[i], err);
  }
  return status;
}

bl_status_t bl_nccl_pair_open(bl_nccl_pair_t *pair, bl_nccl_engine_t *engine, bl_pair_direction_t direction,
                              const uint8_t ids[BL_RENDEZVOUS_CHANNELS][BL_FRAME_ID_BYTES],
                              const bl_nccl_channel_options_t *options, bl_error_t *err) {
  const unsigned index = bl_nccl_pair_index(pair, direction);
  bl_nccl_channel_options_t own = *options;
  own.rank = direction == BL_PAIR_OUT ? 0 : 1;
  memcpy(own.id, ids[index], sizeof own.id);
  return bl_nccl_channel_open(engine, &own, &pair->channels[index], err);
}

bl_nccl_state_t bl_nccl_pair_state(const bl_nccl_pair_t *pair, bl_error_t *err) {
  bl_nccl_state_t behind = BL_NCCL_READY;
  for (unsigned i = 0; i < BL_RENDEZVOUS_CHANNELS; i++) {
    const bl_nccl_state_t state =
        pair->channels[i] != NULL ? bl_nccl_channel_state(pair->channels[i], err) : BL_NCCL_NONE;
    if (state == BL_NCCL_ABORTING || state == BL_NCCL_STUCK || state == BL_NCCL_DEAD) {
      return state;
    }
    behind = state < behind ? state : behind;
  }
  return behind;
}

bl_status_t bl_nccl_pair_made(const bl_nccl_pair_t *pair, bl_error_t *err) {
  bl_status_t status = BL_OK;
  for (unsigned i = 0; i < BL_RENDEZVOUS_CHANNELS && status == BL_OK; i++) {
    status = bl_nccl_channel_wait(pair->channels[i], 0, err);
  }
  return status;
}

bl_status_t bl_nccl_pair_post(bl_nccl_pair_t *pair, bl_pair_direction_t direction, bl_nccl_transfer_t *transfer,
                              bl_error_t *err) {
  return bl_nccl_channel_post(pair->channels[bl_nccl_pair_index(pair, direction)], transfer, err);
}

void bl_nccl_pair_abort(const bl_nccl_pair_t *pair, bl_status_t cause, const char *why) {
  for (unsigned i = 0; i < BL_RENDEZVOUS_CHANNELS; i++) {
    if (pair->channels[i] != NULL) {
      bl_nccl_channel_abort(pair->channels[i], cause, why);
    }
  }
}

bool bl_nccl_pair_sweep(bl_nccl_pair_t *pair) {
  bool none = true;
  for (unsigned i = 0; i < BL_RENDEZVOUS_CHANNELS; i++) {
    if (pair->channels[i] != NULL && bl_nccl_channel_state(pair->channels[i], NULL) == BL_NCCL_DEAD) {
      bl_nccl_channel_close(pair->channels[i]); // does not wait
      pair->channels[i] = NULL;
    }
    none = none && pair->channels[i] == NULL;
  }
  return none;
}

void bl_nccl_pair_close(bl_nccl_pair_t *pair) {
  bl_nccl_pair_abort(pair, BL_CANCELLED, "the data connection is closed"); // aborts both before it waits for either
  for (unsigned i = 0; i < BL_RENDEZVOUS_CHANNELS; i++) {
    bl_nccl_channel_close(pair->channels[i]);
    pair->channels[i] = NULL;
  }
}
