// SPDX-License-Identifier: Apache-2.0
#include "draw/schedule_timeline.h"

#include "base/words.h"
#include "draw/step_picture.h"
#include "schedule/ir/slot_walk.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct change {
  bl_step_picture_level_t by;
  size_t turn; // sequence number, which is the order of the lists
} change_t;

typedef struct builder {
  const bl_schedule_t *schedule;
  const bl_simulation_t *simulation;
  bl_step_picture_event_t *events;
  size_t event_count;
  change_t *changes;
  size_t change_count;
  bl_step_picture_level_t *levels; // sums of the changes
  const uint64_t *block_bytes;     // [virtual stages]; NULL: not known
  bl_step_picture_link_t *links;   // [stages] those to hosts, in the order of rows
  size_t link_count;
  bl_step_picture_transfer_t *transfers;
  size_t transfer_count;
  uint8_t *recomputed; // [blocks]
  double *caps;        // [stages]
} builder_t;

// Returns the index of the chunk among those of its stage and direction.
static uint32_t chunk_on_stage(const bl_schedule_t *schedule, uint32_t virtual_stage) {
  uint32_t chunk = 0;
  for (uint32_t s = bl_schedule_pipe(schedule, virtual_stage) * bl_schedule_depth(schedule); s < virtual_stage; s++) {
    chunk += schedule->stage_of[s] == schedule->stage_of[virtual_stage];
  }
  return chunk;
}

static void add_change(builder_t *b, uint32_t stage, double time, double slots, double lent) {
  b->changes[b->change_count] = (change_t){{stage, time, slots, lent}, b->change_count};
  b->change_count++;
}

// A block occupies its store from the start of its E to the end of its L.
static void add_parked(builder_t *b, bl_op_t op, bl_span_t span) {
  if (!bl_op_type_computes((bl_op_type_t)op.type) && op.store < b->schedule->stages) {
    const bool evicts = op.type == BL_OP_E;
    add_change(b, op.store, evicts ? span.start : span.end, 0, evicts ? 1 : -1);
  }
}

// Returns the row of a link, which it adds if no stage before this one has used it.
static uint32_t row_of(builder_t *b, bl_step_picture_link_t link) {
  uint32_t row = 0;
  while (row < b->link_count && (b->links[row].host != link.host || b->links[row].link != link.link)) {
    row++;
  }
  if (row == b->link_count) {
    b->links[b->link_count++] = link;
  }
  return row;
}

static void add_transfer(builder_t *b, uint32_t stage, size_t index, const bl_step_picture_event_t *event) {
  const bl_op_t op = b->schedule->lists[stage].ops[index];
  const bl_step_picture_link_t link = {.host = op.store - b->schedule->stages,
                                       .link = b->simulation->host_links[stage]};
  b->transfers[b->transfer_count++] =
      (bl_step_picture_transfer_t){.row = row_of(b, link),
                                   .of = *event,
                                   .asked = b->simulation->asked[stage][index],
                                   .bytes = b->block_bytes != NULL ? (double)b->block_bytes[op.virtual_stage] : 0};
}

static void add_stage(builder_t *b, uint32_t stage) {
  const bl_op_list_t *list = &b->schedule->lists[stage];
  bl_slot_walk_t walk = {.schedule = b->schedule, .recomputed = b->recomputed};
  double now = 0;
  add_change(b, stage, 0, 0, 0);
  for (size_t i = 0; i < list->count; i++) {
    bl_op_t op = list->ops[i];
    bl_span_t span = b->simulation->spans[stage][i];
    const char type = bl_op_type_letter((bl_op_type_t)op.type);
    const bool at_host = op.store != BL_STORE_NONE && op.store >= b->schedule->stages; // only transfers have a store
    b->events[b->event_count++] = (bl_step_picture_event_t){.stage = stage,
                                                            .type = at_host ? bl_step_picture_host_type(type) : type,
                                                            .chunk = chunk_on_stage(b->schedule, op.virtual_stage),
                                                            .pipe = bl_schedule_pipe(b->schedule, op.virtual_stage),
                                                            .micro_batch = op.micro_batch,
                                                            .slice = op.slice,
                                                            .start = span.start,
                                                            .end = span.end};
    if (at_host) {
      add_transfer(b, stage, i, &b->events[b->event_count - 1]);
    }
    const uint32_t before = walk.held;
    bl_slot_walk_next(&walk, op);
    now = fmax(now, span.start); // slots are counted in the order of the list
    if (walk.during != before) {
      add_change(b, stage, now, (double)walk.during - before, 0);
    }
    now = fmax(now, walk.held != walk.during ? span.end : now);
    if (walk.held != walk.during) {
      add_change(b, stage, now, (double)walk.held - walk.during, 0);
    }
    add_parked(b, op, span);
  }
}

// Sorts changes by stage and time. At equal times, returned lent slots come first, and own slots change in the order of
// the list.
static int compare_changes(const void *one, const void *other) {
  const change_t *a = one, *b = other;
  if (a->by.stage != b->by.stage) {
    return a->by.stage < b->by.stage ? -1 : 1;
  }
  if (a->by.time != b->by.time) {
    return a->by.time < b->by.time ? -1 : 1;
  }
  if (a->by.lent != b->by.lent) {
    return a->by.lent < b->by.lent ? -1 : 1;
  }
  return a->turn < b->turn ? -1 : 1;
}

static void sum_up(builder_t *b) {
  qsort(b->changes, b->change_count, sizeof b->changes[0], compare_changes);
  for (size_t i = 0; i < b->change_count; i++) {
    bl_step_picture_level_t *level = &b->levels[i];
    *level = b->changes[i].by;
    if (i > 0 && level->stage == level[-1].stage) {
      level->slots += level[-1].slots;
      level->lent += level[-1].lent;
    }
  }
}

// Writes "4 stages, ...    end 33, ...    policy cap, cap 3 slots, mode overlap".
static void describe(const bl_schedule_timeline_t *picture, char *text, size_t bytes) {
  const bl_schedule_t *schedule = picture->schedule;
  const bl_simulation_t *simulation = picture->simulation;
  char bound[48] = "", policy[400] = "", cap[32] = "";
  if (simulation->lower_bound > 0) {
    snprintf(bound, sizeof bound, ", lower bound %.6g", simulation->lower_bound);
  }
  if (picture->cap > 0) {
    snprintf(cap, sizeof cap, ", cap %u slot%s", picture->cap, bl_plural(picture->cap));
  }
  if (picture->policy != NULL) {
    snprintf(policy, sizeof policy, "    policy %s%s%s%s", picture->policy, cap, picture->mode != NULL ? ", mode " : "",
             picture->mode != NULL ? picture->mode : "");
  }
  snprintf(text, bytes, "%u stage%s, %u chunk%s, %u micro-batch%s    end %.6g, bubble %.1f %%%s%s", schedule->stages,
           bl_plural(schedule->stages), schedule->chunks, bl_plural(schedule->chunks), schedule->micro_batches,
           bl_one_or_many(schedule->micro_batches, "", "es"), simulation->t_end, 100 * simulation->bubble_total, bound,
           policy);
}

static bl_status_t draw(builder_t *b, const bl_schedule_timeline_t *picture, const char *path, bl_error_t *err) {
  const bl_schedule_t *schedule = picture->schedule;
  char subtitle[640];
  bl_schedule_mark_recomputed(schedule, b->recomputed);
  for (uint32_t s = 0; s < schedule->stages; s++) {
    add_stage(b, s);
    b->caps[s] = picture->cap;
  }
  sum_up(b);
  describe(picture, subtitle, sizeof subtitle);
  const bl_step_picture_t step_picture = {.title = schedule->name,
                                          .subtitle = subtitle,
                                          .unit = picture->unit,
                                          .stages = schedule->stages,
                                          .slices = schedule->slices,
                                          .events = b->events,
                                          .event_count = b->event_count,
                                          .levels = b->levels,
                                          .level_count = b->change_count,
                                          .links = b->links,
                                          .link_count = b->link_count,
                                          .transfers = b->transfers,
                                          .transfer_count = b->transfer_count,
                                          .slots_available = picture->cap > 0 ? b->caps : NULL};
  return bl_step_picture_draw(&step_picture, path, err);
}

bl_status_t bl_schedule_timeline_draw(const bl_schedule_timeline_t *picture, const char *path, bl_error_t *err) {
  const bl_schedule_t *schedule = picture->schedule;
  builder_t b = {.schedule = schedule, .simulation = picture->simulation, .block_bytes = picture->block_bytes};
  size_t count = bl_schedule_op_count(schedule);
  b.events = malloc((count + 1) * sizeof b.events[0]);
  const size_t capacity = 3 * count + schedule->stages + 1;
  b.changes = malloc(capacity * sizeof b.changes[0]);
  b.levels = malloc(capacity * sizeof b.levels[0]);
  b.recomputed = calloc(bl_schedule_block_count(schedule), 1);
  b.caps = calloc(schedule->stages, sizeof b.caps[0]);
  b.links = malloc(schedule->stages * sizeof b.links[0]);
  b.transfers = malloc((count + 1) * sizeof b.transfers[0]);
  bl_status_t status = BL_OK;
  if (b.events == NULL || b.changes == NULL || b.levels == NULL || b.recomputed == NULL || b.caps == NULL ||
      b.links == NULL || b.transfers == NULL) {
    status = bl_error_set(err, BL_EXHAUSTED, "%s: out of memory", path);
  } else {
    status = draw(&b, picture, path, err);
  }
  free(b.transfers);
  free(b.links);
  free(b.caps);
  free(b.recomputed);
  free(b.levels);
  free(b.changes);
  free(b.events);
  return status;
}
