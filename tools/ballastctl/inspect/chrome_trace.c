// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/inspect/chrome_trace.h"

#include "ballastctl/inspect/link_turns.h"
#include "ballastctl/inspect/slot_levels.h"

#include "base/minmax.h"
#include "model/grid.h"
#include "sys/file.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Threads of a stage's process.
enum { OPERATIONS = 0, WAITS = 1, COPIES = 2 };

struct bl_ctl_chrome_trace {
  json_t *events; // with times in nanoseconds of the machine's clock, as "start", "end" and "since"
  bl_ctl_slot_levels_t levels;
  bl_ctl_link_turns_t turns;
  uint64_t first_ns;
  int stages;     // one more than the highest number
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
    bl_ctl_link_turns_cleanup(&trace->turns);
    free(trace);
  }
}

void bl_ctl_chrome_trace_add(bl_ctl_chrome_trace_t *trace, const bl_ctl_trace_event_t *event) {
  uint64_t since_ns = event->end_ns;
  trace->grid = event->grid;
  trace->stages = event->stage >= trace->stages ? event->stage + 1 : trace->stages;
  trace->first_ns = bl_min_u64(trace->first_ns, event->start_ns);
  if (bl_ctl_link_turns_add(&trace->turns, event) != BL_OK) {
    trace->out_of_memory = true;
    return;
  }
  if (event->transfer && event->turn_ns > 0) {
    return; // of a simulation, which adds it as an operation, too
  }
  if (!event->wait && !event->transfer && bl_ctl_slot_levels_next(&trace->levels, event, &since_ns) != BL_OK) {
    trace->out_of_memory = true;
    return;
  }
  json_t *one =
      json_pack("{s:i, s:s, s:b, s:b, s:b, s:I, s:I, s:I, s:i, s:i, s:I}", "stage", event->stage, "name", event->name,
                "wait", (int)event->wait, "copy", (int)(event->copy || event->transfer), "counts",
                (int)(!event->wait && !event->transfer), "start", (json_int_t)event->start_ns, "end",
                (json_int_t)event->end_ns, "since", (json_int_t)since_ns, "micro_batch", event->micro_batch, "slots",
                (int)event->slots_in_use, "waited", (json_int_t)event->waited_ns);
  if (json_array_append_new(trace->events, one) != 0) {
    trace->out_of_memory = true;
  }
}

static double microseconds_at(const bl_ctl_chrome_trace_t *trace, uint64_t ns) {
  return (double)(ns - trace->first_ns) * 1e-3;
}

static double microseconds(const bl_ctl_chrome_trace_t *trace, const json_t *event, const char *key) {
  return microseconds_at(trace, (uint64_t)json_integer_value(json_object_get(event, key)));
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

// ---- links to hosts, each host a process after those of the stages

static json_t *pid_of(const bl_ctl_chrome_trace_t *trace, const bl_ctl_link_turn_t *turn) {
  const bl_grid_t *grid = &trace->grid;
  const uint32_t ranks = grid->stages * grid->tensor * grid->data;
  return json_integer((json_int_t)bl_max_u32(ranks, (uint32_t)trace->stages) + turn->host);
}

static void introduce_link(const bl_ctl_chrome_trace_t *trace, json_t *out, const bl_ctl_link_turn_t *turn) {
  char name[48];
  json_t *pid = pid_of(trace, turn);
  snprintf(name, sizeof name, "host %" PRIu32, turn->host);
  json_array_append_new(out, named("process_name", pid, (int)turn->link, name));
  snprintf(name, sizeof name, "link %" PRIu32, turn->link);
  json_array_append_new(out, named("thread_name", pid, (int)turn->link, name));
  json_decref(pid);
}

// Adds the transfer while it has the link, with its block and how long it waited.
static void add_turn(const bl_ctl_chrome_trace_t *trace, json_t *out, const bl_ctl_link_turn_t *turn) {
  const bool leaves = turn->op.type == BL_OP_E, sliced = trace->turns.sliced;
  char name[96], cell[BL_OP_TEXT], slice[24] = "";
  if (sliced) {
    snprintf(slice, sizeof slice, ", slice %u", turn->op.slice);
  }
  snprintf(name, sizeof name, "stage %" PRIu32 " %s: chunk %u, micro-batch %" PRIu32 "%s",
           trace->grid.stages > 0 ? turn->stage / trace->grid.tensor % trace->grid.stages : turn->stage,
           leaves ? "out" : "back", turn->op.virtual_stage, turn->op.micro_batch, slice);
  json_t *args =
      json_pack("{s:s, s:i, s:s, s:i, s:i, s:f}", "operation", bl_op_format_slice(turn->op, sliced, cell), "rank",
                (int)turn->stage, "direction", leaves ? "out" : "back", "chunk", (int)turn->op.virtual_stage,
                "micro_batch", (int)turn->op.micro_batch, "waited_us", (double)(turn->turn_ns - turn->asked_ns) * 1e-3);
  if (sliced) {
    json_object_set_new(args, "slice", json_integer(turn->op.slice));
  }
  if (turn->bytes > 0) {
    json_object_set_new(args, "bytes", json_integer((json_int_t)turn->bytes));
  }
  json_array_append_new(out, json_pack("{s:s, s:s, s:s, s:f, s:f, s:o, s:i, s:o}", "ph", "X", "name", name, "cat",
                                       "transfer", "ts", microseconds_at(trace, turn->turn_ns), "dur",
                                       (double)(turn->end_ns - turn->turn_ns) * 1e-3, "pid", pid_of(trace, turn), "tid",
                                       (int)turn->link, "args", args));
}

// A transfer begins or ends to wait for its link.
typedef struct change {
  const bl_ctl_link_turn_t *turn;
  uint64_t at_ns;
  int by;
} change_t;

static int compare_changes(const void *one, const void *other) {
  const change_t *a = one, *b = other;
  if (!bl_ctl_link_turns_same_link(a->turn, b->turn)) {
    return a->turn < b->turn ? -1 : 1; // turns are sorted by links
  }
  return a->at_ns != b->at_ns ? (a->at_ns < b->at_ns ? -1 : 1) : a->by - b->by;
}

// Adds how many transfers wait for each link.
static void add_waiting(bl_ctl_chrome_trace_t *trace, json_t *out) {
  change_t *changes = malloc((2 * trace->turns.count + 1) * sizeof *changes);
  size_t count = 0;
  int waiting = 0;
  if (changes == NULL) {
    trace->out_of_memory = true;
    return;
  }
  for (size_t i = 0; i < trace->turns.count; i++) {
    const bl_ctl_link_turn_t *turn = &trace->turns.of[i];
    if (turn->turn_ns > turn->asked_ns) {
      changes[count++] = (change_t){turn, turn->asked_ns, 1};
      changes[count++] = (change_t){turn, turn->turn_ns, -1};
    }
  }
  qsort(changes, count, sizeof *changes, compare_changes);
  for (size_t i = 0; i < count; i++) {
    char name[32];
    const bl_ctl_link_turn_t *turn = changes[i].turn;
    waiting += changes[i].by;
    snprintf(name, sizeof name, "waiting for link %" PRIu32, turn->link);
    json_array_append_new(out, json_pack("{s:s, s:s, s:f, s:o, s:i, s:{s:i}}", "ph", "C", "name", name, "ts",
                                         microseconds_at(trace, changes[i].at_ns), "pid", pid_of(trace, turn), "tid",
                                         (int)turn->link, "args", "transfers", waiting));
  }
  free(changes);
}

static void add_links(bl_ctl_chrome_trace_t *trace, json_t *out) {
  bl_ctl_link_turns_sort(&trace->turns);
  for (size_t i = 0; i < trace->turns.count; i++) {
    const bl_ctl_link_turn_t *turn = &trace->turns.of[i];
    if (i == 0 || !bl_ctl_link_turns_same_link(turn, turn - 1)) {
      introduce_link(trace, out, turn);
    }
    add_turn(trace, out, turn);
  }
  add_waiting(trace, out);
}

static json_t *convert(bl_ctl_chrome_trace_t *trace) {
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
    json_t *args = json_pack("{s:O}", "micro_batch", json_object_get(event, "micro_batch"));
    const json_int_t waited_ns = json_integer_value(json_object_get(event, "waited"));
    if (waited_ns > 0) {
      json_object_set_new(args, "waited_for_tensor_ranks_us", json_real((double)waited_ns * 1e-3));
    }
    json_array_append_new(out, json_pack("{s:s, s:O, s:s, s:f, s:f, s:O, s:i, s:o}", "ph", "X", "name",
                                         json_object_get(event, "name"), "cat", wait ? "wait" : "operation", "ts",
                                         start, "dur", end - start, "pid", stage, "tid", thread, "args", args));
    if (json_is_true(json_object_get(event, "counts"))) {
      json_array_append_new(out, json_pack("{s:s, s:s, s:f, s:O, s:i, s:{s:O}}", "ph", "C", "name", "slots in use",
                                           "ts", microseconds(trace, event, "since"), "pid", stage, "tid", OPERATIONS,
                                           "args", "slots", json_object_get(event, "slots")));
    }
  }
  json_decref(introduced);
  add_links(trace, out);
  return json_pack("{s:s, s:o}", "displayTimeUnit", "ms", "traceEvents", out);
}

bl_status_t bl_ctl_chrome_trace_write(bl_ctl_chrome_trace_t *trace, const char *path, bl_error_t *err) {
  if (trace->out_of_memory) {
    return bl_error_set(err, BL_EXHAUSTED, "%s: no memory for the trace", path);
  }
  if (json_array_size(trace->events) == 0) {
    return bl_error_set(err, BL_PRECONDITION, "%s is not written: there is no step to show yet", path);
  }
  json_t *root = convert(trace);
  char *text = trace->out_of_memory ? NULL : json_dumps(root, JSON_COMPACT);
  json_decref(root);
  if (text == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "%s: no memory for the trace", path);
  }
  bl_status_t status = bl_file_replace(path, text, strlen(text), err);
  free(text);
  return status;
}
