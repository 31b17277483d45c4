// SPDX-License-Identifier: Apache-2.0
// Schedules by name (DESIGN.md section 6). An unknown name is refused with the list of names; nothing is ever replaced
// by another schedule.
// Thread: pure functions, any thread.
#ifndef BALLAST_SCHEDULE_GENERATE_H
#define BALLAST_SCHEDULE_GENERATE_H

#include "schedule/ir/request.h"

// BL_INVALID: the shape is not possible for this schedule (names what and why); BL_NOT_FOUND: no such name;
// BL_EXHAUSTED. The result passes bl_schedule_validate. Of a schedule that is not searched, `pooled` changes nothing.
BL_MUST_USE bl_status_t bl_schedule_generate(const bl_schedule_request_t *request, bl_schedule_t **schedule,
                                             bl_error_t *err);

// Whether `pooled` makes another order of a request than it has without.
bool bl_schedule_pools(const bl_schedule_request_t *request);

// Forwards alone, in order, on the placement of `like`, or where that has two pipes through the first of them: for
// validation losses and sampling.
BL_MUST_USE bl_status_t bl_schedule_forward(const bl_schedule_t *like, uint32_t micro_batches, bl_schedule_t **schedule,
                                            bl_error_t *err);

// What is known about a name without generating: for validation of a job and for `--help`.
typedef struct bl_schedule_info {
  const char *name;
  const char *summary;
  uint32_t default_chunks; // 1 or 2
  bl_placement_t placement;
  bool splits_backward;    // I and W apart
  const char *not_planned; // why no plan proposes it, though jobs may ask for it; NULL: plans do
  bool limited;            // it takes a limit of memory
  uint32_t default_slices; // of sequences: 1, or 2 where it is about slices
  bool any_chunks;         // a run has any number of chunks from default_chunks on; otherwise just these
} bl_schedule_info_t;

const bl_schedule_info_t *bl_schedule_infos(size_t *count);
const bl_schedule_info_t *bl_schedule_info_find(const char *name); // NULL if there is no such schedule

#endif
