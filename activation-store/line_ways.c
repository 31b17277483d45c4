// SPDX-License-Identifier: Apache-2.0
// The communicators of a line over NCCL, and blocks that move over them. Our half of a transfer is queued once the table has
// granted its request, and the holder told so (GO): so both queue in one order, and neither for what the other refuses.
//
// A communicator that fails ends its line, and a line that ends aborts its communicators; moves end when NCCL has let go of
// their rooms, and not before. What gets stuck there ends the process (datapath/nccl/start.h).
#include "lines_core.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

// ---- on a thread of NCCL's ----------------------------------------------------------------------------------------------

static void on_change(void *context, bl_nccl_channel_t *channel) {
  bl__way_t *way = context;
  if (bl_nccl_channel_state(channel, NULL) == BL_NCCL_DEAD && !atomic_exchange(&way->told, true)) {
    bl_loop_post(way->line->lines->loop, &way->died);
  }
}

static void transfer_over(bl_nccl_transfer_t *transfer) {
  bl__move_t *move = BL_WORK_OWNER(transfer, bl__move_t, transfer);
  bl_loop_post(move->line->lines->loop, &move->work.done);
}

// ---- back on the loop ----------------------------------------------------------------------------------------------------

// All its moves have come back before.
static void died(bl_message_t *message) {
  bl__way_t *way = BL_MESSAGE_OWNER(message, bl__way_t, died);
  bl_line_t *line = way->line;
  if (way->channel != NULL) {
    bl_error_t err = {0};
    (void)bl_nccl_channel_state(way->channel, &err);
    bl_nccl_channel_close(way->channel); // dead already: does not wait
    way->channel = NULL;
    bl__line_lose(line, "%s", err.text);
  }
  line->users--;
  bl__line_settle(line);
}

static void met(bl_message_t *message) {
  bl__move_t *move = BL_MESSAGE_OWNER(message, bl__move_t, work.done);
  move->busy = false;
  bl__move_over(move, move->transfer.status == BL_OK);
}

// ---- for the line --------------------------------------------------------------------------------------------------------

// False: the line is lost.
static bool open_way(bl_line_t *line, uint32_t number, const uint8_t id[BL_NCCL_ID_BYTES]) {
  static const char *const names[BL_MEET_CHANNELS] = {"evictions", "loads"};
  bl__way_t *way = &line->ways[number];
  char name[BL_NCCL_NAME_BYTES];
  snprintf(name, sizeof name, "%s of session %" PRIx64, names[number], line->session);
  bl_nccl_channel_options_t options = {
      .name = name, .rank = number == BL_MEET_EVICT ? 1 : 0, .on_change = on_change, .context = way};
  memcpy(options.id, id, BL_NCCL_ID_BYTES);
  *way = (bl__way_t){.line = line, .joined = true, .died = {.handle = died}};
  bl_error_t err = {0};
  line->users++;
  if (bl_nccl_channel_open(line->lines->nccl, &options, &way->channel, &err) == BL_OK) {
    return true;
  }
  line->users--;
  bl__line_lose(line, "%s", err.text);
  return false;
}

void bl__ways_meet(bl_line_t *line) {
  bl_meet_t meet;
  const char *reason = NULL;
  if (bl_meet_decode(line->reader.body, &meet, &reason) != BL_OK) {
    bl__line_lose(line, "%s", reason);
    return;
  }
  if (line->by != BL_PATH_NCCL || meet.verb != BL_NCCL_MEETING_IDS || line->ways[0].joined) {
    bl__line_lose(line, "MEET out of turn");
    return;
  }
  line->users++; // it may be lost by what it opens
  for (uint32_t number = 0; number < BL_MEET_CHANNELS && open_way(line, number, meet.ids[number]); number++) {
  }
  line->users--;
  bl__line_settle(line);
}

bool bl__way_move(bl_line_t *line, uint32_t number, const bl_move_t *what) {
  const bl__way_t *way = &line->ways[number];
  bl__move_t *move = way->channel != NULL ? bl__move_begin(line, BL__MOVE_MEET, what) : NULL;
  if (move == NULL) {
    return false;
  }
  move->work.done.handle = met;
  move->transfer = (bl_nccl_transfer_t){.buffer = move->to, .bytes = what->bytes, .over = transfer_over};
  move->busy = true;
  bl_error_t err;
  if (bl_nccl_channel_post(way->channel, &move->transfer, &err) != BL_OK) { // the line is told by `died`
    bl__move_drop(move);
    return false;
  }
  bl_frame_t go = {.kind = BL_FRAME_GO, .sequence = what->sequence, .bytes = what->bytes};
  bl__line_put(line, &go, NULL);
  bl__line_flush(line);
  return true;
}

void bl__ways_abort(bl_line_t *line) {
  for (uint32_t i = 0; i < BL_MEET_CHANNELS; i++) {
    if (line->ways[i].channel != NULL) {
      bl_nccl_channel_abort(line->ways[i].channel, BL_CANCELLED, "the data connection is gone");
    }
  }
}

void bl__ways_close(bl_line_t *line) {
  for (uint32_t i = 0; i < BL_MEET_CHANNELS; i++) {
    bl_nccl_channel_close(line->ways[i].channel); // says that it is dead before it returns
    line->ways[i].channel = NULL;
  }
}
