// SPDX-License-Identifier: Apache-2.0
#include "observe/metrics.h"

#include <assert.h>
#include <math.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

typedef enum { COUNTER, GAUGE, HISTOGRAM } kind_t;

struct bl_metric {
  kind_t kind;
  const char *help;
  char name[BL_METRIC_NAME_BYTES];
  char labels[BL_METRIC_LABELS_BYTES];
  _Atomic double value; // of a histogram: the sum
  size_t bound_count;
  double bounds[BL_METRIC_BUCKETS];
  atomic_uint_fast64_t buckets[BL_METRIC_BUCKETS + 1]; // each counts only its own range; the last is +Inf
};

struct bl_metrics {
  size_t capacity;
  size_t count;
  bl_metric_t series[];
};

bl_status_t bl_metrics_create(size_t capacity, bl_metrics_t **result) {
  if (capacity > (SIZE_MAX - sizeof(bl_metrics_t)) / sizeof(bl_metric_t)) {
    return BL_EXHAUSTED;
  }
  bl_metrics_t *metrics = calloc(1, sizeof *metrics + capacity * sizeof(bl_metric_t));
  if (metrics == NULL) {
    return BL_EXHAUSTED;
  }
  metrics->capacity = capacity;
  *result = metrics;
  return BL_OK;
}

void bl_metrics_destroy(bl_metrics_t *metrics) {
  free(metrics);
}

static bool name_is_valid(const char *name) {
  static const char first[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_:";
  static const char rest[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_:0123456789";
  return name[0] != '\0' && strchr(first, name[0]) != NULL && name[strspn(name, rest)] == '\0';
}

// Finds or creates the series. *made: it was created.
static bl_status_t find(bl_metrics_t *metrics, kind_t kind, const char *name, const char *help, const char *labels,
                        bl_metric_t **result, bool *made, bl_error_t *err) {
  *made = false;
  if (!name_is_valid(name)) {
    return bl_error_set(err, BL_INVALID, "metric %s: not a valid name", name);
  }
  for (size_t i = 0; i < metrics->count; i++) {
    bl_metric_t *metric = &metrics->series[i];
    if (strcmp(metric->name, name) != 0) {
      continue;
    }
    if (metric->kind != kind) {
      return bl_error_set(err, BL_INVALID, "metric %s: is registered as another kind", name);
    }
    if (strcmp(metric->labels, labels) == 0) {
      *result = metric;
      return BL_OK;
    }
  }
  if (strlen(name) >= BL_METRIC_NAME_BYTES || strlen(labels) >= BL_METRIC_LABELS_BYTES) {
    return bl_error_set(err, BL_INVALID, "metric %s{%s}: name or labels are too long", name, labels);
  }
  if (metrics->count == metrics->capacity) {
    return bl_error_set(err, BL_EXHAUSTED, "metric %s{%s}: all %zu series are taken", name, labels, metrics->capacity);
  }
  bl_metric_t *metric = &metrics->series[metrics->count++];
  metric->kind = kind;
  metric->help = help;
  memcpy(metric->name, name, strlen(name) + 1);
  memcpy(metric->labels, labels, strlen(labels) + 1);
  *result = metric;
  *made = true;
  return BL_OK;
}

bl_status_t bl_metrics_counter(bl_metrics_t *metrics, const char *name, const char *help, const char *labels,
                               bl_metric_t **metric, bl_error_t *err) {
  bool made;
  return find(metrics, COUNTER, name, help, labels, metric, &made, err);
}

bl_status_t bl_metrics_gauge(bl_metrics_t *metrics, const char *name, const char *help, const char *labels,
                             bl_metric_t **metric, bl_error_t *err) {
  bool made;
  return find(metrics, GAUGE, name, help, labels, metric, &made, err);
}

bl_status_t bl_metrics_histogram(bl_metrics_t *metrics, const char *name, const char *help, const char *labels,
                                 const double *bounds, size_t bound_count, bl_metric_t **result, bl_error_t *err) {
  if (bound_count < 1 || bound_count > BL_METRIC_BUCKETS) {
    return bl_error_set(err, BL_INVALID, "metric %s: a histogram has 1 to %d buckets, not %zu", name, BL_METRIC_BUCKETS,
                        bound_count);
  }
  for (size_t i = 1; i < bound_count; i++) {
    if (!(bounds[i] > bounds[i - 1])) {
      return bl_error_set(err, BL_INVALID, "metric %s: bucket bounds must ascend", name);
    }
  }
  bool made;
  bl_metric_t *metric = NULL;
  bl_status_t status = find(metrics, HISTOGRAM, name, help, labels, &metric, &made, err);
  if (status != BL_OK) {
    return status;
  }
  if (made) {
    metric->bound_count = bound_count;
    memcpy(metric->bounds, bounds, bound_count * sizeof *bounds);
  }
  *result = metric;
  return BL_OK;
}

static void add(bl_metric_t *metric, double amount) {
  double before = atomic_load_explicit(&metric->value, memory_order_relaxed);
  while (!atomic_compare_exchange_weak_explicit(&metric->value, &before, before + amount, memory_order_relaxed,
                                                memory_order_relaxed)) {
  }
}

void bl_metric_add(bl_metric_t *metric, double amount) {
  assert(metric->kind == GAUGE || (metric->kind == COUNTER && amount >= 0));
  add(metric, amount);
}

void bl_metric_set(bl_metric_t *metric, double value) {
  assert(metric->kind == GAUGE);
  atomic_store_explicit(&metric->value, value, memory_order_relaxed);
}

void bl_metric_reach(bl_metric_t *metric, double total) {
  assert(metric->kind == COUNTER);
  if (total > bl_metric_value(metric)) {
    atomic_store_explicit(&metric->value, total, memory_order_relaxed);
  }
}

void bl_metric_observe(bl_metric_t *metric, double value) {
  assert(metric->kind == HISTOGRAM);
  size_t bucket = 0;
  while (bucket < metric->bound_count && !(value <= metric->bounds[bucket])) {
    bucket++;
  }
  atomic_fetch_add_explicit(&metric->buckets[bucket], 1, memory_order_relaxed);
  add(metric, value);
}

double bl_metric_value(const bl_metric_t *metric) {
  bl_metric_t *readable = (bl_metric_t *)metric; // C11's atomic_load takes no pointer to const
  return atomic_load_explicit(&readable->value, memory_order_relaxed);
}

// ---- text -----------------------------------------------------------------------------------------------------------

// Writes the shortest text that reads back as the same number: 0.1, not 0.10000000000000001.
static const char *number(double value, char text[32]) {
  if (isnan(value) || isinf(value)) {
    snprintf(text, 32, "%s", isnan(value) ? "NaN" : value > 0 ? "+Inf" : "-Inf");
    return text;
  }
  for (int digits = 15; digits <= 17; digits++) {
    snprintf(text, 32, "%.*g", digits, value);
    if (strtod(text, NULL) == value) {
      break;
    }
  }
  return text;
}

static void write_sample(FILE *stream, const bl_metric_t *metric, double value) {
  const bool labels = metric->labels[0] != '\0';
  char text[32];
  fprintf(stream, "%s%s%s%s %s\n", metric->name, labels ? "{" : "", metric->labels, labels ? "}" : "",
          number(value, text));
}

static void write_histogram(FILE *stream, const bl_metric_t *metric) {
  bl_metric_t *readable = (bl_metric_t *)metric;
  const char *comma = metric->labels[0] != '\0' ? "," : "";
  uint64_t count = 0;
  char text[32];
  for (size_t i = 0; i <= metric->bound_count; i++) {
    count += atomic_load_explicit(&readable->buckets[i], memory_order_relaxed);
    if (i < metric->bound_count) {
      fprintf(stream, "%s_bucket{%s%sle=\"%s\"} %llu\n", metric->name, metric->labels, comma,
              number(metric->bounds[i], text), (unsigned long long)count);
    } else {
      fprintf(stream, "%s_bucket{%s%sle=\"+Inf\"} %llu\n", metric->name, metric->labels, comma,
              (unsigned long long)count);
    }
  }
  const char *open = comma[0] != '\0' ? "{" : "", *close = comma[0] != '\0' ? "}" : "";
  fprintf(stream, "%s_sum%s%s%s %s\n", metric->name, open, metric->labels, close,
          number(bl_metric_value(metric), text));
  fprintf(stream, "%s_count%s%s%s %llu\n", metric->name, open, metric->labels, close, (unsigned long long)count);
}

static bool is_first_of_name(const bl_metrics_t *metrics, size_t index) {
  for (size_t i = 0; i < index; i++) {
    if (strcmp(metrics->series[i].name, metrics->series[index].name) == 0) {
      return false;
    }
  }
  return true;
}

bl_status_t bl_metrics_write(const bl_metrics_t *metrics, FILE *stream) {
  static const char *const types[] = {"counter", "gauge", "histogram"};
  for (size_t i = 0; i < metrics->count; i++) {
    const bl_metric_t *first = &metrics->series[i];
    if (!is_first_of_name(metrics, i)) {
      continue;
    }
    fprintf(stream, "# HELP %s %s\n# TYPE %s %s\n", first->name, first->help, first->name, types[first->kind]);
    for (size_t k = i; k < metrics->count; k++) {
      const bl_metric_t *metric = &metrics->series[k];
      if (strcmp(metric->name, first->name) != 0) {
        continue;
      }
      if (metric->kind == HISTOGRAM) {
        write_histogram(stream, metric);
      } else {
        write_sample(stream, metric, bl_metric_value(metric));
      }
    }
  }
  return fflush(stream) == 0 && !ferror(stream) ? BL_OK : BL_IO;
}
