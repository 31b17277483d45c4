// SPDX-License-Identifier: Apache-2.0
// Schedules: processor time to generate and to simulate each one by name. Also 1F1B with BPipe's balancing at a larger
// shape, with the memory that the process used.
#include "bench.h"

#include "program.h"
#include "schedule/balance/balance.h"
#include "schedule/generate.h"
#include "simulate/simulate.h"

#include <inttypes.h>
#include <stdio.h>
#include <sys/resource.h>
#include <time.h>

typedef struct {
  int64_t stages, micro_batches, large_stages, large_micro_batches;
  char *schedule;
} settings_t;

static const bl_option_t rows[] = {
    BL_BENCH_INT(settings_t, stages, "stages", "64", 1, BL_STAGES_MAX, "Pipeline stages of every name."),
    BL_BENCH_INT(settings_t, micro_batches, "micro-batches", "512", 1, BL_MICRO_BATCHES_MAX,
                 "Micro-batches of every name."),
    BL_BENCH_INT(settings_t, large_stages, "large-stages", "512", 1, BL_STAGES_MAX, "Stages of the balanced 1F1B."),
    BL_BENCH_INT(settings_t, large_micro_batches, "large-micro-batches", "4096", 1, BL_MICRO_BATCHES_MAX,
                 "Its micro-batches."),
    {.name = "schedule",
     .type = BL_OPTION_TEXT,
     .offset = offsetof(settings_t, schedule),
     .argument = "NAME",
     .help = "This name alone."},
};

static const bl_flags_t flags = {.program = "ballast-bench schedule",
                                 .usage = "[options]",
                                 .about = "Processor time of generating, balancing and simulating schedules.",
                                 .table = {rows, sizeof rows / sizeof rows[0], "command line"}};

static double processor_seconds(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

// Prints one line: the seconds of each part. `balanced` adds BPipe's balancing between the two.
static bl_status_t measure(const char *name, int64_t stages, int64_t micro_batches, bool balanced, bl_error_t *err) {
  bl_costs_t costs = {.every = {10, 14, 6, 10}, .boundary = 2};
  bl_schedule_request_t request = {
      .name = name, .stages = (uint32_t)stages, .micro_batches = (uint32_t)micro_batches, .costs = &costs};
  bl_schedule_t *schedule = NULL;
  bl_balance_result_t balance = {0};
  bl_simulation_t simulation = {0};
  double started = processor_seconds();
  bl_status_t status = bl_schedule_generate(&request, &schedule, err);
  if (status != BL_OK) {
    return status;
  }
  double generated = processor_seconds();
  if (balanced) {
    uint32_t cap = bl_balance_bpipe_cap(request.stages) * schedule->chunks;
    status = bl_balance_cap(schedule, cap, true, BL_BALANCE_OVERLAP, &balance, err);
  }
  double placed = processor_seconds();
  if (status == BL_OK) {
    status = bl_simulate(balanced ? balance.schedule : schedule, &costs, &simulation, err);
  }
  double ended = processor_seconds();
  if (status == BL_OK) {
    printf("%-20s p=%-4" PRId64 " m=%-5" PRId64 " generate %7.3f s  balance %7.3f s  simulate %7.3f s  all %7.3f s\n",
           name, stages, micro_batches, generated - started, placed - generated, ended - placed, ended - started);
    fflush(stdout);
  }
  bl_simulation_cleanup(&simulation);
  bl_balance_result_cleanup(&balance);
  bl_schedule_destroy(schedule);
  return status;
}

static bl_status_t measure_all(const settings_t *settings, bl_error_t *err) {
  size_t count;
  const bl_schedule_info_t *infos = bl_schedule_infos(&count);
  bl_status_t status = BL_OK;
  if (settings->schedule != NULL) {
    return measure(settings->schedule, settings->stages, settings->micro_batches, false, err);
  }
  for (size_t i = 0; i < count && status == BL_OK; i++) {
    status = measure(infos[i].name, settings->stages, settings->micro_batches, false, err);
    if (status == BL_INVALID) { // a shape that this schedule does not allow
      printf("%-20s %s\n", infos[i].name, err->text);
      status = BL_OK;
    }
  }
  return status;
}

static bl_status_t run(const void *values, bl_error_t *err) {
  const settings_t *settings = values;
  bl_status_t status = measure_all(settings, err);
  if (status == BL_OK && settings->schedule == NULL) {
    status = measure("1f1b", settings->large_stages, settings->large_micro_batches, true, err);
  }
  struct rusage usage;
  if (status == BL_OK && getrusage(RUSAGE_SELF, &usage) == 0) {
    printf("most memory of the process: %ld MiB\n", usage.ru_maxrss / 1024);
  }
  return status;
}

int bl_bench_schedule(int argc, char **argv) {
  settings_t settings;
  return bl_bench_program(&flags, &settings, run, argc, argv);
}
