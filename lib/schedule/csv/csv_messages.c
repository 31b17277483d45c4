// SPDX-License-Identifier: Apache-2.0
#include "schedule/csv/csv_messages.h"

#include "base/words.h"
#include "schedule/ir/cycle.h"
#include "schedule/ir/dependency.h"
#include "schedule/ir/work_list.h"

#include <stdio.h>
#include <stdlib.h>

enum { SEND, RECV, WAIT, ROLES };
enum { WHY = 160 };

typedef struct checker {
  const bl__csv_messages_t *file;
  const bl_schedule_t *schedule;
  uint32_t *column_of[2];            // [blocks] of the F and of the I or B; 0: none
  uint32_t *found[BL__COMM_UNSHARD]; // [blocks] 1 + index of the message of that kind; 0: none
  bool any[BL__COMM_UNSHARD];
  bl_error_t *err;
} checker_t;

static int role_of(bl__comm_kind_t kind) {
  return (int)kind % ROLES;
}

static bool forward(bl__comm_kind_t kind) {
  return kind < BL__COMM_SEND_B;
}

static bl__comm_kind_t kind_of(bool goes_forward, int role) {
  return (bl__comm_kind_t)((goes_forward ? BL__COMM_SEND_F : BL__COMM_SEND_B) + role);
}

static size_t block_of(const checker_t *c, bl__comm_t comm) {
  bl_op_t op = {.virtual_stage = comm.virtual_stage, .micro_batch = comm.micro_batch, .slice = comm.slice};
  return bl_schedule_block(c->schedule, op);
}

static bl_status_t refuse(const checker_t *c, const bl__comm_t *at, const char *why) {
  char text[BL__COMM_TEXT];
  return bl_error_set(c->err, BL_INVALID, "row %u, column %u, cell \"%s\": %s", at->row, at->column,
                      bl__comm_format(*at, text), why);
}

// Writes the cell of the operation that makes or needs a message.
static const char *operation_of(bl__comm_t comm, char text[BL_OP_TEXT]) {
  bl_op_t op = {.type = forward(comm.kind) ? BL_OP_F : BL_OP_B,
                .virtual_stage = comm.virtual_stage,
                .micro_batch = comm.micro_batch,
                .slice = comm.slice};
  return bl_op_format(op, text);
}

// Sets *partner to the other end of a message. Returns false if the virtual stage has no neighbour on that side, or has
// it on its own row.
static bool partner_of(const checker_t *c, bl__comm_t comm, bl__comm_t *partner, char why[WHY]) {
  bool receives = role_of(comm.kind) == RECV, up = forward(comm.kind) != receives;
  uint32_t v = comm.virtual_stage;
  *partner = comm;
  if (up ? bl_schedule_is_last(c->schedule, v) : bl_schedule_is_first(c->schedule, v)) {
    snprintf(why, WHY, "nobody %s: virtual stage %u is the %s",
             receives ? "sends what it receives" : "receives what it sends", v, up ? "last" : "first");
    return false;
  }
  partner->virtual_stage = (uint16_t)(up ? v + 1 : v - 1);
  partner->kind = kind_of(forward(comm.kind), receives ? SEND : RECV);
  if (c->schedule->stage_of[v] == c->schedule->stage_of[partner->virtual_stage]) {
    snprintf(why, WHY, "virtual stages %u and %u are on the same row, where nothing is sent", v,
             partner->virtual_stage);
    return false;
  }
  return true;
}

static bl_status_t check_beyond(const checker_t *c, const bl__comm_t *comm, uint32_t number, uint32_t count,
                                const char *noun, const char *plural) {
  char why[WHY];
  if (number < count) {
    return BL_OK;
  }
  snprintf(why, sizeof why, "there %s only %u %s%s", bl_one_or_many(count, "is", "are"), count, noun,
           bl_one_or_many(count, "", plural));
  return refuse(c, comm, why);
}

static bl_status_t check_row(const checker_t *c, const bl__comm_t *comm) {
  uint32_t v = comm->virtual_stage;
  char why[WHY];
  if (v >= c->schedule->virtual_stages) {
    snprintf(why, sizeof why, "no operation of virtual stage %u is on any row", v);
    return refuse(c, comm, why);
  }
  if (c->schedule->stage_of[v] != comm->row - 1) {
    snprintf(why, sizeof why, "virtual stage %u is on row %u", v, c->schedule->stage_of[v] + 1u);
    return refuse(c, comm, why);
  }
  return BL_OK;
}

// Checks the position of a message relative to the operation that makes or needs it.
static bl_status_t check_place(const checker_t *c, const bl__comm_t *comm) {
  uint32_t column = c->column_of[!forward(comm->kind)][block_of(c, *comm)];
  char why[WHY], cell[BL_OP_TEXT];
  bl__comm_t partner;
  if (!partner_of(c, *comm, &partner, why)) {
    return refuse(c, comm, why);
  }
  operation_of(*comm, cell);
  if (column == 0) {
    snprintf(why, sizeof why, "there is no %s", cell);
    return refuse(c, comm, why);
  }
  if (role_of(comm->kind) == RECV && comm->column > column) {
    snprintf(why, sizeof why, "is received after %s in column %u, which needs it", cell, column);
    return refuse(c, comm, why);
  }
  if (role_of(comm->kind) == SEND && comm->column < column) {
    snprintf(why, sizeof why, "is sent before %s in column %u, which makes it", cell, column);
    return refuse(c, comm, why);
  }
  return BL_OK;
}

static bl_status_t check_cell(checker_t *c, uint32_t index) {
  const bl__comm_t *comm = &c->file->comms[index];
  bl_status_t status = check_row(c, comm);
  if (status != BL_OK || !bl__comm_is_message(comm->kind)) {
    return status;
  }
  status = check_beyond(c, comm, comm->micro_batch, c->schedule->micro_batches, "micro-batch", "es");
  if (status == BL_OK) {
    status = check_beyond(c, comm, comm->slice, c->schedule->slices, "slice", "s");
  }
  if (status != BL_OK) {
    return status;
  }
  uint32_t *found = &c->found[comm->kind][block_of(c, *comm)];
  if (*found != 0) {
    return refuse(c, comm, "a second time");
  }
  *found = index + 1;
  c->any[comm->kind] = true;
  return check_place(c, comm);
}

static bool has(const checker_t *c, bl__comm_t comm) {
  return c->found[comm.kind][block_of(c, comm)] != 0;
}

// Checks that the other end of a message exists, and that a wait comes after its send.
static bl_status_t check_ends(const checker_t *c, const bl__comm_t *comm) {
  char why[WHY], text[BL__COMM_TEXT];
  bl__comm_t partner, other = *comm;
  if (!bl__comm_is_message(comm->kind)) {
    return BL_OK;
  }
  if (role_of(comm->kind) == WAIT) {
    other.kind = kind_of(forward(comm->kind), SEND);
    if (!has(c, other)) {
      return refuse(c, comm, "waits for what is not sent");
    }
    bool before = comm->column < c->file->comms[c->found[other.kind][block_of(c, other)] - 1].column;
    return before ? refuse(c, comm, "waits for what is sent after it") : BL_OK;
  }
  if (!partner_of(c, *comm, &partner, why)) {
    return refuse(c, comm, why);
  }
  if (!has(c, partner)) {
    bool receives = role_of(comm->kind) == RECV;
    snprintf(why, sizeof why, "nobody %s: row %u has no %s",
             receives ? "sends what it receives" : "receives what it sends",
             c->schedule->stage_of[partner.virtual_stage] + 1u, bl__comm_format(partner, text));
    return refuse(c, comm, why);
  }
  other.kind = kind_of(forward(comm->kind), WAIT);
  if (role_of(comm->kind) == SEND && c->any[other.kind] && !has(c, other)) {
    snprintf(why, sizeof why, "%s is missing: a file waits for all it sends that way, or for none",
             bl__comm_format(other, text));
    return refuse(c, comm, why);
  }
  return BL_OK;
}

// In a file with messages, checks that those of one operation exist.
static bl_status_t check_operation(const checker_t *c, const bl__csv_cell_t *at) {
  bl_op_t op = at->op;
  bool goes_forward = op.type == BL_OP_F;
  if (!goes_forward && !bl_op_type_starts_backward((bl_op_type_t)op.type)) {
    return BL_OK;
  }
  for (int role = SEND; role <= RECV; role++) {
    bl__comm_t partner, comm = {.kind = kind_of(goes_forward, role),
                                .virtual_stage = op.virtual_stage,
                                .slice = op.slice,
                                .micro_batch = op.micro_batch};
    char why[WHY], cell[BL_OP_TEXT], text[BL__COMM_TEXT];
    if (partner_of(c, comm, &partner, why) && !has(c, comm)) {
      return bl_error_set(c->err, BL_INVALID,
                          "row %u, column %u, cell \"%s\": its %s is missing: a file has all messages or none", at->row,
                          at->column, bl_op_format(op, cell), bl__comm_format(comm, text));
    }
  }
  return BL_OK;
}

// ---- the order of messages

typedef struct queues {
  const checker_t *checker;
  size_t *next, *end;   // [stages] into comms: the next message of the row, and the end of the row
  size_t *waiting;      // [stages] messages of a cycle
  bl__work_list_t work; // rows
} queues_t;

// Sets *index to the next message of the row. Returns false if there is none.
static bool head(queues_t *q, uint32_t row, size_t *index) {
  const bl__comm_t *comms = q->checker->file->comms;
  while (q->next[row] < q->end[row] &&
         (!bl__comm_is_message(comms[q->next[row]].kind) || role_of(comms[q->next[row]].kind) == WAIT)) {
    q->next[row]++;
  }
  *index = q->next[row];
  return q->next[row] < q->end[row];
}

static size_t partner_index(const checker_t *c, size_t index) {
  char why[WHY];
  bl__comm_t partner;
  (void)partner_of(c, c->file->comms[index], &partner, why);
  return c->found[partner.kind][block_of(c, partner)] - 1;
}

static void pass_messages(queues_t *q, uint32_t row) {
  size_t index, other;
  while (head(q, row, &index)) {
    size_t partner = partner_index(q->checker, index);
    uint32_t other_row = q->checker->file->comms[partner].row - 1;
    if (!head(q, other_row, &other) || other != partner) {
      return;
    }
    q->next[row]++;
    q->next[other_row]++;
    (void)bl__work_list_add(&q->work, other_row);
  }
}

static void format_message(const void *context, uint32_t edge, bool awaited, char text[BL__CYCLE_PART]) {
  const queues_t *q = context;
  size_t index = awaited ? partner_index(q->checker, q->waiting[edge]) : q->waiting[edge];
  const bl__comm_t *comm = &q->checker->file->comms[index];
  char cell[BL__COMM_TEXT];
  snprintf(text, BL__CYCLE_PART, "%s (row %u, column %u)", bl__comm_format(*comm, cell), comm->row, comm->column);
}

// `row` waits for ever. Follows the waits until a row repeats, and reports that cycle.
static bl_status_t name_deadlock(queues_t *q, uint32_t row) {
  const bl__comm_t *comms = q->checker->file->comms;
  size_t index;
  while (bl__work_list_add(&q->work, row)) {
    (void)head(q, row, &index);
    row = comms[partner_index(q->checker, index)].row - 1;
  }
  uint32_t edges = 0;
  for (uint32_t first = row; edges == 0 || row != first; edges++) {
    (void)head(q, row, &q->waiting[edges]);
    row = comms[partner_index(q->checker, q->waiting[edges])].row - 1;
  }
  char text[BL__CYCLE_TEXT], cell[BL__COMM_TEXT];
  const bl__comm_t *at = &comms[q->waiting[0]];
  return bl_error_set(q->checker->err, BL_INVALID,
                      "row %u, column %u, cell \"%s\": a deadlock, messages in crossed order: %s", at->row, at->column,
                      bl__comm_format(*at, cell), bl__cycle_text(&(bl__cycle_t){format_message, q, edges}, text));
}

static bl_status_t check_order(const checker_t *c) {
  const uint32_t stages = c->schedule->stages;
  queues_t q = {.checker = c};
  q.next = calloc(3 * (size_t)stages, sizeof q.next[0]);
  const bool listed = bl__work_list_init(&q.work, stages);
  bl_status_t status = BL_OK;
  if (q.next == NULL || !listed) {
    status = bl_error_set(c->err, BL_EXHAUSTED, "out of memory for the messages of %u rows", stages);
    goto free_queues;
  }
  q.end = q.next + stages;
  q.waiting = q.end + stages;
  for (size_t i = 0; i < c->file->comm_count; i++) {
    uint32_t row = c->file->comms[i].row - 1;
    q.next[row] = q.end[row] == 0 ? i : q.next[row];
    q.end[row] = i + 1;
  }
  uint32_t row;
  while (bl__work_list_take(&q.work, &row)) {
    pass_messages(&q, row);
  }
  for (row = 0; row < stages && status == BL_OK; row++) {
    size_t index;
    status = head(&q, row, &index) ? name_deadlock(&q, row) : BL_OK;
  }
free_queues:
  bl__work_list_cleanup(&q.work);
  free(q.next);
  return status;
}

static bl_status_t check_all(checker_t *c) {
  const bl__csv_messages_t *file = c->file;
  bl_status_t status = BL_OK;
  for (size_t i = 0; i < file->cell_count; i++) {
    bl_op_t op = file->cells[i].op;
    if (op.type == BL_OP_F || bl_op_type_starts_backward((bl_op_type_t)op.type)) {
      c->column_of[op.type != BL_OP_F][bl_schedule_block(c->schedule, op)] = file->cells[i].column;
    }
  }
  for (size_t i = 0; i < file->comm_count && status == BL_OK; i++) {
    status = check_cell(c, (uint32_t)i);
  }
  for (size_t i = 0; i < file->comm_count && status == BL_OK; i++) {
    status = check_ends(c, &file->comms[i]);
  }
  bool any = c->any[BL__COMM_SEND_F] || c->any[BL__COMM_SEND_B];
  for (size_t i = 0; i < file->cell_count && any && status == BL_OK; i++) {
    status = check_operation(c, &file->cells[i]);
  }
  return status == BL_OK && any ? check_order(c) : status;
}

bl_status_t bl__csv_messages_check(const bl__csv_messages_t *messages, bl_error_t *err) {
  checker_t c = {.file = messages, .schedule = messages->schedule, .err = err};
  const size_t blocks = bl_schedule_block_count(messages->schedule);
  if (messages->comm_count == 0) {
    return BL_OK;
  }
  uint32_t *arrays = calloc(blocks, (2 + BL__COMM_UNSHARD) * sizeof *arrays);
  if (arrays == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "out of memory for %zu messages", messages->comm_count);
  }
  for (size_t i = 0; i < 2; i++) {
    c.column_of[i] = arrays + i * blocks;
  }
  for (size_t kind = 0; kind < BL__COMM_UNSHARD; kind++) {
    c.found[kind] = arrays + (2 + kind) * blocks;
  }
  bl_status_t status = check_all(&c);
  free(arrays);
  return status;
}
