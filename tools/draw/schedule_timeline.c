// SPDX-License-Identifier: Apache-2.0
#include "draw/schedule_timeline.h"

#include "base/words.h"
#include "draw/timeline.h"
#include "schedule/slot_walk.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct builder {
  const bl_schedule_t *schedule;
  const bl_simulation_t *simulation;
  bl_timeline_event_t *events;
  size_t event_count;
  bl_timeline_level_t *levels;
  size_t level_count;
  uint8_t *recomputed; // [blocks]
} builder_t;

static uint32_t chunk_on_stage(const bl_schedule_t *schedule, uint32_t virtual_stage) {
  uint32_t chunk = 0;
  for (uint32_t s = 0; s < virtual_stage; s++) {
    chunk += schedule->stage_of[s] == schedule->stage_of[virtual_stage];
  }
  return chunk;
}

static void add_level(builder_t *b, uint32_t stage, double time, double slots) {
  b->levels[b->level_count++] = (bl_timeline_level_t){stage, time, slots};
}

static void add_stage(builder_t *b, uint32_t stage) {
  const bl_op_list_t *list = &b->schedule->lists[stage];
  bl_slot_walk_t walk = {.schedule = b->schedule, .recomputed = b->recomputed};
  add_level(b, stage, 0, 0);
  for (size_t i = 0; i < list->count; i++) {
    bl_op_t op = list->ops[i];
    bl_span_t span = b->simulation->spans[stage][i];
    b->events[b->event_count++] = (bl_timeline_event_t){.stage = stage,
                                                        .verb = bl_verb_letter((bl_verb_t)op.verb),
                                                        .chunk = chunk_on_stage(b->schedule, op.virtual_stage),
                                                        .micro_batch = op.micro_batch,
                                                        .start = span.start,
                                                        .end = span.end};
    const uint32_t before = walk.held;
    bl_slot_walk_next(&walk, op);
    if (walk.during != before) {
      add_level(b, stage, span.start, walk.during);
    }
    if (walk.held != walk.during) {
      add_level(b, stage, span.end, walk.held);
    }
  }
}

bl_status_t bl_schedule_timeline_draw(const bl_schedule_t *schedule, const bl_simulation_t *simulation,
                                      const char *unit, const char *path, bl_error_t *err) {
  builder_t b = {.schedule = schedule, .simulation = simulation};
  size_t count = bl_schedule_op_count(schedule);
  b.events = malloc((count + 1) * sizeof b.events[0]);
  b.levels = malloc((2 * count + schedule->stages + 1) * sizeof b.levels[0]);
  b.recomputed = calloc(bl_schedule_block_count(schedule), 1);
  bl_status_t status = BL_OK;
  if (b.events == NULL || b.levels == NULL || b.recomputed == NULL) {
    status = bl_error_set(err, BL_EXHAUSTED, "%s: out of memory", path);
  } else {
    bl_schedule_mark_recomputed(schedule, b.recomputed);
    for (uint32_t s = 0; s < schedule->stages; s++) {
      add_stage(&b, s);
    }
    char subtitle[160], bound[48] = "";
    if (simulation->lower_bound > 0) {
      snprintf(bound, sizeof bound, ", lower bound %.6g", simulation->lower_bound);
    }
    snprintf(subtitle, sizeof subtitle, "%u stage%s, %u chunk%s, %u micro-batch%s    end %.6g, bubble %.1f %%%s",
             schedule->stages, bl_plural(schedule->stages), schedule->chunks, bl_plural(schedule->chunks),
             schedule->micro_batches, bl_one_or_many(schedule->micro_batches, "", "es"), simulation->t_end,
             100 * simulation->bubble_total, bound);
    bl_timeline_t timeline = {.title = schedule->name,
                              .subtitle = subtitle,
                              .unit = unit,
                              .stages = schedule->stages,
                              .events = b.events,
                              .event_count = b.event_count,
                              .levels = b.levels,
                              .level_count = b.level_count};
    status = bl_timeline_draw(&timeline, path, err);
  }
  free(b.recomputed);
  free(b.levels);
  free(b.events);
  return status;
}
