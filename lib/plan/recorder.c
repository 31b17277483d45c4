// SPDX-License-Identifier: Apache-2.0
#include "plan/recorder.h"

#include "base/sort.h"
#include "model/flops.h"
#include "simulate/machine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define GAPS_MAX    4096
#define STAGE_GAPS  256 // of one kind that are kept of a stage
#define BLOCK_TIMES 9   // doubles that are kept of a block in the step under way
// What counts as waiting: an operation that starts this long after the one before it on its stage.
#define IDLE_SECONDS 20e-6

// Means of one step, of a virtual stage.
typedef struct means {
  double forward, input, weight, backward, recompute; // 0: none seen
} means_t;

typedef struct step {
  double seconds, makespan;
  means_t *means; // [virtual stages]
} step_t;

typedef struct gaps {
  double *values; // [room], in any order
  size_t count, room;
} gaps_t;

// Of what a stage did itself.
typedef struct own {
  gaps_t boundary, evict, load;
} own_t;

typedef struct stage {
  size_t next;       // operation of its list that is expected
  uint32_t computed; // computing operations seen
  double previous_end;
  double came;                 // end of a wait for a message before the operation that comes next; NAN: there was none
  double asked_core, got_core; // of a wait for a core, likewise
} stage_t;

// A core that changed hands.
typedef struct turn {
  double asked, got;
} turn_t;

struct bl_recorder {
  const bl_schedule_t *schedule;
  const bl_chunk_span_t *spans;
  uint32_t stage_count;
  step_t *steps; // [BL_RECORDER_STEPS]
  uint32_t count;
  stage_t *stages; // of the step under way
  double **times;  // [stages][computing operations]
  double **kept;   // those of the last whole step
  double *ends;    // [stages] in it, from its first operation
  double kept_makespan;
  double *forward_end, *backward_start, *backward_end; // [blocks], of the step under way; NAN: not yet
  double *waited_since;                                // [blocks * 2] end of the operation before F and B of a block
  double *started;                                     // [blocks * 2] start of F and B
  double *came;                                        // [blocks * 2] when the message for them came
  double *op_ends;                                     // [op_count] of the step under way
  turn_t *turns;                                       // [turn_count]
  size_t op_count, turn_count;
  bool waits; // were told of
  double first_start, last_end;
  bool whole;
  gaps_t boundary, input, handover;
  own_t *own;         // [stages]
  double *gap_values; // of all gaps
};

static uint32_t computing_count(const bl_op_list_t *list) {
  uint32_t count = 0;
  for (size_t i = 0; i < list->count; i++) {
    count += bl_verb_computes((bl_verb_t)list->ops[i].verb);
  }
  return count;
}

static double **allocate_times(const bl_schedule_t *schedule) {
  double **times = calloc(schedule->stages, sizeof *times);
  for (uint32_t s = 0; times != NULL && s < schedule->stages; s++) {
    times[s] = calloc(schedule->lists[s].count + 1, sizeof **times);
  }
  return times;
}

static bool times_are_there(double *const *times, uint32_t stages) {
  for (uint32_t s = 0; times != NULL && s < stages; s++) {
    if (times[s] == NULL) {
      return false;
    }
  }
  return times != NULL;
}

static gaps_t take_gaps(double **next, size_t room) {
  gaps_t gaps = {.values = *next, .room = room};
  *next += room;
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
  r->kept = allocate_times(schedule);
  r->ends = calloc(schedule->stages, sizeof *r->ends);
  r->forward_end = calloc(BLOCK_TIMES * blocks + 1, sizeof(double));
  r->op_ends = calloc(bl_schedule_op_count(schedule) + 1, sizeof *r->op_ends);
  r->turns = calloc(bl_schedule_op_count(schedule) + 1, sizeof *r->turns);
  if (r->steps == NULL || r->stages == NULL || r->ends == NULL || r->forward_end == NULL || r->op_ends == NULL ||
      r->turns == NULL || !allocate_gaps(r) || !times_are_there(r->times, schedule->stages) ||
      !times_are_there(r->kept, schedule->stages)) {
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

void bl_recorder_destroy(bl_recorder_t *r) {
  if (r == NULL) {
    return;
  }
  for (uint32_t s = 0; s < r->stage_count; s++) {
    if (r->times != NULL) {
      free(r->times[s]);
    }
    if (r->kept != NULL) {
      free(r->kept[s]);
    }
  }
  for (uint32_t i = 0; i < r->count; i++) {
    free(r->steps[i].means);
  }
  free(r->own);
  free(r->gap_values);
  free(r->times);
  free(r->kept);
  free(r->forward_end);
  free(r->op_ends);
  free(r->turns);
  free(r->ends);
  free(r->stages);
  free(r->steps);
  free(r);
}

void bl_recorder_begin(bl_recorder_t *r) {
  size_t blocks = bl_schedule_block_count(r->schedule);
  for (size_t i = 0; i < BLOCK_TIMES * blocks; i++) {
    r->forward_end[i] = NAN;
  }
  for (uint32_t s = 0; s < r->schedule->stages; s++) {
    r->stages[s] = (stage_t){.came = NAN, .got_core = NAN};
  }
  r->op_count = r->turn_count = 0;
  r->first_start = INFINITY;
  r->last_end = 0;
  r->whole = true;
}

static void keep_gap(gaps_t *gaps, double value) {
  if (gaps->count < gaps->room && isfinite(value)) {
    gaps->values[gaps->count++] = value;
  }
}

static void note(bl_recorder_t *r, stage_t *stage, bl_op_t op, double start, double end) {
  size_t block = bl_schedule_block(r->schedule, op);
  bool backward = bl_verb_starts_backward((bl_verb_t)op.verb);
  if (op.verb == BL_VERB_F) {
    r->forward_end[block] = end;
  } else if (backward) {
    r->backward_start[block] = start;
    r->backward_end[block] = end;
  }
  if (op.verb == BL_VERB_F || backward) {
    r->waited_since[2 * block + backward] = stage->computed > 0 ? stage->previous_end : -INFINITY;
    r->started[2 * block + backward] = start;
    r->came[2 * block + backward] = stage->came;
  }
  if (isfinite(stage->got_core)) {
    r->turns[r->turn_count++] = (turn_t){stage->asked_core, stage->got_core};
  }
  stage->came = stage->got_core = NAN;
  r->op_ends[r->op_count++] = end;
  stage->previous_end = end;
  r->first_start = fmin(r->first_start, start);
  r->last_end = fmax(r->last_end, end);
}

static bool same_op(bl_op_t a, bl_op_t b) {
  return a.verb == b.verb && a.virtual_stage == b.virtual_stage && a.micro_batch == b.micro_batch && a.slice == b.slice;
}

void bl_recorder_add(bl_recorder_t *r, uint32_t stage_index, const char *name, uint64_t start_ns, uint64_t end_ns) {
  bl_op_t op;
  if (stage_index >= r->schedule->stages || !bl_op_parse(name, strlen(name), &op)) {
    return;
  }
  const double start = (double)start_ns * 1e-9, end = (double)end_ns * 1e-9;
  if (!bl_verb_computes((bl_verb_t)op.verb)) {
    own_t *own = &r->own[stage_index];
    keep_gap(op.verb == BL_VERB_E ? &own->evict : &own->load, end - start);
    return;
  }
  stage_t *stage = &r->stages[stage_index];
  const bl_op_list_t *list = &r->schedule->lists[stage_index];
  while (stage->next < list->count && !bl_verb_computes((bl_verb_t)list->ops[stage->next].verb)) {
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
  stage_t *stage = &r->stages[stage_index];
  r->waits = true;
  if (cause == BL_STALL_ACTIVATION || cause == BL_STALL_GRADIENT) {
    stage->came = end;
  } else if (cause == BL_STALL_CORE) {
    stage->asked_core = start;
    stage->got_core = end;
  }
}

// From the end of the operation that had a core to the start of the one that got it: of those that ended while it was
// waited for the last one had it.
static void measure_turns(bl_recorder_t *r) {
  bl_sort_f64(r->op_ends, r->op_count);
  for (size_t i = 0; i < r->turn_count; i++) {
    const turn_t *turn = &r->turns[i];
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

// When what an operation waited for came: by the wait that it told of; where no waits were told of, by its start.
static double arrival_of(const bl_recorder_t *r, size_t at) {
  return r->waits ? r->came[at] : r->started[at];
}

static void keep_boundary(bl_recorder_t *r, uint32_t virtual_stage, double seconds) {
  keep_gap(&r->boundary, seconds);
  keep_gap(&r->own[r->schedule->stage_of[virtual_stage]].boundary, seconds);
}

// What lay between an operation that waited and the one it waited for.
static void measure_gaps(bl_recorder_t *r) {
  const bl_schedule_t *schedule = r->schedule;
  for (uint32_t v = 0; v + 1 < schedule->virtual_stages; v++) {
    if (schedule->stage_of[v] == schedule->stage_of[v + 1]) {
      continue;
    }
    for (uint32_t i = 0; i < schedule->micro_batches; i++) {
      bl_op_t lower = {.virtual_stage = (uint16_t)v, .micro_batch = i};
      bl_op_t upper = {.virtual_stage = (uint16_t)(v + 1), .micro_batch = i};
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

static void sum_means(const bl_recorder_t *r, means_t *means) {
  for (uint32_t s = 0; s < r->schedule->stages; s++) {
    const bl_op_list_t *list = &r->schedule->lists[s];
    for (size_t i = 0, k = 0; i < list->count; i++) {
      bl_op_t op = list->ops[i];
      if (!bl_verb_computes((bl_verb_t)op.verb)) {
        continue;
      }
      means_t *of = &means[op.virtual_stage];
      double *sum = op.verb == BL_VERB_F   ? &of->forward
                    : op.verb == BL_VERB_I ? &of->input
                    : op.verb == BL_VERB_W ? &of->weight
                    : op.verb == BL_VERB_R ? &of->recompute
                                           : &of->backward;
      *sum += r->times[s][k++];
    }
  }
}

// Sums to means: of every verb as often as it occurs for the virtual stage (R may be rarer than F).
static void divide_means(const bl_recorder_t *r, means_t *means) {
  for (uint32_t v = 0; v < r->schedule->virtual_stages; v++) {
    const bl_op_list_t *list = &r->schedule->lists[r->schedule->stage_of[v]];
    uint32_t recomputed = 0;
    for (size_t i = 0; i < list->count; i++) {
      recomputed += list->ops[i].verb == BL_VERB_R && list->ops[i].virtual_stage == v;
    }
    double m = (double)r->schedule->micro_batches * r->schedule->slices;
    means[v].forward /= m;
    means[v].input /= m;
    means[v].weight /= m;
    means[v].backward /= m;
    means[v].recompute /= recomputed > 0 ? recomputed : 1;
  }
}

void bl_recorder_end(bl_recorder_t *r, double step_seconds) {
  for (uint32_t s = 0; s < r->schedule->stages; s++) {
    r->whole = r->whole && r->stages[s].computed == computing_count(&r->schedule->lists[s]);
  }
  if (!r->whole || r->count == BL_RECORDER_STEPS) {
    return;
  }
  means_t *means = calloc(r->schedule->virtual_stages, sizeof *means);
  if (means == NULL) {
    return;
  }
  sum_means(r, means);
  divide_means(r, means);
  measure_gaps(r);
  measure_turns(r);
  for (uint32_t s = 0; s < r->schedule->stages; s++) {
    r->ends[s] = r->stages[s].previous_end - r->first_start;
  }
  double **last = r->kept;
  r->kept = r->times;
  r->times = last;
  r->kept_makespan = r->last_end - r->first_start;
  r->steps[r->count++] = (step_t){.seconds = step_seconds, .makespan = r->last_end - r->first_start, .means = means};
}

uint32_t bl_recorder_steps(const bl_recorder_t *r) {
  return r->count;
}

// ---- medians

static double quantile_gap(const gaps_t *gaps, double share) {
  bl_sort_f64(gaps->values, gaps->count);
  return gaps->count == 0 ? 0 : gaps->values[(size_t)(share * (double)(gaps->count - 1))];
}

// What such a gap adds to a step on average; of the longest twentieth, which are of disturbances, nothing is known.
static double usual_gap(const gaps_t *gaps) {
  double sum = 0;
  size_t count = gaps->count - gaps->count / 20;
  bl_sort_f64(gaps->values, gaps->count);
  for (size_t i = 0; i < count; i++) {
    sum += gaps->values[i];
  }
  return count > 0 ? sum / (double)count : 0;
}

// Where stages take turns on cores and told of no waits, most of them waited for a core, too. Below 0: clocks of several
// machines.
static double boundary_of(const bl_recorder_t *r, const gaps_t *gaps, bool input_shows) {
  return fmax(0, r->waits ? usual_gap(gaps) : quantile_gap(gaps, input_shows ? 0.5 : 0.1));
}

// Median over steps of one of the doubles of means_t.
static double median_mean(const bl_recorder_t *r, uint32_t virtual_stage, size_t offset) {
  double values[BL_RECORDER_STEPS];
  for (uint32_t i = 0; i < r->count; i++) {
    memcpy(&values[i], (const char *)&r->steps[i].means[virtual_stage] + offset, sizeof values[i]);
  }
  return bl_median(values, r->count);
}

#define MEDIAN(r, v, member) median_mean((r), (v), offsetof(means_t, member))

static bl_chunk_costs_t costs_of(const bl_recorder_t *r, uint32_t v, double share) {
  bl_chunk_costs_t costs = {.forward = MEDIAN(r, v, forward),
                            .input = MEDIAN(r, v, input),
                            .weight = MEDIAN(r, v, weight),
                            .recompute = MEDIAN(r, v, recompute)};
  double fused = MEDIAN(r, v, backward);
  costs.input += share * fused;
  costs.weight += (1 - share) * fused;
  if (costs.recompute == 0) {
    costs.recompute = costs.forward;
  }
  return costs;
}

// Share of I in a fused backward by FLOPs.
static double input_share(const bl_model_t *model, bl_chunk_span_t span, bl_attention_t attention) {
  bl_flops_t products = bl_flops_matmul(model, span, 1);
  double input =
      products.backward_input + products.head + bl_flops_attention(model, span, 1, attention, true).backward_input;
  double sum = input + products.backward_weight;
  return sum > 0 ? input / sum : 0.5;
}

static void fill_chunks(const bl_recorder_t *r, const bl_model_t *model, bl_attention_t attention, bool input_shows,
                        double boundary, bl_profile_t *p) {
  // One share for all stages, against the FLOPs' mean: how much sooner than by FLOPs gradients came.
  double expected = 0, seen = quantile_gap(&r->input, 0.5);
  for (uint32_t v = 1; v < p->chunk_count; v++) {
    expected += input_share(model, r->spans[v], attention) / (p->chunk_count - 1);
  }
  double last = MEDIAN(r, p->chunk_count - 1, backward);
  seen -= last > 0 ? boundary / last : 0;
  bool use = input_shows && r->input.count >= 8 && seen > 0.25 && seen < 0.9 && expected > 0;
  for (uint32_t v = 0; v < p->chunk_count; v++) {
    double share = input_share(model, r->spans[v], attention);
    share = use ? fmin(0.95, share * seen / expected) : share;
    p->chunks[v] = (bl_profile_chunk_t){.stage = r->schedule->stage_of[v],
                                        .span = r->spans[v],
                                        .costs = costs_of(r, v, share),
                                        .measured_input = use || MEDIAN(r, v, input) > 0,
                                        .measured_recompute = MEDIAN(r, v, recompute) > 0};
  }
}

static bl_status_t fill_stages(const bl_recorder_t *r, bool input_shows, bl_profile_t *p) {
  for (uint32_t s = 0; s < p->stage_count; s++) {
    bl_profile_stage_t *stage = &p->stages[s];
    stage->evict = quantile_gap(&r->own[s].evict, 0.5);
    stage->load = quantile_gap(&r->own[s].load, 0.5);
    stage->boundary = boundary_of(r, &r->own[s].boundary, input_shows);
    stage->time_count = computing_count(&r->schedule->lists[s]);
    stage->times = malloc((stage->time_count + 1) * sizeof *stage->times);
    if (stage->times == NULL) {
      return BL_EXHAUSTED;
    }
    memcpy(stage->times, r->kept[s], stage->time_count * sizeof *stage->times);
    stage->step_end = r->ends[s];
  }
  return BL_OK;
}

bl_status_t bl_recorder_fill(const bl_recorder_t *r, const bl_model_t *model, bl_attention_t attention,
                             bool input_shows, bl_profile_t *profile, bl_error_t *err) {
  const bool shows = input_shows || r->waits;
  if (r->count == 0) {
    return bl_error_set(err, BL_PRECONDITION, "no whole step was traced");
  }
  bl_profile_t p = {.model_digest = bl_profile_model_digest(model),
                    .setting.order = bl_profile_order(r->schedule),
                    .steps = r->count,
                    .micro_batches = r->schedule->micro_batches,
                    .stage_count = r->schedule->stages,
                    .chunk_count = r->schedule->virtual_stages};
  bl_profile_model_text(model, p.model_text);
  memcpy(p.schedule, r->schedule->name, sizeof p.schedule);
  p.stages = calloc(p.stage_count, sizeof *p.stages);
  p.chunks = calloc(p.chunk_count, sizeof *p.chunks);
  double steps[BL_RECORDER_STEPS], makespans[BL_RECORDER_STEPS], betweens[BL_RECORDER_STEPS];
  for (uint32_t i = 0; i < r->count; i++) {
    steps[i] = r->steps[i].seconds;
    makespans[i] = r->steps[i].makespan;
    betweens[i] = fmax(0, steps[i] - makespans[i]);
  }
  p.step = bl_median(steps, r->count);
  p.makespan = bl_median(makespans, r->count);
  p.between = bl_median(betweens, r->count);
  p.replay_makespan = r->kept_makespan;
  p.boundary = boundary_of(r, &r->boundary, input_shows);
  p.handover = usual_gap(&r->handover);
  if (p.stages == NULL || p.chunks == NULL || fill_stages(r, input_shows, &p) != BL_OK) {
    bl_profile_cleanup(&p);
    return bl_error_set(err, BL_EXHAUSTED, "no memory for the profile");
  }
  fill_chunks(r, model, attention, shows, p.boundary, &p);
  *profile = p;
  return BL_OK;
}
