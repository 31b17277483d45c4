// SPDX-License-Identifier: Apache-2.0
// The body of MEET (frame.h): what is said of making communicators. Between stages by the rules of meeting.h; a client tells
// its store ids alone, of generation 1, once per connection.
// Thread: pure functions, any thread.
#ifndef BALLAST_DATAPATH_NCCL_MEET_H
#define BALLAST_DATAPATH_NCCL_MEET_H

#include "datapath/frame.h"
#include "datapath/nccl/meeting.h"

#define BL_MEET_TEXT_BYTES 192u

// The communicators of a connection, one per direction.
#define BL_MEET_CHANNELS 2u

typedef struct bl_meet {
  bl_nccl_meeting_verb_t verb;
  uint32_t generation;
  bl_status_t status; // MADE: BL_OK, or why not; DROP, BROKE: why
  // IDS: of the channel from the lower to the higher stage, and back; with a store: of evictions, and of loads.
  uint8_t ids[BL_MEET_CHANNELS][BL_FRAME_ID_BYTES];
  char text[BL_MEET_TEXT_BYTES];
} bl_meet_t;

void bl_meet_encode(const bl_meet_t *meet, uint8_t body[BL_FRAME_MEET_BYTES]);
// BL_INVALID sets *reason to a fixed text for the log.
BL_MUST_USE bl_status_t bl_meet_decode(const uint8_t body[BL_FRAME_MEET_BYTES], bl_meet_t *meet, const char **reason);

#endif
