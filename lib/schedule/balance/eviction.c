// SPDX-License-Identifier: Apache-2.0
#include "schedule/balance/eviction.h"

#include "base/heap.h"

#include <stdlib.h>
#include <string.h>

#define NEVER UINT32_MAX

typedef enum where { ABSENT, RESIDENT, AWAY } where_t;

typedef struct block {
  uint32_t backward; // index of its I or B
  uint8_t where;     // where_t
  bool recomputed;
  bool given_up; // dropped
  bool late;     // while it is evicted: its load stands directly before its backward
  bool queued;   // is in the heap
} block_t;

typedef struct planner {
  const bl_schedule_t *schedule;
  const bl_op_list_t *list;
  uint32_t own, held, parked;
  bl_balance_mode_t mode;
  uint32_t *local; // [virtual stages] index among the chunks of this stage
  block_t *blocks;
  size_t block_count;
  // Blocks that can be evicted, the one whose backward is farthest first. Entries of blocks that are no longer resident
  // are removed when they reach the top.
  uint32_t *heap;
  size_t heap_count;
  bl__mix_t *mix; // NULL: all blocks that leave are parked
  bl__evictions_t *out;
} planner_t;

static uint32_t block_of(const planner_t *p, bl_op_t op) {
  const bl_schedule_t *schedule = p->schedule;
  return (p->local[op.virtual_stage] * schedule->micro_batches + op.micro_batch) * schedule->slices + op.slice;
}

static bool farther(const planner_t *p, uint32_t a, uint32_t b) {
  return p->blocks[a].backward > p->blocks[b].backward;
}

BL_HEAP(blocks, uint32_t, const planner_t *, farther)

static void heap_push(planner_t *p, uint32_t block) {
  if (!p->blocks[block].queued) {
    p->blocks[block].queued = true;
    blocks_push(p, p->heap, &p->heap_count, block);
  }
}

static void heap_pop(planner_t *p) {
  p->blocks[blocks_pop(p, p->heap, &p->heap_count)].queued = false;
}

static bl_status_t record(planner_t *p, bl_op_type_t type, uint32_t block, uint32_t before) {
  bl__evictions_t *out = p->out;
  if (out->count == out->capacity) {
    size_t capacity = out->capacity == 0 ? 64 : 2 * out->capacity;
    bl__transfer_t *transfers = realloc(out->transfers, capacity * sizeof *transfers);
    if (transfers == NULL) {
      return BL_UNAVAILABLE;
    }
    out->transfers = transfers;
    out->capacity = capacity;
  }
  if (p->mix != NULL) {
    bl__mix_move(p->mix, before);
  }
  bl_op_t op = p->list->ops[p->blocks[block].backward];
  op.type = (uint8_t)type;
  op.store = BL_STORE_NONE;
  out->transfers[out->count++] = (bl__transfer_t){before, op};
  return BL_OK;
}

static bool may_park(const planner_t *p, uint32_t block, uint32_t before) {
  return p->mix == NULL || (p->parked < p->mix->most && p->out->evicted < p->mix->parks &&
                            bl__mix_hides(p->mix, before, p->blocks[block].backward));
}

// Evicts the resident block whose backward is farthest, which must be after `latest`. The E stands before operation
// `before`.
static bl_status_t evict(planner_t *p, uint32_t before, uint32_t latest) {
  while (p->heap_count > 0) {
    uint32_t block = p->heap[0];
    if (p->blocks[block].where == RESIDENT && p->blocks[block].backward <= latest) {
      return BL_EXHAUSTED; // all others are used even sooner
    }
    if (p->blocks[block].where == RESIDENT && !may_park(p, block, before)) {
      return BL_EXHAUSTED;
    }
    heap_pop(p);
    if (p->blocks[block].where == RESIDENT) {
      p->blocks[block].where = AWAY;
      p->out->evicted++;
      p->parked++;
      p->out->parked_peak = p->parked > p->out->parked_peak ? p->parked : p->out->parked_peak;
      return record(p, BL_OP_E, block, before);
    }
  }
  return BL_EXHAUSTED;
}

// Drops the block whose backward is farthest, which must be after `latest`: a resident block, or `made`, the block that
// the current operation makes (NEVER: none).
static bl_status_t give_up(planner_t *p, uint32_t latest, uint32_t made) {
  if (p->mix == NULL) {
    return BL_EXHAUSTED;
  }
  while (p->heap_count > 0 && p->blocks[p->heap[0]].where != RESIDENT) {
    heap_pop(p);
  }
  uint32_t block = p->heap_count > 0 ? p->heap[0] : NEVER;
  if (made != NEVER && !p->blocks[made].given_up &&
      (block == NEVER || p->blocks[made].backward > p->blocks[block].backward)) {
    block = made;
  }
  if (block == NEVER || p->blocks[block].backward <= latest) {
    return BL_EXHAUSTED;
  }
  if (block != made) {
    heap_pop(p);
  }
  p->blocks[block].where = ABSENT;
  p->blocks[block].given_up = true;
  p->out->given_up++;
  return BL_OK;
}

// Returns whether the operation takes a slot: an F whose block has no R, an R, or the backward of a dropped block.
static bool takes_slot(const planner_t *p, bl_op_t op) {
  const block_t *block = &p->blocks[block_of(p, op)];
  return op.type == BL_OP_R || (op.type == BL_OP_F && !block->recomputed) ||
         (bl_op_type_starts_backward((bl_op_type_t)op.type) && block->given_up);
}

static void run(planner_t *p, uint32_t index, uint32_t block) {
  if (p->mix != NULL) {
    bool starts_backward = bl_op_type_starts_backward((bl_op_type_t)p->list->ops[index].type);
    bl__mix_run(p->mix, index, starts_backward && p->blocks[block].given_up);
  }
}

// Plans operation i in mode fewest: evicts when full, loads just before use.
static bl_status_t step_fewest(planner_t *p, uint32_t i, uint32_t *failed_at) {
  bl_status_t status = BL_OK;
  bl_op_t op = p->list->ops[i];
  uint32_t block = block_of(p, op);
  bool loads = bl_op_type_starts_backward((bl_op_type_t)op.type) && p->blocks[block].where == AWAY;
  *failed_at = i;
  if (takes_slot(p, op) || loads) {
    if (p->held == p->own) {
      status = evict(p, i, i);
      status = status == BL_EXHAUSTED ? give_up(p, i, NEVER) : status;
      p->held--;
    }
    p->held++;
    p->blocks[block].where = RESIDENT;
  }
  if (loads && status == BL_OK) {
    status = record(p, BL_OP_L, block, i);
    p->parked--;
  }
  if (op.type == BL_OP_F && !p->blocks[block].recomputed) {
    heap_push(p, block);
  }
  if (bl_op_type_starts_backward((bl_op_type_t)op.type)) {
    p->blocks[block].where = ABSENT; // not evictable; its slot stays taken until W
  }
  run(p, i, block);
  p->held -= bl_op_type_ends_block((bl_op_type_t)op.type);
  return status;
}

static bool loads_at(const planner_t *p, uint32_t index) {
  if (index >= p->list->count) {
    return false;
  }
  bl_op_t op = p->list->ops[index];
  return bl_op_type_starts_backward((bl_op_type_t)op.type) && p->blocks[block_of(p, op)].where == AWAY;
}

static bool loads_early(const planner_t *p, uint32_t index) {
  return loads_at(p, index) && !p->blocks[block_of(p, p->list->ops[index])].late;
}

// Loads the block that operation `index` uses; the L stands before operation `before`.
static bl_status_t load(planner_t *p, uint32_t index, uint32_t before) {
  uint32_t block = block_of(p, p->list->ops[index]);
  p->held++;
  p->parked--;
  p->out->late += before == index;
  p->blocks[block].where = RESIDENT;
  return record(p, BL_OP_L, block, before);
}

// Returns the slots that operation `index` takes, including the late load of its block and the load during it.
static uint32_t demand_of(const planner_t *p, uint32_t index) {
  if (index >= p->list->count) {
    return 0;
  }
  return (uint32_t)takes_slot(p, p->list->ops[index]) + loads_at(p, index) + loads_early(p, index + 1);
}

// Delays the load of the block that operation `index` uses until directly before it. A block that is resident is
// evicted during operation `index` - 2.
static bl_status_t load_late(planner_t *p, uint32_t index) {
  if (!loads_early(p, index)) {
    bl_status_t status = evict(p, index - 2, index - 1);
    if (status != BL_OK) {
      return status;
    }
    p->held--;
  }
  p->blocks[block_of(p, p->list->ops[index])].late = true;
  return BL_OK;
}

// Frees a slot, or saves the need for one, after operation `index`. The last resort is a late load, or with a mix
// dropping a block, possibly `made`, the block that the operation makes.
static bl_status_t make_room(planner_t *p, uint32_t index, uint32_t made) {
  bl_status_t status = evict(p, index, index + 2);
  if (status == BL_EXHAUSTED && p->mix == NULL) {
    return index + 2 < p->list->count ? load_late(p, index + 2) : status;
  }
  status = status == BL_EXHAUSTED ? give_up(p, index + 1, made) : status;
  p->held -= status == BL_OK;
  return status;
}

// Plans operation i in mode overlap. Takes its slot, loads its block if that is late, and loads during it the block
// that operation i + 1 uses. Then evicts during it as many blocks as operation i + 1 and the load during that one need
// slots. Blocks that are used by then, or made by operation i, stay. If slots are still too few, the load during
// operation i + 1 becomes late.
static bl_status_t step_overlap(planner_t *p, uint32_t i, uint32_t *failed_at) {
  bl_status_t status = BL_OK;
  bl_op_t op = p->list->ops[i];
  uint32_t block = block_of(p, op);
  *failed_at = i;
  bool takes = takes_slot(p, op);
  p->held += takes;
  if (loads_at(p, i)) {
    status = load(p, i, i);
  }
  if (bl_op_type_starts_backward((bl_op_type_t)op.type)) {
    p->blocks[block].where = ABSENT;
  }
  if (status == BL_OK && loads_early(p, i + 1)) {
    status = load(p, i + 1, i);
  }
  if (status == BL_OK && p->held > p->own) {
    return BL_EXHAUSTED;
  }
  p->held -= bl_op_type_ends_block((bl_op_type_t)op.type);
  while (status == BL_OK && p->held + demand_of(p, i + 1) > p->own) {
    status = make_room(p, i, op.type == BL_OP_F && takes ? block : NEVER);
    *failed_at = status == BL_EXHAUSTED ? i + 1 : i;
  }
  run(p, i, block);
  if (op.type == BL_OP_F && takes && !p->blocks[block].given_up) {
    p->blocks[block].where = RESIDENT;
    heap_push(p, block);
  }
  return status;
}

static bl_status_t step(planner_t *p, uint32_t index, uint32_t *failed_at) {
  if (p->own == 0) {
    *failed_at = 0;
    return BL_EXHAUSTED;
  }
  return p->mode == BL_BALANCE_FEWEST ? step_fewest(p, index, failed_at) : step_overlap(p, index, failed_at);
}

static bl_status_t prepare(planner_t *p, uint32_t stage) {
  const bl_schedule_t *schedule = p->schedule;
  uint32_t chunks = 0;
  p->local = malloc(schedule->virtual_stages * sizeof p->local[0]);
  if (p->local == NULL) {
    return BL_UNAVAILABLE;
  }
  for (uint32_t s = 0; s < schedule->virtual_stages; s++) {
    p->local[s] = schedule->stage_of[s] == stage ? chunks++ : 0;
  }
  p->block_count = (size_t)chunks * schedule->micro_batches * schedule->slices;
  p->blocks = calloc(p->block_count + 1, sizeof p->blocks[0]);
  p->heap = malloc((p->block_count + 1) * sizeof p->heap[0]);
  if (p->blocks == NULL || p->heap == NULL) {
    return BL_UNAVAILABLE;
  }
  for (size_t b = 0; b < p->block_count; b++) {
    p->blocks[b].backward = NEVER;
  }
  for (uint32_t i = 0; i < p->list->count; i++) {
    bl_op_t op = p->list->ops[i];
    if (bl_op_type_starts_backward((bl_op_type_t)op.type)) {
      p->blocks[block_of(p, op)].backward = i;
    }
    if (op.type == BL_OP_R) {
      p->blocks[block_of(p, op)].recomputed = true;
    }
  }
  return BL_OK;
}

// Ends a plan: writes the dropped blocks to the mix and frees the rest. An incomplete plan frees its evictions too.
static void finish(planner_t *p, bool whole) {
  for (size_t i = 0; p->mix != NULL && whole && i < p->list->count; i++) {
    const bl_op_t op = p->list->ops[i];
    p->mix->given_up[bl_schedule_block(p->schedule, op)] = p->blocks[block_of(p, op)].given_up;
  }
  free(p->heap);
  free(p->blocks);
  free(p->local);
  if (!whole) {
    bl__evictions_cleanup(p->out);
  }
}

static planner_t begin(const bl_schedule_t *schedule, uint32_t stage, uint32_t own, bl_balance_mode_t mode,
                       bl__mix_t *mix, bl__evictions_t *evictions) {
  memset(evictions, 0, sizeof *evictions);
  return (planner_t){
      .schedule = schedule, .list = &schedule->lists[stage], .own = own, .mode = mode, .mix = mix, .out = evictions};
}

bl_status_t bl__evictions_plan(const bl_schedule_t *schedule, uint32_t stage, uint32_t own, bl_balance_mode_t mode,
                               bl__mix_t *mix, bl__evictions_t *evictions, uint32_t *failed_at) {
  planner_t p = begin(schedule, stage, own, mode, mix, evictions);
  bl_status_t status = prepare(&p, stage);
  *failed_at = 0;
  for (uint32_t i = 0; i < p.list->count && status == BL_OK; i++) {
    status = step(&p, i, failed_at);
  }
  finish(&p, status == BL_OK);
  return status;
}

// ---- stages that share a link ---------------------------------------------------------------------------------------

typedef struct walk {
  planner_t *planners; // [stages]
  uint32_t *next;      // [stages] next operation
  double *times;       // [stages] when it runs
} walk_t;

static bool runs_sooner(const walk_t *walk, uint32_t a, uint32_t b) {
  return walk->times[a] < walk->times[b] || (walk->times[a] == walk->times[b] && a < b);
}

BL_HEAP(stages, uint32_t, const walk_t *, runs_sooner)

static bl_status_t walk_in_time(walk_t *walk, uint32_t count, uint32_t *heap, uint32_t *failed_stage,
                                uint32_t *failed_at) {
  bl_status_t status = BL_OK;
  size_t waiting = 0;
  for (uint32_t s = 0; s < count; s++) {
    if (walk->planners[s].list->count > 0) {
      walk->times[s] = bl__mix_time(walk->planners[s].mix, 0);
      stages_push(walk, heap, &waiting, s);
    }
  }
  while (waiting > 0 && status == BL_OK) {
    const uint32_t s = stages_pop(walk, heap, &waiting);
    planner_t *p = &walk->planners[s];
    *failed_stage = s;
    status = step(p, walk->next[s], failed_at);
    if (++walk->next[s] < p->list->count) {
      walk->times[s] = bl__mix_time(p->mix, walk->next[s]);
      stages_push(walk, heap, &waiting, s);
    }
  }
  return status;
}

bl_status_t bl__evictions_plan_together(const bl_schedule_t *schedule, const uint32_t *own, bl_balance_mode_t mode,
                                        bl__mix_t *mixes, bl__evictions_t *evictions, uint32_t *failed_stage,
                                        uint32_t *failed_at) {
  const uint32_t count = schedule->stages;
  walk_t walk = {.planners = calloc(count, sizeof *walk.planners),
                 .next = calloc(2 * (size_t)count, sizeof *walk.next),
                 .times = calloc(count, sizeof *walk.times)};
  bl_status_t status = walk.planners != NULL && walk.next != NULL && walk.times != NULL ? BL_OK : BL_UNAVAILABLE;
  uint32_t begun = 0;
  *failed_stage = *failed_at = 0;
  for (; begun < count && status == BL_OK; begun++) {
    walk.planners[begun] = begin(schedule, begun, own[begun], mode, &mixes[begun], &evictions[begun]);
    status = prepare(&walk.planners[begun], begun);
  }
  if (status == BL_OK) {
    status = walk_in_time(&walk, count, walk.next + count, failed_stage, failed_at);
  }
  for (uint32_t s = 0; s < begun; s++) {
    finish(&walk.planners[s], status == BL_OK);
  }
  free(walk.planners);
  free(walk.next);
  free(walk.times);
  return status;
}

void bl__evictions_cleanup(bl__evictions_t *evictions) {
  free(evictions->transfers);
  memset(evictions, 0, sizeof *evictions);
}
