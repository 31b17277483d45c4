// SPDX-License-Identifier: Apache-2.0
#include "schedule_frontier.h"

#include "output.h"
#include "schedule_flags.h"
#include "verb.h"

#include "draw/frontier_plot.h"
#include "simulate/frontier.h"

#include <stdio.h>

typedef struct frontier_flags {
  int64_t stages, micro_batches;
  char *cost, *plot;
  double path_cost, effort;
  int mode;
} frontier_flags_t;

#define OFFSET(member) offsetof(frontier_flags_t, member)
static const bl_option_t rows[] = {
    BL_CTL_STAGES_FLAG(frontier_flags_t, stages, .required = true, .help = "Pipeline stages."),
    BL_CTL_MICRO_BATCHES_FLAG(frontier_flags_t, micro_batches, .required = true, .help = "Micro-batches of a step."),
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
  printf("schedule,chunks,asked,cap,memory,t_end,bubble,evictions,frontier_unbalanced,frontier\n");
  for (size_t i = 0; i < frontier->count; i++) {
    const bl_frontier_point_t *p = &frontier->points[i];
    printf("%s,%u,%g,%g,%g,%.10g,%.6f,%u,%d,%d\n", p->schedule, p->chunks, p->asked, p->cap, p->memory, p->t_end,
           p->bubble, p->evictions, p->best_plain, p->best);
  }
}

static bl_status_t run(const frontier_flags_t *a, bl_error_t *err) {
  bl_costs_t costs;
  bl_frontier_t frontier = {0};
  bl_frontier_request_t request = {.stages = (uint32_t)a->stages,
                                   .micro_batches = (uint32_t)a->micro_batches,
                                   .costs = &costs,
                                   .mode = (bl_balance_mode_t)a->mode,
                                   .effort = a->effort};
  bl_status_t status = bl_costs_parse(a->cost, &costs, err);
  if (status == BL_OK) {
    costs.path = a->path_cost;
    status = bl_frontier_init(&request, &frontier, err);
  }
  if (status == BL_OK) {
    print(&frontier);
  }
  if (status == BL_OK && a->plot != NULL) {
    char title[160];
    snprintf(title, sizeof title, "%u stages, %u micro-batches, F,B,W,boundary = %s, path %g", request.stages,
             request.micro_batches, a->cost, a->path_cost);
    status = bl_frontier_plot(&frontier, title, a->plot, err);
  }
  bl_frontier_cleanup(&frontier);
  return status;
}

int bl_ctl_schedule_frontier(int argc, char *const *argv) {
  static const bl_flags_t flags = {
      .program = "ballastctl schedule frontier",
      .usage = "--stages P --micro-batches M [options]",
      .about = "Time and memory of every schedule, as it is and balanced under every cap that works, as CSV. Costs are "
               "those of a device: with v chunks each takes a v-th.",
      .table = {rows, sizeof rows / sizeof rows[0], "command line"}};
  frontier_flags_t a;
  bl_flags_result_t result;
  bl_error_t err;
  bl_status_t status = bl_flags_parse(&flags, argc, argv, &a, &result, &err);
  if (status == BL_OK && result.help) {
    bl_flags_print_help(&flags, stdout);
  } else if (status == BL_OK) {
    status = run(&a, &err);
  }
  bl_options_cleanup(&flags.table, &a);
  return bl_ctl_finish(status, &err);
}
