// SPDX-License-Identifier: Apache-2.0
// Verifies the metrics registry: identity of series, refusals, updates from several threads, and the text form.
#include "observe/metrics.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void the_text_form_groups_series_by_name(void **state) {
  (void)state;
  bl_metrics_t *metrics;
  bl_metric_t *weights, *slots, *steps, *seconds;
  const double bounds[] = {0.5, 1};
  assert_int_equal(bl_metrics_create(8, &metrics), BL_OK);
  assert_int_equal(bl_metrics_gauge(metrics, "memory_bytes", "Memory.", "tag=\"weights\"", &weights, NULL), BL_OK);
  assert_int_equal(bl_metrics_counter(metrics, "steps_total", "Steps.", "", &steps, NULL), BL_OK);
  assert_int_equal(bl_metrics_gauge(metrics, "memory_bytes", "Memory.", "tag=\"slots\"", &slots, NULL), BL_OK);
  assert_int_equal(bl_metrics_histogram(metrics, "step_seconds", "Time.", "stage=\"1\"", bounds, 2, &seconds, NULL),
                   BL_OK);
  bl_metric_set(weights, 1024);
  bl_metric_set(slots, 7);
  bl_metric_add(slots, -2);
  bl_metric_add(steps, 3);
  bl_metric_observe(seconds, 0.5); // on a bound: inside
  bl_metric_observe(seconds, 0.75);
  bl_metric_observe(seconds, 2);
  char *text;
  size_t size_bytes;
  FILE *stream = open_memstream(&text, &size_bytes);
  assert_int_equal(bl_metrics_write(metrics, stream), BL_OK);
  fclose(stream);
  assert_string_equal(text, "# HELP memory_bytes Memory.\n"
                            "# TYPE memory_bytes gauge\n"
                            "memory_bytes{tag=\"weights\"} 1024\n"
                            "memory_bytes{tag=\"slots\"} 5\n"
                            "# HELP steps_total Steps.\n"
                            "# TYPE steps_total counter\n"
                            "steps_total 3\n"
                            "# HELP step_seconds Time.\n"
                            "# TYPE step_seconds histogram\n"
                            "step_seconds_bucket{stage=\"1\",le=\"0.5\"} 1\n"
                            "step_seconds_bucket{stage=\"1\",le=\"1\"} 2\n"
                            "step_seconds_bucket{stage=\"1\",le=\"+Inf\"} 3\n"
                            "step_seconds_sum{stage=\"1\"} 3.25\n"
                            "step_seconds_count{stage=\"1\"} 3\n");
  free(text);
  bl_metrics_destroy(metrics);
}

static void a_series_is_found_again_and_misuse_refused(void **state) {
  (void)state;
  bl_metrics_t *metrics;
  bl_metric_t *first, *again;
  bl_error_t err;
  const double falling[] = {2, 1};
  assert_int_equal(bl_metrics_create(1, &metrics), BL_OK);
  assert_int_equal(bl_metrics_counter(metrics, "a", "A.", "x=\"1\"", &first, &err), BL_OK);
  assert_int_equal(bl_metrics_counter(metrics, "a", "A.", "x=\"1\"", &again, &err), BL_OK);
  assert_ptr_equal(first, again);
  assert_int_equal(bl_metrics_gauge(metrics, "a", "A.", "x=\"1\"", &again, &err), BL_INVALID);
  assert_int_equal(bl_metrics_counter(metrics, "a", "A.", "x=\"2\"", &again, &err), BL_EXHAUSTED);
  assert_int_equal(bl_metrics_counter(metrics, "1a", "A.", "", &again, &err), BL_INVALID);
  assert_int_equal(bl_metrics_counter(metrics, "a-b", "A.", "", &again, &err), BL_INVALID);
  assert_non_null(strstr(err.text, "a-b"));
  assert_int_equal(bl_metrics_histogram(metrics, "h", "H.", "", falling, 2, &again, &err), BL_INVALID);
  bl_metrics_destroy(metrics);
}

enum { THREADS = 4, ROUNDS = 20000 };

static void *count_up(void *argument) {
  bl_metric_t **metrics = argument;
  for (unsigned i = 0; i < ROUNDS; i++) {
    bl_metric_add(metrics[0], 1);
    bl_metric_observe(metrics[1], i % 2);
  }
  return NULL;
}

static void updates_of_several_threads_all_count(void **state) {
  (void)state;
  bl_metrics_t *metrics;
  bl_metric_t *series[2];
  pthread_t threads[THREADS];
  const double bounds[] = {0};
  assert_int_equal(bl_metrics_create(2, &metrics), BL_OK);
  assert_int_equal(bl_metrics_counter(metrics, "c", "C.", "", &series[0], NULL), BL_OK);
  assert_int_equal(bl_metrics_histogram(metrics, "h", "H.", "", bounds, 1, &series[1], NULL), BL_OK);
  for (unsigned i = 0; i < THREADS; i++) {
    assert_int_equal(pthread_create(&threads[i], NULL, count_up, series), 0);
  }
  for (unsigned i = 0; i < THREADS; i++) {
    pthread_join(threads[i], NULL);
  }
  assert_true(bl_metric_value(series[0]) == THREADS * ROUNDS);
  assert_true(bl_metric_value(series[1]) == THREADS * ROUNDS / 2);
  bl_metrics_destroy(metrics);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_text_form_groups_series_by_name),
      cmocka_unit_test(a_series_is_found_again_and_misuse_refused),
      cmocka_unit_test(updates_of_several_threads_all_count),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
