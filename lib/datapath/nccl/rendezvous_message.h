// SPDX-License-Identifier: Apache-2.0
// The body of RENDEZVOUS (frame.h): messages about the creation of communicators. Stages follow the rules of
// rendezvous.h. A client sends its store only ids, of generation 1, once per connection.
// Thread: pure functions, any thread.
#ifndef BALLAST_DATAPATH_NCCL_RENDEZVOUS_MESSAGE_H
#define BALLAST_DATAPATH_NCCL_RENDEZVOUS_MESSAGE_H

#include "datapath/frame.h"
#include "datapath/nccl/rendezvous.h"

#define BL_RENDEZVOUS_TEXT_BYTES 192u

// The communicators of a connection, one per direction.
#define BL_RENDEZVOUS_CHANNELS 2u

typedef struct bl_rendezvous_message {
  bl_nccl_rendezvous_kind_t kind;
  uint32_t generation;
  bl_status_t status; // MADE: BL_OK, or why not; DROP, BROKE: why
  // IDS: of the channel from the lower to the higher stage, and back. With a store: of evictions, and of loads.
  uint8_t ids[BL_RENDEZVOUS_CHANNELS][BL_FRAME_ID_BYTES];
  char text[BL_RENDEZVOUS_TEXT_BYTES];
} bl_rendezvous_message_t;

void bl_rendezvous_message_encode(const bl_rendezvous_message_t *rendezvous, uint8_t body[BL_FRAME_RENDEZVOUS_BYTES]);
// BL_INVALID sets *reason to a fixed text for the log.
BL_MUST_USE bl_status_t bl_rendezvous_message_decode(const uint8_t body[BL_FRAME_RENDEZVOUS_BYTES],
                                                     bl_rendezvous_message_t *rendezvous, const char **reason);

#endif
