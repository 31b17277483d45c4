// SPDX-License-Identifier: Apache-2.0
#include "schedule/csv/csv.h"
#include "schedule/csv/csv_comms.h"
#include "schedule/ir/dependency.h"

#include <stdlib.h>
#include <string.h>

typedef struct text {
  char *bytes;
  size_t used, capacity;
} text_t;

typedef struct writer {
  const bl_schedule_t *schedule;
  bool waits;
  text_t *rows;   // [stages]
  text_t *tails;  // [stages] waits at the end of the row
  size_t *next;   // [stages] next operation
  uint8_t *ended; // [blocks] bit 0: the F is written, bit 1: the I or B is
} writer_t;

static bl_status_t put(text_t *text, const char *cell) {
  size_t length = strlen(cell);
  if (text->capacity - text->used < length + 2) {
    size_t capacity = 2 * text->capacity + 1024;
    char *bytes = realloc(text->bytes, capacity);
    if (bytes == NULL) {
      return BL_EXHAUSTED;
    }
    text->bytes = bytes;
    text->capacity = capacity;
  }
  if (text->used > 0) {
    text->bytes[text->used++] = ',';
  }
  memcpy(text->bytes + text->used, cell, length + 1);
  text->used += length;
  return BL_OK;
}

static bl_status_t put_comm(text_t *text, bl__comm_kind_t kind, bl_op_t op, uint32_t virtual_stage) {
  char cell[BL__COMM_TEXT];
  bl__comm_t comm = {
      .kind = kind, .virtual_stage = (uint16_t)virtual_stage, .slice = op.slice, .micro_batch = op.micro_batch};
  return put(text, bl__comm_format(comm, cell));
}

// Writes the cells that PyTorch puts after an operation. A message is written to both rows at once, so that all rows
// have messages in one common order. A stage waits for the send of an F after the backward of the same block, which
// shows that the peer has received it. It waits for all other sends at the end of the row.
static bl_status_t put_messages(writer_t *w, uint32_t stage, bl_op_t op) {
  const bl_schedule_t *schedule = w->schedule;
  bool forward = op.type == BL_OP_F;
  bl_status_t status = BL_OK;
  uint32_t to;
  if (!forward && !bl_op_type_starts_backward((bl_op_type_t)op.type)) {
    return BL_OK;
  }
  if (!forward && w->waits && bl__op_passes_on(schedule, true, op.virtual_stage, &to)) {
    status = put_comm(&w->rows[stage], BL__COMM_WAIT_SEND_F, op, op.virtual_stage);
  }
  if (status != BL_OK || !bl__op_passes_on(schedule, forward, op.virtual_stage, &to)) {
    return status;
  }
  status = put_comm(&w->rows[stage], forward ? BL__COMM_SEND_F : BL__COMM_SEND_B, op, op.virtual_stage);
  if (status == BL_OK) {
    status = put_comm(&w->rows[schedule->stage_of[to]], forward ? BL__COMM_RECV_F : BL__COMM_RECV_B, op, to);
  }
  if (status == BL_OK && w->waits && (!forward || schedule->forward_only)) {
    bl__comm_kind_t wait = forward ? BL__COMM_WAIT_SEND_F : BL__COMM_WAIT_SEND_B;
    status = put_comm(&w->tails[stage], wait, op, op.virtual_stage);
  }
  return status;
}

static bool ready(const writer_t *w, bl_op_t op) {
  bl_op_t needed;
  if (!bl__op_dependency(w->schedule, op, &needed)) {
    return true;
  }
  return (w->ended[bl_schedule_block(w->schedule, needed)] & (needed.type == BL_OP_F ? 1 : 2)) != 0;
}

// In each round writes one operation of every stage that can proceed, as PyTorch does when it adds messages.
static bl_status_t fill_rows(writer_t *w) {
  const bl_schedule_t *schedule = w->schedule;
  bl_status_t status = BL_OK;
  for (size_t left = bl_schedule_op_count(schedule), before = left + 1; left > 0 && status == BL_OK;) {
    if (left == before) {
      return BL_INVALID; // a cycle
    }
    before = left;
    for (uint32_t s = 0; s < schedule->stages && status == BL_OK; s++) {
      const bl_op_list_t *list = &schedule->lists[s];
      if (w->next[s] == list->count || !ready(w, list->ops[w->next[s]])) {
        continue;
      }
      bl_op_t op = list->ops[w->next[s]++];
      char cell[BL_OP_TEXT];
      left--;
      uint8_t *ended = &w->ended[bl_schedule_block(schedule, op)];
      *ended |= op.type == BL_OP_F ? 1 : bl_op_type_starts_backward((bl_op_type_t)op.type) ? 2 : 0;
      status = put(&w->rows[s], bl_op_format_slice(op, schedule->slices > 1, cell));
      if (status == BL_OK) {
        status = put_messages(w, s, op);
      }
    }
  }
  for (uint32_t s = 0; s < schedule->stages && status == BL_OK; s++) {
    status = w->tails[s].used > 0 ? put(&w->rows[s], w->tails[s].bytes) : BL_OK;
  }
  return status;
}

static bl_status_t join_rows(const writer_t *w, const char *head, char **text, size_t *size_bytes) {
  size_t size = strlen(head) + 1, used = strlen(head);
  for (uint32_t s = 0; s < w->schedule->stages; s++) {
    size += w->rows[s].used + 1;
  }
  char *made = malloc(size);
  if (made == NULL) {
    return BL_EXHAUSTED;
  }
  memcpy(made, head, used);
  for (uint32_t s = 0; s < w->schedule->stages; s++) {
    if (w->rows[s].used > 0) {
      memcpy(made + used, w->rows[s].bytes, w->rows[s].used);
    }
    used += w->rows[s].used;
    made[used++] = '\n';
  }
  made[used] = '\0';
  *text = made;
  *size_bytes = used;
  return BL_OK;
}

bl_status_t bl_csv_write_comms(const bl_schedule_t *schedule, bool waits, char **text, size_t *size_bytes) {
  writer_t w = {.schedule = schedule, .waits = waits};
  w.rows = calloc(2 * (size_t)schedule->stages, sizeof w.rows[0]);
  w.next = calloc(schedule->stages, sizeof w.next[0]);
  w.ended = calloc(bl_schedule_block_count(schedule), 1);
  bl_status_t status = BL_EXHAUSTED;
  if (w.rows != NULL && w.next != NULL && w.ended != NULL) {
    w.tails = w.rows + schedule->stages;
    status = fill_rows(&w);
  }
  if (status == BL_OK) {
    char comments[BL__CSV_COMMENTS_TEXT];
    status = join_rows(&w, bl__csv_comments(schedule, comments), text, size_bytes);
  }
  for (uint32_t s = 0; w.rows != NULL && s < 2 * schedule->stages; s++) {
    free(w.rows[s].bytes);
  }
  free(w.ended);
  free(w.next);
  free(w.rows);
  return status;
}
