// SPDX-License-Identifier: Apache-2.0
// Generates schedules by name (DESIGN.md section 6). The error for an unknown name lists the names. A schedule is never
// replaced by another one.
// Thread: pure functions, any thread.
#ifndef BALLAST_SCHEDULE_GENERATE_H
#define BALLAST_SCHEDULE_GENERATE_H

#include "schedule/ir/request.h"

// Generates the schedule of a request. The result passes bl_schedule_validate. For a schedule that is not searched,
// `pooled` changes nothing. BL_INVALID: the shape is not possible for this schedule (names what and why); BL_NOT_FOUND:
// no such name; BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_schedule_generate(const bl_schedule_request_t *request, bl_schedule_t **schedule,
                                             bl_error_t *err);

// Returns whether `pooled` can change the order of a request.
bool bl_schedule_pools(const bl_schedule_request_t *request);

// Creates a schedule of forwards only, in order, on the placement of `like`, or on its first pipe if it has two: for
// validation losses and sampling.
BL_MUST_USE bl_status_t bl_schedule_forward(const bl_schedule_t *like, uint32_t micro_batches, bl_schedule_t **schedule,
                                            bl_error_t *err);

// Properties of a schedule that are known without generating it: for validation of a job and for `--help`.
typedef struct bl_schedule_info {
  const char *name;
  const char *summary;
  uint32_t default_chunks; // 1 or 2
  bl_placement_t placement;
  bool splits_backward;    // separate I and W
  const char *not_planned; // why `ballastctl plan` does not propose it; NULL: it does
  bool limited;            // accepts a memory limit
  uint32_t default_slices; // 1, or 2 for schedules over slices
  bool any_chunks;         // accepts any number of chunks from default_chunks on; otherwise only default_chunks
} bl_schedule_info_t;

const bl_schedule_info_t *bl_schedule_infos(size_t *count);
const bl_schedule_info_t *bl_schedule_info_find(const char *name); // NULL if there is no such schedule

#endif
