// SPDX-License-Identifier: Apache-2.0
#include "observe/registry.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

const double BL_REGISTRY_CALL_SECONDS[] = {1e-5, 1e-4, 1e-3, 2.5e-3, 1e-2, 2.5e-2, 0.1, 0.25, 1, 2.5, 10, 0};
const double BL_REGISTRY_STEP_SECONDS[] = {1e-3, 1e-2, 5e-2, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 100, 300, 1000, 0};

struct bl_registry {
  bl_metrics_t *metrics;
  const bl_metric_row_t *rows;
  size_t count;
  bl_metric_t **series; // of all rows, in order
  size_t *first;        // [count]: index in `series` of each row's first series
};

static unsigned series_of(const bl_metric_row_t *row) {
  return row->label != NULL ? row->series : 1;
}

static bl_status_t register_series(bl_registry_t *registry, const bl_metric_row_t *row, unsigned index,
                                   bl_metric_t **metric, bl_error_t *err) {
  char labels[BL_METRIC_LABELS_BYTES] = "";
  if (row->label != NULL) {
    snprintf(labels, sizeof labels, "%s=\"%s\"", row->label, row->value_of(index));
  }
  size_t bounds = 0;
  switch (row->kind) {
  case BL_METRIC_COUNTER:
    return bl_metrics_counter(registry->metrics, row->name, row->help, labels, metric, err);
  case BL_METRIC_GAUGE:
    return bl_metrics_gauge(registry->metrics, row->name, row->help, labels, metric, err);
  case BL_METRIC_HISTOGRAM:
    while (row->bounds[bounds] != 0) {
      bounds++;
    }
    return bl_metrics_histogram(registry->metrics, row->name, row->help, labels, row->bounds, bounds, metric, err);
  }
  return bl_error_set(err, BL_INTERNAL, "metric %s: of no kind", row->name);
}

bl_status_t bl_registry_create(const bl_metric_row_t *rows, size_t count, bl_registry_t **result, bl_error_t *err) {
  size_t total = 0;
  for (size_t i = 0; i < count; i++) {
    total += series_of(&rows[i]);
  }
  bl_registry_t *registry = calloc(1, sizeof *registry);
  if (registry == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for metrics");
  }
  *registry = (bl_registry_t){.rows = rows,
                              .count = count,
                              .series = calloc(total + 1, sizeof(bl_metric_t *)),
                              .first = calloc(count + 1, sizeof *registry->first)};
  bl_status_t status = BL_OK;
  if (registry->series == NULL || registry->first == NULL || bl_metrics_create(total, &registry->metrics) != BL_OK) {
    status = bl_error_set(err, BL_EXHAUSTED, "no memory for metrics");
  }
  size_t next = 0;
  for (size_t i = 0; i < count && status == BL_OK; i++) {
    registry->first[i] = next;
    for (unsigned k = 0; k < series_of(&rows[i]) && status == BL_OK; k++) {
      status = register_series(registry, &rows[i], k, &registry->series[next++], err);
    }
  }
  if (status != BL_OK) {
    bl_registry_destroy(registry);
    return status;
  }
  *result = registry;
  return BL_OK;
}

void bl_registry_destroy(bl_registry_t *registry) {
  if (registry != NULL) {
    bl_metrics_destroy(registry->metrics);
    free(registry->series);
    free(registry->first);
    free(registry);
  }
}

static bl_metric_t *find(const bl_registry_t *registry, size_t row, unsigned index) {
  return row < registry->count && index < series_of(&registry->rows[row])
             ? registry->series[registry->first[row] + index]
             : NULL;
}

void bl_registry_set(bl_registry_t *registry, size_t row, unsigned index, double value) {
  bl_metric_t *metric = find(registry, row, index);
  if (metric != NULL && registry->rows[row].kind == BL_METRIC_COUNTER) {
    bl_metric_reach(metric, value);
  } else if (metric != NULL) {
    bl_metric_set(metric, value);
  }
}

void bl_registry_add(bl_registry_t *registry, size_t row, unsigned index, double amount) {
  bl_metric_t *metric = find(registry, row, index);
  if (metric != NULL) {
    bl_metric_add(metric, amount);
  }
}

void bl_registry_observe(bl_registry_t *registry, size_t row, unsigned index, double value) {
  bl_metric_t *metric = find(registry, row, index);
  if (metric != NULL) {
    bl_metric_observe(metric, value);
  }
}

bl_status_t bl_registry_write(const bl_registry_t *registry, FILE *stream) {
  return bl_metrics_write(registry->metrics, stream);
}

void bl_registry_print_markdown(const bl_metric_row_t *rows, size_t count, FILE *stream) {
  static const char *const kinds[] = {"counter", "gauge", "histogram"};
  fprintf(stream, "| metric | kind | label | meaning |\n| --- | --- | --- | --- |\n");
  for (size_t i = 0; i < count; i++) {
    const bl_metric_row_t *row = &rows[i];
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
