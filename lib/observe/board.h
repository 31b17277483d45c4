// SPDX-License-Identifier: Apache-2.0
// The metrics of one service, declared in one table that feeds /metrics and docs/metrics.md alike.
//
//   enum { STEPS, MEMORY, STEP_SECONDS };
//   static const bl_board_row_t rows[] = {
//       [STEPS] = {.name = "ballast_stage_steps_total", .kind = BL_BOARD_COUNTER, .help = "Steps applied."},
//       [MEMORY] = {.name = "ballast_memory_bytes", .kind = BL_BOARD_GAUGE, .label = "tag", .value_of = tag_name,
//                   .series = TAGS, .help = "Memory held now, by what it is for."},
//       [STEP_SECONDS] = {.name = "...", .kind = BL_BOARD_HISTOGRAM, bounds = BL_BOARD_STEP_SECONDS, ...}};
//   bl_board_create(rows, N, &board, err);
//   bl_board_set(board, MEMORY, tag, bytes);        // gauges; counters that are counted elsewhere
//   bl_board_add(board, STEPS, 0, 1);
//   bl_board_observe(board, STEP_SECONDS, 0, seconds);
//   bl_board_write(board, stream);
//
// Every series exists from the start, so their number is that of the table, whatever happens.
// Thread: updates and writing on any thread, without locks; an update never allocates.
#ifndef BALLAST_OBSERVE_BOARD_H
#define BALLAST_OBSERVE_BOARD_H

#include "observe/metrics.h"

typedef enum bl_board_kind { BL_BOARD_COUNTER, BL_BOARD_GAUGE, BL_BOARD_HISTOGRAM } bl_board_kind_t;

typedef struct bl_board_row {
  const char *name; // with its unit; a counter ends in _total
  bl_board_kind_t kind;
  const char *label;                       // NULL: one series without labels
  const char *(*value_of)(unsigned index); // of the label; index below `series`
  unsigned series;                         // with a label
  const double *bounds;                    // of a histogram, ascending, ended by 0
  const char *help;                        // one sentence
} bl_board_row_t;

// Upper bounds for times of calls (10 us to 10 s), and of steps (1 ms to 1000 s).
extern const double BL_BOARD_CALL_SECONDS[], BL_BOARD_STEP_SECONDS[];

typedef struct bl_board bl_board_t;

// `rows` is borrowed. BL_INTERNAL: the table is wrong; BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_board_create(const bl_board_row_t *rows, size_t count, bl_board_t **board, bl_error_t *err);
void bl_board_destroy(bl_board_t *board); // NULL is fine

// `index` of the series, 0 for a row without label. One out of range does nothing.
void bl_board_set(bl_board_t *board, size_t row, unsigned index, double value);
void bl_board_add(bl_board_t *board, size_t row, unsigned index, double amount);
void bl_board_observe(bl_board_t *board, size_t row, unsigned index, double value);

BL_MUST_USE bl_status_t bl_board_write(const bl_board_t *board, FILE *stream);
// A Markdown table of the rows, for the documentation.
void bl_board_print_markdown(const bl_board_row_t *rows, size_t count, FILE *stream);

#endif
