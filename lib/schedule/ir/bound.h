// SPDX-License-Identifier: Apache-2.0
// The least time in which any schedule with given operations and costs can end. Unit: that of the costs.
// Thread: pure functions, any thread.
#ifndef BALLAST_SCHEDULE_BOUND_H
#define BALLAST_SCHEDULE_BOUND_H

#include "schedule/ir/costs.h"
#include "schedule/ir/schedule.h"

// No schedule with these operations and costs ends earlier, whatever memory it takes: the maximum over stages of (earliest
// time at which its first operation can start + its work + the least time that must follow its last operation).
BL_MUST_USE bl_status_t bl_schedule_lower_bound(const bl_schedule_t *schedule, const bl_costs_t *costs, double *bound);
// The same where a fused B releases the virtual stage before it when its I has ended.
BL_MUST_USE bl_status_t bl_schedule_early_lower_bound(const bl_schedule_t *schedule, const bl_costs_t *costs,
                                                      double *bound);

// None that holds at most limits[stage] blocks (as bl_schedule_peak_blocks counts them: from F to W or fused B) ends
// earlier; `early` as of bl_schedule_early_lower_bound. `limits` NULL: none is limited. At least that of no limits; of forwards
// alone, and of slices that cost differently, the same.
//
// Of a stage let `work` be all its operations, n its blocks, L the fewer of n and its limit, `head` the earliest start of its
// first operation, `finish` the least time after its last one, and
//   back  the earliest start of a backward there: a micro-batch goes straight through the model and back to the stage;
//   home  the least time from the end of an F there to the end of all that its micro-batch still needs, on any stage;
//   X, Y  the most work that L blocks have there in F and R; and in R, I and W, or B. No more than all blocks of a chunk
//         are counted.
// Before its first backward starts, at t1 >= back, no block was released, so that the stage has worked at most X. After its last
// F has ended, at t2, only blocks that it holds are worked on: at most Y is left. So the end of the step is at least
//   t1 + work - X + finish                                >= back + work - X + finish          (1)
//   t2 + home, with t2 >= head + work - Y                 >= head + work - Y + home            (2)
// Where n is above the limit, some F ends after the first backward starts (before it only L can), so t1 < t2, and between
// them lies at least work - X - Y:
//   t2 + home, with t2 >= t1 + work - X - Y               >= back + work - X - Y + home        (3)
// (1) counts the warm-up, (2) the drain and (3) both, each of which waits for a micro-batch that crosses all devices. Last, a
// block is held from its F to its W at least as long as its micro-batch takes to go on to the end of the model and to come
// back; all of them share L places from head to the end less finish:
//   head + (sum over blocks of that time) / L + finish                                         (4)
BL_MUST_USE bl_status_t bl_schedule_bound_within(const bl_schedule_t *schedule, const bl_costs_t *costs,
                                                 const uint32_t *limits, bool early, double *bound);

// The same of what bl_schedule_recompute_chunks(schedule, chunks) makes of an order with these operations, which have no R yet;
// a fused B releases nothing early. Where costs of slices differ, R counts for nothing.
//
// A block whose F stands directly before its backward has no R, so that an R must not simply be added for every block. Let `gap` of
// a virtual stage be the least time from the end of an F there to the start of its backward: the way of the micro-batch to the end
// of the model and back. A block without R has nothing between the two, so that its stage stands still for at least its gap, and
// no two blocks share that time. So of every block the stage is busy or kept for at least its operations and
//   again = 0 on the last virtual stage (gap 0); R where the next virtual stage is on the same stage, whose F and backward of that
//           micro-batch stand between the two; min(R, gap) elsewhere,
// all between the start of its first operation and the end of its last one: `work` counts that. Where the next virtual stage is
// on the same stage, R, which stands directly before its backward, comes after the backward of that one, and is on the way of
// the micro-batch: `back`, `home`, `finish` and gap count it there, and nowhere else, since elsewhere it may run while the
// gradient is on its way.
// In (1) and (3), before the first backward of the stage only its own R (or gap) can have come: X is the most that L blocks have in
// F, and back - again, the least of any virtual stage of the stage, stands for back. Y is the most that L blocks have in
// `again`, I and W, or B.
BL_MUST_USE bl_status_t bl_schedule_bound_recomputed(const bl_schedule_t *schedule, const bl_costs_t *costs,
                                                     const uint32_t *limits, uint32_t chunks, double *bound);

#endif
