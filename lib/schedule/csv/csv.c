// SPDX-License-Identifier: Apache-2.0
#include "schedule/csv/csv.h"

#include "base/minmax.h"
#include "base/words.h"
#include "schedule/csv/csv_messages.h"
#include "schedule/ir/located.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CELL_SHOWN 60 // characters of a cell that an error quotes

typedef struct reader {
  const char *name;
  bl__csv_cell_t *cells;
  size_t count, capacity;
  bl__comm_t *comms;
  size_t comm_count, comm_capacity;
  uint32_t rows;  // up to the last row with a cell
  bool overlap;   // from a comment
  uint32_t hosts; // from a comment
  uint32_t virtual_stages, micro_batches, slices;
  size_t last_virtual_stage, last_micro_batch, last_slice; // the cells that give these counts
  bool forward_only;
  bl_error_t *err;
} reader_t;

typedef struct span {
  const char *text;
  size_t length;
} span_t;

static bool is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\r';
}

static span_t trim(span_t span) {
  while (span.length > 0 && is_blank(span.text[0])) {
    span.text++;
    span.length--;
  }
  while (span.length > 0 && is_blank(span.text[span.length - 1])) {
    span.length--;
  }
  return span;
}

// Removes the quotes of a trimmed cell. Returns false if only one end has a quote.
static bool unquote(span_t *span) {
  if (span->length == 0 || (span->text[0] != '"' && span->text[span->length - 1] != '"')) {
    return true;
  }
  if (span->length == 1 || span->text[0] != span->text[span->length - 1]) {
    return false;
  }
  *span = trim((span_t){span->text + 1, span->length - 2});
  return true;
}

static bl_status_t refuse(reader_t *r, uint32_t row, uint32_t column, span_t cell, const char *why) {
  char shown[CELL_SHOWN + 1];
  size_t length = cell.length < CELL_SHOWN ? cell.length : CELL_SHOWN;
  for (size_t i = 0; i < length; i++) { // a terminal must not interpret them
    bool control = (unsigned char)cell.text[i] < ' ' || cell.text[i] == 0x7f;
    shown[i] = control ? '?' : cell.text[i];
  }
  shown[length] = '\0';
  return bl_error_set(r->err, BL_INVALID, "%s: row %u, column %u, cell \"%s\": %s", r->name, row, column, shown, why);
}

static bl_status_t refuse_op(reader_t *r, const bl__csv_cell_t *at, const char *why) {
  char text[BL_OP_TEXT];
  bl_op_format(at->op, text);
  return refuse(r, at->row, at->column, (span_t){text, strlen(text)}, why);
}

// Raises *count to `number` + 1 if it is lower, and then records that the cell read last is the reason.
static void count_to(reader_t *r, uint32_t number, uint32_t *count, size_t *said_by) {
  if (number >= *count) {
    *count = number + 1;
    *said_by = r->count - 1;
  }
}

static bl_status_t add(reader_t *r, uint32_t row, uint32_t column, bl_op_t op) {
  if (r->count == r->capacity) {
    size_t capacity = r->capacity == 0 ? 1024 : 2 * r->capacity;
    bl__csv_cell_t *cells = realloc(r->cells, capacity * sizeof *cells);
    if (cells == NULL) {
      return bl_error_set(r->err, BL_EXHAUSTED, "%s: out of memory after %zu cells", r->name, r->count);
    }
    r->cells = cells;
    r->capacity = capacity;
  }
  r->cells[r->count++] = (bl__csv_cell_t){op, row, column};
  r->rows = bl_max_u32(r->rows, row);
  count_to(r, op.virtual_stage, &r->virtual_stages, &r->last_virtual_stage);
  count_to(r, op.micro_batch, &r->micro_batches, &r->last_micro_batch);
  count_to(r, op.slice, &r->slices, &r->last_slice);
  r->forward_only = r->forward_only && op.type == BL_OP_F;
  return BL_OK;
}

static bl_status_t add_comm(reader_t *r, uint32_t row, uint32_t column, bl__comm_t comm) {
  if (r->comm_count == r->comm_capacity) {
    size_t capacity = r->comm_capacity == 0 ? 1024 : 2 * r->comm_capacity;
    bl__comm_t *comms = capacity < UINT32_MAX ? realloc(r->comms, capacity * sizeof *comms) : NULL;
    if (comms == NULL) {
      return bl_error_set(r->err, BL_EXHAUSTED, "%s: out of memory after %zu messages", r->name, r->comm_count);
    }
    r->comms = comms;
    r->comm_capacity = capacity;
  }
  comm.row = row;
  comm.column = column;
  r->comms[r->comm_count++] = comm;
  return BL_OK;
}

// Returns whether a rejected cell would be a valid one with smaller numbers.
static bool only_too_large(span_t cell) {
  char text[CELL_SHOWN];
  size_t used = 0;
  bl_op_t op;
  bl__comm_t comm;
  for (size_t i = 0; i < cell.length; i++) {
    bool digit = cell.text[i] >= '0' && cell.text[i] <= '9';
    if (digit && used > 0 && text[used - 1] == '0') {
      continue;
    }
    if (used == sizeof text) {
      return false;
    }
    text[used++] = digit ? '0' : cell.text[i];
  }
  return bl_op_parse(text, used, &op) || bl__comm_parse(text, used, &comm);
}

// `part` is the cell, or one operation of a pair.
static bl_status_t read_op(reader_t *r, uint32_t row, uint32_t column, span_t cell, span_t part) {
  static const char form[] = "<virtual stage><F|B|I|W|R|E|L><micro-batch>, such as 2F7";
  const bool pair = part.length != cell.length;
  bl_op_t op;
  char why[200];
  bool taken = bl_op_parse(part.text, part.length, &op);
  if (taken && op.virtual_stage < BL_VIRTUAL_STAGES_MAX && op.micro_batch < BL_MICRO_BATCHES_MAX) {
    return add(r, row, column, op);
  }
  if (taken || only_too_large(part)) {
    snprintf(why, sizeof why, "a number is too large: virtual stages go to %d, micro-batches to %d, slices to %d",
             BL_VIRTUAL_STAGES_MAX - 1, BL_MICRO_BATCHES_MAX - 1, BL_SLICES_MAX - 1);
  } else {
    snprintf(why, sizeof why, "%sno operation; expected %s", pair ? "a part of the overlapped pair is " : "", form);
  }
  return refuse(r, row, column, cell, why);
}

// Reads "(0F3;3B1)OVERLAP_F_B" as its two operations, in order.
static bl_status_t read_pair(reader_t *r, uint32_t row, uint32_t column, span_t cell) {
  static const char tail[] = ")OVERLAP_F_B";
  size_t tail_length = sizeof tail - 1;
  if (cell.length <= tail_length + 1 || memcmp(cell.text + cell.length - tail_length, tail, tail_length) != 0) {
    return refuse(r, row, column, cell, "starts like an overlapped pair but does not end in \")OVERLAP_F_B\"");
  }
  span_t rest = {cell.text + 1, cell.length - tail_length - 1};
  while (rest.length > 0) {
    const char *end = memchr(rest.text, ';', rest.length);
    size_t length = end != NULL ? (size_t)(end - rest.text) : rest.length;
    bl_status_t status = read_op(r, row, column, cell, trim((span_t){rest.text, length}));
    if (status != BL_OK) {
      return status;
    }
    length += end != NULL;
    rest = (span_t){rest.text + length, rest.length - length};
  }
  return BL_OK;
}

static bl_status_t read_cell(reader_t *r, uint32_t row, uint32_t column, span_t cell) {
  bl__comm_t comm = {0};
  if (!unquote(&cell)) {
    return refuse(r, row, column, cell, "a quote at one end only; take it away, or write the other one");
  }
  if (cell.length == 0) {
    return BL_OK;
  }
  if (bl__comm_parse(cell.text, cell.length, &comm)) {
    return add_comm(r, row, column, comm);
  }
  return cell.text[0] == '(' ? read_pair(r, row, column, cell) : read_op(r, row, column, cell, cell);
}

static bl_status_t read_row(reader_t *r, uint32_t row, span_t line) {
  uint32_t column = 1;
  for (;; column++) {
    const char *comma = memchr(line.text, ',', line.length);
    size_t length = comma != NULL ? (size_t)(comma - line.text) : line.length;
    bl_status_t status = read_cell(r, row, column, trim((span_t){line.text, length}));
    if (status != BL_OK || comma == NULL) {
      return status;
    }
    line = (span_t){line.text + length + 1, line.length - length - 1};
  }
}

// Reads the comments of csv.h; ignores other comments.
static void read_comment(reader_t *r, span_t comment) {
  static const char overlap[] = BL_CSV_OVERLAP, hosts[] = BL_CSV_HOSTS;
  const size_t overlap_length = sizeof overlap - 1, hosts_length = sizeof hosts - 1;
  if (comment.length == overlap_length && memcmp(comment.text, overlap, overlap_length) == 0) {
    r->overlap = true;
  }
  if (comment.length <= hosts_length || memcmp(comment.text, hosts, hosts_length) != 0) {
    return;
  }
  uint32_t count = 0;
  for (size_t i = hosts_length; i < comment.length; i++) {
    const char digit = comment.text[i];
    if (digit < '0' || digit > '9' || count > BL_STAGES_MAX) {
      return;
    }
    count = 10 * count + (uint32_t)(digit - '0');
  }
  r->hosts = count <= BL_STAGES_MAX ? count : 0;
}

// Some programs write it at the beginning of UTF-8 text.
static const char byte_order_mark[] = "\xef\xbb\xbf";

static bl_status_t read_rows(reader_t *r, const char *text, size_t size_bytes) {
  const size_t mark = sizeof byte_order_mark - 1;
  uint32_t row = 0;
  if (size_bytes >= mark && memcmp(text, byte_order_mark, mark) == 0) {
    text += mark;
    size_bytes -= mark;
  }
  while (size_bytes > 0) {
    const char *end = memchr(text, '\n', size_bytes);
    span_t line = {text, end != NULL ? (size_t)(end - text) : size_bytes};
    size_t taken = line.length + (end != NULL);
    text += taken;
    size_bytes -= taken;
    line = trim(line);
    span_t comment = line;
    if (unquote(&comment) && comment.length > 0 && comment.text[0] == '#') {
      read_comment(r, comment);
      continue;
    }
    bl_status_t status = read_row(r, ++row, line);
    if (status != BL_OK) {
      return status;
    }
    if (line.length > 0) { // ignores blank lines at the end; a row of empty cells is a stage without work
      r->rows = row;
    }
  }
  return r->count > 0 ? BL_OK : bl_error_set(r->err, BL_INVALID, "%s: has no operation", r->name);
}

// Fills the map from virtual stages to rows, and checks that each virtual stage is on one row only.
static bl_status_t map_stages(reader_t *r, uint16_t *stage_of, uint32_t *chunks) {
  memset(stage_of, 0xff, r->virtual_stages * sizeof *stage_of);
  for (size_t i = 0; i < r->count; i++) {
    const bl__csv_cell_t *cell = &r->cells[i];
    uint16_t *stage = &stage_of[cell->op.virtual_stage];
    if (*stage == UINT16_MAX) {
      *stage = (uint16_t)(cell->row - 1);
    } else if (*stage != cell->row - 1) {
      char why[80];
      snprintf(why, sizeof why, "virtual stage %u is already on row %u", cell->op.virtual_stage, *stage + 1u);
      return refuse_op(r, cell, why);
    }
  }
  uint32_t *held = calloc(r->rows, sizeof *held);
  if (held == NULL) {
    return bl_error_set(r->err, BL_EXHAUSTED, "%s: out of memory", r->name);
  }
  *chunks = 0;
  bl_status_t status = BL_OK;
  for (uint32_t s = 0; s < r->virtual_stages && status == BL_OK; s++) {
    if (stage_of[s] == UINT16_MAX) {
      char why[80];
      snprintf(why, sizeof why, "virtual stage %u is on no row (the last one is %u)", s, r->virtual_stages - 1);
      status = refuse_op(r, &r->cells[r->last_virtual_stage], why);
    } else {
      *chunks = bl_max_u32(*chunks, ++held[stage_of[s]]);
    }
  }
  for (uint32_t row = 0; row < r->rows && status == BL_OK; row++) {
    if (held[row] == 0) {
      status = bl_error_set(r->err, BL_INVALID, "%s: row %u: no operation, which would be a stage without work; %s",
                            r->name, row + 1, "a row is a stage, so take an empty line out");
    }
  }
  free(held);
  return status;
}

// Returns whether the map has two pipes of p virtual stages: no micro-batch passes the first virtual stages of both.
// `passed` has room for all micro-batches.
static bool has_two_pipes(const reader_t *r, uint32_t stages, uint8_t *passed) {
  bool both = false;
  uint32_t first_forwards = 0;
  for (size_t i = 0; i < r->count; i++) {
    bl_op_t op = r->cells[i].op;
    if (op.type == BL_OP_F && (op.virtual_stage == 0 || op.virtual_stage == stages)) {
      passed[op.micro_batch] |= op.virtual_stage == 0 ? 1 : 2;
      both = both || passed[op.micro_batch] == 3;
      first_forwards += op.virtual_stage == 0;
    }
  }
  return !both && first_forwards < r->micro_batches * r->slices;
}

// Sets the placement that the map equals. Two pipes are a V in which no micro-batch passes both halves.
static bl_status_t recognise_placement(const reader_t *r, bl_schedule_t *schedule) {
  uint32_t p = schedule->stages;
  bool even = schedule->virtual_stages == p * schedule->chunks, looped = true, v = even, contiguous = even;
  for (uint32_t s = 0; s < schedule->virtual_stages; s++) {
    uint32_t rest = s % p;
    looped = looped && schedule->stage_of[s] == rest;
    contiguous = contiguous && schedule->stage_of[s] == s / schedule->chunks;
    v = v && schedule->stage_of[s] == ((s / p) % 2 == 0 ? rest : p - 1 - rest);
  }
  uint8_t *passed = calloc(r->micro_batches, 1);
  if (passed == NULL) {
    return bl_error_set(r->err, BL_EXHAUSTED, "%s: out of memory for %u micro-batches", r->name, r->micro_batches);
  }
  if (v && schedule->chunks == 2 && has_two_pipes(r, p, passed)) {
    schedule->placement = BL_PLACEMENT_BIDIRECTIONAL;
    schedule->pipes = 2;
  } else if (looped) {
    schedule->placement = BL_PLACEMENT_LOOPED;
  } else {
    schedule->placement = v ? BL_PLACEMENT_V : contiguous ? BL_PLACEMENT_CONTIGUOUS : BL_PLACEMENT_OTHER;
  }
  free(passed);
  return BL_OK;
}

// Refuses files with less than half as many operations as blocks, before arrays of blocks are allocated (an attacker
// may write 0F1000000).
static bl_status_t check_size(reader_t *r) {
  if ((uint64_t)r->virtual_stages * r->micro_batches * r->slices <= 2 * (uint64_t)r->count) {
    return BL_OK;
  }
  bool by_slice = r->slices > r->micro_batches && r->slices > r->virtual_stages;
  size_t at = by_slice                                ? r->last_slice
              : r->micro_batches >= r->virtual_stages ? r->last_micro_batch
                                                      : r->last_virtual_stage;
  char why[200], slices[32] = "";
  if (r->slices > 1) {
    snprintf(slices, sizeof slices, " of %u slices", r->slices);
  }
  snprintf(why, sizeof why, "the file has %zu operation%s, too few for %u virtual stage%s and %u micro-batch%s%s",
           r->count, bl_plural(r->count), r->virtual_stages, bl_plural(r->virtual_stages), r->micro_batches,
           bl_one_or_many(r->micro_batches, "", "es"), slices);
  return refuse_op(r, &r->cells[at], why);
}

static void say_place(const void *context, bl_op_ref_t at, char text[BL__PLACE_TEXT]) {
  const reader_t *r = context;
  if (at.index == BL__NOWHERE) {
    snprintf(text, BL__PLACE_TEXT, "row %u", at.stage + 1);
    return;
  }
  size_t i = 0;
  for (size_t left = at.index; r->cells[i].row - 1 != at.stage || left > 0; i++) {
    left -= r->cells[i].row - 1 == at.stage;
  }
  snprintf(text, BL__PLACE_TEXT, "row %u, column %u", r->cells[i].row, r->cells[i].column);
}

// Builds the schedule from the cells; validates it and the messages.
static bl_status_t build(reader_t *r, const uint16_t *stage_of, uint32_t chunks, bl_schedule_t **made) {
  bl_status_t status = check_size(r);
  if (status == BL_OK) {
    status = bl_schedule_create(r->name, BL_PLACEMENT_OTHER, r->rows, chunks, r->micro_batches, made, r->err);
  }
  if (status != BL_OK) {
    return status;
  }
  bl_schedule_t *schedule = *made;
  schedule->virtual_stages = r->virtual_stages;
  schedule->slices = r->slices;
  schedule->forward_only = r->forward_only;
  schedule->transfers = r->overlap ? BL_TRANSFER_OVERLAP : BL_TRANSFER_SERIAL;
  schedule->hosts = r->hosts;
  memcpy(schedule->stage_of, stage_of, r->virtual_stages * sizeof *stage_of);
  status = recognise_placement(r, schedule);
  for (size_t i = 0; i < r->count && status == BL_OK; i++) {
    status = bl_schedule_append(schedule, r->cells[i].row - 1, r->cells[i].op);
    if (status != BL_OK) {
      return bl_error_set(r->err, status, "%s: out of memory", r->name);
    }
  }
  if (status != BL_OK) {
    return status;
  }
  status = bl__schedule_validate_at(schedule, NULL, &(bl__places_t){say_place, r}, r->err);
  if (status == BL_OK) {
    bl__csv_messages_t messages = {schedule, r->cells, r->count, r->comms, r->comm_count};
    status = bl__csv_messages_check(&messages, r->err);
  }
  if (status != BL_OK) {
    (void)bl_error_prefix(r->err, "%s", r->name);
  }
  return status;
}

bl_status_t bl_csv_read(const char *text, size_t size_bytes, const char *name, bl_schedule_t **schedule,
                        bl_error_t *err) {
  reader_t r = {.name = name, .forward_only = true, .err = err};
  bl_schedule_t *made = NULL;
  uint16_t *stage_of = NULL;
  uint32_t chunks = 0;
  bl_status_t status = read_rows(&r, text, size_bytes);
  if (status == BL_OK && r.rows > BL_STAGES_MAX) {
    status =
        bl_error_set(err, BL_INVALID, "%s: has %u rows, at most %d stages are possible", name, r.rows, BL_STAGES_MAX);
  }
  if (status == BL_OK) {
    stage_of = malloc(r.virtual_stages * sizeof *stage_of);
    status = stage_of != NULL ? map_stages(&r, stage_of, &chunks)
                              : bl_error_set(err, BL_EXHAUSTED, "%s: out of memory", name);
  }
  if (status == BL_OK) {
    status = build(&r, stage_of, chunks, &made);
  }
  free(stage_of);
  free(r.comms);
  free(r.cells);
  if (status != BL_OK) {
    bl_schedule_destroy(made);
    return status;
  }
  *schedule = made;
  return BL_OK;
}

const char *bl__csv_comments(const bl_schedule_t *schedule, char text[BL__CSV_COMMENTS_TEXT]) {
  bool evicts = false, to_hosts = false;
  for (uint32_t s = 0; s < schedule->stages; s++) {
    for (size_t i = 0; i < schedule->lists[s].count; i++) {
      const bl_op_t op = schedule->lists[s].ops[i];
      evicts = evicts || op.type == BL_OP_E;
      to_hosts = to_hosts || (op.type == BL_OP_E && bl_schedule_is_host(schedule, op.store));
    }
  }
  int used = snprintf(text, BL__CSV_COMMENTS_TEXT, "%s",
                      evicts && schedule->transfers == BL_TRANSFER_OVERLAP ? BL_CSV_OVERLAP "\n" : "");
  if (to_hosts) {
    snprintf(text + used, BL__CSV_COMMENTS_TEXT - (size_t)used, BL_CSV_HOSTS "%u\n", schedule->hosts);
  }
  return text;
}

bl_status_t bl_csv_write(const bl_schedule_t *schedule, char **text, size_t *size_bytes) {
  char comments[BL__CSV_COMMENTS_TEXT], cell[BL_OP_TEXT];
  size_t used = strlen(bl__csv_comments(schedule, comments));
  char *made = malloc(bl_schedule_op_count(schedule) * (BL_OP_TEXT / 2) + schedule->stages + used + 64);
  if (made == NULL) {
    return BL_EXHAUSTED;
  }
  memcpy(made, comments, used);
  for (uint32_t s = 0; s < schedule->stages; s++) {
    for (size_t i = 0; i < schedule->lists[s].count; i++) {
      bl_op_format_slice(schedule->lists[s].ops[i], schedule->slices > 1, cell);
      size_t length = strlen(cell);
      made[used] = ',';
      used += i > 0;
      memcpy(made + used, cell, length);
      used += length;
    }
    made[used++] = '\n';
  }
  made[used] = '\0';
  *text = made;
  *size_bytes = used;
  return BL_OK;
}
