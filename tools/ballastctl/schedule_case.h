// SPDX-License-Identifier: Apache-2.0
// A schedule as the flags of `ballastctl schedule` ask for it: generated or read, balanced, validated and timed.
#ifndef BALLAST_BALLASTCTL_SCHEDULE_CASE_H
#define BALLAST_BALLASTCTL_SCHEDULE_CASE_H

#include "block_file.h"
#include "schedule_limits.h"

#include "config/flags.h"
#include "schedule/balance.h"
#include "schedule/generate.h"
#include "schedule/validate.h"
#include "simulate/simulate.h"

// What `schedule export` writes.
typedef enum bl_ctl_csv_format {
  BL_CTL_COMPUTE_ONLY,
  BL_CTL_COMPUTE_COMMS,
  BL_CTL_COMPUTE_COMMS_NO_WAIT
} bl_ctl_csv_format_t;

typedef struct bl_ctl_schedule_flags {
  char *schedule, *block, *cost, *memory, *svg, *perfetto, *to;
  bl_text_list_t chunk_costs, slow_paths;
  int64_t stages, micro_batches, chunks, group, recompute_chunks, cap;
  double slots, path_cost;
  bool recompute, pooled;
  int balance, mode, format, output;
} bl_ctl_schedule_flags_t;

// Of bl_ctl_schedule_flags_t: first those that only export has, last those that only show has.
#define BL_CTL_SCHEDULE_ROWS        23
#define BL_CTL_SCHEDULE_EXPORT_ROWS 2
#define BL_CTL_SCHEDULE_SHOW_ROWS   3
extern const bl_option_t bl_ctl_schedule_rows[BL_CTL_SCHEDULE_ROWS];

typedef struct bl_ctl_schedule_case {
  bl_schedule_t *schedule;
  bl_ctl_block_file_t block;    // the building block that was given; block.times is NULL if there was none
  bl_balance_result_t balanced; // its schedule is the one above
  uint32_t cap;                 // slots to which it is balanced; 0: it is not
  bl_schedule_facts_t facts;
  bl_costs_t costs;
  bl_ctl_limits_t limits;        // of --memory
  bl_chunk_costs_t *chunk_costs; // what costs.chunks borrows
  double *copies;                // [stages * stages] of one evict or load; NULL: costs.path
  bl_simulation_t simulation;
} bl_ctl_schedule_case_t;

// Call bl_ctl_schedule_case_cleanup after errors too.
BL_MUST_USE bl_status_t bl_ctl_schedule_case_init(bl_ctl_schedule_case_t *shown, const bl_ctl_schedule_flags_t *a,
                                                  bl_error_t *err);
void bl_ctl_schedule_case_cleanup(bl_ctl_schedule_case_t *shown);

// The timeline, as --svg asks for it.
BL_MUST_USE bl_status_t bl_ctl_schedule_case_draw(const bl_ctl_schedule_case_t *shown, const bl_ctl_schedule_flags_t *a,
                                                  bl_error_t *err);

// Whether what --schedule names is a file: it ends in ".csv".
bool bl_ctl_schedule_is_file(const char *schedule);
// The built-in one of that name; BL_INVALID names the nearest.
BL_MUST_USE bl_status_t bl_ctl_schedule_find(const char *name, const bl_schedule_info_t **info, bl_error_t *err);
// Reads a CSV file, as input_file.h.
BL_MUST_USE bl_status_t bl_ctl_schedule_read(const char *flag, const char *path, bl_schedule_t **schedule,
                                             bl_error_t *err);

#endif
