// SPDX-License-Identifier: Apache-2.0
#include "schedule/csv_comms.h"

#include "schedule/csv.h"
#include "schedule/dependency.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[BL__COMM_KINDS] = {"SEND_F",      "RECV_F",          "WAIT_SEND_F", "SEND_B",
                                                  "RECV_B",      "WAIT_SEND_B",     "UNSHARD",     "RESHARD",
                                                  "REDUCE_GRAD", "WAIT_REDUCE_GRAD"};

enum { SEND, RECV, WAIT, ROLES };

static bool is_message(bl__comm_kind_t kind) {
  return kind < BL__COMM_UNSHARD;
}

static int role_of(const bl__comm_t *comm) {
  return (int)comm->kind % ROLES;
}

static bool backward(const bl__comm_t *comm) {
  return comm->kind >= BL__COMM_SEND_B;
}

const char *bl__comm_format(bl__comm_t comm, char text[BL__COMM_TEXT]) {
  int used = snprintf(text, BL__COMM_TEXT, "%u%s", comm.virtual_stage, names[comm.kind]);
  if (is_message(comm.kind) || comm.micro_batch != 0) {
    used += snprintf(text + used, (size_t)(BL__COMM_TEXT - used), "%u", comm.micro_batch);
  }
  if (comm.slice != 0) {
    snprintf(text + used, (size_t)(BL__COMM_TEXT - used), ".%u", comm.slice);
  }
  return text;
}

// Reads digits at *at; false when there are none or the number is above `most`.
static bool read_number(const char *text, size_t length, size_t *at, uint32_t most, uint32_t *value) {
  size_t start = *at;
  uint64_t number = 0;
  for (; *at < length && text[*at] >= '0' && text[*at] <= '9' && number <= most; (*at)++) {
    number = number * 10 + (uint64_t)(text[*at] - '0');
  }
  *value = (uint32_t)number;
  return *at > start && number <= most;
}

bool bl__comm_parse(const char *text, size_t length, bl__comm_t *comm) {
  uint32_t virtual_stage, micro_batch = 0, slice = 0;
  size_t at = 0;
  if (!read_number(text, length, &at, BL_VIRTUAL_STAGES_MAX - 1, &virtual_stage)) {
    return false;
  }
  for (int n = 0; n < BL__COMM_KINDS; n++) {
    size_t name_length = strlen(names[n]);
    if (length - at < name_length || memcmp(text + at, names[n], name_length) != 0) {
      continue;
    }
    at += name_length;
    if ((is_message((bl__comm_kind_t)n) || at < length) &&
        !read_number(text, length, &at, BL_MICRO_BATCHES_MAX - 1, &micro_batch)) {
      return false;
    }
    if (at < length && text[at] == '.') {
      at++;
      if (!read_number(text, length, &at, BL_SLICES_MAX - 1, &slice)) {
        return false;
      }
    }
    comm->kind = (bl__comm_kind_t)n;
    comm->virtual_stage = (uint16_t)virtual_stage;
    comm->micro_batch = micro_batch;
    comm->slice = (uint8_t)slice;
    return at == length;
  }
  return false;
}

// ---- check

// The virtual stage that sends; of a receive on the first or last of all one that does not exist.
static int64_t sender(const bl__comm_t *comm) {
  int64_t step = backward(comm) ? 1 : -1;
  return (int64_t)comm->virtual_stage + (role_of(comm) == RECV ? step : 0);
}

#define COMPARE(x, y)                                                                                                  \
  if ((x) != (y)) {                                                                                                    \
    return (x) < (y) ? -1 : 1;                                                                                         \
  }

static int compare_messages(const bl__comm_t *x, const bl__comm_t *y) {
  COMPARE(!is_message(x->kind), !is_message(y->kind))
  COMPARE(backward(x), backward(y))
  COMPARE(sender(x), sender(y))
  COMPARE(x->micro_batch, y->micro_batch)
  COMPARE(x->slice, y->slice)
  return 0;
}

// By message; its send, its receive, its wait.
static int by_message(const void *a, const void *b) {
  const bl__comm_t *x = a, *y = b;
  int order = compare_messages(x, y);
  if (order != 0) {
    return order;
  }
  COMPARE(role_of(x), role_of(y))
  COMPARE(x->row, y->row)
  COMPARE(x->column, y->column)
  return 0;
}

static const char *fault_of(const bl__comm_t *const parts[ROLES], const bl__comm_t **at) {
  if (parts[RECV] == NULL && parts[SEND] != NULL) {
    *at = parts[SEND];
    return "nobody receives what it sends";
  }
  if (parts[SEND] == NULL) {
    *at = parts[RECV] != NULL ? parts[RECV] : parts[WAIT];
    return parts[RECV] != NULL ? "nobody sends what it receives" : "waits for what is not sent";
  }
  *at = parts[WAIT];
  return parts[WAIT] != NULL && parts[WAIT]->column < parts[SEND]->column ? "waits for what is sent after it" : NULL;
}

// From `first` on, all of one message; *count is how many cells it has.
static const char *check_message(const bl__comm_t *first, size_t left, size_t *count, const bl__comm_t **at) {
  const bl__comm_t *parts[ROLES] = {NULL};
  for (*count = 0; *count < left && compare_messages(first, first + *count) == 0; ++*count) {
    const bl__comm_t **part = &parts[role_of(first + *count)];
    if (*part != NULL) {
      *at = first + *count;
      return "a second time";
    }
    *part = first + *count;
  }
  return fault_of(parts, at);
}

bl_status_t bl__comms_check(bl__comm_t *comms, size_t count, const uint16_t *stage_of, uint32_t virtual_stages,
                            const bl__comm_t **at, char why[BL__COMM_WHY]) {
  for (size_t i = 0; i < count; i++) {
    uint32_t v = comms[i].virtual_stage;
    if (v >= virtual_stages || stage_of[v] != comms[i].row - 1) {
      *at = &comms[i];
      if (v >= virtual_stages) {
        snprintf(why, BL__COMM_WHY, "no operation of virtual stage %u is on any row", v);
      } else {
        snprintf(why, BL__COMM_WHY, "virtual stage %u is on row %u", v, stage_of[v] + 1u);
      }
      return BL_INVALID;
    }
  }
  if (count > 0) {
    qsort(comms, count, sizeof *comms, by_message);
  }
  for (size_t i = 0, cells; i < count && is_message(comms[i].kind); i += cells) {
    const char *fault = check_message(&comms[i], count - i, &cells, at);
    if (fault != NULL) {
      snprintf(why, BL__COMM_WHY, "%s", fault);
      return BL_INVALID;
    }
  }
  return BL_OK;
}

// ---- write

typedef struct text {
  char *bytes;
  size_t used, capacity;
} text_t;

typedef struct writer {
  const bl_schedule_t *schedule;
  bool waits;
  text_t *rows;   // [stages]
  text_t *tails;  // [stages] waits at the end of the row
  size_t *next;   // [stages] operation that comes next
  uint8_t *ended; // [blocks] bit 0: its F is written, bit 1: its I or B
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

// Whether the result of an operation (verb F, or I for any backward) goes to another stage, and to which virtual stage.
static bool passes_on(const bl_schedule_t *schedule, bl_verb_t verb, uint32_t virtual_stage, uint32_t *to) {
  bool forward = verb == BL_VERB_F;
  bool ends = forward ? bl_schedule_is_last(schedule, virtual_stage) : bl_schedule_is_first(schedule, virtual_stage);
  *to = forward ? virtual_stage + 1 : virtual_stage - 1;
  return !ends && schedule->stage_of[*to] != schedule->stage_of[virtual_stage];
}

// What PyTorch puts behind an operation. A message goes into both rows at once, so that all rows have messages in one
// common order. A stage waits for a send of its F after the backward of the same block, which shows that the other side
// has it; for all others at the end.
static bl_status_t put_messages(writer_t *w, uint32_t stage, bl_op_t op) {
  const bl_schedule_t *schedule = w->schedule;
  bool forward = op.verb == BL_VERB_F;
  bl_status_t status = BL_OK;
  uint32_t to;
  if (!forward && !bl_verb_starts_backward((bl_verb_t)op.verb)) {
    return BL_OK;
  }
  if (!forward && w->waits && passes_on(schedule, BL_VERB_F, op.virtual_stage, &to)) {
    status = put_comm(&w->rows[stage], BL__COMM_WAIT_SEND_F, op, op.virtual_stage);
  }
  if (status != BL_OK || !passes_on(schedule, forward ? BL_VERB_F : BL_VERB_I, op.virtual_stage, &to)) {
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
  return (w->ended[bl_schedule_block(w->schedule, needed)] & (needed.verb == BL_VERB_F ? 1 : 2)) != 0;
}

// Round after round, one operation of every stage that can go on: PyTorch's own way of adding messages.
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
      *ended |= op.verb == BL_VERB_F ? 1 : bl_verb_starts_backward((bl_verb_t)op.verb) ? 2 : 0;
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
    status = join_rows(&w, schedule->transfers == BL_TRANSFER_OVERLAP ? BL_CSV_OVERLAP "\n" : "", text, size_bytes);
  }
  for (uint32_t s = 0; w.rows != NULL && s < 2 * schedule->stages; s++) {
    free(w.rows[s].bytes);
  }
  free(w.ended);
  free(w.next);
  free(w.rows);
  return status;
}
