// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/inspect/chrome_trace.h"

#include "ballastctl/inspect/slot_levels.h"

#include "model/grid.h"
#include "sys/file.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Threads of a stage's process.
enum { OPERATIONS = 0, WAITS = 1, COPIES = 2 };

struct bl_ctl_chrome_trace {
  json_t *events; // with times in nanoseconds of the machine's clock, as "start", "end" and "since"
  bl_ctl_slot_levels_t levels;
  uint64_t first_ns;
  bl_grid_t grid; // of the events
  bool out_of_memory;
};

bl_status_t bl_ctl_chrome_trace_create(bl_ctl_chrome_trace_t **result) {
  bl_ctl_chrome_trace_t *trace = calloc(1, sizeof *trace);
  if (trace == NULL || (trace->events = json_array()) == NULL) {
    free(trace);
    return BL_EXHAUSTED;
  }
  trace->first_ns = UINT64_MAX;
  *result = trace;
  return BL_OK;
}

void bl_ctl_chrome_trace_destroy(bl_ctl_chrome_trace_t *trace) {
  if (trace != NULL) {
    json_decref(trace->events);
    bl_ctl_slot_levels_cleanup(&trace->levels);
    free(trace);
  }
}

void bl_ctl_chrome_trace_add(bl_ctl_chrome_trace_t *trace, const bl_ctl_trace_event_t *event) {
  uint64_t since_ns = event->end_ns;
  trace->grid = event->grid;
  if (!event->wait && bl_ctl_slot_levels_next(&trace->levels, event, &since_ns) != BL_OK) {
    trace->out_of_memory = true;
    return;
  }
  json_t *one = json_pack("{s:i, s:s, s:b, s:b, s:I, s:I, s:I, s:i, s:i}", "stage", event->stage, "name", event->name,
                          "wait", (int)event->wait, "copy", (int)event->copy, "start", (json_int_t)event->start_ns,
                          "end", (json_int_t)event->end_ns, "since", (json_int_t)since_ns, "micro_batch",
                          event->micro_batch, "slots", (int)event->slots_in_use);
  if (json_array_append_new(trace->events, one) != 0) {
    trace->out_of_memory = true;
    return;
  }
  trace->first_ns = event->start_ns < trace->first_ns ? event->start_ns : trace->first_ns;
}

static double microseconds(const bl_ctl_chrome_trace_t *trace, const json_t *event, const char *key) {
  return (double)((uint64_t)json_integer_value(json_object_get(event, key)) - trace->first_ns) * 1e-3;
}

static json_t *named(const char *what, json_t *stage, int thread, const char *name) {
  return json_pack("{s:s, s:s, s:O, s:i, s:{s:s}}", "ph", "M", "name", what, "pid", stage, "tid", thread, "args",
                   "name", name);
}

// Adds names for a stage's process and threads, at its first event.
static void introduce(json_t *out, json_t *stage, const bl_grid_t *grid) {
  char name[BL_GRID_NAME_BYTES];
  const uint32_t rank = (uint32_t)json_integer_value(stage);
  const bl_grid_t line = {.stages = rank + 1, .tensor = 1, .data = 1}; // used if the grid is not known
  (void)bl_grid_name(grid->stages > 0 ? grid : &line, rank, name);
  json_array_append_new(out, named("process_name", stage, OPERATIONS, name));
  json_array_append_new(out, named("thread_name", stage, OPERATIONS, "operations"));
  json_array_append_new(out, named("thread_name", stage, WAITS, "waits"));
}

static json_t *convert(const bl_ctl_chrome_trace_t *trace) {
  json_t *out = json_array(), *introduced = json_object(), *event;
  size_t i;
  json_array_foreach(trace->events, i, event) {
    json_t *stage = json_object_get(event, "stage");
    const bool wait = json_is_true(json_object_get(event, "wait"));
    const double start = microseconds(trace, event, "start"), end = microseconds(trace, event, "end");
    const int thread = wait ? WAITS : json_is_true(json_object_get(event, "copy")) ? COPIES : OPERATIONS;
    char key[32];
    snprintf(key, sizeof key, "%lld", (long long)json_integer_value(stage));
    if (json_object_get(introduced, key) == NULL) {
      json_object_set_new(introduced, key, json_true());
      introduce(out, stage, &trace->grid);
    }
    snprintf(key, sizeof key, "copies %lld", (long long)json_integer_value(stage));
    if (thread == COPIES && json_object_get(introduced, key) == NULL) {
      json_object_set_new(introduced, key, json_true());
      json_array_append_new(out, named("thread_name", stage, COPIES, "copies"));
    }
    json_array_append_new(out, json_pack("{s:s, s:O, s:s, s:f, s:f, s:O, s:i, s:{s:O}}", "ph", "X", "name",
                                         json_object_get(event, "name"), "cat", wait ? "wait" : "operation", "ts",
                                         start, "dur", end - start, "pid", stage, "tid", thread, "args", "micro_batch",
                                         json_object_get(event, "micro_batch")));
    if (!wait) {
      json_array_append_new(out, json_pack("{s:s, s:s, s:f, s:O, s:i, s:{s:O}}", "ph", "C", "name", "slots in use",
                                           "ts", microseconds(trace, event, "since"), "pid", stage, "tid", OPERATIONS,
                                           "args", "slots", json_object_get(event, "slots")));
    }
  }
  json_decref(introduced);
  return json_pack("{s:s, s:o}", "displayTimeUnit", "ms", "traceEvents", out);
}

bl_status_t bl_ctl_chrome_trace_write(const bl_ctl_chrome_trace_t *trace, const char *path, bl_error_t *err) {
  if (trace->out_of_memory) {
    return bl_error_set(err, BL_EXHAUSTED, "%s: no memory for the trace", path);
  }
  if (json_array_size(trace->events) == 0) {
    return bl_error_set(err, BL_PRECONDITION, "%s is not written: there is no step to show yet", path);
  }
  json_t *root = convert(trace);
  char *text = json_dumps(root, JSON_COMPACT);
  json_decref(root);
  if (text == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "%s: no memory for the trace", path);
  }
  bl_status_t status = bl_file_replace(path, text, strlen(text), err);
  free(text);
  return status;
}
