// SPDX-License-Identifier: Apache-2.0
// ballastctl estimate: an upper bound on what a larger micro-batch can gain.
#include "ballastctl/commands.h"
#include "ballastctl/output.h"
#include "ballastctl/plan/profile_file.h"
#include "ballastctl/plan/schedule_name.h"
#include "ballastctl/plan/warning.h"

#include "config/flags.h"
#include "plan/evaluate/estimator.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

typedef struct arguments {
  bl_optional_int_t batch, stages, chunks;
  char *schedule;
  bl_text_list_t mfus, profiles;
  bool explain;
  int output;
} arguments_t;

#define AT(member) .offset = offsetof(arguments_t, member)

static const bl_option_t rows[] = {
    {.name = "batch",
     .type = BL_OPTION_INT,
     AT(batch),
     .optional = true,
     .argument = "B",
     .minimum = 1,
     .maximum = 1e9,
     .unit = "sequences",
     .preset_help = "as in the profiles",
     .help = "Sequences of a step and replica of the pipeline; needed where the profiles differ in it."},
    {.name = "stages",
     .type = BL_OPTION_INT,
     AT(stages),
     .optional = true,
     .argument = "P",
     .minimum = 1,
     .maximum = BL_STAGES_MAX,
     .preset_help = "as in the profiles",
     .help = "Pipeline stages."},
    {.name = "schedule",
     .type = BL_OPTION_TEXT,
     AT(schedule),
     .argument = "NAME",
     .preset_help = "as in the profiles, or 1f1b, with --chunks interleaved",
     .help =
         "Of the pipeline. The ramp is p - 1 micro-batches in 1f1b, gpipe and eager-1f1b, a v-th of it with v chunks "
         "or slices, and counts nothing in zero-bubble schedules and those with two pipes, which fill it."},
    {.name = "chunks",
     .type = BL_OPTION_INT,
     AT(chunks),
     .optional = true,
     .argument = "V",
     .minimum = 1,
     .maximum = 4096,
     .preset_help = "as in the profiles, or the schedule's",
     .help = "Chunks of a stage."},
    {.name = "mfu",
     .type = BL_OPTION_TEXT_LIST,
     AT(mfus),
     .argument = "b:MFU",
     .help =
         "Utilisation of a stage alone at micro-batch b, in percent (with %) or both in any unit; twice: before and "
         "after."},
    {.name = "profile",
     .type = BL_OPTION_PATH_LIST,
     AT(profiles),
     .argument = "FILE",
     .help = "In place of --mfu, twice: profiles of the same model at two micro-batches."},
    {.name = "explain", .type = BL_OPTION_BOOL, AT(explain), .help = "Show the formula with its numbers."},
    BL_CTL_OUTPUT_FLAG(arguments_t, output),
};

static const bl_flags_t flags = {
    .program = "ballastctl estimate",
    .usage = "--batch B --stages P [--schedule NAME] [--chunks V] --mfu b:MFU --mfu b:MFU | --profile FILE --profile "
             "FILE [--explain]",
    .about = "Estimates the largest gain of a larger micro-batch (from profiles, of any change of a stage's "
             "efficiency) on a pipeline "
             "from how well one stage uses its device: the estimator of arXiv 2401.02088. It assumes that moving "
             "activations costs nothing and stages take equally long, so this is an upper bound, for the schedule that "
             "is given.",
    .table = {rows, sizeof rows / sizeof rows[0], "command line"}};

#define MFU_MIN         1e-9 // of a utilisation: far below any realistic value, and quotients stay finite
#define MFU_MAX         1e12
#define MICRO_BATCH_MAX 65536
#define UNITS_APART     10 // quotient of two utilisations from which they are taken to be of two units

// Reads "b:MFU" or "b:MFU%".
static bl_status_t read_point(const char *text, bl_estimate_point_t *point, bool *percent, bl_error_t *err) {
  const char *mfu = strchr(text, ':');
  char *end = NULL;
  mfu = mfu != NULL ? mfu + 1 : "";
  const size_t digits = strspn(text, "0123456789"), plain = strspn(mfu, "0123456789.eE+-");
  const double value = strtod(mfu, &end);
  *percent = *end == '%';
  if (text[digits] != ':' || digits == 0 || end == mfu || end != mfu + plain || *(end + *percent) != '\0') {
    return bl_error_set(err, BL_INVALID, "--mfu %s: is not b:MFU, such as 1:37.8 or 1:37.8%%, b being a whole number",
                        text);
  }
  point->micro_batch = strtod(text, NULL);
  point->mfu = value;
  if (!(point->micro_batch >= 1 && point->micro_batch <= MICRO_BATCH_MAX)) {
    return bl_error_set(err, BL_INVALID, "--mfu %s: the micro-batch must be from 1 to %d sequences", text,
                        MICRO_BATCH_MAX);
  }
  const double most = *percent ? 100 : MFU_MAX;
  if (!(value >= MFU_MIN && value <= most)) {
    return bl_error_set(err, BL_INVALID, "--mfu %s: the utilisation must be from %g to %g%s", text, MFU_MIN, most,
                        *percent ? " %" : "");
  }
  return BL_OK;
}

static bl_status_t read_points(const arguments_t *a, bl_estimate_request_t *request, bl_error_t *err) {
  bool percent[2];
  bl_status_t status = read_point(a->mfus.items[0], &request->from, &percent[0], err);
  status = status == BL_OK ? read_point(a->mfus.items[1], &request->to, &percent[1], err) : status;
  if (status == BL_OK && percent[0] != percent[1]) {
    return bl_error_set(err, BL_INVALID, "--mfu %s and --mfu %s: give both in percent or both in another unit",
                        a->mfus.items[0], a->mfus.items[1]);
  }
  const double quotient = status == BL_OK ? request->to.mfu / request->from.mfu : 1;
  if (quotient > UNITS_APART || quotient < 1 / (double)UNITS_APART) {
    return bl_error_set(
        err, BL_INVALID,
        "--mfu %s and --mfu %s: differ by more than a factor of %d, as if one were a share and the other "
        "in percent; give both in one unit",
        a->mfus.items[0], a->mfus.items[1], UNITS_APART);
  }
  if (status == BL_OK && request->from.micro_batch == request->to.micro_batch) {
    return bl_error_set(
        err, BL_INVALID,
        "--mfu %s and --mfu %s: both are of micro-batch %g; give one before and one after the change of "
        "the micro-batch, such as 1:37.8 and 2:55.2",
        a->mfus.items[0], a->mfus.items[1], request->from.micro_batch);
  }
  if (status == BL_OK && (!a->batch.set || !a->stages.set)) {
    return bl_error_set(err, BL_INVALID, "estimate needs --batch and --stages with --mfu");
  }
  return status;
}

// Returns the seconds that one micro-batch takes on a chunk. Includes R if every block is recomputed; a chunk without a
// measured R had none (the last stage of 1f1b keeps its block). Recomputed attention is part of I.
static double seconds_of(const bl_profile_t *profile, const bl_profile_chunk_t *chunk) {
  const bl_chunk_costs_t *costs = &chunk->costs;
  const bool recomputes = profile->options.recompute == BL_RECOMPUTE_FULL && chunk->measured_recompute;
  return costs->forward + costs->input + costs->weight + (recomputes ? costs->recompute : 0);
}

// Returns sequences per second of the slowest stage. This is the utilisation up to a factor that both profiles share.
static bl_estimate_point_t point_of(const bl_profile_t *profile) {
  double slowest = 0;
  for (uint32_t s = 0; s < profile->stage_count; s++) {
    double seconds = 0;
    for (uint32_t v = 0; v < profile->chunk_count; v++) {
      seconds += profile->chunks[v].stage == s ? seconds_of(profile, &profile->chunks[v]) : 0;
    }
    slowest = seconds > slowest ? seconds : slowest;
  }
  return (bl_estimate_point_t){profile->options.micro_batch, profile->options.micro_batch / slowest};
}

// Sets the ramp of a schedule with so many chunks and slices. NULL: not known by name; it is taken for one that fills
// its ramp, for which the bound holds anyway.
static void read_ramp(const bl_schedule_info_t *info, double chunks, double slices, bl_estimate_request_t *request) {
  request->chunks = chunks * slices;
  request->fills_ramp = info == NULL || info->splits_backward || info->placement == BL_PLACEMENT_BIDIRECTIONAL;
}

// Reads --schedule and --chunks. Without either, what profiles say remains.
static bl_status_t read_schedule(const arguments_t *a, bl_estimate_request_t *request, bl_error_t *err) {
  const char *name = a->schedule != NULL ? a->schedule : a->chunks.set && a->chunks.value > 1 ? "interleaved" : "1f1b";
  const bl_schedule_info_t *info;
  bl_status_t status = bl_ctl_schedule_find(name, &info, err);
  if (status != BL_OK || (a->schedule == NULL && !a->chunks.set)) {
    return status;
  }
  const int64_t chunks = a->chunks.set ? a->chunks.value : info->default_chunks;
  if (chunks < info->default_chunks || (chunks > info->default_chunks && !info->any_chunks)) {
    return bl_error_set(err, BL_INVALID, "--chunks %lld: schedule %s has %s%u", (long long)chunks, name,
                        info->any_chunks ? "at least " : "", info->default_chunks);
  }
  read_ramp(info, (double)chunks, info->default_slices, request);
  return BL_OK;
}

static bl_status_t compare(const arguments_t *a, const bl_profile_t *first, const bl_profile_t *second,
                           bl_estimate_request_t *request, bl_error_t *err) {
  const double batch = (double)first->options.micro_batch * first->micro_batches,
               other = (double)second->options.micro_batch * second->micro_batches;
  if (strcmp(a->profiles.items[0], a->profiles.items[1]) == 0) {
    return bl_error_set(err, BL_INVALID, "--profile %s: is given twice; give the profiles before and after a change",
                        a->profiles.items[0]);
  }
  bl_status_t status = bl_profile_check_pair(first, a->profiles.items[0], second, a->profiles.items[1], err);
  if (status != BL_OK) {
    (void)bl_error_prefix(err, "--profile");
    return status;
  }
  if (batch != other && !a->batch.set) {
    return bl_error_set(err, BL_INVALID,
                        "--profile: micro_batch times micro_batches of %s is %g sequences a step, of %s %g; say with "
                        "--batch B which is meant",
                        a->profiles.items[0], batch, a->profiles.items[1], other);
  }
  request->batch = batch;
  request->stages = first->stage_count;
  read_ramp(bl_schedule_info_find(first->schedule), (double)first->chunk_count / first->stage_count,
            bl_layout_slices(first->options), request);
  request->from = point_of(first);
  request->to = point_of(second);
  return BL_OK;
}

static bl_status_t from_profiles(const arguments_t *a, bl_estimate_request_t *request, char warning[BL_CTL_WARNING],
                                 bl_error_t *err) {
  bl_profile_t first = {0}, second = {0};
  bl_status_t status = bl_ctl_profile_read("--profile", a->profiles.items[0], &first, err);
  if (status == BL_OK) {
    status = bl_ctl_profile_read("--profile", a->profiles.items[1], &second, err);
  }
  if (status == BL_OK) {
    status = compare(a, &first, &second, request, err);
  }
  if (status == BL_OK) {
    char reasons[BL_PROFILE_WARNING];
    bool doubted = bl_profile_warning_pair(&first, &second, reasons);
    snprintf(warning, BL_CTL_WARNING, doubted ? "profiles %.100s and %.100s: %s" : "", a->profiles.items[0],
             a->profiles.items[1], reasons);
  }
  bl_profile_cleanup(&second);
  bl_profile_cleanup(&first);
  return status;
}

static bl_status_t read_request(const arguments_t *a, bl_estimate_request_t *request, char warning[BL_CTL_WARNING],
                                bl_error_t *err) {
  bl_status_t status;
  if (a->profiles.count == 2 && a->mfus.count == 0) {
    status = from_profiles(a, request, warning, err);
  } else if (a->mfus.count == 2 && a->profiles.count == 0) {
    status = read_points(a, request, err);
  } else {
    status = bl_error_set(err, BL_INVALID,
                          "estimate needs two points: --mfu b:MFU twice, or --profile FILE twice; has %zu and %zu",
                          a->mfus.count, a->profiles.count);
  }
  request->batch = a->batch.set ? (double)a->batch.value : request->batch;
  request->stages = a->stages.set ? (double)a->stages.value : request->stages;
  return status == BL_OK ? read_schedule(a, request, err) : status;
}

__attribute__((format(printf, 2, 3))) static void add_line(json_t *lines, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  json_array_append_new(lines, json_vsprintf(format, arguments));
  va_end(arguments);
}

// Says what of the efficiency is needed, and what there is; a smaller micro-batch may do with less.
static void add_break_even(json_t *lines, const bl_estimate_t *e) {
  const double needed = 100 * (e->break_even - 1), made = 100 * (e->efficiency - 1);
  if (needed >= 0) {
    add_line(lines, "A stage must become %.1f %% more efficient to break even; it becomes %.1f %% %s efficient.",
             needed, made < 0 ? -made : made, made < 0 ? "less" : "more");
  } else {
    add_line(lines, "A stage may become %.1f %% less efficient to break even; it becomes %.1f %% %s efficient.",
             -needed, made < 0 ? -made : made, made < 0 ? "less" : "more");
  }
}

// The formula's backward is one operation. Ballast's sends the gradient of the input before W, so W, a third of the
// work, is not part of the ramp.
static void add_early_gradient(json_t *lines, const bl_estimate_request_t *r, const bl_estimate_t *e) {
  const double ramps = e->ramps * 2 / 3;
  if (e->ramps > 0) {
    add_line(
        lines,
        "Stages of Ballast send a gradient before W, which leaves two thirds of that ramp: a gain of %.4f at most.",
        (r->batch + r->from.micro_batch * ramps) / (r->batch + r->to.micro_batch * ramps) * e->efficiency);
  }
}

// Returns the formula with its numbers, line by line.
static json_t *explanation(const bl_estimate_request_t *r, const bl_estimate_t *e) {
  const double x = r->to.micro_batch, y = r->from.micro_batch;
  const char *ramps = r->chunks > 1 ? "(p - 1) / v" : "(p - 1)";
  json_t *lines = json_array();
  if (e->ramps > 0 || r->stages == 1) {
    add_line(lines, "speedup <= [B + y %s] / [B + x %s]  *  MFU(x) / MFU(y)", ramps, ramps);
  } else {
    add_line(lines, "speedup <= [B + y 0] / [B + x 0]  *  MFU(x) / MFU(y)");
  }
  add_line(lines, "         = [%g + %g * %g] / [%g + %g * %g]  *  %.4g / %.4g", r->batch, y, e->ramps, r->batch, x,
           e->ramps, r->to.mfu, r->from.mfu);
  add_line(lines, "         = %.4f * %.4f", e->ramp, e->efficiency);
  add_line(lines, "         = %.4f", e->speedup);
  add_line(lines, "%s", "");
  add_line(lines,
           "With p = %g stages and B = %g sequences a step, micro-batch %g leaves %.1f %% of the step to the ramp, %g "
           "leaves %.1f %%.",
           r->stages, r->batch, y, 100 * e->bubble_from, x, 100 * e->bubble_to);
  add_break_even(lines, e);
  if (r->fills_ramp) {
    add_line(
        lines,
        "The schedule fills its ramp with other work: it is between 0 and (p - 1) / v = %g micro-batches, and %g is "
        "counted.",
        (r->stages - 1) / (r->chunks > 1 ? r->chunks : 1), e->ramps);
  } else if (r->chunks > 1) {
    add_line(lines, "A bound for schedules with v = %g chunks or slices a stage.", r->chunks);
  } else {
    add_line(lines, "A bound for 1f1b, gpipe and eager-1f1b; others have shorter ramps (--schedule, --chunks).");
  }
  add_early_gradient(lines, r, e);
  add_line(lines, "An upper bound: transfers that make room for the larger micro-batch are not counted.");
  return lines;
}

static void print_lines(const json_t *lines) {
  putchar('\n');
  for (size_t i = 0; i < json_array_size(lines); i++) {
    puts(json_string_value(json_array_get(lines, i)));
  }
}

static bl_status_t print(const arguments_t *a, const bl_estimate_request_t *r, const bl_estimate_t *e,
                         const char *warning, bl_error_t *err) {
  static const bl_ctl_column_t columns[] = {
      {.key = "from", .title = "FROM", .right = true},
      {.key = "to", .title = "TO", .right = true},
      {.key = "speedup", .title = "SPEEDUP <=", .right = true},
      {.key = "ramp", .title = "RAMP", .right = true},
      {.key = "efficiency", .title = "EFFICIENCY", .right = true},
      {.key = "break_even", .title = "BREAK EVEN AT", .right = true},
      {.key = "batch", .title = "BATCH", .right = true, .wide = true},
      {.key = "stages", .title = "STAGES", .right = true, .wide = true},
  };
  const bool table = a->output == BL_CTL_TABLE || a->output == BL_CTL_WIDE;
  json_t *lines = a->explain ? explanation(r, e) : NULL;
  json_t *object =
      json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:o}", "from", r->from.micro_batch, "to",
                r->to.micro_batch, "speedup", e->speedup, "ramp", e->ramp, "efficiency", e->efficiency, "break_even",
                e->break_even, "batch", r->batch, "stages", r->stages, "mfu_from", r->from.mfu, "mfu_to", r->to.mfu,
                "bubble_from", e->bubble_from, "bubble_to", e->bubble_to, "warnings", bl_ctl_warning_json(warning));
  json_object_set_new(object, "chunks", json_real(r->chunks > 1 ? r->chunks : 1));
  json_object_set_new(object, "ramp_micro_batches", json_real(e->ramps));
  if (lines != NULL && !table) {
    json_object_set(object, "explanation", lines);
  }
  bl_status_t status =
      bl_ctl_print_object((bl_ctl_output_t)a->output, columns, sizeof columns / sizeof columns[0], object, stdout);
  json_decref(object);
  if (status == BL_OK && lines != NULL && table) {
    print_lines(lines);
  }
  json_decref(lines);
  return bl_ctl_printed(status, err);
}

static bl_status_t body(void *arguments, const bl_flags_result_t *words, bl_error_t *err) {
  (void)words;
  bl_estimate_request_t request = {0};
  bl_estimate_t estimate;
  char warning[BL_CTL_WARNING] = "";
  bl_status_t status = read_request(arguments, &request, warning, err);
  if (status == BL_OK) {
    status = bl_estimate(&request, &estimate, err);
    if (status != BL_OK) {
      (void)bl_error_prefix(err, ((const arguments_t *)arguments)->mfus.count > 0 ? "--mfu" : "--profile");
    }
  }
  if (status != BL_OK) {
    return status;
  }
  bl_ctl_warning_tell(warning);
  return print(arguments, &request, &estimate, warning, err);
}

static int run(int argc, char *const *argv) {
  arguments_t arguments = {0};
  return bl_ctl_run(&flags, &arguments, body, argc, argv);
}

const bl_ctl_command_t bl_ctl_estimate_command = {"estimate", "what a larger micro-batch can gain at most", run};
