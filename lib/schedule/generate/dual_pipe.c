// SPDX-License-Identifier: Apache-2.0
// DualPipe and DualPipeV (DeepSeek-V3 technical report, 2024; deepseek-ai/DualPipe): eight steps. In the steady step a
// forward in one direction overlaps with a backward in the other; here one follows the other. DualPipe sends half of
// the micro-batches through a second copy of the model, from the last stage to the first. DualPipeV folds that into one
// V, whose second chunk replaces the other direction.
#include "base/words.h"
#include "schedule/generate/generators.h"

#include <stdlib.h>

// The state of one stage in the steps. Direction 0 is the one that begins nearer to the stage.
typedef struct walker {
  bl_schedule_t *schedule;
  uint32_t virtual_stage[2]; // by direction
  uint32_t first[2];         // first micro-batch of the direction
  uint32_t forwards[2], backwards[2];
  bl_op_t *pending; // W's of split backwards, first in first out
  size_t pending_first, pending_count;
  bl_status_t status;
} walker_t;

static void emit(walker_t *w, bl_op_type_t type, uint32_t direction, uint32_t micro_batch) {
  if (w->status == BL_OK) {
    w->status = bl__schedule_emit(w->schedule, type, w->virtual_stage[direction], micro_batch);
  }
}

static void forward(walker_t *w, uint32_t direction) {
  emit(w, BL_OP_F, direction, w->first[direction] + w->forwards[direction]++);
}

static void backward(walker_t *w, uint32_t direction, bool split) {
  uint32_t micro_batch = w->first[direction] + w->backwards[direction]++;
  emit(w, split ? BL_OP_I : BL_OP_B, direction, micro_batch);
  if (split) {
    w->pending[w->pending_count++] =
        (bl_op_t){.virtual_stage = (uint16_t)w->virtual_stage[direction], .micro_batch = micro_batch};
  }
}

static void weight(walker_t *w) {
  bl_op_t next = w->pending[w->pending_first++];
  if (w->status == BL_OK) {
    w->status = bl__schedule_emit(w->schedule, BL_OP_W, next.virtual_stage, next.micro_batch);
  }
}

// Emits the eight steps of one stage. `depth` is the number of stages from the beginning of direction 0 to the middle
// of the pipeline, or to the tip of the V; `at` of them come before this stage. Each direction has `count`
// micro-batches, at least 2 depth.
static void walk(walker_t *w, uint32_t depth, uint32_t at, uint32_t count) {
  uint32_t after = depth - at - 1;
  for (uint32_t i = 0; i < 2 * after; i++) { // 1
    forward(w, 0);
  }
  for (uint32_t i = 0; i < at + 1; i++) { // 2
    forward(w, 0);
    forward(w, 1);
  }
  for (uint32_t i = 0; i < after; i++) { // 3
    backward(w, 1, true);
    weight(w);
    forward(w, 1);
  }
  for (uint32_t i = 0; i < count - 2 * depth + at + 1; i++) { // 4: the steady step
    forward(w, 0);
    backward(w, 1, false);
    forward(w, 1);
    backward(w, 0, false);
  }
  for (uint32_t i = 0; i < after; i++) { // 5
    backward(w, 1, false);
    forward(w, 1);
    backward(w, 0, false);
  }
  bool split = false;
  for (uint32_t i = 0; i < at + 1; i++) { // 6: the second half delays its W's
    split = split || (i == (at + 1) / 2 && at % 2 == 1);
    backward(w, 1, split);
    split = split || (i == (at + 1) / 2 && at % 2 == 0);
    backward(w, 0, split);
  }
  for (uint32_t i = 0; i < after; i++) { // 7
    weight(w);
    backward(w, 0, true);
  }
  for (uint32_t i = 0; i < at + 1; i++) { // 8
    weight(w);
  }
}

static bl_status_t walk_stage(walker_t *w, uint32_t depth, uint32_t at, uint32_t count) {
  w->pending = malloc(2 * (size_t)count * sizeof w->pending[0]);
  w->status = w->pending != NULL ? BL_OK : BL_EXHAUSTED;
  if (w->status == BL_OK) {
    walk(w, depth, at, count);
  }
  free(w->pending);
  return w->status;
}

bl_status_t bl__generate_dualpipe_v(const bl_schedule_request_t *request, bl_schedule_t *schedule, bl_error_t *err) {
  uint32_t p = request->stages, m = request->micro_batches;
  if (m < 2 * p) {
    return bl_error_set(err, BL_INVALID, "schedule dualpipe-v: needs at least %u micro-batches on %u stage%s, not %u",
                        2 * p, p, bl_plural(p), m);
  }
  bl_status_t status = BL_OK;
  for (uint32_t s = 0; s < p && status == BL_OK; s++) {
    walker_t w = {.schedule = schedule, .virtual_stage = {s, 2 * p - 1 - s}};
    status = walk_stage(&w, p, s, m);
  }
  return status;
}

bl_status_t bl__generate_dualpipe(const bl_schedule_request_t *request, bl_schedule_t *schedule, bl_error_t *err) {
  uint32_t p = request->stages, m = request->micro_batches;
  if (p % 2 != 0 || m % 2 != 0 || m < 2 * p) {
    return bl_error_set(
        err, BL_INVALID,
        "schedule dualpipe: needs an even number of stages and an even number of at least twice as many "
        "micro-batches, not %u and %u",
        p, m);
  }
  bl_status_t status = BL_OK;
  for (uint32_t s = 0; s < p && status == BL_OK; s++) {
    uint32_t down = s, up = 2 * p - 1 - s; // virtual stages of the two pipes on this stage
    bool second_half = s >= p / 2;
    walker_t w = {.schedule = schedule,
                  .virtual_stage = {second_half ? up : down, second_half ? down : up},
                  .first = {second_half ? m / 2 : 0, second_half ? 0 : m / 2}};
    status = walk_stage(&w, p / 2, second_half ? p - 1 - s : s, m / 2);
  }
  return status;
}
