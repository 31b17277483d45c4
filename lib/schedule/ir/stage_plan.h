// SPDX-License-Identifier: Apache-2.0
// The plan that the executor of one stage follows: its operation list with a slot and edge buffers for every operation,
// and the receives to post. All of it is fixed before the step starts.
//
//   bl_stage_plan_t plan;
//   status = bl_stage_plan_init(schedule, stage, (bl_plan_limits_t){.prefetch = 1}, &plan, &err);
//   ... allocate plan.slots slots and plan.edges edge buffers ...
//   for (size_t i = 0, r = 0; i < plan.op_count; i++) {
//     for (; r < plan.receive_count && plan.receives[r].post_at <= i; r++)
//       post(&plan.receives[r]);                    // into an idle buffer, never blocks
//     const bl_planned_op_t *op = &plan.ops[i];
//     wait for receive op->receive if it is not BL_NONE; run; send op's result as op->send says
//   }
//   bl_stage_plan_cleanup(&plan);
//
// Slots: F takes one; of a recomputed block R takes it (with forward_slots its F takes one as well, while it runs). I
// uses the slot; W or fused B releases it at its end. E releases it and L takes one (perhaps another one), at the times
// that the schedule's transfer mode gives. A slot index is an index into the slot arena.
//
// Edge buffers (EXECUTION.md 4, 11): each operation of a block uses an input buffer (x, after I dx) and an output
// buffer (y, later dy). Both are indices into one pool of equal buffers of tokens x hidden values.
//   1. The input buffer lives from the post of its receive (virtual stage 0: from its F) to the end of W; the output
//      buffer from the start of F to the end of W.
//   2. If the next virtual stage is on the same stage (V's tip), its input buffer *is* the output buffer: nothing is
//      sent, and the buffer lives to the later of both W's.
//   3. y is sent from the output buffer after F; dy is received into the same buffer; dx is sent from the input buffer
//      after I or B. A send never blocks compute. A buffer whose send is unfinished is busy: the next operation that
//      writes into it (a receive of x, an F) waits for that send. Only dx sends (and y sends of a forward-only
//      schedule) can be unfinished when a buffer is reused. A receive of dy is posted while the send of y may still be
//      in flight: dy cannot arrive before y has arrived at the peer.
//   4. Messages of one boundary and direction are received in the order in which the peer sends them; `receives` is
//      in the order of posting and keeps that order.
//   5. A receive with post_at = i is posted when operations [0, i) have ended. The receive of x for operation k is
//      posted `prefetch` operations early, that of dy as soon as its F has ended.
//
// Pages of the KV cache, if sequences are cut into slices (model/layout.h): a block has a page from its F to the end of
// its I or B (in a forward-only schedule to the end of the last slice's F). Unless it is the last slice of its
// micro-batch, it also has a page of gradients, from the I or B of the last slice to the end of its own. Both are
// indices into pools of equal pages.
//
// bl_plan_check_deadlock (below) simulates all plans with these rules: no stage may wait for ever.
// Thread: pure functions, any thread; a plan is read-only after init.
#ifndef BALLAST_SCHEDULE_STAGE_PLAN_H
#define BALLAST_SCHEDULE_STAGE_PLAN_H

#include "schedule/ir/schedule.h"

#define BL_NONE          UINT32_MAX
#define BL_PLAN_PREFETCH 1 // bl_plan_limits_t.prefetch of the executor, and so of all that counts its buffers

typedef struct bl_plan_limits {
  uint32_t slots;    // slots of the stage; 0: as many as are needed
  uint32_t prefetch; // operations by which the receive of x is posted early; 0 needs the fewest buffers
} bl_plan_limits_t;

typedef enum bl_edge_kind {
  BL_EDGE_X,  // activations, from virtual stage - 1 into the input buffer
  BL_EDGE_DY, // gradient, from virtual stage + 1 into the output buffer
} bl_edge_kind_t;

typedef struct bl_planned_op {
  bl_op_t op;
  uint32_t slot;         // BL_NONE: no slot (F of a recomputed block without forward_slots). E: source, L: target
  uint32_t input;        // edge buffer of x, later dx. E and L: BL_NONE
  uint32_t output;       // edge buffer of y, later dy. E and L: BL_NONE
  uint32_t receive;      // index into receives of the message that this operation waits for, or BL_NONE
  uint32_t send_to;      // stage that receives its result (F: y from output; I or B: dx from input), or BL_NONE
  uint32_t slot_free_at; // E: index of the operation at whose start the slot may be reused; other types: BL_NONE
  bool releases_slot;    // at its end (E: see slot_free_at)
  bool releases_input;   // at its end and that of its send
  bool releases_output;
} bl_planned_op_t;

typedef struct bl_planned_receive {
  bl_edge_kind_t kind;
  uint16_t virtual_stage; // the receiving chunk
  uint8_t slice;
  uint32_t micro_batch;
  uint32_t from;    // stage that sends
  uint32_t buffer;  // edge buffer that receives it
  uint32_t post_at; // index of the operation before which it is posted
  uint32_t needed;  // index of the operation that waits for it
} bl_planned_receive_t;

typedef struct bl_stage_plan {
  uint32_t slots;                 // needed, at most the limit
  uint32_t edges;                 // edge buffers needed
  uint32_t pages, page_gradients; // pages needed: of the KV cache, of gradients
  uint32_t *page_of,
      *page_gradient_of; // page of every block of this stage, by bl_schedule_block; NULL without slices
  bl_planned_op_t *ops;
  size_t op_count;
  bl_planned_receive_t *receives; // ascending in post_at
  size_t receive_count;
} bl_stage_plan_t;

// Plans one stage. Precondition: the schedule is valid. BL_EXHAUSTED if the limit is below the slots that are needed
// (names stage, operation, needed and available), or without memory.
BL_MUST_USE bl_status_t bl_stage_plan_init(const bl_schedule_t *schedule, uint32_t stage, bl_plan_limits_t limits,
                                           bl_stage_plan_t *plan, bl_error_t *err);
void bl_stage_plan_cleanup(bl_stage_plan_t *plan);

// Simulates all plans of a schedule (plans[schedule->stages]) together with bounded buffers: a message moves only when
// it is sent and its receive is posted; a busy buffer is not written. If all stages end, the planned buffers suffice.
// BL_INTERNAL names, for every stage that waits for ever, the operation and what it waits for.
BL_MUST_USE bl_status_t bl_plan_check_deadlock(const bl_schedule_t *schedule, const bl_stage_plan_t *plans,
                                               bl_error_t *err);

// Plans all stages as the executor does, checks them for deadlocks, and returns their slots and edge buffers. peak_slots
// and edges are [stages], and may be NULL.
BL_MUST_USE bl_status_t bl_plan_counts(const bl_schedule_t *schedule, uint32_t *peak_slots, uint32_t *edges,
                                       bl_error_t *err);

// Returns the pages that every stage needs, of the KV cache and of gradients, [stages] each; 0 without slices.
BL_MUST_USE bl_status_t bl_plan_pages(const bl_schedule_t *schedule, uint32_t *pages, uint32_t *page_gradients,
                                      bl_error_t *err);

#endif
