// SPDX-License-Identifier: Apache-2.0
#include "observe/board.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

const double BL_BOARD_CALL_SECONDS[] = {1e-5, 1e-4, 1e-3, 2.5e-3, 1e-2, 2.5e-2, 0.1, 0.25, 1, 2.5, 10, 0};
const double BL_BOARD_STEP_SECONDS[] = {1e-3, 1e-2, 5e-2, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 100, 300, 1000, 0};

struct bl_board {
  bl_metrics_t *metrics;
  const bl_board_row_t *rows;
  size_t count;
  bl_metric_t **series; // of all rows, one after the other
  size_t *first;        // [count], of each row in `series`
};

static unsigned series_of(const bl_board_row_t *row) {
  return row->label != NULL ? row->series : 1;
}

static bl_status_t register_series(bl_board_t *board, const bl_board_row_t *row, unsigned index, bl_metric_t **metric,
                                   bl_error_t *err) {
  char labels[BL_METRIC_LABELS_BYTES] = "";
  if (row->label != NULL) {
    snprintf(labels, sizeof labels, "%s=\"%s\"", row->label, row->value_of(index));
  }
  size_t bounds = 0;
  switch (row->kind) {
  case BL_BOARD_COUNTER:
    return bl_metrics_counter(board->metrics, row->name, row->help, labels, metric, err);
  case BL_BOARD_GAUGE:
    return bl_metrics_gauge(board->metrics, row->name, row->help, labels, metric, err);
  case BL_BOARD_HISTOGRAM:
    while (row->bounds[bounds] != 0) {
      bounds++;
    }
    return bl_metrics_histogram(board->metrics, row->name, row->help, labels, row->bounds, bounds, metric, err);
  }
  return bl_error_set(err, BL_INTERNAL, "metric %s: of no kind", row->name);
}

bl_status_t bl_board_create(const bl_board_row_t *rows, size_t count, bl_board_t **result, bl_error_t *err) {
  size_t total = 0;
  for (size_t i = 0; i < count; i++) {
    total += series_of(&rows[i]);
  }
  bl_board_t *board = calloc(1, sizeof *board);
  if (board == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for metrics");
  }
  *board = (bl_board_t){.rows = rows,
                        .count = count,
                        .series = calloc(total + 1, sizeof(bl_metric_t *)),
                        .first = calloc(count + 1, sizeof *board->first)};
  bl_status_t status = BL_OK;
  if (board->series == NULL || board->first == NULL || bl_metrics_create(total, &board->metrics) != BL_OK) {
    status = bl_error_set(err, BL_EXHAUSTED, "no memory for metrics");
  }
  size_t next = 0;
  for (size_t i = 0; i < count && status == BL_OK; i++) {
    board->first[i] = next;
    for (unsigned k = 0; k < series_of(&rows[i]) && status == BL_OK; k++) {
      status = register_series(board, &rows[i], k, &board->series[next++], err);
    }
  }
  if (status != BL_OK) {
    bl_board_destroy(board);
    return status;
  }
  *result = board;
  return BL_OK;
}

void bl_board_destroy(bl_board_t *board) {
  if (board != NULL) {
    bl_metrics_destroy(board->metrics);
    free(board->series);
    free(board->first);
    free(board);
  }
}

static bl_metric_t *find(const bl_board_t *board, size_t row, unsigned index) {
  return row < board->count && index < series_of(&board->rows[row]) ? board->series[board->first[row] + index] : NULL;
}

void bl_board_set(bl_board_t *board, size_t row, unsigned index, double value) {
  bl_metric_t *metric = find(board, row, index);
  if (metric != NULL && board->rows[row].kind == BL_BOARD_COUNTER) {
    bl_metric_reach(metric, value);
  } else if (metric != NULL) {
    bl_metric_set(metric, value);
  }
}

void bl_board_add(bl_board_t *board, size_t row, unsigned index, double amount) {
  bl_metric_t *metric = find(board, row, index);
  if (metric != NULL) {
    bl_metric_add(metric, amount);
  }
}

void bl_board_observe(bl_board_t *board, size_t row, unsigned index, double value) {
  bl_metric_t *metric = find(board, row, index);
  if (metric != NULL) {
    bl_metric_observe(metric, value);
  }
}

bl_status_t bl_board_write(const bl_board_t *board, FILE *stream) {
  return bl_metrics_write(board->metrics, stream);
}

void bl_board_print_markdown(const bl_board_row_t *rows, size_t count, FILE *stream) {
  static const char *const kinds[] = {"counter", "gauge", "histogram"};
  fprintf(stream, "| metric | kind | label | meaning |\n| --- | --- | --- | --- |\n");
  for (size_t i = 0; i < count; i++) {
    const bl_board_row_t *row = &rows[i];
    fprintf(stream, "| `%s` | %s | ", row->name, kinds[row->kind]);
    if (row->label != NULL) {
      fprintf(stream, "`%s`", row->label);
    }
    for (unsigned k = 0; row->label != NULL && row->series > 1 && k < row->series; k++) {
      fprintf(stream, "%s %s", k == 0 ? ":" : ",", row->value_of(k));
    }
    fprintf(stream, " | %s |\n", row->help);
  }
}
