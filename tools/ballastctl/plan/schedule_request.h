// SPDX-License-Identifier: Apache-2.0
// The flags of `ballastctl schedule`, and which of them can be combined.
#ifndef BALLAST_BALLASTCTL_SCHEDULE_REQUEST_H
#define BALLAST_BALLASTCTL_SCHEDULE_REQUEST_H

#include "config/flags.h"

// Formats of `schedule export`.
typedef enum bl_ctl_csv_format {
  BL_CTL_COMPUTE_ONLY,
  BL_CTL_COMPUTE_COMMS,
  BL_CTL_COMPUTE_COMMS_NO_WAIT
} bl_ctl_csv_format_t;

extern const char *const bl_ctl_balance_names[]; // of bl_policy_kind_t; "": not available

typedef struct bl_ctl_schedule_flags {
  char *schedule, *block, *cost, *memory, *svg, *perfetto, *to;
  bl_text_list_t chunk_costs, slow_paths;
  int64_t stages, micro_batches, chunks, group, slices, recompute_chunks, cap, host;
  double slots, path_cost;
  bl_optional_real_t host_cost;
  bool recompute, pooled;
  int balance, mode, format, output; // bl_policy_kind_t, bl_balance_mode_t, bl_ctl_csv_format_t, bl_ctl_output_t
} bl_ctl_schedule_flags_t;

// Rows of bl_ctl_schedule_flags_t. The first ones are for export only, the last ones for show only.
#define BL_CTL_SCHEDULE_ROWS        26
#define BL_CTL_SCHEDULE_EXPORT_ROWS 2
#define BL_CTL_SCHEDULE_SHOW_ROWS   3
extern const bl_option_t bl_ctl_schedule_rows[BL_CTL_SCHEDULE_ROWS];

// BL_INVALID: a flag contradicts another one, or has no effect together with it.
BL_MUST_USE bl_status_t bl_ctl_schedule_request_check(const bl_ctl_schedule_flags_t *flags, bl_error_t *err);

#endif
