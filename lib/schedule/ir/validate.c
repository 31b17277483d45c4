// SPDX-License-Identifier: Apache-2.0
#include "schedule/ir/validate.h"

#include "base/words.h"
#include "schedule/ir/located.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Which operations of a block have been seen, and whether it is or was evicted.
enum { SEEN_F = 1, SEEN_R = 2, SEEN_BACKWARD = 4, SEEN_END = 8, AWAY = 16, WAS_AWAY = 32 };

typedef struct checker {
  const bl_schedule_t *schedule;
  uint8_t *seen;        // [blocks]
  uint32_t *last_ended; // [virtual stages] 1 + micro-batch of the last W or fused B
  uint16_t *store_of;   // [blocks] the store that has the block while it is evicted
  bl_op_ref_t where;    // position of the current operation
  const bl__places_t *places;
  bl_schedule_facts_t facts;
  bl_error_t *err;
} checker_t;

static bl_op_t op_at(const checker_t *c) {
  return c->schedule->lists[c->where.stage].ops[c->where.index];
}

static bl_status_t refuse(const checker_t *c, const char *why) {
  char cell[BL_OP_TEXT], place[BL__PLACE_TEXT];
  return bl_error_set(c->err, BL_INVALID, "%s: %s: %s", bl__place_text(c->places, c->where, place),
                      bl_op_format(op_at(c), cell), why);
}

static bl_status_t refuse_beyond(const checker_t *c, uint32_t count, const char *noun, const char *plural) {
  char why[120];
  snprintf(why, sizeof why, "there %s only %u %s%s", bl_one_or_many(count, "is", "are"), count, noun,
           bl_one_or_many(count, "", plural));
  return refuse(c, why);
}

static bl_status_t check_names(const checker_t *c, bl_op_t op) {
  const bl_schedule_t *schedule = c->schedule;
  char why[120];
  if (op.type >= BL_OP_TYPES) {
    return refuse(c, "no such operation");
  }
  if (op.virtual_stage >= schedule->virtual_stages) {
    return refuse_beyond(c, schedule->virtual_stages, "virtual stage", "s");
  }
  if (op.micro_batch >= schedule->micro_batches) {
    return refuse_beyond(c, schedule->micro_batches, "micro-batch", "es");
  }
  if (op.slice >= schedule->slices) {
    return refuse_beyond(c, schedule->slices, "slice", "s");
  }
  if (schedule->stage_of[op.virtual_stage] != c->where.stage) {
    snprintf(why, sizeof why, "virtual stage %u is on stage %u, not on stage %u", op.virtual_stage,
             schedule->stage_of[op.virtual_stage], c->where.stage);
    return refuse(c, why);
  }
  if (schedule->forward_only && op.type != BL_OP_F) {
    return refuse(c, "a forward-only schedule has nothing but forwards");
  }
  return BL_OK;
}

// A slice attends to the slices before it: its F comes after theirs, its backward after those of the slices after it.
static bl_status_t check_slices(const checker_t *c, bl_op_t op, size_t block) {
  if (op.type == BL_OP_F && op.slice > 0 && !(c->seen[block - 1] & SEEN_F)) {
    return refuse(c, "before the forward of the slice before it");
  }
  if (bl_op_type_starts_backward((bl_op_type_t)op.type) && op.slice + 1u < c->schedule->slices &&
      !(c->seen[block + 1] & SEEN_BACKWARD)) {
    return refuse(c, "before the backward of the slice after it");
  }
  return BL_OK;
}

static void note_end(checker_t *c, bl_op_t op) {
  uint32_t *last = &c->last_ended[op.virtual_stage];
  const uint32_t number = op.micro_batch * c->schedule->slices + c->schedule->slices - op.slice; // slices descend
  if (number < *last && c->facts.ascending) {
    c->facts.ascending = false;
    c->facts.not_ascending = op;
  }
  *last = number;
}

static bl_status_t check_backward(checker_t *c, bl_op_t op, uint8_t *seen) {
  if (!(*seen & SEEN_F)) {
    return refuse(c, "a backward before its forward");
  }
  if (*seen & SEEN_BACKWARD) {
    return refuse(c, "a second backward of the same micro-batch");
  }
  if (*seen & AWAY) {
    return refuse(c, "the block is evicted and not loaded again");
  }
  *seen |= SEEN_BACKWARD;
  if (op.type == BL_OP_B) {
    *seen |= SEEN_END;
    note_end(c, op);
  } else {
    c->facts.splits_backward = true;
  }
  return BL_OK;
}

static bl_status_t check_weight(checker_t *c, bl_op_t op, uint8_t *seen) {
  if (!(*seen & SEEN_BACKWARD)) {
    return refuse(c, "a backward for the weights before that for the input");
  }
  if (*seen & SEEN_END) {
    return refuse(c, "a second backward for the weights of the same micro-batch");
  }
  *seen |= SEEN_END;
  note_end(c, op);
  return BL_OK;
}

static bl_status_t check_recompute(checker_t *c, uint8_t *seen) {
  if (!(*seen & SEEN_F) || (*seen & (SEEN_R | SEEN_BACKWARD | WAS_AWAY))) {
    return refuse(c, "a recomputation stands once, between its forward and its backward, of a block never evicted");
  }
  *seen |= SEEN_R;
  c->facts.recomputes = true;
  return BL_OK;
}

// A stage may evict to a host store or to another device's store. A load must name the store that has the block.
static bl_status_t check_store(const checker_t *c, bl_op_t op, size_t block) {
  const uint32_t devices = c->schedule->stages, hosts = c->schedule->hosts;
  char why[160];
  if (op.store == BL_STORE_NONE) {
    return BL_OK;
  }
  if (op.store == c->where.stage) {
    return refuse(c, "that is the store of the stage's own device; a block goes to another device's");
  }
  if (op.store >= bl_schedule_stores(c->schedule)) {
    int used = snprintf(why, sizeof why, "there is no store %u: %s", op.store,
                        devices + hosts == 1 ? "a single device has nowhere to evict to"
                                             : "stores are numbered as the devices");
    if (devices + hosts > 1) {
      used += snprintf(why + used, sizeof why - (size_t)used, ", 0 to %u", devices - 1);
    }
    if (hosts > 0) {
      snprintf(why + used, sizeof why - (size_t)used, ", then those of %u host%s, to %u", hosts, bl_plural(hosts),
               devices + hosts - 1);
    }
    return refuse(c, why);
  }
  if (op.type == BL_OP_L && c->store_of[block] != op.store) {
    if (c->store_of[block] == BL_STORE_NONE) {
      return refuse(c, "loads from a store that its evict does not name");
    }
    snprintf(why, sizeof why, "loads from store %u what was evicted to store %u", op.store, c->store_of[block]);
    return refuse(c, why);
  }
  return BL_OK;
}

static bl_status_t check_transfer(checker_t *c, bl_op_t op, size_t block) {
  uint8_t *seen = &c->seen[block];
  c->facts.transfers = true;
  if (op.type == BL_OP_L) {
    if (!(*seen & AWAY)) {
      return refuse(c, "a load of a block that is not evicted");
    }
    *seen &= (uint8_t)~AWAY;
    return check_store(c, op, block);
  }
  if (!(*seen & SEEN_F) || (*seen & (SEEN_R | SEEN_BACKWARD | AWAY))) {
    return refuse(c, "an evict stands between a forward and its backward, of a block that is here");
  }
  *seen |= AWAY | WAS_AWAY;
  c->store_of[block] = op.store;
  return check_store(c, op, block);
}

// Checks one operation against what has been seen of its block.
static bl_status_t check_op(checker_t *c) {
  bl_op_t op = op_at(c);
  bl_status_t status = check_names(c, op);
  if (status != BL_OK) {
    return status;
  }
  size_t block = bl_schedule_block(c->schedule, op);
  uint8_t *seen = &c->seen[block];
  status = check_slices(c, op, block);
  if (status != BL_OK) {
    return status;
  }
  switch (op.type) {
  case BL_OP_F:
    if (*seen & SEEN_F) {
      return refuse(c, "a second forward of the same micro-batch");
    }
    *seen |= SEEN_F;
    return BL_OK;
  case BL_OP_R:
    return check_recompute(c, seen);
  case BL_OP_W:
    return check_weight(c, op, seen);
  case BL_OP_B:
  case BL_OP_I:
    return check_backward(c, op, seen);
  default:
    return check_transfer(c, op, block);
  }
}

// Returns which operation a block lacks, or NULL. Every micro-batch must pass every virtual stage of exactly one pipe.
static const char *missing_of(const checker_t *c, uint8_t seen, bool uses) {
  if (!uses) {
    return seen != 0 ? "forward on the first virtual stage of its pipe" : NULL;
  }
  if (!(seen & SEEN_F)) {
    return "forward";
  }
  if (c->schedule->forward_only || (seen & SEEN_END)) {
    return NULL;
  }
  return seen & SEEN_BACKWARD ? "backward for the weights" : "backward";
}

// The message names the position of the block's backward, else of its F, else its stage.
static bl_status_t refuse_incomplete(const checker_t *c, bl_op_t op, const char *missing) {
  char cell[BL_OP_TEXT], place[BL__PLACE_TEXT];
  bl_op_ref_t at;
  op.type = BL_OP_I;
  if (!bl__op_find(c->schedule, op, &at)) {
    op.type = BL_OP_F;
    (void)bl__op_find(c->schedule, op, &at);
  }
  bl__place_text(c->places, at, place);
  if (at.index == BL__NOWHERE) {
    return bl_error_set(c->err, BL_INVALID, "%s: virtual stage %u, micro-batch %u: its %s (%s) is missing", place,
                        op.virtual_stage, op.micro_batch, missing, bl_op_format(op, cell));
  }
  return bl_error_set(c->err, BL_INVALID, "%s: %s: virtual stage %u, micro-batch %u: its %s is missing", place,
                      bl_op_format(c->schedule->lists[at.stage].ops[at.index], cell), op.virtual_stage, op.micro_batch,
                      missing);
}

static bl_status_t check_pipe(const checker_t *c, uint32_t micro_batch, uint32_t pipe, bool *uses) {
  const bl_schedule_t *schedule = c->schedule;
  uint32_t first = pipe * bl_schedule_depth(schedule);
  bl_op_t op = {.virtual_stage = (uint16_t)first, .micro_batch = micro_batch};
  *uses = schedule->pipes == 1 || (c->seen[bl_schedule_block(schedule, op)] & SEEN_F) != 0;
  for (uint32_t s = first; s < first + bl_schedule_depth(schedule); s++) {
    for (uint32_t slice = 0; slice < schedule->slices; slice++) {
      op.virtual_stage = (uint16_t)s;
      op.slice = (uint8_t)slice;
      const char *missing = missing_of(c, c->seen[bl_schedule_block(schedule, op)], *uses);
      if (missing != NULL) {
        return refuse_incomplete(c, op, missing);
      }
    }
  }
  return BL_OK;
}

static bl_status_t check_complete(const checker_t *c) {
  for (uint32_t i = 0; i < c->schedule->micro_batches; i++) {
    uint32_t taken = 0;
    for (uint32_t pipe = 0; pipe < c->schedule->pipes; pipe++) {
      bool uses;
      bl_status_t status = check_pipe(c, i, pipe, &uses);
      if (status != BL_OK) {
        return status;
      }
      taken += uses;
    }
    if (taken != 1) {
      return bl_error_set(c->err, BL_INVALID, "micro-batch %u goes through %s", i,
                          taken == 0 ? "no pipe" : "both pipes");
    }
  }
  return BL_OK;
}

bl_status_t bl__schedule_validate_at(const bl_schedule_t *schedule, bl_schedule_facts_t *facts,
                                     const bl__places_t *places, bl_error_t *err) {
  checker_t c = {.schedule = schedule, .facts = {.ascending = true}, .places = places, .err = err};
  c.seen = calloc(bl_schedule_block_count(schedule), 1);
  c.last_ended = calloc(schedule->virtual_stages, sizeof c.last_ended[0]);
  c.store_of = calloc(bl_schedule_block_count(schedule), sizeof c.store_of[0]);
  bl_op_ref_t *order = malloc((bl_schedule_op_count(schedule) + 1) * sizeof *order);
  bl_status_t status = BL_OK;
  if (c.seen == NULL || c.last_ended == NULL || c.store_of == NULL || order == NULL) {
    status = bl_error_set(err, BL_EXHAUSTED, "out of memory while checking schedule %s", schedule->name);
  }
  for (uint32_t s = 0; s < schedule->stages && status == BL_OK; s++) {
    for (size_t i = 0; i < schedule->lists[s].count && status == BL_OK; i++) {
      c.where = (bl_op_ref_t){s, (uint32_t)i};
      status = check_op(&c);
    }
  }
  if (status == BL_OK) {
    status = check_complete(&c);
  }
  if (status == BL_OK) {
    status = bl__schedule_topological_order_at(schedule, order, places, err);
  }
  if (status == BL_OK && facts != NULL) {
    *facts = c.facts;
  }
  free(order);
  free(c.store_of);
  free(c.last_ended);
  free(c.seen);
  return status;
}

bl_status_t bl_schedule_validate(const bl_schedule_t *schedule, bl_schedule_facts_t *facts, bl_error_t *err) {
  return bl__schedule_validate_at(schedule, facts, NULL, err);
}
