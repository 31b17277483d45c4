// SPDX-License-Identifier: Apache-2.0
#include "plan/profile/recording.h"

#include "base/sort.h"
#include "simulate/machine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define GAPS_MAX    4096
#define STAGE_GAPS  256 // gaps of one kind kept per stage
#define BLOCK_TIMES 9   // doubles kept per block in the current step
// Gaps shorter than this between two operations of a stage do not count as waits.
#define IDLE_SECONDS 20e-6

uint32_t bl__recorded_count(const bl_op_list_t *list) {
  uint32_t count = 0;
  for (size_t i = 0; i < list->count; i++) {
    count += bl_op_type_computes((bl_op_type_t)list->ops[i].type);
  }
  return count;
}

// A single allocation.
static double **allocate_times(const bl_schedule_t *schedule) {
  size_t count = 0;
  for (uint32_t s = 0; s < schedule->stages; s++) {
    count += bl__recorded_count(&schedule->lists[s]);
  }
  double **times = malloc(schedule->stages * sizeof *times + (count + 1) * sizeof **times);
  if (times == NULL) {
    return NULL;
  }
  double *next = (double *)(void *)(times + schedule->stages);
  for (uint32_t s = 0; s < schedule->stages; s++) {
    times[s] = next;
    next += bl__recorded_count(&schedule->lists[s]);
  }
  return times;
}

static bl__recorded_gaps_t take_gaps(double **next, size_t capacity) {
  bl__recorded_gaps_t gaps = {.values = *next, .capacity = capacity};
  *next += capacity;
  return gaps;
}

static bool allocate_gaps(bl_recorder_t *r) {
  const size_t stages = r->stage_count;
  r->own = calloc(stages, sizeof *r->own);
  r->gap_values = malloc((3 * GAPS_MAX + 3 * STAGE_GAPS * stages) * sizeof *r->gap_values);
  if (r->own == NULL || r->gap_values == NULL) {
    return false;
  }
  double *next = r->gap_values;
  r->boundary = take_gaps(&next, GAPS_MAX);
  r->input = take_gaps(&next, GAPS_MAX);
  r->handover = take_gaps(&next, GAPS_MAX);
  for (size_t s = 0; s < stages; s++) {
    r->own[s].boundary = take_gaps(&next, STAGE_GAPS);
    r->own[s].evict = take_gaps(&next, STAGE_GAPS);
    r->own[s].load = take_gaps(&next, STAGE_GAPS);
  }
  return true;
}

bl_status_t bl_recorder_create(const bl_schedule_t *schedule, const bl_chunk_span_t *spans, bl_recorder_t **recorder) {
  bl_recorder_t *r = calloc(1, sizeof *r);
  if (r == NULL) {
    return BL_EXHAUSTED;
  }
  size_t blocks = bl_schedule_block_count(schedule);
  r->schedule = schedule;
  r->stage_count = schedule->stages;
  r->spans = spans;
  r->steps = calloc(BL_RECORDER_STEPS, sizeof *r->steps);
  r->stages = calloc(schedule->stages, sizeof *r->stages);
  r->times = allocate_times(schedule);
  r->forward_end = calloc(BLOCK_TIMES * blocks + 1, sizeof(double));
  r->op_ends = calloc(bl_schedule_op_count(schedule) + 1, sizeof *r->op_ends);
  r->turns = calloc(bl_schedule_op_count(schedule) + 1, sizeof *r->turns);
  if (r->steps == NULL || r->stages == NULL || r->times == NULL || r->forward_end == NULL || r->op_ends == NULL ||
      r->turns == NULL || !allocate_gaps(r)) {
    bl_recorder_destroy(r);
    return BL_EXHAUSTED;
  }
  r->backward_start = r->forward_end + blocks;
  r->backward_end = r->backward_start + blocks;
  r->waited_since = r->backward_end + blocks;
  r->started = r->waited_since + 2 * blocks;
  r->came = r->started + 2 * blocks;
  *recorder = r;
  return BL_OK;
}

static void step_cleanup(bl__recorded_step_t *step) {
  free(step->means);
  free(step->times);
  free(step->ends);
}

void bl_recorder_destroy(bl_recorder_t *r) {
  if (r == NULL) {
    return;
  }
  for (uint32_t i = 0; i < r->count; i++) {
    step_cleanup(&r->steps[i]);
  }
  free(r->own);
  free(r->gap_values);
  free(r->times);
  free(r->forward_end);
  free(r->op_ends);
  free(r->turns);
  free(r->stages);
  free(r->steps);
  free(r);
}

static void begin_gaps(bl__recorded_gaps_t *gaps) {
  gaps->sum = 0;
  gaps->seen = 0;
}

void bl_recorder_begin(bl_recorder_t *r) {
  size_t blocks = bl_schedule_block_count(r->schedule);
  for (size_t i = 0; i < BLOCK_TIMES * blocks; i++) {
    r->forward_end[i] = NAN;
  }
  for (uint32_t s = 0; s < r->schedule->stages; s++) {
    r->stages[s] = (bl__recorded_stage_t){.came = NAN, .got_core = NAN};
  }
  r->op_count = r->turn_count = 0;
  begin_gaps(&r->boundary);
  begin_gaps(&r->handover);
  r->first_start = INFINITY;
  r->last_end = 0;
  r->gather_start = INFINITY;
  r->reduction_end = 0;
  r->whole = true;
}

static void keep_gap(bl__recorded_gaps_t *gaps, double value) {
  if (!isfinite(value)) {
    return;
  }
  gaps->sum += value;
  gaps->seen++;
  if (gaps->count < gaps->capacity) {
    gaps->values[gaps->count++] = value;
  }
}

double bl__recorded_mean(const bl__recorded_gaps_t *gaps) {
  return gaps->seen > 0 ? fmax(0, gaps->sum / (double)gaps->seen) : NAN;
}

static void note(bl_recorder_t *r, bl__recorded_stage_t *stage, bl_op_t op, double start, double end) {
  size_t block = bl_schedule_block(r->schedule, op);
  bool backward = bl_op_type_starts_backward((bl_op_type_t)op.type);
  if (op.type == BL_OP_F) {
    r->forward_end[block] = end;
  } else if (backward) {
    r->backward_start[block] = start;
    r->backward_end[block] = end;
  }
  if (op.type == BL_OP_F || backward) {
    r->waited_since[2 * block + backward] = stage->computed > 0 ? stage->previous_end : -INFINITY;
    r->started[2 * block + backward] = start;
    r->came[2 * block + backward] = stage->came;
  }
  if (isfinite(stage->got_core)) {
    r->turns[r->turn_count++] = (bl__recorded_turn_t){stage->asked_core, stage->got_core};
  }
  stage->came = stage->got_core = NAN;
  stage->last_end = r->op_count;
  stage->waited = false;
  r->op_ends[r->op_count++] = end;
  stage->previous_end = end;
  r->first_start = fmin(r->first_start, start);
  r->last_end = fmax(r->last_end, end);
}

static bool same_op(bl_op_t a, bl_op_t b) {
  return a.type == b.type && a.virtual_stage == b.virtual_stage && a.micro_batch == b.micro_batch && a.slice == b.slice;
}

void bl_recorder_add(bl_recorder_t *r, uint32_t stage_index, const char *name, uint64_t start_ns, uint64_t end_ns) {
  bl_op_t op;
  if (stage_index >= r->schedule->stages || !bl_op_parse(name, strlen(name), &op)) {
    return;
  }
  const double start = (double)start_ns * 1e-9, end = (double)end_ns * 1e-9;
  bl__recorded_stage_t *stage = &r->stages[stage_index];
  if (!bl_op_type_computes((bl_op_type_t)op.type)) {
    bl__recorded_own_t *own = &r->own[stage_index];
    keep_gap(op.type == BL_OP_E ? &own->evict : &own->load, end - start);
    if (stage->computed > 0 && !stage->waited) { // it keeps its core for that
      r->op_ends[stage->last_end] = end;
    }
    return;
  }
  const bl_op_list_t *list = &r->schedule->lists[stage_index];
  while (stage->next < list->count && !bl_op_type_computes((bl_op_type_t)list->ops[stage->next].type)) {
    stage->next++;
  }
  if (stage->next == list->count || !same_op(list->ops[stage->next], op)) {
    r->whole = false;
    return;
  }
  note(r, stage, op, start, end);
  r->times[stage_index][stage->computed++] = end - start;
  stage->next++;
}

void bl_recorder_wait(bl_recorder_t *r, uint32_t stage_index, const char *name, uint64_t start_ns, uint64_t end_ns) {
  const double start = (double)start_ns * 1e-9, end = (double)end_ns * 1e-9;
  const bl_stall_cause_t cause = bl_stall_cause_of(name);
  if (stage_index >= r->schedule->stages || end - start < IDLE_SECONDS) {
    return;
  }
  bl__recorded_stage_t *stage = &r->stages[stage_index];
  r->waits = stage->waited = true;
  if (cause == BL_STALL_ACTIVATION || cause == BL_STALL_GRADIENT) {
    stage->came = end;
  } else if (cause == BL_STALL_CORE) {
    stage->asked_core = start;
    stage->got_core = end;
  } else if (cause == BL_STALL_GATHER) {
    r->gather_start = fmin(r->gather_start, start);
  } else if (cause == BL_STALL_REDUCTION) {
    r->reduction_end = fmax(r->reduction_end, end);
  }
}

// Measures core handover latency: from when the core was given back to the moment the waiter got it. The holder is taken
// to be the last operation that ended during the wait, with the evicts and loads that followed without a wait.
static void measure_turns(bl_recorder_t *r) {
  bl_sort_f64(r->op_ends, r->op_count);
  for (size_t i = 0; i < r->turn_count; i++) {
    const bl__recorded_turn_t *turn = &r->turns[i];
    size_t low = 0, high = r->op_count;
    while (low < high) { // ends below `low` are not after it got the core
      size_t middle = low + (high - low) / 2;
      bool before = r->op_ends[middle] <= turn->got;
      low = before ? middle + 1 : low;
      high = before ? high : middle;
    }
    if (low > 0 && r->op_ends[low - 1] >= turn->asked) {
      keep_gap(&r->handover, turn->got - r->op_ends[low - 1]);
    }
  }
}

// Returns when the operation's input arrived: the end of its recorded wait or, if no waits were recorded, the
// operation's start.
static double arrival_of(const bl_recorder_t *r, size_t at) {
  return r->waits ? r->came[at] : r->started[at];
}

static void keep_boundary(bl_recorder_t *r, uint32_t virtual_stage, double seconds) {
  keep_gap(&r->boundary, seconds);
  keep_gap(&r->own[r->schedule->stage_of[virtual_stage]].boundary, seconds);
}

// Measures the time between an operation that waited and the one that it waited for.
static void measure_gaps(bl_recorder_t *r) {
  const bl_schedule_t *schedule = r->schedule;
  for (uint32_t v = 0; v + 1 < schedule->virtual_stages; v++) {
    if (schedule->stage_of[v] == schedule->stage_of[v + 1]) {
      continue;
    }
    for (uint32_t i = 0; i < schedule->micro_batches * schedule->slices; i++) {
      const uint32_t micro_batch = i / schedule->slices;
      const uint8_t slice = (uint8_t)(i % schedule->slices);
      bl_op_t lower = {.virtual_stage = (uint16_t)v, .micro_batch = micro_batch, .slice = slice};
      bl_op_t upper = {.virtual_stage = (uint16_t)(v + 1), .micro_batch = micro_batch, .slice = slice};
      size_t a = bl_schedule_block(schedule, lower), b = bl_schedule_block(schedule, upper);
      double arrived = arrival_of(r, 2 * b);
      if (r->waited_since[2 * b] < r->forward_end[a] && arrived - r->waited_since[2 * b] > IDLE_SECONDS) {
        keep_boundary(r, v + 1, arrived - r->forward_end[a]);
      }
      double came = arrival_of(r, 2 * a + 1);
      bool waited = came - r->waited_since[2 * a + 1] > IDLE_SECONDS;
      if (waited && r->waited_since[2 * a + 1] < r->backward_end[b]) { // as a share of that backward
        keep_gap(&r->input, (came - r->backward_start[b]) / (r->backward_end[b] - r->backward_start[b]));
      }
    }
  }
}

static void sum_means(const bl_recorder_t *r, bl__recorded_means_t *means) {
  for (uint32_t s = 0; s < r->schedule->stages; s++) {
    const bl_op_list_t *list = &r->schedule->lists[s];
    for (size_t i = 0, k = 0; i < list->count; i++) {
      bl_op_t op = list->ops[i];
      if (!bl_op_type_computes((bl_op_type_t)op.type)) {
        continue;
      }
      bl__recorded_means_t *of = &means[op.virtual_stage * r->schedule->slices + op.slice];
      double *sum = op.type == BL_OP_F   ? &of->forward
                    : op.type == BL_OP_I ? &of->input
                    : op.type == BL_OP_W ? &of->weight
                    : op.type == BL_OP_R ? &of->recompute
                                         : &of->backward;
      *sum += r->times[s][k++];
    }
  }
}

static uint32_t count_recomputed(const bl_recorder_t *r, uint32_t virtual_stage, uint32_t slice) {
  const bl_op_list_t *list = &r->schedule->lists[r->schedule->stage_of[virtual_stage]];
  uint32_t count = 0;
  for (size_t i = 0; i < list->count; i++) {
    const bl_op_t op = list->ops[i];
    count += op.type == BL_OP_R && op.virtual_stage == virtual_stage && op.slice == slice;
  }
  return count;
}

// Divides sums by how many operations of the type the virtual stage has (R may be rarer than F).
static void divide_means(const bl_recorder_t *r, bl__recorded_means_t *means) {
  const uint32_t slices = r->schedule->slices;
  const double m = (double)r->schedule->micro_batches / r->schedule->pipes; // of a chunk
  for (uint32_t i = 0; i < r->schedule->virtual_stages * slices; i++) {
    const uint32_t recomputed = count_recomputed(r, i / slices, i % slices);
    means[i].forward /= m;
    means[i].input /= m;
    means[i].weight /= m;
    means[i].backward /= m;
    means[i].recompute /= recomputed > 0 ? recomputed : 1;
  }
}

void bl_recorder_end(bl_recorder_t *r, double step_seconds) {
  for (uint32_t s = 0; s < r->schedule->stages; s++) {
    r->whole = r->whole && r->stages[s].computed == bl__recorded_count(&r->schedule->lists[s]);
  }
  if (!r->whole || r->count == BL_RECORDER_STEPS) {
    return;
  }
  bl__recorded_step_t step = {
      .seconds = step_seconds,
      .makespan = r->last_end - r->first_start,
      .shared = fmax(0, r->first_start - r->gather_start) + fmax(0, r->reduction_end - r->last_end),
      .means = calloc((size_t)r->schedule->virtual_stages * r->schedule->slices, sizeof *step.means),
      .times = allocate_times(r->schedule), // for the next step, until it is swapped
      .ends = calloc(r->schedule->stages, sizeof *step.ends)};
  if (step.means == NULL || step.times == NULL || step.ends == NULL) {
    step_cleanup(&step);
    return;
  }
  sum_means(r, step.means);
  divide_means(r, step.means);
  measure_gaps(r);
  measure_turns(r);
  step.boundary = bl__recorded_mean(&r->boundary);
  step.handover = bl__recorded_mean(&r->handover);
  for (uint32_t s = 0; s < r->schedule->stages; s++) {
    step.ends[s] = r->stages[s].previous_end - r->first_start;
  }
  double **next = step.times;
  step.times = r->times;
  r->times = next;
  r->steps[r->count++] = step;
}

uint32_t bl_recorder_steps(const bl_recorder_t *r) {
  return r->count;
}
