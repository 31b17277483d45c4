// SPDX-License-Identifier: Apache-2.0
// The metrics of one service. One table declares them for both /metrics and docs/metrics.md.
//
//   enum { STEPS, MEMORY, STEP_SECONDS };
//   static const bl_metric_row_t rows[] = {
//       [STEPS] = {.name = "ballast_stage_steps_total", .kind = BL_METRIC_COUNTER, .help = "Steps applied."},
//       [MEMORY] = {.name = "ballast_memory_bytes", .kind = BL_METRIC_GAUGE, .label = "tag", .value_of = tag_name,
//                   .series = TAGS, .help = "Memory held now, by what it is for."},
//       [STEP_SECONDS] = {.name = "...", .kind = BL_METRIC_HISTOGRAM, .bounds = BL_REGISTRY_STEP_SECONDS, ...}};
//   bl_registry_create(rows, N, &registry, err);
//   bl_registry_set(registry, MEMORY, tag, bytes);        // gauges; counters that are counted elsewhere
//   bl_registry_add(registry, STEPS, 0, 1);
//   bl_registry_observe(registry, STEP_SECONDS, 0, seconds);
//   bl_registry_write(registry, stream);
//
// Every series exists from the start, so their number is always that of the table.
// Thread: updates and writing on any thread, without locks; an update never allocates.
#ifndef BALLAST_OBSERVE_REGISTRY_H
#define BALLAST_OBSERVE_REGISTRY_H

#include "observe/metrics.h"

typedef enum bl_metric_kind { BL_METRIC_COUNTER, BL_METRIC_GAUGE, BL_METRIC_HISTOGRAM } bl_metric_kind_t;

typedef struct bl_metric_row {
  const char *name; // with its unit; a counter ends in _total
  bl_metric_kind_t kind;
  const char *label;                       // NULL: one series without labels
  const char *(*value_of)(unsigned index); // returns the label's value; index below `series`
  unsigned series;                         // number of series of a row with a label
  const double *bounds;                    // of a histogram, ascending; 0 ends them
  const char *help;                        // one sentence
} bl_metric_row_t;

// Upper bounds for times of calls (10 us to 10 s), and of steps (1 ms to 1000 s).
extern const double BL_REGISTRY_CALL_SECONDS[], BL_REGISTRY_STEP_SECONDS[];

typedef struct bl_registry bl_registry_t;

// `rows` is borrowed. BL_INTERNAL: the table is invalid. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_registry_create(const bl_metric_row_t *rows, size_t count, bl_registry_t **registry,
                                           bl_error_t *err);
void bl_registry_destroy(bl_registry_t *registry); // NULL is fine

// `index`: of the series; 0 for a row without label. An index out of range is ignored.
void bl_registry_set(bl_registry_t *registry, size_t row, unsigned index, double value);
void bl_registry_add(bl_registry_t *registry, size_t row, unsigned index, double amount);
void bl_registry_observe(bl_registry_t *registry, size_t row, unsigned index, double value);

BL_MUST_USE bl_status_t bl_registry_write(const bl_registry_t *registry, FILE *stream);
// Prints the rows as a Markdown table, for the documentation.
void bl_registry_print_markdown(const bl_metric_row_t *rows, size_t count, FILE *stream);

#endif
