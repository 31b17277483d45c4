// SPDX-License-Identifier: Apache-2.0
#include "schedule/generate/block_pattern.h"

#include "schedule/generate/timetable.h"

#include <stdlib.h>
#include <string.h>

typedef struct passage {
  bl_op_type_t type;
  uint32_t at, length;
} passage_t;

// Writes the operations of a virtual stage and returns their number.
static int passages_of(const bl_block_pattern_t *block, uint32_t v, passage_t passages[3]) {
  const uint32_t *lengths = block->lengths;
  passages[0] = (passage_t){BL_OP_F, block->forward[v], lengths[0]};
  if (block->weight == NULL) {
    passages[1] = (passage_t){BL_OP_B, block->input[v], lengths[1] + lengths[2]};
    return 2;
  }
  passages[1] = (passage_t){BL_OP_I, block->input[v], lengths[1]};
  passages[2] = (passage_t){BL_OP_W, block->weight[v], lengths[2]};
  return 3;
}

static uint32_t chunks_of(const bl_block_pattern_t *block, uint32_t stage) {
  uint32_t chunks = 0;
  for (uint32_t v = 0; v < block->virtual_stages; v++) {
    chunks += block->placement[v] == stage;
  }
  return chunks;
}

static uint32_t chunks_most(const bl_block_pattern_t *block) {
  uint32_t most = 0;
  for (uint32_t s = 0; s < block->stages; s++) {
    uint32_t chunks = chunks_of(block, s);
    most = chunks > most ? chunks : most;
  }
  return most;
}

static bl_status_t check_placement(const bl_block_pattern_t *block, bl_error_t *err) {
  if (block->virtual_stages < 1 || block->virtual_stages > BL_VIRTUAL_STAGES_MAX) {
    return bl_error_set(err, BL_INVALID, "placement: must name from 1 to %d virtual stages, names %u",
                        BL_VIRTUAL_STAGES_MAX, block->virtual_stages);
  }
  for (uint32_t v = 0; v < block->virtual_stages; v++) {
    if (block->placement[v] >= block->stages) {
      return bl_error_set(err, BL_INVALID,
                          "placement: virtual stage %u is on stage %u, which does not exist; there are stages 0 to %u",
                          v, block->placement[v], block->stages - 1);
    }
  }
  for (uint32_t s = 0; s < block->stages; s++) {
    if (chunks_of(block, s) == 0) {
      return bl_error_set(err, BL_INVALID, "placement: stage %u of %u holds no virtual stage", s, block->stages);
    }
  }
  return BL_OK;
}

static bl_status_t check_times(const bl_block_pattern_t *block, bl_error_t *err) {
  static const char names[] = {'F', 'I', 'W'};
  for (int k = 0; k < 3; k++) {
    if (block->lengths[k] < 1 || block->lengths[k] > BL_BLOCK_PATTERN_TIME_MAX) {
      return bl_error_set(err, BL_INVALID, "lengths: %c must take from 1 to %d, takes %u", names[k],
                          BL_BLOCK_PATTERN_TIME_MAX, block->lengths[k]);
    }
  }
  if (block->interval < 1 || block->interval > BL_BLOCK_PATTERN_TIME_MAX) {
    return bl_error_set(err, BL_INVALID, "interval: must be from 1 to %d, is %u", BL_BLOCK_PATTERN_TIME_MAX,
                        block->interval);
  }
  for (uint32_t v = 0; v < block->virtual_stages; v++) {
    passage_t passages[3];
    for (int k = passages_of(block, v, passages); k-- > 0;) {
      if (passages[k].at > BL_BLOCK_PATTERN_TIME_MAX) {
        return bl_error_set(err, BL_INVALID, "%u%c: must start from 0 to %d, starts at %u", v,
                            bl_op_type_letter(passages[k].type), BL_BLOCK_PATTERN_TIME_MAX, passages[k].at);
      }
      if (passages[k].length > block->interval) {
        return bl_error_set(err, BL_INVALID, "stage %u: %u%c takes %u, longer than the interval %u",
                            block->placement[v], v, bl_op_type_letter(passages[k].type), passages[k].length,
                            block->interval);
      }
    }
  }
  return BL_OK;
}

// Checks that `later` does not start before `earlier` has ended.
static bl_status_t check_order(uint32_t v, passage_t earlier, uint32_t w, passage_t later, bl_error_t *err) {
  if (later.at < earlier.at + earlier.length) {
    return bl_error_set(err, BL_INVALID, "%u%c starts at %u, but needs %u%c, which runs from %u to %u", w,
                        bl_op_type_letter(later.type), later.at, v, bl_op_type_letter(earlier.type), earlier.at,
                        earlier.at + earlier.length);
  }
  return BL_OK;
}

static bl_status_t check_dependencies(const bl_block_pattern_t *block, bl_error_t *err) {
  bl_status_t status = BL_OK;
  for (uint32_t v = 0; v < block->virtual_stages && status == BL_OK; v++) {
    passage_t mine[3], next[3];
    int count = passages_of(block, v, mine);
    bool last = v + 1 == block->virtual_stages;
    if (last) {
      status = check_order(v, mine[0], v, mine[1], err);
    } else {
      passages_of(block, v + 1, next);
      status = check_order(v, mine[0], v + 1, next[0], err);
      status = status == BL_OK ? check_order(v + 1, next[1], v, mine[1], err) : status;
    }
    if (status == BL_OK && count == 3) {
      status = check_order(v, mine[1], v, mine[2], err);
    }
  }
  return status;
}

// Returns the time, modulo `interval`, at which two operations of a stage collide when repeated; UINT32_MAX: never.
static uint32_t collision(uint32_t interval, passage_t a, passage_t b) {
  uint32_t first = a.at % interval, second = b.at % interval;
  uint32_t after = (second + interval - first) % interval; // from the start of a to that of b
  if (after < a.length) {
    return second;
  }
  return interval - after < b.length ? first : UINT32_MAX;
}

static bl_status_t check_pair(const bl_block_pattern_t *block, uint32_t v, uint32_t w, bl_error_t *err) {
  passage_t mine[3], other[3];
  int count = passages_of(block, v, mine);
  passages_of(block, w, other);
  for (int i = 0; i < count; i++) {
    for (int k = v == w ? i + 1 : 0; k < count; k++) {
      uint32_t at = collision(block->interval, mine[i], other[k]);
      if (at != UINT32_MAX) {
        return bl_error_set(
            err, BL_INVALID,
            "stage %u: %u%c at %u and %u%c at %u collide at time %u of the interval %u; move one of them "
            "or lengthen the interval",
            block->placement[v], v, bl_op_type_letter(mine[i].type), mine[i].at, w, bl_op_type_letter(other[k].type),
            other[k].at, at, block->interval);
      }
    }
  }
  return BL_OK;
}

bl_status_t bl_block_pattern_check(const bl_block_pattern_t *block, bl_error_t *err) {
  bl_status_t status = BL_OK;
  if (block->stages < 1 || block->stages > BL_STAGES_MAX) {
    return bl_error_set(err, BL_INVALID, "stages: must be from 1 to %d, is %u", BL_STAGES_MAX, block->stages);
  }
  status = check_placement(block, err);
  if (status == BL_OK) {
    status = check_times(block, err);
  }
  if (status == BL_OK) {
    status = check_dependencies(block, err);
  }
  for (uint32_t v = 0; v < block->virtual_stages && status == BL_OK; v++) {
    for (uint32_t w = v; w < block->virtual_stages && status == BL_OK; w++) {
      if (block->placement[v] == block->placement[w]) {
        status = check_pair(block, v, w, err);
      }
    }
  }
  return status;
}

bl_status_t bl_block_pattern_repeat(const bl_block_pattern_t *block, uint32_t micro_batches, bl_schedule_t **schedule,
                                    bl_error_t *err) {
  bl_schedule_t *made;
  bl_status_t status =
      bl_schedule_create(block->name, BL_PLACEMENT_OTHER, block->stages, chunks_most(block), micro_batches, &made, err);
  if (status != BL_OK) {
    return status;
  }
  made->virtual_stages = block->virtual_stages;
  for (uint32_t v = 0; v < block->virtual_stages; v++) {
    made->stage_of[v] = (uint16_t)block->placement[v];
  }
  bl__timetable_entry_t *passes = malloc(3 * (size_t)made->chunks * sizeof *passes);
  status = passes != NULL ? BL_OK : BL_EXHAUSTED;
  for (uint32_t s = 0; s < block->stages && status == BL_OK; s++) {
    uint32_t count = 0;
    for (uint32_t v = 0; v < block->virtual_stages; v++) {
      passage_t passages[3];
      int operations = block->placement[v] == s ? passages_of(block, v, passages) : 0;
      for (int k = 0; k < operations; k++) {
        passes[count++] = (bl__timetable_entry_t){passages[k].type, v, passages[k].at, 0};
      }
    }
    status = bl__timetable_fill(made, s, passes, count, block->interval, 1);
  }
  free(passes);
  if (status != BL_OK) {
    bl_schedule_destroy(made);
    return bl_error_set(err, status, "out of memory for block %s", block->name);
  }
  *schedule = made;
  return BL_OK;
}

double bl_block_pattern_bound(const bl_block_pattern_t *block, uint32_t stage) {
  uint64_t blocks = 0;
  for (uint32_t v = 0; v < block->virtual_stages; v++) {
    if (block->placement[v] == stage) {
      passage_t passages[3];
      int count = passages_of(block, v, passages);
      passage_t last = passages[count - 1];
      uint64_t life = (uint64_t)last.at + last.length - passages[0].at;
      blocks += (life + block->interval - 1) / block->interval;
    }
  }
  return (double)blocks / chunks_most(block);
}
