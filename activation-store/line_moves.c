// SPDX-License-Identifier: Apache-2.0
// Blocks on their way: pulled from shown memory, received from and sent to TCP connections, on transfer threads. A thread
// keeps a connection as long as bytes flow and no other work waits.
#include "lines_core.h"

#include "datapath/block.h"
#include "sys/log.h"

#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>

#define PATIENCE_MS 1            // a transfer thread waits that long for a socket before the loop does
#define TURN_BYTES  (8ull << 20) // moved at most while other work waits

// ---- on a transfer thread ----------------------------------------------------------------------------------------------

static bool is_cancelled(const bl__move_t *move) {
  return atomic_load_explicit(&move->cancelled, memory_order_relaxed);
}

// The memory of the room is there. False: the machine has none.
static bool has_memory(const bl__move_t *move) {
  bl_error_t err;
  bool has = bl_arena_fill(&move->arena, move->offset, move->what.bytes, &err) == BL_OK;
  if (!has) {
    bl_log(BL_LOG_ERROR, "lease %" PRIu64 ": %s", move->what.id, err.text);
  }
  return has;
}

static void pull(bl_work_t *work) {
  bl__move_t *move = BL_WORK_OWNER(work, bl__move_t, work);
  if (!has_memory(move)) {
    move->status = BL_EXHAUSTED;
    return;
  }
  bl_error_t err = {0};
  if (move->line->by == BL_PATH_CUDA_IPC) { // not interrupted: it takes less time than anybody waits
    move->status = is_cancelled(move)
                       ? BL_CANCELLED
                       : bl_mover_copy(move->line->lines->mover, move->to, move->from, move->what.bytes, &err);
    return;
  }
  move->status = move->verified ? bl_block_copy(move->to, move->from, move->what.bytes, &move->cancelled, &move->hash)
                                : bl_block_copy_unverified(move->to, move->from, move->what.bytes, &move->cancelled);
}

static bool wait_for(int fd, short events) {
  struct pollfd poll_fd = {.fd = fd, .events = events};
  return poll(&poll_fd, 1, PATIENCE_MS) > 0;
}

// Whether the chunk whose body has come is what its frame says.
static bool take_chunk(bl__move_t *move) {
  const bl_frame_t *frame = &move->line->reader.frame;
  if (move->verified) {
    move->hash = bl_block_checksum_more(move->hash, move->to + move->at, frame->body_bytes);
    move->corrupt = move->hash != frame->checksum;
  }
  move->at += frame->body_bytes;
  return !move->corrupt;
}

static bool continues(const bl__move_t *move, const bl_frame_t *frame) {
  return frame->kind == BL_FRAME_DATA && frame->sequence == move->what.sequence && frame->offset == move->at &&
         frame->bytes == move->what.bytes;
}

// Ends with the event that the loop must see: BODY when the block is whole or corrupt.
static void receive(bl_work_t *work) {
  bl__move_t *move = BL_WORK_OWNER(work, bl__move_t, work);
  bl_line_t *line = move->line;
  uint64_t until = move->at + TURN_BYTES;
  if (move->at == 0 && !has_memory(move)) {
    atomic_store_explicit(&move->cancelled, true, memory_order_relaxed);
  }
  while (!is_cancelled(move)) {
    move->came = bl_frame_reader_next(&line->reader);
    if (move->came == BL_READER_BODY) {
      if (!take_chunk(move) || move->at == move->what.bytes) {
        return;
      }
    } else if (move->came == BL_READER_FRAME && continues(move, &line->reader.frame)) {
      bl_frame_reader_into(&line->reader, move->to + move->at);
    } else if (move->came != BL_READER_AGAIN || !wait_for(line->stream.fd, POLLIN)) {
      return;
    }
    if (move->at >= until && bl_pool_is_busy(line->lines->pool) && move->came == BL_READER_BODY) {
      move->came = BL_READER_AGAIN;
      return;
    }
  }
  move->came = BL_READER_AGAIN;
}

static void send_block(bl_work_t *work) {
  bl__move_t *move = BL_WORK_OWNER(work, bl__move_t, work);
  bl_line_t *line = move->line;
  uint64_t until = move->sender.at + TURN_BYTES;
  do { // after a cancel only the chunk under way goes out
    move->went = is_cancelled(move) ? bl_frame_writer_flush(&line->writer)
                                    : bl_frame_writer_send(&line->writer, &move->sender, 1);
  } while (move->sender.at < until &&
           (move->went == BL_WRITER_DONE ? !is_cancelled(move) && move->sender.at < move->what.bytes
                                         : move->went == BL_WRITER_AGAIN && wait_for(line->stream.fd, POLLOUT)));
}

// ---- back on the loop --------------------------------------------------------------------------------------------------

static void pulled(bl_message_t *message) {
  bl__move_t *move = BL_MESSAGE_OWNER(message, bl__move_t, work.done);
  move->busy = false;
  if (move->status == BL_OK) {
    move->line->lines->counters.bytes_copied += move->what.bytes;
  }
  bl__move_over(move, move->status == BL_OK);
}

static void received(bl_message_t *message) {
  bl__move_t *move = BL_MESSAGE_OWNER(message, bl__move_t, work.done);
  bl_line_t *line = move->line;
  move->busy = line->reading = false;
  line->frame_pending = move->came == BL_READER_FRAME;
  bool whole = move->corrupt || move->at == move->what.bytes;
  line->users++; // the last user may go
  if (line->gone || whole || is_cancelled(move)) {
    bl__move_over(move, whole);
  } else if (move->came == BL_READER_END || move->came == BL_READER_BROKEN) {
    bl__line_lose(line, "%s", line->reader.reason);
  }
  if (!line->gone) {
    bl__line_read(line);
  }
  line->users--;
  bl__line_settle(line);
}

static void sent(bl_message_t *message) {
  bl__move_t *move = BL_MESSAGE_OWNER(message, bl__move_t, work.done);
  bl_line_t *line = move->line;
  move->busy = line->writing = false;
  line->write_blocked = move->went == BL_WRITER_AGAIN;
  if (line->gone) {
    bl__move_over(move, false);
    return;
  }
  if (move->went == BL_WRITER_BROKEN) {
    bl__line_lose(line, "writing failed");
    return;
  }
  bool whole = move->sender.at == move->what.bytes && line->writer.chunk_bytes == 0;
  if (whole || (is_cancelled(move) && line->writer.chunk_bytes == 0)) {
    line->users++;
    bl__move_over(move, whole);
    line->users--;
  }
  bl__line_flush(line);
  bl__line_settle(line);
}

// ---- beginning and ending ----------------------------------------------------------------------------------------------

// The part of the arena that a room lies in, with its offset there; NULL when it lies in none.
static const bl_arena_t *find_part(const bl_line_t *line, uint64_t bytes, uint64_t *offset_bytes) {
  for (unsigned i = 0; i < BL_LINES_PARTS; i++) {
    const bl_arena_t *part = line->room.parts[i];
    if (part != NULL && *offset_bytes < part->bytes) {
      return bytes <= part->bytes - *offset_bytes ? part : NULL;
    }
    *offset_bytes -= part != NULL ? part->bytes : 0;
  }
  return NULL;
}

bl__move_t *bl__move_begin(bl_line_t *line, bl__move_kind_t kind, const bl_move_t *what) {
  bl_lines_t *lines = line->lines;
  uint64_t offset = what->offset_bytes;
  const bl_arena_t *part = find_part(line, what->bytes, &offset);
  if (line->gone || what->bytes == 0 || part == NULL) {
    return NULL;
  }
  bl__move_t *move = STAILQ_FIRST(&lines->unused);
  if (move != NULL) {
    STAILQ_REMOVE_HEAD(&lines->unused, listed);
  } else if ((move = calloc(1, sizeof *move)) == NULL) {
    return NULL;
  }
  *move = (bl__move_t){.line = line,
                       .kind = kind,
                       .what = *what,
                       .arena = *part,
                       .offset = offset,
                       .to = part->base + offset,
                       .verified = !line->unverified};
  atomic_init(&move->cancelled, false);
  STAILQ_INSERT_TAIL(&line->moves, move, listed);
  line->users++;
  return move;
}

void bl__move_drop(bl__move_t *move) {
  bl_line_t *line = move->line;
  bl_lines_t *lines = line->lines;
  STAILQ_REMOVE(&line->moves, move, bl__move, listed);
  STAILQ_INSERT_HEAD(&lines->unused, move, listed);
  line->users--;
}

void bl__move_over(bl__move_t *move, bool moved) {
  bl_line_t *line = move->line;
  bl_lines_t *lines = line->lines;
  if (line->coming == move) {
    line->coming = NULL;
    if (!line->reading) {
      bl_frame_reader_into(&line->reader, NULL);
    }
  }
  if (move->source != NULL) {
    bl__source_release(move->source);
  }
  bl_move_t what = move->what;
  uint64_t hash = move->hash;
  if (move->kind ==
      BL__MOVE_RECEIVE) { // only where it is the loop's: of one that is lost another move may have the reader
    what.checksum = moved && move->verified ? line->reader.frame.checksum : 0; // of the last chunk: the whole block's
  }
  if (!move->verified ||
      move->kind == BL__MOVE_SEND) { // a load is verified where it arrives, against what was recorded
    hash = what.checksum;
  }
  line->users++; // the answer may be the line's last
  bl__move_drop(move);
  lines->callbacks.on_moved(lines->context, &what, moved, hash);
  line->users--;
  bl__line_settle(line);
}

bool bl__move_pull(bl_line_t *line, const bl_move_t *what, uint32_t number, uint64_t source_offset) {
  bl__source_t *source = bl__source_at(line, number, source_offset, what->bytes);
  bl__move_t *move = source != NULL ? bl__move_begin(line, BL__MOVE_PULL, what) : NULL;
  if (move == NULL) {
    return false;
  }
  move->source = source;
  source->users++;
  move->from = source->map.base + source_offset;
  move->work = (bl_work_t){.run = pull, .done = {.handle = pulled}};
  move->busy = true;
  bl_pool_submit(line->lines->pool, &move->work);
  return true;
}

bool bl__move_receive(bl_line_t *line, const bl_move_t *what) {
  bl__move_t *move = bl__move_begin(line, BL__MOVE_RECEIVE, what);
  if (move != NULL) {
    move->work = (bl_work_t){.run = receive, .done = {.handle = received}};
  }
  return move != NULL;
}

bool bl__move_send(bl_line_t *line, const bl_move_t *what) {
  bl__move_t *move = bl__move_begin(line, BL__MOVE_SEND, what);
  if (move != NULL) {
    move->sender = (bl_frame_sender_t){
        .frame = {.bytes = what->bytes, .sequence = what->sequence}, .from = move->to, .verified = move->verified};
    move->work = (bl_work_t){.run = send_block, .done = {.handle = sent}};
    bl__line_flush(line);
  }
  return move != NULL;
}

void bl_lines_cancel(bl_lines_t *lines, uint64_t id, uint64_t generation) {
  bl_line_t *line;
  LIST_FOREACH(line, &lines->all, listed) {
    bl__move_t *move;
    STAILQ_FOREACH(move, &line->moves, listed) {
      if (move->what.id != id || move->what.generation != generation) {
        continue;
      }
      atomic_store_explicit(&move->cancelled, true, memory_order_relaxed);
      bool begun = move->kind == BL__MOVE_SEND && line->writer.chunk_bytes > 0 && move->sender.at > 0;
      if (!move->busy && !begun) {
        bl__move_over(move, false); // the line may be gone after this
      }
      return;
    }
  }
}

// ---- for the line ------------------------------------------------------------------------------------------------------

static void submit_receive(bl_line_t *line, bl__move_t *move) {
  line->coming = move;
  line->reading = move->busy = true;
  bl_pool_submit(line->lines->pool, &move->work);
}

void bl__moves_data(bl_line_t *line) {
  const bl_frame_t *frame = &line->reader.frame;
  bl__move_t *move = STAILQ_FIRST(&line->moves);
  while (move != NULL && (move->kind != BL__MOVE_RECEIVE || move->what.sequence != frame->sequence)) {
    move = STAILQ_NEXT(move, listed);
  }
  if (move == NULL) {
    bl_frame_reader_into(&line->reader, NULL); // of a request that was refused or given up
  } else if (!continues(move, frame)) {
    bl__line_lose(line, "DATA at offset %" PRIu64 " where %" PRIu64 " was to come", frame->offset, move->at);
  } else {
    bl_frame_reader_into(&line->reader, move->to + move->at);
    submit_receive(line, move);
  }
}

void bl__moves_continue_reading(bl_line_t *line) {
  bl__move_t *move = line->coming;
  if (move != NULL && !line->reading && line->reader.in_body) {
    submit_receive(line, move);
  }
}

void bl__moves_continue_writing(bl_line_t *line) {
  bl__move_t *move = STAILQ_FIRST(&line->moves);
  while (move != NULL && move->kind != BL__MOVE_SEND) {
    move = STAILQ_NEXT(move, listed);
  }
  if (move != NULL) {
    line->writing = move->busy = true;
    bl_pool_submit(line->lines->pool, &move->work);
  }
}

void bl__moves_lose(bl_line_t *line) {
  for (bl__move_t *move = STAILQ_FIRST(&line->moves), *next; move != NULL; move = next) {
    next = STAILQ_NEXT(move, listed);
    atomic_store_explicit(&move->cancelled, true, memory_order_relaxed);
    if (!move->busy) {
      bl__move_over(move, false);
    }
  }
}

void bl__moves_free(bl_lines_t *lines) {
  for (bl__move_t *move; (move = STAILQ_FIRST(&lines->unused)) != NULL;) {
    STAILQ_REMOVE_HEAD(&lines->unused, listed);
    free(move);
  }
}
