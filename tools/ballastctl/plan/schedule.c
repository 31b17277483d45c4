// SPDX-License-Identifier: Apache-2.0
// ballastctl schedule: the order of operations, and its cost in time and slots, as a table, JSON, CSV or picture.
#include "ballastctl/commands.h"
#include "ballastctl/output.h"
#include "ballastctl/output_path.h"
#include "ballastctl/plan/order_json.h"
#include "ballastctl/plan/schedule_case.h"
#include "ballastctl/plan/schedule_name.h"
#include "ballastctl/plan/simulated_trace.h"

#include "base/words.h"
#include "schedule/csv/csv.h"
#include "schedule/generate.h"
#include "schedule/ir/stage_plan.h"
#include "sys/file.h"

#include <stdlib.h>

static json_t *counts_json(const bl_schedule_t *schedule, bl_op_type_t type) {
  json_t *counts = json_array();
  for (uint32_t s = 0; s < schedule->stages; s++) {
    json_int_t count = 0;
    for (size_t i = 0; i < schedule->lists[s].count; i++) {
      count += schedule->lists[s].ops[i].type == type;
    }
    json_array_append_new(counts, json_integer(count));
  }
  return counts;
}

// Returns the object for scripts; for a building block also the bound by its lifespans.
static json_t *shown_json(const bl_ctl_schedule_case_t *shown) {
  const bl_simulation_t *simulation = &shown->simulation;
  json_t *peaks = json_array();
  for (uint32_t s = 0; s < simulation->stages; s++) {
    json_array_append_new(peaks, json_real(simulation->peak[s]));
  }
  json_t *object = json_pack(
      "{s:f, s:f, s:f, s:f, s:o, s:o, s:o, s:o, s:o}", "t_end", simulation->t_end, "bubble", simulation->bubble_total,
      "lower_bound", simulation->lower_bound, "bound_within", simulation->bound_within, "peak", peaks, "evictions",
      counts_json(shown->schedule, BL_OP_E), "loads", counts_json(shown->schedule, BL_OP_L), "recomputed",
      counts_json(shown->schedule, BL_OP_R), "order", bl_ctl_order_json(shown->schedule));
  if (shown->schedule->hosts > 0) {
    json_object_set_new(object, "host_slots", json_integer(bl_ctl_schedule_case_at_hosts(shown)));
  }
  if (shown->block.times != NULL) {
    json_t *bounds = json_array();
    for (uint32_t s = 0; s < simulation->stages; s++) {
      json_array_append_new(bounds, json_real(bl_block_pattern_bound(&shown->block.block, s)));
    }
    json_object_set_new(object, "lifespan_bound", bounds);
  }
  return object;
}

static const bl_ctl_column_t columns[] = {
    {.key = "stage", .title = "STAGE", .right = true},
    {.key = "peak", .title = "PEAK", .right = true},
    {.key = "slots", .title = "SLOTS", .right = true},
    {.key = "edges", .title = "EDGES", .right = true},
    {.key = "evictions", .title = "EVICTIONS", .right = true},
    {.key = "loads", .title = "LOADS", .right = true},
    {.key = "recomputed", .title = "RECOMPUTED", .right = true},
    {.key = "busy", .title = "BUSY", .right = true},
    {.key = "start", .title = "START", .right = true, .wide = true},
    {.key = "end", .title = "END", .right = true},
    {.key = "operations", .title = "OPERATIONS", .right = true, .wide = true},
    {.key = "lifespan_bound", .title = "BOUND", .right = true}, // must be last: only building blocks have it
};

static void print_hosts(const bl_ctl_schedule_flags_t *a, const bl_ctl_schedule_case_t *shown) {
  const uint32_t slots = bl_ctl_schedule_case_at_hosts(shown);
  if (a->host > 0) {
    printf("the host needs room for %u block%s of %lld\n\n", slots, bl_plural(slots), (long long)a->host);
  } else if (shown->schedule->hosts > 0) {
    printf("%u host store%s need%s room for %u block%s\n\n", shown->schedule->hosts, bl_plural(shown->schedule->hosts),
           bl_one_or_many(shown->schedule->hosts, "s", ""), slots, bl_plural(slots));
  }
}

static bl_status_t print_table(const bl_ctl_schedule_flags_t *a, const bl_ctl_schedule_case_t *shown, bl_error_t *err) {
  const bl_simulation_t *simulation = &shown->simulation;
  const bl_schedule_t *schedule = shown->schedule;
  uint32_t *edges = calloc(schedule->stages, sizeof *edges);
  bl_status_t status =
      edges != NULL ? bl_plan_counts(schedule, NULL, edges, err) : bl_error_set(err, BL_EXHAUSTED, "out of memory");
  json_t *stages = json_array(), *evictions = counts_json(schedule, BL_OP_E), *loads = counts_json(schedule, BL_OP_L),
         *recomputed = counts_json(schedule, BL_OP_R);
  for (uint32_t s = 0; s < schedule->stages && status == BL_OK; s++) {
    json_array_append_new(stages, json_pack("{s:i, s:f, s:i, s:i, s:O, s:O, s:O, s:f, s:f, s:f, s:I}", "stage", (int)s,
                                            "peak", simulation->peak[s], "slots", (int)simulation->peak_slots[s],
                                            "edges", (int)edges[s], "evictions", json_array_get(evictions, s), "loads",
                                            json_array_get(loads, s), "recomputed", json_array_get(recomputed, s),
                                            "busy", simulation->busy[s], "start", simulation->start[s], "end",
                                            simulation->end[s], "operations", (json_int_t)schedule->lists[s].count));
    if (shown->block.times != NULL) {
      json_object_set_new(json_array_get(stages, s), "lifespan_bound",
                          json_real(bl_block_pattern_bound(&shown->block.block, s)));
    }
  }
  if (status == BL_OK) {
    printf("%s: %u stage%s, %u chunk%s a stage, %u micro-batch%s%s; end %.6g, bubble %.1f %%, lower bound %.6g (+%.1f "
           "%%), within its memory %.6g (+%.1f %%)\n\n",
           schedule->name, schedule->stages, bl_plural(schedule->stages), schedule->chunks, bl_plural(schedule->chunks),
           schedule->micro_batches, bl_one_or_many(schedule->micro_batches, "", "es"),
           schedule->forward_only ? ", forward-only" : "", simulation->t_end, 100 * simulation->bubble_total,
           simulation->lower_bound, 100 * (simulation->t_end / simulation->lower_bound - 1), simulation->bound_within,
           100 * (simulation->t_end / simulation->bound_within - 1));
    print_hosts(a, shown);
    size_t count = sizeof columns / sizeof columns[0] - (shown->block.times == NULL);
    status = bl_ctl_print_rows(a->output, columns, count, stages, stdout);
    status = bl_ctl_printed(status, err);
  }
  json_decref(recomputed);
  json_decref(loads);
  json_decref(evictions);
  json_decref(stages);
  free(edges);
  return status;
}

static bl_status_t print_object(const bl_ctl_schedule_flags_t *a, const bl_ctl_schedule_case_t *shown,
                                bl_error_t *err) {
  static const bl_ctl_column_t name = {.key = "schedule", .title = "SCHEDULE"};
  json_t *object = a->output == BL_CTL_NAME ? json_pack("{s:s}", "schedule", shown->schedule->name) : shown_json(shown);
  bl_status_t status = object != NULL ? bl_ctl_print_object(a->output, &name, 1, object, stdout) : BL_EXHAUSTED;
  json_decref(object);
  return bl_ctl_printed(status, err);
}

static bl_status_t show_body(void *arguments, const bl_flags_result_t *words, bl_error_t *err) {
  const bl_ctl_schedule_flags_t *a = arguments;
  (void)words;
  bl_ctl_schedule_case_t shown;
  bl_status_t status = bl_ctl_picture_path_check("svg", a->svg, err);
  if (status == BL_OK) {
    status = bl_ctl_output_path_check("perfetto", a->perfetto, err);
  }
  if (status != BL_OK) {
    return status;
  }
  status = bl_ctl_schedule_case_init(&shown, a, err);
  if (status == BL_OK) {
    bool table = a->output == BL_CTL_TABLE || a->output == BL_CTL_WIDE;
    status = table ? print_table(a, &shown, err) : print_object(a, &shown, err);
  }
  if (status == BL_OK && a->svg != NULL) {
    status = bl_ctl_schedule_case_draw(&shown, a, err);
  }
  if (status == BL_OK && a->perfetto != NULL) {
    status = bl_ctl_simulated_trace_write(shown.schedule, &shown.simulation, 1e-3, NULL, a->perfetto, err);
  }
  bl_ctl_schedule_case_cleanup(&shown);
  return status;
}

static int show(int argc, char *const *argv) {
  static const bl_flags_t flags = {
      .program = "ballastctl schedule show",
      .usage = "{--schedule NAME|FILE.csv --stages P | --block FILE} --micro-batches M [options]",
      .about =
          "Generates or reads a schedule, or repeats a building block; times it, and prints its end, bubble, lower "
          "bound, peaks and order.",
      .table = {bl_ctl_schedule_rows + BL_CTL_SCHEDULE_EXPORT_ROWS, BL_CTL_SCHEDULE_ROWS - BL_CTL_SCHEDULE_EXPORT_ROWS,
                "command line"}};
  bl_ctl_schedule_flags_t arguments = {0};
  return bl_ctl_run(&flags, &arguments, show_body, argc, argv);
}

static bl_status_t write_csv(const bl_schedule_t *schedule, int format, char **text, size_t *size) {
  if (format == BL_CTL_COMPUTE_ONLY) {
    return bl_csv_write(schedule, text, size);
  }
  return bl_csv_write_comms(schedule, format == BL_CTL_COMPUTE_COMMS, text, size);
}

static bl_status_t export_body(void *arguments, const bl_flags_result_t *words, bl_error_t *err) {
  const bl_ctl_schedule_flags_t *a = arguments;
  (void)words;
  bl_ctl_schedule_case_t shown;
  char *text = NULL;
  size_t size = 0;
  bl_status_t status = bl_ctl_output_path_check("to", a->to, err);
  if (status != BL_OK) {
    return status;
  }
  status = bl_ctl_schedule_case_init(&shown, a, err);
  if (status == BL_OK && write_csv(shown.schedule, a->format, &text, &size) != BL_OK) {
    status = bl_error_set(err, BL_EXHAUSTED, "out of memory for the CSV");
  }
  if (status == BL_OK && a->to != NULL) {
    status = bl_file_replace(a->to, text, size, err);
  } else if (status == BL_OK && (fwrite(text, 1, size, stdout) != size || fflush(stdout) != 0)) {
    status = bl_ctl_printed(BL_IO, err);
  }
  free(text);
  bl_ctl_schedule_case_cleanup(&shown);
  return status;
}

static int export(int argc, char *const *argv) {
  static const bl_flags_t flags = {
      .program = "ballastctl schedule export",
      .usage = "{--schedule NAME --stages P | --block FILE} --micro-batches M [options] [--to FILE.csv]",
      .about = "Writes a schedule as the CSV that PyTorch's pipelining reads, compute_only or compute_comms: a row per "
               "stage, a cell per operation. Evictions, loads and recomputations are cells with E, L and R of our own.",
      .table = {bl_ctl_schedule_rows, BL_CTL_SCHEDULE_ROWS - BL_CTL_SCHEDULE_SHOW_ROWS, "command line"}};
  bl_ctl_schedule_flags_t arguments = {0};
  return bl_ctl_run(&flags, &arguments, export_body, argc, argv);
}

static bl_status_t print_check(const bl_ctl_schedule_flags_t *a, const char *path, const bl_schedule_t *schedule,
                               const bl_schedule_facts_t *facts, bl_error_t *err) {
  static const bl_ctl_column_t check_columns[] = {
      {.key = "file", .title = "FILE"},
      {.key = "stages", .title = "STAGES", .right = true},
      {.key = "chunks", .title = "CHUNKS", .right = true},
      {.key = "micro_batches", .title = "MICRO-BATCHES", .right = true},
      {.key = "operations", .title = "OPERATIONS", .right = true},
      {.key = "forward_only", .title = "FORWARD-ONLY"},
      {.key = "split_backward", .title = "SPLIT"},
      {.key = "recomputes", .title = "RECOMPUTES", .wide = true},
      {.key = "transfers", .title = "TRANSFERS", .wide = true},
      {.key = "losses", .title = "LOSSES"},
  };
  const char *losses = schedule->forward_only ? "no backward"
                       : facts->ascending     ? "bitwise equal"
                                              : "equal within rounding";
  json_t *object = json_pack("{s:s, s:i, s:i, s:i, s:I, s:b, s:b, s:b, s:b, s:s}", "file", path, "stages",
                             (int)schedule->stages, "chunks", (int)schedule->chunks, "micro_batches",
                             (int)schedule->micro_batches, "operations", (json_int_t)bl_schedule_op_count(schedule),
                             "forward_only", schedule->forward_only, "split_backward", facts->splits_backward,
                             "recomputes", facts->recomputes, "transfers", facts->transfers, "losses", losses);
  bl_status_t status = object != NULL
                           ? bl_ctl_print_object(a->output, check_columns,
                                                 sizeof check_columns / sizeof check_columns[0], object, stdout)
                           : BL_EXHAUSTED;
  json_decref(object);
  status = bl_ctl_printed(status, err);
  if (status != BL_OK) {
    return status;
  }
  if (schedule->forward_only) {
    fprintf(
        stderr,
        "ballastctl: %s: forward-only: no micro-batch has a backward, so nothing can be trained with it; if that is "
        "not meant, all backwards are missing\n",
        path);
  }
  if (!facts->ascending) {
    char cell[BL_OP_TEXT];
    fprintf(stderr,
            "ballastctl: %s: %s comes after a later micro-batch of its chunk: sums of gradients are equal to "
            "other schedules' within rounding only\n",
            path, bl_op_format(facts->not_ascending, cell));
  }
  return BL_OK;
}

static bl_status_t check_body(void *arguments, const bl_flags_result_t *words, bl_error_t *err) {
  const char *path = words->positional[0];
  bl_schedule_t *schedule = NULL;
  bl_schedule_facts_t facts;
  bl_status_t status = bl_ctl_schedule_read(NULL, path, &schedule, err);
  if (status == BL_OK) {
    status = bl_schedule_validate(schedule, &facts, err);
  }
  if (status == BL_OK) {
    status = bl_plan_counts(schedule, NULL, NULL, err);
  }
  if (status == BL_OK) {
    status = print_check(arguments, path, schedule, &facts, err);
  }
  bl_schedule_destroy(schedule);
  return status;
}

static int check(int argc, char *const *argv) {
  static const bl_option_t check_rows[] = {BL_CTL_OUTPUT_FLAG(bl_ctl_schedule_flags_t, output)};
  static const bl_flags_t flags = {.program = "ballastctl schedule check",
                                   .usage = "FILE.csv [-o FORMAT]",
                                   .about = "Checks that a schedule file is complete, ordered and can run. Errors name "
                                            "row, column and cell.",
                                   .table = {check_rows, 1, "command line"},
                                   .positional_minimum = 1,
                                   .positional_maximum = 1};
  bl_ctl_schedule_flags_t arguments = {0};
  return bl_ctl_run(&flags, &arguments, check_body, argc, argv);
}

static bl_status_t list_body(void *arguments, const bl_flags_result_t *words, bl_error_t *err) {
  static const bl_ctl_column_t list_columns[] = {{.key = "name", .title = "NAME"},
                                                 {.key = "chunks", .title = "CHUNKS", .right = true},
                                                 {.key = "split_backward", .title = "SPLIT"},
                                                 {.key = "summary", .title = "SUMMARY"}};
  const bl_ctl_schedule_flags_t *a = arguments;
  (void)words;
  size_t count;
  const bl_schedule_info_t *infos = bl_schedule_infos(&count);
  json_t *names = json_array();
  for (size_t i = 0; i < count; i++) {
    json_array_append_new(names, json_pack("{s:s, s:i, s:b, s:b, s:s}", "name", infos[i].name, "chunks",
                                           (int)infos[i].default_chunks, "split_backward", infos[i].splits_backward,
                                           "runs", true, // true for all schedules since 0.1; kept for scripts
                                           "summary", infos[i].summary));
  }
  bl_status_t status =
      bl_ctl_print_rows(a->output, list_columns, sizeof list_columns / sizeof list_columns[0], names, stdout);
  status = bl_ctl_printed(status, err);
  json_decref(names);
  return status;
}

static int list(int argc, char *const *argv) {
  static const bl_option_t list_rows[] = {BL_CTL_OUTPUT_FLAG(bl_ctl_schedule_flags_t, output)};
  static const bl_flags_t flags = {.program = "ballastctl schedule list",
                                   .usage = "[-o FORMAT]",
                                   .about = "Names the schedules.",
                                   .table = {list_rows, 1, "command line"}};
  bl_ctl_schedule_flags_t arguments = {0};
  return bl_ctl_run(&flags, &arguments, list_body, argc, argv);
}

static const bl_ctl_command_t commands[] = {
    {"show", "order, time, bubble and peaks of a schedule", show},
    {"export", "a schedule as CSV", export},
    {"check", "whether a CSV file is a schedule that can run", check},
    {"frontier", "time against memory of all schedules, balanced and not", bl_ctl_schedule_frontier},
    {"list", "the names", list},
};

static int run(int argc, char *const *argv) {
  return bl_ctl_dispatch("ballastctl schedule", commands, sizeof commands / sizeof commands[0], argc, argv);
}

const bl_ctl_command_t bl_ctl_schedule_command = {"schedule", "schedules: show, export, check, frontier, list", run};
