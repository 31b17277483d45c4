// SPDX-License-Identifier: Apache-2.0
// ballastctl schedule frontier: time against memory of all schedules, balanced and not, as CSV and picture.
#include "ballastctl/commands.h"
#include "ballastctl/output.h"
#include "ballastctl/output_path.h"
#include "ballastctl/plan/schedule_flags.h"
#include "ballastctl/plan/schedule_name.h"

#include "base/words.h"
#include "draw/frontier_plot.h"
#include "schedule/ir/validate.h"
#include "simulate/frontier.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct frontier_flags {
  int64_t stages, micro_batches;
  bl_text_list_t schedules;
  char *cost, *plot;
  double path_cost, effort;
  int mode;
} frontier_flags_t;

#define OFFSET(member) offsetof(frontier_flags_t, member)
static const bl_option_t rows[] = {
    BL_CTL_STAGES_FLAG(frontier_flags_t, stages, .required = true, .help = "Pipeline stages."),
    BL_CTL_MICRO_BATCHES_FLAG(frontier_flags_t, micro_batches, .required = true, .help = "Micro-batches of a step."),
    {.name = "schedule",
     .type = BL_OPTION_TEXT_LIST,
     .offset = OFFSET(schedules),
     .argument = "NAME|FILE.csv",
     .preset_help = "all that runs",
     .help = "Schedules to compare; may be repeated."},
    BL_CTL_COST_FLAG(frontier_flags_t, cost, .preset = "1,1,1,0",
                     .help =
                         "Time of a device's forward, backward for the input, one for the weights, and of a boundary."),
    BL_CTL_PATH_COST_FLAG(frontier_flags_t, path_cost,
                          .help = "Time in which all that a device stores for a micro-batch goes to a store, or back."),
    BL_CTL_MODE_FLAG(frontier_flags_t, mode),
    {.name = "effort",
     .type = BL_OPTION_REAL,
     .offset = OFFSET(effort),
     .argument = "X",
     .minimum = 0.001,
     .maximum = 100,
     .preset = "1",
     .help = "Share of the usual search for schedules that are searched."},
    {.name = "plot",
     .type = BL_OPTION_TEXT,
     .offset = OFFSET(plot),
     .argument = "FILE",
     .help = "Also draw it; FILE ends in .svg or .png."},
};

static void print(const bl_frontier_t *frontier) {
  printf("schedule,chunks,asked,cap,memory,t_end,bubble,evictions,frontier_unbalanced,frontier,group,pooled,runs,above_"
         "bound\n");
  for (size_t i = 0; i < frontier->count; i++) {
    const bl_frontier_point_t *p = &frontier->points[i];
    printf("%s,%u,%g,%g,%g,%.10g,%.6f,%u,%d,%d,%u,%d,%d,%.6f\n", p->schedule, p->chunks, p->asked, p->cap, p->memory,
           p->t_end, p->bubble, p->evictions, p->best_plain, p->best, p->group, p->pooled, p->runs, p->above);
  }
}

// The arguments of --schedule, in the form that the request borrows.
typedef struct wanted {
  const char **names;
  const bl_schedule_t **given;
  bl_schedule_t **files;
  size_t name_count, file_count;
} wanted_t;

static bl_status_t read_file(const frontier_flags_t *a, const char *path, bl_schedule_t **schedule, bl_error_t *err) {
  bl_schedule_facts_t facts;
  bl_status_t status = bl_ctl_schedule_read("--schedule", path, schedule, err);
  if (status != BL_OK) {
    return status;
  }
  status = bl_schedule_validate(*schedule, &facts, err);
  if (status != BL_OK) {
    (void)bl_error_prefix(err, "%s", path);
  } else if ((*schedule)->stages != a->stages || (*schedule)->micro_batches != a->micro_batches) {
    status = bl_error_set(err, BL_INVALID, "%s: is for --stages %u and --micro-batches %u", path, (*schedule)->stages,
                          (*schedule)->micro_batches);
  } else if (facts.transfers || facts.recomputes) {
    status = bl_error_set(err, BL_INVALID, "%s: evicts or recomputes already; the frontier balances by itself", path);
  }
  if (status != BL_OK) {
    bl_schedule_destroy(*schedule);
  }
  return status;
}

static bl_status_t find_wanted(const frontier_flags_t *a, wanted_t *wanted, bl_error_t *err) {
  const size_t count = a->schedules.count;
  wanted->names = calloc(count + 1, sizeof(const char *));
  wanted->given = calloc(count + 1, sizeof(const bl_schedule_t *));
  wanted->files = calloc(count + 1, sizeof(bl_schedule_t *));
  if (wanted->names == NULL || wanted->given == NULL || wanted->files == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for %zu schedules", count);
  }
  bl_status_t status = BL_OK;
  for (size_t i = 0; i < count && status == BL_OK; i++) {
    const bl_schedule_info_t *info;
    const char *name = a->schedules.items[i];
    if (!bl_ctl_schedule_is_file(name)) {
      status = bl_ctl_schedule_find(name, &info, err);
      wanted->names[wanted->name_count++] = name;
      continue;
    }
    status = read_file(a, name, &wanted->files[wanted->file_count], err);
    if (status == BL_OK) {
      wanted->given[wanted->file_count] = wanted->files[wanted->file_count];
      wanted->file_count++;
    }
  }
  return status;
}

static void forget_wanted(wanted_t *wanted) {
  for (size_t i = 0; i < wanted->file_count; i++) {
    bl_schedule_destroy(wanted->files[i]);
  }
  free(wanted->files);
  free(wanted->given);
  free(wanted->names);
}

static bl_status_t run(const frontier_flags_t *a, bl_error_t *err) {
  bl_costs_t costs;
  bl_frontier_t frontier = {0};
  wanted_t wanted = {0};
  bl_frontier_request_t request = {.stages = (uint32_t)a->stages,
                                   .micro_batches = (uint32_t)a->micro_batches,
                                   .costs = &costs,
                                   .mode = (bl_balance_mode_t)a->mode,
                                   .effort = a->effort};
  bl_status_t status = bl_costs_parse(a->cost, &costs, err);
  if (status != BL_OK) {
    (void)bl_error_prefix(err, "--cost");
  }
  if (status == BL_OK) {
    costs.path = a->path_cost;
    status = find_wanted(a, &wanted, err);
  }
  if (status == BL_OK) {
    request.names = wanted.names;
    request.name_count = wanted.name_count;
    request.given = wanted.given;
    request.given_count = wanted.file_count;
    status = bl_frontier_init(&request, &frontier, err);
  }
  if (status == BL_OK) {
    print(&frontier);
  }
  if (status == BL_OK && a->plot != NULL) {
    char title[160];
    snprintf(title, sizeof title, "%u stage%s, %u micro-batch%s, F,B,W,boundary = %s, path %g", request.stages,
             bl_plural(request.stages), request.micro_batches, bl_one_or_many(request.micro_batches, "", "es"), a->cost,
             a->path_cost);
    status = bl_frontier_plot(&frontier, title, a->plot, err);
  }
  bl_frontier_cleanup(&frontier);
  forget_wanted(&wanted);
  return status;
}

// Files hold finished orders, so with files alone nothing is searched and an effort has no effect.
static bl_status_t check_effort(const frontier_flags_t *a, bool given, bl_error_t *err) {
  bool searches = a->schedules.count == 0;
  for (size_t i = 0; i < a->schedules.count; i++) {
    searches = searches || !bl_ctl_schedule_is_file(a->schedules.items[i]);
  }
  return searches || !given
             ? BL_OK
             : bl_error_set(err, BL_INVALID,
                            "--effort %g: is about schedules that are searched, and every --schedule is a "
                            "file",
                            a->effort);
}

static const bl_flags_t flags = {.program = "ballastctl schedule frontier",
                                 .usage = "--stages P --micro-batches M [options]",
                                 .about = "Time and memory of all schedules, or of those that are named, as they are "
                                          "and balanced under every cap that works, as CSV. Costs are "
                                          "those of a device: each of v chunks or v slices takes a v-th.",
                                 .table = {rows, sizeof rows / sizeof rows[0], "command line"}};

static bl_status_t body(void *arguments, const bl_flags_result_t *words, bl_error_t *err) {
  const frontier_flags_t *a = arguments;
  bl_status_t status = check_effort(a, bl_flags_given(&flags, words, "effort"), err);
  if (status == BL_OK) {
    status = bl_ctl_picture_path_check("plot", a->plot, err);
  }
  return status == BL_OK ? run(arguments, err) : status;
}

int bl_ctl_schedule_frontier(int argc, char *const *argv) {
  frontier_flags_t arguments = {0};
  return bl_ctl_run(&flags, &arguments, body, argc, argv);
}
