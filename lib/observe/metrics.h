// SPDX-License-Identifier: Apache-2.0
// Metrics of a process: counters, gauges and histograms, and their text form for Prometheus (exposition format 0.0.4).
//
//   bl_metrics_create(64, &metrics);
//   bl_metric_t *bytes;
//   bl_metrics_gauge(metrics, "ballast_memory_bytes", "Memory by tag.", "tag=\"weights\"", &bytes, err);
//   bl_metric_set(bytes, 123456);
//   bl_metrics_write(metrics, stream);
//
// Thread: registration on one thread, before other threads use the series. Updates and bl_metrics_write on any thread,
// without locks.
// Memory: the table is allocated once. An update never allocates.
#ifndef BALLAST_OBSERVE_METRICS_H
#define BALLAST_OBSERVE_METRICS_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define BL_METRIC_NAME_BYTES   96
#define BL_METRIC_LABELS_BYTES 128
#define BL_METRIC_BUCKETS      16 // maximum number of buckets of a histogram, without +Inf

typedef struct bl_metrics bl_metrics_t;
typedef struct bl_metric bl_metric_t; // one time series; lives as long as its registry

// Creates a table for `capacity` series. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_metrics_create(size_t capacity, bl_metrics_t **metrics);
void bl_metrics_destroy(bl_metrics_t *metrics); // NULL is fine

// Register a series, or find it: equal names and labels give the same series. `name` is [a-zA-Z_:][a-zA-Z0-9_:]*.
// `help` is kept, not copied. `labels` is "" or the text between the braces, `tag="weights",stage="1"`, with values
// escaped by the caller. BL_INVALID: a bad name, or a name already used with another kind. BL_EXHAUSTED: the table is
// full.
BL_MUST_USE bl_status_t bl_metrics_counter(bl_metrics_t *metrics, const char *name, const char *help,
                                           const char *labels, bl_metric_t **metric, bl_error_t *err);
BL_MUST_USE bl_status_t bl_metrics_gauge(bl_metrics_t *metrics, const char *name, const char *help, const char *labels,
                                         bl_metric_t **metric, bl_error_t *err);
// `bounds`: 1 to BL_METRIC_BUCKETS ascending upper bounds of the buckets. +Inf is added.
BL_MUST_USE bl_status_t bl_metrics_histogram(bl_metrics_t *metrics, const char *name, const char *help,
                                             const char *labels, const double *bounds, size_t bound_count,
                                             bl_metric_t **metric, bl_error_t *err);

void bl_metric_add(bl_metric_t *metric, double amount);    // counter (amount >= 0) or gauge
void bl_metric_set(bl_metric_t *metric, double value);     // gauge
void bl_metric_reach(bl_metric_t *metric, double total);   // counter whose total is counted elsewhere; never decreases
void bl_metric_observe(bl_metric_t *metric, double value); // histogram
double bl_metric_value(const bl_metric_t *metric);         // counter or gauge; a histogram's sum

// Writes all series in order of first registration, those of one name together. BL_IO: the stream fails.
BL_MUST_USE bl_status_t bl_metrics_write(const bl_metrics_t *metrics, FILE *stream);

#endif
