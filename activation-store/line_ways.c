// SPDX-License-Identifier: Apache-2.0
// The communicators of a line over NCCL, and blocks that move over them. Our half of a transfer is queued once the table has
// granted its request, and the holder told so (GO): so both queue in one order, and neither for what the other refuses.
//
// A communicator that fails ends its line, and a line that ends aborts its communicators; moves end when NCCL has let go of
// their rooms, and not before. What gets stuck there ends the process (datapath/nccl/start.h).
#include "lines_core.h"

#include <inttypes.h>
#include <stdio.h>

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
  bl_line_t *line = BL_MESSAGE_OWNER(message, bl__way_t, died)->line;
  bl_error_t err = {0};
  if (bl_nccl_pair_state(&line->pair, &err) >= BL_NCCL_ABORTING) {
    (void)bl_nccl_pair_sweep(&line->pair);
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
static bool open_way(bl_line_t *line, bl_pair_direction_t direction, const bl_meet_t *meet) {
  bl__way_t *way = &line->ways[direction];
  char name[BL_NCCL_NAME_BYTES];
  snprintf(name, sizeof name, "%s of session %" PRIx64, direction == BL_PAIR_IN ? "evictions" : "loads", line->session);
  const bl_nccl_channel_options_t options = {.name = name, .on_change = on_change, .context = way};
  *way = (bl__way_t){.line = line, .died = {.handle = died}};
  bl_error_t err = {0};
  line->users++;
  if (bl_nccl_pair_open(&line->pair, line->lines->nccl, direction, meet->ids, &options, &err) == BL_OK) {
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
  if (line->by != BL_PATH_NCCL || meet.verb != BL_NCCL_MEETING_IDS || line->ways[0].line != NULL) {
    bl__line_lose(line, "MEET out of turn");
    return;
  }
  line->users++; // it may be lost by what it opens
  if (open_way(line, BL_PAIR_IN, &meet)) {
    (void)open_way(line, BL_PAIR_OUT, &meet);
  }
  line->users--;
  bl__line_settle(line);
}

bool bl__way_move(bl_line_t *line, bl_pair_direction_t direction, const bl_move_t *what) {
  const bool there = line->pair.channels[bl_nccl_pair_index(&line->pair, direction)] != NULL;
  bl__move_t *move = there ? bl__move_begin(line, BL__MOVE_MEET, what) : NULL;
  if (move == NULL) {
    return false;
  }
  move->work.done.handle = met;
  move->transfer = (bl_nccl_transfer_t){.buffer = move->to, .bytes = what->bytes, .over = transfer_over};
  move->busy = true;
  bl_error_t err;
  if (bl_nccl_pair_post(&line->pair, direction, &move->transfer, &err) != BL_OK) { // the line is told by `died`
    bl__move_drop(move);
    return false;
  }
  bl_frame_t go = {.kind = BL_FRAME_GO, .sequence = what->sequence, .bytes = what->bytes};
  bl__line_put(line, &go, NULL);
  bl__line_flush(line);
  return true;
}

void bl__ways_abort(bl_line_t *line) {
  bl_nccl_pair_abort(&line->pair, BL_CANCELLED, "the data connection is gone");
}

void bl__ways_close(bl_line_t *line) {
  bl_nccl_pair_close(&line->pair); // says that both are dead before it returns
}
