// SPDX-License-Identifier: Apache-2.0
#include "schedule/ir/stage_plan.h"

#include <stdlib.h>
#include <string.h>

// One block of the stage: the positions of its operations, and its buffers.
typedef struct block {
  uint32_t forward, recompute, backward, end; // indices into the list, or BL_NONE
  uint32_t slot;
  uint32_t input, output;
} block_t;

// A first-in first-out list of free indices. The buffer that has been free longest is reused first, so that its send
// has had the most time to end.
typedef struct pool {
  uint32_t *ring;
  size_t capacity, head, count;
  uint32_t made; // indices handed out so far: the number needed
} pool_t;

typedef struct planner {
  const bl_schedule_t *schedule;
  const bl_op_list_t *list;
  uint32_t stage;
  bl_plan_limits_t limits;
  uint32_t *local; // [virtual stages] index among the chunks of this stage, or BL_NONE
  block_t *blocks; // [local chunks * micro-batches * slices]
  size_t block_count;
  pool_t slots, edges, pages, page_gradients;
  bl_stage_plan_t *plan;
  bl_error_t *err;
} planner_t;

static bl_status_t pool_init(pool_t *pool, size_t capacity) {
  *pool = (pool_t){.capacity = capacity + 1};
  pool->ring = malloc(pool->capacity * sizeof pool->ring[0]);
  return pool->ring != NULL ? BL_OK : BL_EXHAUSTED;
}

static uint32_t pool_take(pool_t *pool) {
  if (pool->count == 0) {
    return pool->made++;
  }
  uint32_t index = pool->ring[pool->head];
  pool->head = (pool->head + 1) % pool->capacity;
  pool->count--;
  return index;
}

static void pool_give(pool_t *pool, uint32_t index) {
  pool->ring[(pool->head + pool->count) % pool->capacity] = index;
  pool->count++;
}

static block_t *block_of(planner_t *p, bl_op_t op) {
  size_t chunk = p->local[op.virtual_stage];
  return &p->blocks[(chunk * p->schedule->micro_batches + op.micro_batch) * p->schedule->slices + op.slice];
}

static bool is_here(const planner_t *p, uint32_t virtual_stage) {
  return p->schedule->stage_of[virtual_stage] == p->stage;
}

// Returns whether the input buffer of `virtual_stage` is the output buffer of the previous one: both are on this stage.
static bool shares_input(const planner_t *p, uint32_t virtual_stage) {
  return !bl_schedule_is_first(p->schedule, virtual_stage) && is_here(p, virtual_stage - 1);
}

static bool shares_output(const planner_t *p, uint32_t virtual_stage) {
  return !bl_schedule_is_last(p->schedule, virtual_stage) && is_here(p, virtual_stage + 1);
}

static void find_operations(planner_t *p) {
  for (size_t i = 0; i < p->block_count; i++) {
    p->blocks[i] = (block_t){BL_NONE, BL_NONE, BL_NONE, BL_NONE, BL_NONE, BL_NONE, BL_NONE};
  }
  for (uint32_t i = 0; i < p->list->count; i++) {
    bl_op_t op = p->list->ops[i];
    block_t *block = block_of(p, op);
    if (op.type == BL_OP_F) {
      block->forward = i;
    } else if (op.type == BL_OP_R) {
      block->recompute = i;
    }
    if (bl_op_type_starts_backward((bl_op_type_t)op.type)) {
      block->backward = i;
    }
    if (bl_op_type_ends_block((bl_op_type_t)op.type) || (op.type == BL_OP_F && p->schedule->forward_only)) {
      block->end = i;
    }
  }
}

// Returns the index `prefetch` computing operations before `index`.
static uint32_t earlier(const planner_t *p, uint32_t index) {
  for (uint32_t left = p->limits.prefetch; left > 0 && index > 0;) {
    index--;
    left -= bl_op_type_computes((bl_op_type_t)p->list->ops[index].type);
  }
  return index;
}

// Appends the receives of the chunk `virtual_stage` from its neighbour `sender`, in the sender's order.
static void add_stream(planner_t *p, bl_edge_kind_t kind, uint32_t virtual_stage, uint32_t sender) {
  uint32_t from = p->schedule->stage_of[sender];
  const bl_op_list_t *list = &p->schedule->lists[from];
  bl_planned_receive_t *first = p->plan->receives + p->plan->receive_count, *end = first;
  for (size_t i = 0; i < list->count; i++) {
    bl_op_t op = list->ops[i];
    bool sends = kind == BL_EDGE_X ? op.type == BL_OP_F : bl_op_type_starts_backward((bl_op_type_t)op.type);
    if (op.virtual_stage != sender || !sends) {
      continue;
    }
    op.virtual_stage = (uint16_t)virtual_stage;
    const block_t *block = block_of(p, op);
    uint32_t needed = kind == BL_EDGE_X ? block->forward : block->backward;
    *end++ = (bl_planned_receive_t){.kind = kind,
                                    .virtual_stage = op.virtual_stage,
                                    .slice = op.slice,
                                    .micro_batch = op.micro_batch,
                                    .from = from,
                                    .buffer = BL_NONE,
                                    .post_at = kind == BL_EDGE_X ? earlier(p, needed) : block->forward + 1,
                                    .needed = needed};
  }
  // Keep the sender's order: a receive of x is posted no later than any x after it, a receive of dy (whose buffer must
  // hold y until then) no earlier than any dy before it.
  for (bl_planned_receive_t *r = end - 1; kind == BL_EDGE_X && r > first; r--) {
    r[-1].post_at = r->post_at < r[-1].post_at ? r->post_at : r[-1].post_at;
  }
  for (bl_planned_receive_t *r = first; kind == BL_EDGE_DY && r + 1 < end; r++) {
    r[1].post_at = r->post_at > r[1].post_at ? r->post_at : r[1].post_at;
  }
  p->plan->receive_count += (size_t)(end - first);
}

// Sorts by post_at, keeping the order within every stream (counting sort).
static bl_status_t sort_receives(planner_t *p) {
  bl_stage_plan_t *plan = p->plan;
  size_t places = p->list->count + 1;
  size_t *start = calloc(places + 1, sizeof *start);
  bl_planned_receive_t *sorted = malloc((plan->receive_count + 1) * sizeof *sorted);
  if (start == NULL || sorted == NULL) {
    free(sorted);
    free(start);
    return BL_EXHAUSTED;
  }
  for (size_t r = 0; r < plan->receive_count; r++) {
    start[plan->receives[r].post_at + 1]++;
  }
  for (size_t i = 0; i < places; i++) {
    start[i + 1] += start[i];
  }
  for (size_t r = 0; r < plan->receive_count; r++) {
    sorted[start[plan->receives[r].post_at]++] = plan->receives[r];
  }
  free(start);
  free(plan->receives);
  plan->receives = sorted;
  return BL_OK;
}

static bl_status_t plan_receives(planner_t *p) {
  for (uint32_t s = 0; s < p->schedule->virtual_stages; s++) {
    if (!is_here(p, s)) {
      continue;
    }
    if (!bl_schedule_is_first(p->schedule, s) && !is_here(p, s - 1)) {
      add_stream(p, BL_EDGE_X, s, s - 1);
    }
    if (!bl_schedule_is_last(p->schedule, s) && !is_here(p, s + 1)) {
      add_stream(p, BL_EDGE_DY, s, s + 1);
    }
  }
  return sort_receives(p);
}

static bl_op_t op_of_receive(const bl_planned_receive_t *receive) {
  return (bl_op_t){
      .virtual_stage = receive->virtual_stage, .micro_batch = receive->micro_batch, .slice = receive->slice};
}

// Gives a buffer to every receive that is posted directly before operation `index`.
static void post_receives(planner_t *p, uint32_t index, size_t *next) {
  bl_stage_plan_t *plan = p->plan;
  for (; *next < plan->receive_count && plan->receives[*next].post_at == index; (*next)++) {
    bl_planned_receive_t *receive = &plan->receives[*next];
    block_t *block = block_of(p, op_of_receive(receive));
    if (receive->kind == BL_EDGE_X) {
      block->input = pool_take(&p->edges);
    }
    receive->buffer = receive->kind == BL_EDGE_X ? block->input : block->output;
    plan->ops[receive->needed].receive = (uint32_t)*next;
  }
}

static uint32_t target(const planner_t *p, bl_op_t op) {
  const bl_schedule_t *schedule = p->schedule;
  if (op.type == BL_OP_F && !bl_schedule_is_last(schedule, op.virtual_stage) && !is_here(p, op.virtual_stage + 1)) {
    return schedule->stage_of[op.virtual_stage + 1];
  }
  if (bl_op_type_starts_backward((bl_op_type_t)op.type) && !bl_schedule_is_first(schedule, op.virtual_stage) &&
      !is_here(p, op.virtual_stage - 1)) {
    return schedule->stage_of[op.virtual_stage - 1];
  }
  return BL_NONE;
}

static block_t *neighbour(planner_t *p, bl_op_t op, int step) {
  op.virtual_stage = (uint16_t)(op.virtual_stage + step);
  return block_of(p, op);
}

static void assign(planner_t *p, bl_planned_op_t *planned, block_t *block) {
  bl_op_t op = planned->op;
  if (op.type == BL_OP_F) {
    if (bl_schedule_is_first(p->schedule, op.virtual_stage)) {
      block->input = pool_take(&p->edges);
    } else if (shares_input(p, op.virtual_stage)) {
      block->input = neighbour(p, op, -1)->output;
    }
    block->output = pool_take(&p->edges);
  }
  bool writes = op.type == BL_OP_F && (block->recompute == BL_NONE || p->schedule->forward_slots);
  if (writes || op.type == BL_OP_R || op.type == BL_OP_L) {
    block->slot = pool_take(&p->slots);
  }
  planned->slot = block->slot;
  planned->send_to = target(p, op);
  if (bl_op_type_computes((bl_op_type_t)op.type)) {
    planned->input = block->input;
    planned->output = block->output;
  }
}

// Releases what the block holds, when an operation ends it. The later of two chunks that share a buffer releases it.
static void release(planner_t *p, bl_planned_op_t *planned, block_t *block, uint32_t index) {
  bl_op_t op = planned->op;
  planned->releases_slot = true;
  pool_give(&p->slots, block->slot);
  block->slot = BL_NONE;
  if (!shares_input(p, op.virtual_stage) || neighbour(p, op, -1)->end < index) {
    planned->releases_input = true;
    pool_give(&p->edges, block->input);
  }
  if (!shares_output(p, op.virtual_stage) || neighbour(p, op, 1)->end < index) {
    planned->releases_output = true;
    pool_give(&p->edges, block->output);
  }
}

static uint32_t *page_at(const planner_t *p, uint32_t *table, bl_op_t op, uint32_t slice) {
  op.slice = (uint8_t)slice;
  return &table[bl_schedule_block(p->schedule, op)];
}

// Takes the pages that are needed from this operation on, and releases those that it is the last to need.
static void take_pages(planner_t *p, bl_op_t op) {
  const uint32_t last = p->schedule->slices - 1;
  uint32_t *pages = p->plan->page_of, *gradients = p->plan->page_gradient_of;
  if (op.type == BL_OP_F) {
    *page_at(p, pages, op, op.slice) = pool_take(&p->pages);
    for (uint32_t i = 0; p->schedule->forward_only && op.slice == last && i <= last; i++) {
      pool_give(&p->pages, *page_at(p, pages, op, i));
    }
  } else if (bl_op_type_starts_backward((bl_op_type_t)op.type)) {
    for (uint32_t i = 0; op.slice == last && i < last; i++) {
      *page_at(p, gradients, op, i) = pool_take(&p->page_gradients);
    }
    pool_give(&p->pages, *page_at(p, pages, op, op.slice));
    if (op.slice < last) {
      pool_give(&p->page_gradients, *page_at(p, gradients, op, op.slice));
    }
  }
}

static bl_status_t walk(planner_t *p) {
  size_t next_receive = 0;
  uint32_t leaving_from = BL_NONE,
           refused = BL_NONE; // first evict of a group that frees its slots together; first operation without a slot
  for (uint32_t i = 0; i < p->list->count; i++) {
    bl_planned_op_t *planned = &p->plan->ops[i];
    post_receives(p, i, &next_receive);
    block_t *block = block_of(p, planned->op);
    assign(p, planned, block);
    if (p->plan->page_of != NULL) {
      take_pages(p, planned->op);
    }
    if (refused == BL_NONE && p->limits.slots != 0 && p->slots.made > p->limits.slots) {
      refused = i;
    }
    if (block->end == i) {
      release(p, planned, block, i);
    } else if (planned->op.type == BL_OP_F && block->recompute != BL_NONE && planned->slot != BL_NONE) {
      planned->releases_slot = true;
      pool_give(&p->slots, block->slot);
      block->slot = BL_NONE;
    }
    if (planned->op.type == BL_OP_E) {
      planned->releases_slot = true;
      block->slot = BL_NONE;
      leaving_from = leaving_from == BL_NONE ? i : leaving_from;
    }
    bool ends = p->schedule->transfers == BL_TRANSFER_SERIAL || bl_op_type_computes((bl_op_type_t)planned->op.type);
    for (uint32_t e = leaving_from; ends && e <= i && e != BL_NONE; e++) {
      if (p->plan->ops[e].op.type == BL_OP_E) {
        p->plan->ops[e].slot_free_at = i + 1;
        pool_give(&p->slots, p->plan->ops[e].slot);
      }
    }
    leaving_from = ends ? BL_NONE : leaving_from;
  }
  p->plan->slots = p->slots.made;
  p->plan->edges = p->edges.made;
  p->plan->pages = p->pages.made;
  p->plan->page_gradients = p->page_gradients.made;
  if (refused != BL_NONE) {
    char cell[BL_OP_TEXT];
    return bl_error_set(p->err, BL_EXHAUSTED,
                        "stage %u, operation %u (%s): needs one slot more than the %u available; schedule %s needs "
                        "%u slots on this stage",
                        p->stage, refused, bl_op_format(p->list->ops[refused], cell), p->limits.slots,
                        p->schedule->name, p->plan->slots);
  }
  return BL_OK;
}

static bl_status_t allocate_pages(planner_t *p) {
  const size_t blocks = bl_schedule_block_count(p->schedule);
  p->plan->page_of = malloc(blocks * sizeof *p->plan->page_of);
  p->plan->page_gradient_of = malloc(blocks * sizeof *p->plan->page_gradient_of);
  if (p->plan->page_of == NULL || p->plan->page_gradient_of == NULL) {
    return BL_EXHAUSTED;
  }
  for (size_t i = 0; i < blocks; i++) {
    p->plan->page_of[i] = p->plan->page_gradient_of[i] = BL_NONE;
  }
  bl_status_t status = pool_init(&p->pages, p->block_count);
  return status == BL_OK ? pool_init(&p->page_gradients, p->block_count) : status;
}

static bl_status_t allocate(planner_t *p) {
  const bl_schedule_t *schedule = p->schedule;
  p->local = malloc(schedule->virtual_stages * sizeof p->local[0]);
  if (p->local == NULL) {
    return BL_EXHAUSTED;
  }
  uint32_t chunks = 0;
  for (uint32_t s = 0; s < schedule->virtual_stages; s++) {
    p->local[s] = is_here(p, s) ? chunks++ : BL_NONE;
  }
  p->block_count = (size_t)chunks * schedule->micro_batches * schedule->slices;
  p->blocks = malloc((p->block_count + 1) * sizeof p->blocks[0]);
  p->plan->ops = calloc(p->list->count + 1, sizeof p->plan->ops[0]);
  p->plan->receives = malloc((2 * p->block_count + 1) * sizeof p->plan->receives[0]);
  if (p->blocks == NULL || p->plan->ops == NULL || p->plan->receives == NULL) {
    return BL_EXHAUSTED;
  }
  p->plan->op_count = p->list->count;
  for (size_t i = 0; i < p->list->count; i++) {
    p->plan->ops[i] = (bl_planned_op_t){.op = p->list->ops[i],
                                        .slot = BL_NONE,
                                        .input = BL_NONE,
                                        .output = BL_NONE,
                                        .receive = BL_NONE,
                                        .send_to = BL_NONE,
                                        .slot_free_at = BL_NONE};
  }
  bl_status_t status = pool_init(&p->slots, p->block_count);
  status = status == BL_OK ? pool_init(&p->edges, 2 * p->block_count) : status;
  return status == BL_OK && schedule->slices > 1 ? allocate_pages(p) : status;
}

bl_status_t bl_stage_plan_init(const bl_schedule_t *schedule, uint32_t stage, bl_plan_limits_t limits,
                               bl_stage_plan_t *plan, bl_error_t *err) {
  bl_stage_plan_t made = {0};
  planner_t p = {.schedule = schedule,
                 .list = &schedule->lists[stage],
                 .stage = stage,
                 .limits = limits,
                 .plan = &made,
                 .err = err};
  bl_status_t status = allocate(&p);
  if (status == BL_OK) {
    find_operations(&p);
    status = plan_receives(&p);
  }
  if (status == BL_OK) {
    status = walk(&p);
  } else {
    status = bl_error_set(err, BL_EXHAUSTED, "out of memory for the plan of stage %u", stage);
  }
  free(p.page_gradients.ring);
  free(p.pages.ring);
  free(p.edges.ring);
  free(p.slots.ring);
  free(p.blocks);
  free(p.local);
  if (status != BL_OK) {
    bl_stage_plan_cleanup(&made);
    return status;
  }
  *plan = made;
  return BL_OK;
}

void bl_stage_plan_cleanup(bl_stage_plan_t *plan) {
  free(plan->ops);
  free(plan->receives);
  free(plan->page_of);
  free(plan->page_gradient_of);
  memset(plan, 0, sizeof *plan);
}

// ---- counts of all stages

bl_status_t bl_plan_counts(const bl_schedule_t *schedule, uint32_t *peak_slots, uint32_t *edges, bl_error_t *err) {
  bl_stage_plan_t *plans = calloc(schedule->stages, sizeof *plans);
  bl_status_t status =
      plans != NULL ? BL_OK
                    : bl_error_set(err, BL_EXHAUSTED, "out of memory for the plans of %u stages", schedule->stages);
  for (uint32_t s = 0; s < schedule->stages && status == BL_OK; s++) {
    status = bl_stage_plan_init(schedule, s, (bl_plan_limits_t){.prefetch = BL_PLAN_PREFETCH}, &plans[s], err);
  }
  if (status == BL_OK) {
    status = bl_plan_check_deadlock(schedule, plans, err);
  }
  for (uint32_t s = 0; s < schedule->stages && plans != NULL; s++) {
    if (peak_slots != NULL && status == BL_OK) {
      peak_slots[s] = plans[s].slots;
    }
    if (edges != NULL && status == BL_OK) {
      edges[s] = plans[s].edges;
    }
    bl_stage_plan_cleanup(&plans[s]);
  }
  free(plans);
  return status;
}

bl_status_t bl_plan_pages(const bl_schedule_t *schedule, uint32_t *pages, uint32_t *page_gradients, bl_error_t *err) {
  bl_status_t status = BL_OK;
  for (uint32_t s = 0; s < schedule->stages && status == BL_OK; s++) {
    bl_stage_plan_t plan;
    pages[s] = page_gradients[s] = 0;
    if (schedule->slices == 1) {
      continue;
    }
    status = bl_stage_plan_init(schedule, s, (bl_plan_limits_t){0}, &plan, err);
    if (status == BL_OK) {
      pages[s] = plan.pages;
      page_gradients[s] = plan.page_gradients;
      bl_stage_plan_cleanup(&plan);
    }
  }
  return status;
}
