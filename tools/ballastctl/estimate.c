// SPDX-License-Identifier: Apache-2.0
// ballastctl estimate: what a larger micro-batch can gain at most.
#include "output.h"
#include "profile_file.h"
#include "verbs.h"

#include "base/words.h"
#include "config/flags.h"
#include "plan/estimator.h"

#include <math.h>
#include <stdlib.h>

typedef struct arguments {
  bl_optional_int_t batch, stages;
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
     .help = "Sequences of a step and replica of the pipeline."},
    {.name = "stages",
     .type = BL_OPTION_INT,
     AT(stages),
     .optional = true,
     .argument = "P",
     .minimum = 1,
     .maximum = BL_STAGES_MAX,
     .preset_help = "as in the profiles",
     .help = "Pipeline stages."},
    {.name = "mfu",
     .type = BL_OPTION_TEXT_LIST,
     AT(mfus),
     .argument = "b:MFU",
     .help = "Utilisation of a stage alone at micro-batch b, in any unit; twice: before and after."},
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
    .usage = "--batch B --stages P --mfu b:MFU --mfu b:MFU | --profile FILE --profile FILE [--explain]",
    .about =
        "Says what a larger micro-batch (or any change of a stage's efficiency) can gain at most on a pipeline, from "
        "how well a stage alone uses its device: the estimator of arXiv 2401.02088. Moving activations to make "
        "room for it is taken to cost nothing, so this is an upper bound.",
    .table = {rows, sizeof rows / sizeof rows[0], "command line"}};

static bl_status_t read_point(const char *text, bl_estimate_point_t *point, bl_error_t *err) {
  char *end, *rest;
  point->micro_batch = strtod(text, &end);
  point->mfu = *end == ':' ? strtod(end + 1, &rest) : 0;
  if (end == text || *end != ':' || rest == end + 1 || (*rest != '\0' && *rest != '%')) {
    return bl_error_set(err, BL_INVALID, "--mfu %s: is not b:MFU, such as 1:37.8", text);
  }
  if (!(point->micro_batch > 0 && point->mfu > 0) || !isfinite(point->micro_batch) || !isfinite(point->mfu)) {
    return bl_error_set(err, BL_INVALID, "--mfu %s: micro-batch and utilisation must be numbers above 0", text);
  }
  return BL_OK;
}

// Seconds that one micro-batch takes on a chunk. R is part of it where every block is made again; a chunk that has none
// measured had none (the last stage of 1f1b keeps its block). Attention made again is in I.
static double seconds_of(const bl_profile_t *profile, const bl_profile_chunk_t *chunk) {
  const bl_chunk_costs_t *costs = &chunk->costs;
  const bool again = profile->options.recompute == BL_RECOMPUTE_FULL && chunk->measured_recompute;
  return costs->forward + costs->input + costs->weight + (again ? costs->recompute : 0);
}

// Sequences per second of the slowest stage: utilisation but for a factor that both profiles share.
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

static bl_status_t from_profiles(const arguments_t *a, bl_estimate_request_t *request, bl_error_t *err) {
  bl_profile_t first, second;
  bl_status_t status = bl_ctl_profile_read(a->profiles.items[0], &first, err);
  if (status != BL_OK) {
    return status;
  }
  status = bl_ctl_profile_read(a->profiles.items[1], &second, err);
  if (status == BL_OK) {
    if (first.model_digest != second.model_digest) {
      status = bl_error_set(err, BL_INVALID, "--profile: %s is of %s, %s of another model (%s)", a->profiles.items[0],
                            first.model_text, a->profiles.items[1], second.model_text);
    } else if (first.stage_count != second.stage_count) {
      status = bl_error_set(err, BL_INVALID, "--profile: %s has %u stage%s, %s has %u", a->profiles.items[0],
                            first.stage_count, bl_plural(first.stage_count), a->profiles.items[1], second.stage_count);
    } else {
      request->batch = (double)first.options.micro_batch * first.micro_batches;
      request->stages = first.stage_count;
      request->from = point_of(&first);
      request->to = point_of(&second);
    }
    bl_profile_cleanup(&second);
  }
  bl_profile_cleanup(&first);
  return status;
}

static bl_status_t read_request(const arguments_t *a, bl_estimate_request_t *request, bl_error_t *err) {
  bl_status_t status;
  if (a->profiles.count == 2 && a->mfus.count == 0) {
    status = from_profiles(a, request, err);
  } else if (a->mfus.count == 2 && a->profiles.count == 0) {
    status = read_point(a->mfus.items[0], &request->from, err);
    status = status == BL_OK ? read_point(a->mfus.items[1], &request->to, err) : status;
    if (status == BL_OK && (!a->batch.set || !a->stages.set)) {
      status = bl_error_set(err, BL_INVALID, "estimate needs --batch and --stages beside --mfu");
    }
  } else {
    status = bl_error_set(err, BL_INVALID,
                          "estimate needs two points: --mfu b:MFU twice, or --profile FILE twice; has %zu and %zu",
                          a->mfus.count, a->profiles.count);
  }
  request->batch = a->batch.set ? (double)a->batch.value : request->batch;
  request->stages = a->stages.set ? (double)a->stages.value : request->stages;
  return status;
}

static void explain(const bl_estimate_request_t *r, const bl_estimate_t *e) {
  const double x = r->to.micro_batch, y = r->from.micro_batch, ramps = r->stages - 1;
  printf("\nspeedup <= [B + y (p - 1)] / [B + x (p - 1)]  *  MFU(x) / MFU(y)\n"
         "         = [%g + %g * %g] / [%g + %g * %g]  *  %.4g / %.4g\n"
         "         = %.4f * %.4f\n"
         "         = %.4f\n\n",
         r->batch, y, ramps, r->batch, x, ramps, r->to.mfu, r->from.mfu, e->ramp, e->efficiency, e->speedup);
  printf("With p = %g stages and B = %g sequences a step, micro-batch %g leaves %.1f %% of the step to the ramp, %g "
         "leaves %.1f %%.\nA stage must become %.1f %% more efficient to break even; it becomes %.1f %%.\n",
         r->stages, r->batch, y, 100 * e->bubble_from, x, 100 * e->bubble_to, 100 * (e->break_even - 1),
         100 * (e->efficiency - 1));
  printf("An upper bound: transfers that make room for the larger micro-batch are not counted.\n");
}

static bl_status_t print(const arguments_t *a, const bl_estimate_request_t *r, const bl_estimate_t *e,
                         bl_error_t *err) {
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
  json_t *object = json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "from", r->from.micro_batch, "to",
                             r->to.micro_batch, "speedup", e->speedup, "ramp", e->ramp, "efficiency", e->efficiency,
                             "break_even", e->break_even, "batch", r->batch, "stages", r->stages);
  bl_status_t status = object == NULL ? BL_EXHAUSTED
                                      : bl_ctl_print_object((bl_ctl_output_t)a->output, columns,
                                                            sizeof columns / sizeof columns[0], object, stdout);
  json_decref(object);
  if (status == BL_OK && a->explain && (a->output == BL_CTL_TABLE || a->output == BL_CTL_WIDE)) {
    explain(r, e);
  }
  return bl_ctl_printed(status, err);
}

static bl_status_t body(void *arguments, const bl_flags_result_t *words, bl_error_t *err) {
  (void)words;
  bl_estimate_request_t request = {0};
  bl_estimate_t estimate;
  bl_status_t status = read_request(arguments, &request, err);
  if (status == BL_OK) {
    status = bl_estimate(&request, &estimate, err);
  }
  return status == BL_OK ? print(arguments, &request, &estimate, err) : status;
}

static int run(int argc, char *const *argv) {
  arguments_t arguments = {0};
  return bl_ctl_run(&flags, &arguments, body, argc, argv);
}

const bl_ctl_verb_t bl_ctl_estimate_verb = {"estimate", "what a larger micro-batch can gain at most", run};
