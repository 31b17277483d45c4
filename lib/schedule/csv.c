// SPDX-License-Identifier: Apache-2.0
#include "schedule/csv.h"

#include "base/minmax.h"
#include "base/words.h"
#include "schedule/csv_comms.h"
#include "schedule/located.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CELL_SHOWN 60 // characters of a cell that an error quotes

// One operation of the file and where it stands.
typedef struct cell {
  bl_op_t op;
  uint32_t row, column; // from 1
} cell_t;

typedef struct reader {
  const char *name;
  cell_t *cells;
  size_t count, capacity;
  bl__comm_t *comms;
  size_t comm_count, comm_capacity;
  uint32_t rows; // up to the last one with a cell
  bool overlap;  // said by a comment
  uint32_t virtual_stages, micro_batches, slices;
  bool forward_only;
  bl_error_t *err;
} reader_t;

typedef struct span {
  const char *text;
  size_t length;
} span_t;

static span_t trim(span_t span) {
  while (span.length > 0 && strchr(" \t\r\"", span.text[0]) != NULL) {
    span.text++;
    span.length--;
  }
  while (span.length > 0 && strchr(" \t\r\"", span.text[span.length - 1]) != NULL) {
    span.length--;
  }
  return span;
}

static bl_status_t refuse(reader_t *r, uint32_t row, uint32_t column, span_t cell, const char *why) {
  int shown = cell.length < CELL_SHOWN ? (int)cell.length : CELL_SHOWN;
  return bl_error_set(r->err, BL_INVALID, "%s: row %u, column %u, cell \"%.*s\": %s", r->name, row, column, shown,
                      cell.text, why);
}

static bl_status_t add(reader_t *r, uint32_t row, uint32_t column, bl_op_t op) {
  if (r->count == r->capacity) {
    size_t capacity = r->capacity == 0 ? 1024 : 2 * r->capacity;
    cell_t *cells = realloc(r->cells, capacity * sizeof *cells);
    if (cells == NULL) {
      return bl_error_set(r->err, BL_EXHAUSTED, "%s: out of memory after %zu cells", r->name, r->count);
    }
    r->cells = cells;
    r->capacity = capacity;
  }
  r->cells[r->count++] = (cell_t){op, row, column};
  r->rows = bl_max_u32(r->rows, row);
  r->virtual_stages = bl_max_u32(r->virtual_stages, op.virtual_stage + 1u);
  r->micro_batches = bl_max_u32(r->micro_batches, op.micro_batch + 1);
  r->slices = bl_max_u32(r->slices, op.slice + 1u);
  r->forward_only = r->forward_only && op.verb == BL_VERB_F;
  return BL_OK;
}

static bl_status_t add_comm(reader_t *r, uint32_t row, uint32_t column, bl__comm_t comm) {
  if (r->comm_count == r->comm_capacity) {
    size_t capacity = r->comm_capacity == 0 ? 1024 : 2 * r->comm_capacity;
    bl__comm_t *comms = realloc(r->comms, capacity * sizeof *comms);
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

// "(0F3;3B1)OVERLAP_F_B": its operations one after the other.
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
    span_t part = trim((span_t){rest.text, length});
    bl_op_t op;
    if (!bl_op_parse(part.text, part.length, &op)) {
      return refuse(r, row, column, cell, "a part of the overlapped pair is no operation");
    }
    bl_status_t status = add(r, row, column, op);
    if (status != BL_OK) {
      return status;
    }
    length += end != NULL;
    rest = (span_t){rest.text + length, rest.length - length};
  }
  return BL_OK;
}

static bl_status_t read_cell(reader_t *r, uint32_t row, uint32_t column, span_t cell) {
  bl_op_t op;
  bl__comm_t comm = {0};
  if (cell.length == 0) {
    return BL_OK;
  }
  if (bl__comm_parse(cell.text, cell.length, &comm)) {
    return add_comm(r, row, column, comm);
  }
  if (cell.text[0] == '(') {
    return read_pair(r, row, column, cell);
  }
  if (!bl_op_parse(cell.text, cell.length, &op)) {
    return refuse(r, row, column, cell,
                  "no operation; expected <virtual stage><F|B|I|W|R|E|L><micro-batch>, such as 2F7");
  }
  if (op.virtual_stage >= BL_VIRTUAL_STAGES_MAX || op.micro_batch >= BL_MICRO_BATCHES_MAX) {
    return refuse(r, row, column, cell, "virtual stage or micro-batch is too large");
  }
  return add(r, row, column, op);
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

static const char overlap_comment[] = BL_CSV_OVERLAP;

static bl_status_t read_rows(reader_t *r, const char *text, size_t size_bytes) {
  uint32_t row = 0;
  while (size_bytes > 0) {
    const char *end = memchr(text, '\n', size_bytes);
    span_t line = {text, end != NULL ? (size_t)(end - text) : size_bytes};
    size_t taken = line.length + (end != NULL);
    text += taken;
    size_bytes -= taken;
    line = trim(line);
    if (line.length > 0 && line.text[0] == '#') {
      r->overlap = r->overlap ||
                   (line.length == sizeof overlap_comment - 1 && memcmp(line.text, overlap_comment, line.length) == 0);
      continue;
    }
    bl_status_t status = read_row(r, ++row, line);
    if (status != BL_OK) {
      return status;
    }
  }
  return r->count > 0 ? BL_OK : bl_error_set(r->err, BL_INVALID, "%s: has no operation", r->name);
}

// The map from virtual stages to rows, each on one row only.
static bl_status_t map_stages(reader_t *r, uint16_t *stage_of, uint32_t *chunks) {
  memset(stage_of, 0xff, r->virtual_stages * sizeof *stage_of);
  for (size_t i = 0; i < r->count; i++) {
    const cell_t *cell = &r->cells[i];
    uint16_t *stage = &stage_of[cell->op.virtual_stage];
    if (*stage == UINT16_MAX) {
      *stage = (uint16_t)(cell->row - 1);
    } else if (*stage != cell->row - 1) {
      char text[BL_OP_TEXT], why[80];
      snprintf(why, sizeof why, "virtual stage %u is already on row %u", cell->op.virtual_stage, *stage + 1u);
      bl_op_format(cell->op, text);
      return refuse(r, cell->row, cell->column, (span_t){text, strlen(text)}, why);
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
      status = bl_error_set(r->err, BL_INVALID, "%s: virtual stage %u is on no row (the last one is %u)", r->name, s,
                            r->virtual_stages - 1);
    } else {
      *chunks = bl_max_u32(*chunks, ++held[stage_of[s]]);
    }
  }
  free(held);
  return status;
}

static bl_status_t check_comms(reader_t *r, const uint16_t *stage_of) {
  const bl__comm_t *at;
  char why[BL__COMM_WHY], text[BL__COMM_TEXT];
  bl_status_t status = bl__comms_check(r->comms, r->comm_count, stage_of, r->virtual_stages, &at, why);
  if (status != BL_OK) {
    bl__comm_format(*at, text);
    return refuse(r, at->row, at->column, (span_t){text, strlen(text)}, why);
  }
  return BL_OK;
}

// Which of the known placements the map is. Two pipes are a V in which no micro-batch passes both halves.
static void recognise_placement(const reader_t *r, bl_schedule_t *schedule) {
  uint32_t first_forwards = 0, p = schedule->stages;
  bool even = schedule->virtual_stages == p * schedule->chunks, looped = true, v = even, contiguous = even;
  for (uint32_t s = 0; s < schedule->virtual_stages; s++) {
    uint32_t rest = s % p;
    looped = looped && schedule->stage_of[s] == rest;
    contiguous = contiguous && schedule->stage_of[s] == s / schedule->chunks;
    v = v && schedule->stage_of[s] == ((s / p) % 2 == 0 ? rest : p - 1 - rest);
  }
  for (size_t i = 0; i < r->count; i++) {
    first_forwards += r->cells[i].op.verb == BL_VERB_F && r->cells[i].op.virtual_stage == 0;
  }
  if (v && schedule->chunks == 2 && first_forwards < r->micro_batches * r->slices) {
    schedule->placement = BL_PLACEMENT_BIDIRECTIONAL;
    schedule->pipes = 2;
  } else if (looped) {
    schedule->placement = BL_PLACEMENT_LOOPED;
  } else {
    schedule->placement = v ? BL_PLACEMENT_V : contiguous ? BL_PLACEMENT_CONTIGUOUS : BL_PLACEMENT_OTHER;
  }
}

// Puts the cells into a schedule and validates it; the place of a fault is said as row and column.
static bl_status_t build(reader_t *r, const uint16_t *stage_of, uint32_t chunks, bl_schedule_t **made) {
  // Fewer cells than blocks: not worth arrays of that size (an attacker may write 0F1000000).
  if ((uint64_t)r->virtual_stages * r->micro_batches * r->slices > 2 * (uint64_t)r->count) {
    return bl_error_set(r->err, BL_INVALID, "%s: %zu operation%s: too few for %u virtual stage%s and %u micro-batch%s",
                        r->name, r->count, bl_plural(r->count), r->virtual_stages, bl_plural(r->virtual_stages),
                        r->micro_batches, bl_one_or_many(r->micro_batches, "", "es"));
  }
  bl_status_t status = bl_schedule_create(r->name, BL_PLACEMENT_OTHER, r->rows, chunks, r->micro_batches, made, r->err);
  if (status != BL_OK) {
    return status;
  }
  bl_schedule_t *schedule = *made;
  schedule->virtual_stages = r->virtual_stages;
  schedule->slices = r->slices;
  schedule->forward_only = r->forward_only;
  schedule->transfers = r->overlap ? BL_TRANSFER_OVERLAP : BL_TRANSFER_SERIAL;
  memcpy(schedule->stage_of, stage_of, r->virtual_stages * sizeof *stage_of);
  recognise_placement(r, schedule);
  for (size_t i = 0; i < r->count; i++) {
    status = bl_schedule_append(schedule, r->cells[i].row - 1, r->cells[i].op);
    if (status != BL_OK) {
      return bl_error_set(r->err, status, "%s: out of memory", r->name);
    }
  }
  bl_op_ref_t where;
  status = bl__schedule_validate_at(schedule, NULL, &where, r->err);
  if (status != BL_OK && where.stage != BL__NOWHERE) {
    size_t i = 0;
    for (size_t left = where.index; r->cells[i].row - 1 != where.stage || left > 0; i++) {
      left -= r->cells[i].row - 1 == where.stage;
    }
    (void)bl_error_prefix(r->err, "%s: row %u, column %u", r->name, r->cells[i].row, r->cells[i].column);
  } else if (status != BL_OK) {
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
    status = check_comms(&r, stage_of);
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

bl_status_t bl_csv_write(const bl_schedule_t *schedule, char **text, size_t *size_bytes) {
  size_t capacity = bl_schedule_op_count(schedule) * (BL_OP_TEXT / 2) + schedule->stages + sizeof overlap_comment + 64;
  char *made = malloc(capacity), cell[BL_OP_TEXT];
  size_t used = 0;
  if (made == NULL) {
    return BL_EXHAUSTED;
  }
  if (schedule->transfers == BL_TRANSFER_OVERLAP) {
    used += (size_t)snprintf(made, capacity, "%s\n", overlap_comment);
  }
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
