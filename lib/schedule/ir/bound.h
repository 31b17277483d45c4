// SPDX-License-Identifier: Apache-2.0
// Lower bounds of the time that any schedule with given operations and costs takes. Unit: that of the costs.
// Thread: pure functions, any thread.
#ifndef BALLAST_SCHEDULE_BOUND_H
#define BALLAST_SCHEDULE_BOUND_H

#include "schedule/ir/costs.h"
#include "schedule/ir/schedule.h"

// No schedule with these operations and costs ends earlier, however much memory it takes. The bound is the maximum over
// stages of (earliest time at which the first operation of the stage can start + its work + the least time that must
// follow its last operation).
BL_MUST_USE bl_status_t bl_schedule_lower_bound(const bl_schedule_t *schedule, const bl_costs_t *costs, double *bound);
// The same bound if a fused B releases the previous virtual stage as soon as its I has ended.
BL_MUST_USE bl_status_t bl_schedule_early_lower_bound(const bl_schedule_t *schedule, const bl_costs_t *costs,
                                                      double *bound);

// No schedule that holds at most limits[stage] blocks ends earlier. Blocks are counted as by bl_schedule_peak_blocks:
// from F to W or fused B. `limits` NULL: no stage is limited. With `early` a fused B releases as in
// bl_schedule_early_lower_bound. The bound is at least the one without limits. The two are equal for a forward-only
// schedule, and if slices have costs of their own (bl_costs_t.slices).
//
// For a stage let `work` be the time of all its operations, n its number of blocks, L the smaller of n and its limit,
// `head` the earliest start of its first operation, `finish` the least time after its last operation, and
//   back  the earliest start of a backward on the stage: a micro-batch passes straight through the model and back to
//         the stage;
//   home  the least time from the end of an F on the stage to the end of all that its micro-batch still needs, on any
//         stage;
//   X, Y  the maximum work of L blocks on the stage: X in F and R, Y in R, I and W (or B). No more blocks of a chunk
//         are counted than it has.
// Before the first backward of the stage starts, at t1 >= back, no block was released, so the stage has done at most X
// of its work. After its last F has ended, at t2, it works only on blocks that it holds, so at most Y is left. So the
// end of the step is at least
//   t1 + work - X + finish                                >= back + work - X + finish          (1)
//   t2 + home, with t2 >= head + work - Y                 >= head + work - Y + home            (2)
// If n is above the limit, some F ends after the first backward has started (only L of them can end before it). So
// t1 < t2, and at least work - X - Y lies between them:
//   t2 + home, with t2 >= t1 + work - X - Y               >= back + work - X - Y + home        (3)
// (1) counts the warm-up, (2) the cool-down and (3) both; each waits for a micro-batch that crosses all devices.
// Finally, a block is held from its F to its W, at least as long as its micro-batch takes to the end of the model and
// back. All blocks share L slots from `head` to the end of the step less `finish`:
//   head + (sum over blocks of that time) / L + finish                                         (4)
BL_MUST_USE bl_status_t bl_schedule_bound_within(const bl_schedule_t *schedule, const bl_costs_t *costs,
                                                 const uint32_t *limits, bool early, double *bound);

// The same bound for the order that bl_schedule_recompute_chunks(schedule, chunks) makes from these operations, which
// have no R yet. A fused B releases nothing early. If slices have costs of their own, R counts as 0.
//
// A block whose F stands directly before its backward gets no R, so R cannot simply be added for every block. Let `gap`
// of a virtual stage be the least time from the end of an F on it to the start of the backward: the time of the
// micro-batch to the end of the model and back. A block without R has no operation between the two, so its stage is
// idle for at least the gap, and no two blocks share that time. So every block occupies its stage for at least its
// operations and
//   extra = 0 on the last virtual stage (gap 0);
//           R if the next virtual stage is on the same stage: its F and backward of the micro-batch stand between them;
//           min(R, gap) elsewhere,
// all between the start of the stage's first operation and the end of its last one. `work` includes `extra`. R stands
// directly before the backward of its block. If the next virtual stage is on the same stage, the backward of the next
// one comes before that R, so R delays the micro-batch: `back`, `home`, `finish` and gap include it there. Elsewhere
// they do not, since R may run while the gradient is in flight.
// In (1) and (3) only the R (or gap) of its own block can come before the first backward of the stage. So X is the
// maximum of L blocks in F, and the minimum of back - extra over the virtual stages of the stage replaces `back`. Y is
// the maximum of L blocks in `extra`, I and W (or B).
BL_MUST_USE bl_status_t bl_schedule_bound_recomputed(const bl_schedule_t *schedule, const bl_costs_t *costs,
                                                     const uint32_t *limits, uint32_t chunks, double *bound);

#endif
