// SPDX-License-Identifier: Apache-2.0
// ballastctl compare: compares reports of several runs of a job: blocks on every device, speed, and whether the losses
// are equal.
#include "ballastctl/commands.h"
#include "ballastctl/inspect/report_lines.h"
#include "ballastctl/output.h"
#include "ballastctl/output_path.h"
#include "ballastctl/run/progress.h"

#include "base/minmax.h"
#include "base/sort.h"
#include "draw/memory_grid.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DEVICES   4096       // more than any picture or table has
#define BLOCKS    (1u << 24) // of one device; far more than any job has, and sums do not overflow
#define BAR_CELLS 24         // for the fullest device, if it has more blocks

typedef struct arguments {
  int output;
  char *to;
  bool bars, equal;
} arguments_t;

static const bl_option_t rows[] = {
    {.name = "bars",
     .type = BL_OPTION_BOOL,
     .offset = offsetof(arguments_t, bars),
     .help = "What each device held, as bars, instead of a table."},
    {.name = "to",
     .type = BL_OPTION_PATH,
     .offset = offsetof(arguments_t, to),
     .argument = "FILE",
     .help = "Also draw the memory of all devices, a row per run: .svg or .png."},
    {.name = "equal",
     .type = BL_OPTION_BOOL,
     .offset = offsetof(arguments_t, equal),
     .help = "Ends with exit code 9 unless all have the steps and losses of the first, to the last bit."},
    BL_CTL_OUTPUT_FLAG(arguments_t, output),
};
static const bl_flags_t flags = {
    .program = "ballastctl compare",
    .usage = "REPORT... [--bars] [--to FILE.svg|FILE.png] [--equal] [-o FORMAT]",
    .about =
        "Compares reports of runs (run --report). Of each device it shows the peak number of activation blocks over "
        "all steps, own+lent: those of its own stage, and slots lent to others. Tokens per second are those of the "
        "fastest quarter of the steps, which vary least on a busy machine. Speed is relative to the first report.",
    .table = {rows, sizeof rows / sizeof rows[0], "command line"},
    .positional_minimum = 1,
    .positional_maximum = BL_FLAGS_POSITIONAL};

typedef struct device {
  uint32_t own, lent; // blocks
  uint64_t own_bytes, block_bytes;
} device_t;

typedef struct step {
  uint64_t number;
  double loss; // NaN: not a number
} step_t;

typedef struct report {
  const char *path;
  char name[64];
  device_t *devices;
  size_t device_count;
  step_t *steps;
  double *rates; // [step_count] tokens per second; sorted once all lines are read
  size_t step_count, capacity;
} report_t;

static uint64_t number_of(const json_t *object, const char *key) {
  const json_int_t value = json_integer_value(json_object_get(object, key));
  return value > 0 ? (uint64_t)value : 0;
}

static bl_status_t grow(report_t *report, size_t devices) {
  if (devices > report->device_count) {
    device_t *items = realloc(report->devices, devices * sizeof *items);
    if (items == NULL) {
      return BL_EXHAUSTED;
    }
    memset(items + report->device_count, 0, (devices - report->device_count) * sizeof *items);
    report->devices = items;
    report->device_count = devices;
  }
  if (report->step_count == report->capacity) {
    const size_t capacity = report->capacity == 0 ? 1024 : 2 * report->capacity;
    step_t *steps = realloc(report->steps, capacity * sizeof *steps);
    report->steps = steps != NULL ? steps : report->steps;
    double *rates = realloc(report->rates, capacity * sizeof *rates);
    report->rates = rates != NULL ? rates : report->rates;
    if (steps == NULL || rates == NULL) {
      return BL_EXHAUSTED;
    }
    report->capacity = capacity;
  }
  return BL_OK;
}

static bl_status_t read_blocks(const json_t *object, const char *key, uint32_t *blocks, bl_error_t *err) {
  const uint64_t value = number_of(object, key);
  *blocks = value > BLOCKS ? BLOCKS : (uint32_t)value;
  return value <= BLOCKS ? BL_OK
                         : bl_error_set(err, BL_INVALID, "%s: %" PRIu64 " blocks, at most %u", key, value, BLOCKS);
}

// Reads the devices. A rank's own device is the i-th for the i-th rank. A store names its device.
static bl_status_t read_devices(report_t *report, const json_t *stages, const json_t *stores, bl_error_t *err) {
  size_t i;
  const json_t *item;
  bl_status_t status = BL_OK;
  uint32_t blocks;
  json_array_foreach(stages, i, item) {
    device_t *device = &report->devices[i];
    const uint64_t bytes = number_of(item, "peak_slot_bytes");
    if ((status = read_blocks(item, "peak_slots", &blocks, err)) != BL_OK) {
      return status;
    }
    if (blocks > device->own) {
      *device = (device_t){blocks, device->lent, bytes, bytes / blocks};
    }
  }
  json_array_foreach(stores, i, item) {
    const uint64_t at = json_object_get(item, "tensor") != NULL ? i : number_of(item, "device");
    if ((status = read_blocks(item, "lent_slots", &blocks, err)) != BL_OK) {
      return status;
    }
    if (at < report->device_count && json_object_get(item, "host") == NULL) { // memory of a host is on no device
      report->devices[at].lent = bl_max_u32(report->devices[at].lent, blocks);
    }
  }
  return status;
}

static bl_status_t read_event(void *context, const char *kind, const json_t *event, bl_error_t *err) {
  report_t *report = context;
  if (strcmp(kind, "step") != 0) {
    return BL_OK;
  }
  const json_t *stages = json_object_get(event, "stages"), *loss = json_object_get(event, "loss");
  const double seconds = json_number_value(json_object_get(event, "seconds"));
  if (json_array_size(stages) == 0 || json_array_size(stages) > DEVICES) {
    return bl_error_set(err, BL_INVALID, "a step of %zu stages", json_array_size(stages));
  }
  if (grow(report, json_array_size(stages)) != BL_OK) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for the report");
  }
  bl_status_t status = read_devices(report, stages, json_object_get(event, "stores"), err);
  if (status != BL_OK) {
    return status;
  }
  report->rates[report->step_count] = seconds > 0 ? (double)number_of(event, "tokens") / seconds : 0;
  report->steps[report->step_count++] =
      (step_t){number_of(event, "step"), json_is_number(loss) ? json_number_value(loss) : NAN};
  return BL_OK;
}

static bl_status_t read_report(const char *path, report_t *report, bl_error_t *err) {
  const char *slash = strrchr(path, '/'), *name = slash != NULL ? slash + 1 : path, *dot = strrchr(name, '.');
  report->path = path;
  snprintf(report->name, sizeof report->name, "%.*s", (int)(dot != NULL && dot > name ? dot - name : 63), name);
  bl_status_t status = bl_ctl_report_lines_read(path, read_event, report, err);
  if (status == BL_OK && report->step_count == 0) {
    status = bl_error_set(err, BL_INVALID, "%s: there is no step in it yet", path);
  }
  if (status == BL_OK) {
    bl_sort_f64(report->rates, report->step_count);
  }
  return status;
}

// Index of the first step that differs, or SIZE_MAX.
static size_t first_difference(const report_t *a, const report_t *b) {
  const size_t steps = a->step_count < b->step_count ? a->step_count : b->step_count;
  for (size_t i = 0; i < steps; i++) {
    const bool same = a->steps[i].loss == b->steps[i].loss || (isnan(a->steps[i].loss) && isnan(b->steps[i].loss));
    if (!same || a->steps[i].number != b->steps[i].number) {
      return i;
    }
  }
  return a->step_count == b->step_count ? SIZE_MAX : steps;
}

static uint32_t blocks_of(const device_t *device) {
  return device->own + device->lent;
}

// Returns an upper bound: blocks lent to other stages are taken to be as large as the largest of the run.
static uint64_t lent_bytes(const report_t *report, const device_t *device) {
  uint64_t block = 0;
  for (size_t i = 0; i < report->device_count; i++) {
    block = bl_max_u64(block, report->devices[i].block_bytes);
  }
  return device->lent * block;
}

static uint32_t fullest_of(const report_t *report) {
  uint32_t most = 0;
  for (size_t i = 0; i < report->device_count; i++) {
    most = bl_max_u32(most, blocks_of(&report->devices[i]));
  }
  return most;
}

static json_t *row_of(const report_t *report, const report_t *first) {
  json_t *devices = json_array();
  uint64_t most_bytes = 0;
  char *blocks = NULL;
  size_t blocks_bytes;
  FILE *text = open_memstream(&blocks, &blocks_bytes);
  if (text == NULL) {
    json_decref(devices);
    return NULL;
  }
  for (size_t i = 0; i < report->device_count; i++) {
    const device_t *device = &report->devices[i];
    const uint64_t bytes = device->own_bytes + lent_bytes(report, device);
    most_bytes = bl_max_u64(most_bytes, bytes);
    fprintf(text, device->lent > 0 ? "%s%u+%u" : "%s%u", i == 0 ? "" : "  ", device->own, device->lent);
    json_array_append_new(devices, json_pack("{s:i,s:i,s:I}", "own", (int)device->own, "lent", (int)device->lent,
                                             "bytes", (json_int_t)bytes));
  }
  if (fclose(text) != 0) {
    free(blocks);
    json_decref(devices);
    return NULL;
  }
  const double rate = report->rates[report->step_count - 1 - report->step_count / 4];
  const double first_rate = first->rates[first->step_count - 1 - first->step_count / 4];
  const step_t *last = &report->steps[report->step_count - 1];
  const size_t differs = first_difference(first, report);
  char loss[32];
  snprintf(loss, sizeof loss, "%.17g", last->loss);
  json_t *row =
      json_pack("{s:s,s:s,s:I,s:s,s:o,s:i,s:I,s:f,s:o,s:s,s:b}", "run", report->name, "report", report->path, "step",
                (json_int_t)last->number, "blocks", blocks, "devices", devices, "fullest", (int)fullest_of(report),
                "fullest_bytes", (json_int_t)most_bytes, "tokens_per_second", round(rate), "speed_percent",
                first_rate > 0 ? json_real(round(100 * rate / first_rate)) : json_null(), "loss", loss, "same_losses",
                differs == SIZE_MAX);
  free(blocks);
  return row;
}

static bl_status_t print_table(const arguments_t *a, const report_t *reports, size_t count, bl_error_t *err) {
  static const bl_ctl_column_t columns[] = {
      {.key = "run", .title = "RUN"},
      {.key = "step", .title = "STEP", .right = true},
      {.key = "blocks", .title = "BLOCKS OF DEVICES"},
      {.key = "fullest", .title = "FULLEST", .right = true},
      {.key = "fullest_bytes", .title = "MEMORY", .right = true, .bytes = true},
      {.key = "tokens_per_second", .title = "TOKENS/S", .right = true},
      {.key = "speed_percent", .title = "SPEED %", .right = true},
      {.key = "loss", .title = "LOSS"},
      {.key = "same_losses", .title = "SAME LOSSES", .wide = true},
      {.key = "report", .title = "REPORT", .wide = true},
  };
  json_t *table = json_array();
  for (size_t i = 0; i < count; i++) {
    if (json_array_append_new(table, row_of(&reports[i], &reports[0])) != 0) {
      json_decref(table);
      table = NULL; // the printer then reports the error
    }
  }
  bl_status_t status = bl_ctl_printed(
      bl_ctl_print_rows((bl_ctl_output_t)a->output, columns, sizeof columns / sizeof columns[0], table, stdout), err);
  json_decref(table);
  return status;
}

static size_t most_devices(const report_t *reports, size_t count) {
  size_t most = 0;
  for (size_t i = 0; i < count; i++) {
    most = reports[i].device_count > most ? reports[i].device_count : most;
  }
  return most;
}

static void put_cells(uint64_t cells, const char *cell) {
  for (uint64_t i = 0; i < cells; i++) {
    fputs(cell, stdout);
  }
}

// Prints a column of bars per run and a line per device. "##+" is two cells of own blocks and one of lent blocks.
static void print_bars(const report_t *reports, size_t count) {
  const bool unicode = bl_ctl_progress_style_of(stdout) == BL_CTL_PROGRESS_UNICODE;
  uint32_t most = 1;
  for (size_t i = 0; i < count; i++) {
    most = bl_max_u32(most, fullest_of(&reports[i]));
  }
  const uint32_t per_block = most <= BAR_CELLS / 2 ? (most <= BAR_CELLS / 4 ? 4 : 2) : 1;
  const uint32_t cells = most < BAR_CELLS ? most * per_block : BAR_CELLS;
  const uint32_t width = bl_max_u32(cells, 22) + 3;
  printf("%-12s", "");
  for (size_t i = 0; i < count; i++) {
    printf("%-*.*s", i + 1 < count ? (int)width : 0, (int)width - 1, reports[i].name);
  }
  for (size_t device = 0; device < most_devices(reports, count); device++) {
    printf("\ndevice %-5zu", device);
    for (size_t i = 0; i < count; i++) {
      const device_t none = {0}, *of = device < reports[i].device_count ? &reports[i].devices[device] : &none;
      const uint64_t own = ((uint64_t)of->own * cells + most / 2) / most;
      const uint64_t all = ((uint64_t)blocks_of(of) * cells + most / 2) / most;
      put_cells(own, unicode ? "\u2588" : "#");
      put_cells(all - own, unicode ? "\u2592" : "+");
      put_cells(i + 1 < count ? width - all : 0, " ");
    }
  }
  printf("\n%-12s", "needs");
  for (size_t i = 0; i < count; i++) {
    const uint32_t blocks = fullest_of(&reports[i]);
    char text[32];
    snprintf(text, sizeof text, "%" PRIu32 " block%s a device", blocks, blocks == 1 ? "" : "s");
    printf("%-*s", (int)(i + 1 < count ? width : 0), text);
  }
  printf("\n\n%s a device's own blocks   %s room it lends to others\n", unicode ? "\u2588" : "#",
         unicode ? "\u2592" : "+");
}

static bl_status_t draw(const report_t *reports, size_t count, const char *path, bl_error_t *err) {
  static const char *const uses[] = {"own blocks", "lent to others"};
  const size_t devices = most_devices(reports, count);
  const char *names[BL_FLAGS_POSITIONAL];
  double *bytes = calloc(count * devices * 2, sizeof *bytes);
  if (bytes == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for a picture of %zu devices", devices);
  }
  for (size_t i = 0; i < count; i++) {
    names[i] = reports[i].name;
    for (size_t k = 0; k < reports[i].device_count; k++) {
      const device_t *device = &reports[i].devices[k];
      bytes[(i * devices + k) * 2] = (double)device->own_bytes;
      bytes[(i * devices + k) * 2 + 1] = (double)lent_bytes(&reports[i], device);
    }
  }
  const bl_memory_grid_t grid = {.title = "Activation memory",
                                 .subtitle = "peak of every device over all steps",
                                 .stages = (uint32_t)devices,
                                 .tensor = 1,
                                 .data = (uint32_t)count,
                                 .uses = uses,
                                 .use_count = 2,
                                 .rows = names,
                                 .bytes = bytes};
  bl_status_t status = bl_memory_grid_draw(&grid, path, err);
  free(bytes);
  return status;
}

static bl_status_t check_equal(const report_t *reports, size_t count, bl_error_t *err) {
  for (size_t i = 1; i < count; i++) {
    const size_t at = first_difference(&reports[0], &reports[i]);
    const size_t shorter = reports[i].step_count < reports[0].step_count ? i : 0;
    if (at < reports[shorter].step_count) {
      return bl_error_set(err, BL_UNHEALTHY, "%s: step %" PRIu64 " has loss %.17g; in %s step %" PRIu64 " has %.17g",
                          reports[i].path, reports[i].steps[at].number, reports[i].steps[at].loss, reports[0].path,
                          reports[0].steps[at].number, reports[0].steps[at].loss);
    }
    if (at != SIZE_MAX) {
      return bl_error_set(err, BL_UNHEALTHY, "%s has %zu steps, %s has %zu; the losses are the same as far as both go",
                          reports[i].path, reports[i].step_count, reports[0].path, reports[0].step_count);
    }
  }
  return BL_OK;
}

static bl_status_t compare(const arguments_t *a, const report_t *reports, size_t count, bl_error_t *err) {
  if (a->bars) {
    print_bars(reports, count);
  }
  bl_status_t status =
      a->bars ? bl_ctl_printed(fflush(stdout) == 0 ? BL_OK : BL_IO, err) : print_table(a, reports, count, err);
  if (status == BL_OK && a->to != NULL) {
    status = draw(reports, count, a->to, err);
  }
  return status == BL_OK && a->equal ? check_equal(reports, count, err) : status;
}

static bl_status_t body(void *arguments, const bl_flags_result_t *words, bl_error_t *err) {
  const arguments_t *a = arguments;
  report_t reports[BL_FLAGS_POSITIONAL] = {0};
  bl_status_t status = bl_ctl_picture_path_check("to", a->to, err);
  for (size_t i = 0; status == BL_OK && i < words->positional_count; i++) {
    status = read_report(words->positional[i], &reports[i], err);
  }
  if (status == BL_OK) {
    status = compare(a, reports, words->positional_count, err);
  }
  for (size_t i = 0; i < words->positional_count; i++) {
    free(reports[i].devices);
    free(reports[i].steps);
    free(reports[i].rates);
  }
  return status;
}

static int run(int argc, char *const *argv) {
  arguments_t arguments = {0};
  return bl_ctl_run(&flags, &arguments, body, argc, argv);
}

const bl_ctl_command_t bl_ctl_compare_command = {"compare", "compares reports of runs: memory, speed, losses", run};
