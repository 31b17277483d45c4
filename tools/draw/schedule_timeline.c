// SPDX-License-Identifier: Apache-2.0
#include "draw/schedule_timeline.h"

#include "draw/timeline.h"

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
  bool overlap = b->schedule->transfers == BL_TRANSFER_OVERLAP;
  double held = 0, leaving = 0;
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
    bool stores = op.verb == BL_VERB_F && !b->recomputed[bl_schedule_block(b->schedule, op)];
    if (stores || op.verb == BL_VERB_R || op.verb == BL_VERB_L) {
      add_level(b, stage, span.start, ++held);
    }
    if (op.verb == BL_VERB_E && overlap) {
      leaving++;
    } else if (bl_verb_ends_block((bl_verb_t)op.verb) || op.verb == BL_VERB_E ||
               (op.verb == BL_VERB_F && b->schedule->forward_only)) {
      add_level(b, stage, span.end, --held);
    }
    if (bl_verb_computes((bl_verb_t)op.verb) && leaving > 0) {
      held -= leaving;
      leaving = 0;
      add_level(b, stage, span.end, held);
    }
  }
}

static void mark_recomputed(builder_t *b) {
  for (uint32_t s = 0; s < b->schedule->stages; s++) {
    for (size_t i = 0; i < b->schedule->lists[s].count; i++) {
      bl_op_t op = b->schedule->lists[s].ops[i];
      if (op.verb == BL_VERB_R) {
        b->recomputed[bl_schedule_block(b->schedule, op)] = 1;
      }
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
    mark_recomputed(&b);
    for (uint32_t s = 0; s < schedule->stages; s++) {
      add_stage(&b, s);
    }
    char subtitle[160], bound[48] = "";
    if (simulation->lower_bound > 0) {
      snprintf(bound, sizeof bound, ", lower bound %.6g", simulation->lower_bound);
    }
    snprintf(subtitle, sizeof subtitle, "%u stages, %u chunk%s, %u micro-batches    end %.6g, bubble %.1f %%%s",
             schedule->stages, schedule->chunks, schedule->chunks == 1 ? "" : "s", schedule->micro_batches,
             simulation->t_end, 100 * simulation->bubble_total, bound);
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
