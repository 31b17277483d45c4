// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/inspect/step_timeline.h"

#include "ballastctl/inspect/link_turns.h"
#include "ballastctl/inspect/slot_levels.h"

#include "draw/step_picture.h"
#include "schedule/ir/op.h"

#include <stdlib.h>
#include <string.h>

struct bl_ctl_step_timeline {
  size_t stage_count;              // that have reported an operation
  bl_grid_t grid;                  // of the events
  bl_step_picture_event_t *events; // .chunk is the virtual stage until the picture is drawn
  bl_step_picture_level_t *levels;
  size_t count, level_count, capacity; // capacity: of both
  uint32_t slices;                     // of a sequence, as far as events show
  bl_ctl_slot_levels_t slots;
  bl_ctl_link_turns_t turns; // at hosts
  size_t first_turn;         // their events, once the picture is drawn
  bool out_of_memory, divided;
};

bl_status_t bl_ctl_step_timeline_create(bl_ctl_step_timeline_t **result) {
  bl_ctl_step_timeline_t *timeline = calloc(1, sizeof *timeline);
  if (timeline == NULL) {
    return BL_EXHAUSTED;
  }
  *result = timeline;
  return BL_OK;
}

void bl_ctl_step_timeline_destroy(bl_ctl_step_timeline_t *timeline) {
  if (timeline != NULL) {
    free(timeline->events);
    free(timeline->levels);
    bl_ctl_slot_levels_cleanup(&timeline->slots);
    bl_ctl_link_turns_cleanup(&timeline->turns);
    free(timeline);
  }
}

static bool reserve(bl_ctl_step_timeline_t *timeline) {
  if (timeline->count < timeline->capacity) {
    return true;
  }
  size_t capacity = timeline->capacity == 0 ? 256 : 2 * timeline->capacity;
  bl_step_picture_event_t *events = realloc(timeline->events, capacity * sizeof *events);
  if (events == NULL) {
    return false;
  }
  timeline->events = events;
  bl_step_picture_level_t *levels = realloc(timeline->levels, capacity * sizeof *levels);
  if (levels == NULL) {
    return false;
  }
  timeline->levels = levels;
  timeline->capacity = capacity;
  return true;
}

// The caller has reserved space.
static void add_event(bl_ctl_step_timeline_t *timeline, uint32_t stage, bl_op_t op, uint64_t start_ns,
                      uint64_t end_ns) {
  const char type = bl_op_type_letter((bl_op_type_t)op.type);
  timeline->events[timeline->count++] = (bl_step_picture_event_t){
      .stage = stage,
      .type = bl_ctl_op_is_at_host(&timeline->grid, op) ? bl_step_picture_host_type(type) : type,
      .chunk = op.virtual_stage,
      .micro_batch = op.micro_batch,
      .slice = op.slice,
      .start = (double)start_ns * 1e-6,
      .end = (double)end_ns * 1e-6};
}

void bl_ctl_step_timeline_add(bl_ctl_step_timeline_t *timeline, const bl_ctl_trace_event_t *event) {
  bl_op_t op;
  if (event->wait || event->stage < 0 || !bl_op_parse(event->name, strlen(event->name), &op)) {
    return;
  }
  uint64_t since_ns = 0;
  if (!reserve(timeline) || bl_ctl_link_turns_add(&timeline->turns, event) != BL_OK ||
      (!event->transfer && bl_ctl_slot_levels_next(&timeline->slots, event, &since_ns) != BL_OK)) {
    timeline->out_of_memory = true;
    return;
  }
  size_t stages = (size_t)event->stage + 1;
  timeline->grid = event->grid;
  timeline->stage_count = stages > timeline->stage_count ? stages : timeline->stage_count;
  timeline->slices = op.slice + 1u > timeline->slices ? op.slice + 1u : timeline->slices;
  if (!event->transfer || !bl_ctl_op_is_at_host(&event->grid, op)) { // the others follow with their turns
    add_event(timeline, (uint32_t)event->stage, op, event->start_ns, event->end_ns);
    timeline->events[timeline->count - 1].waited = (double)event->waited_ns * 1e-6;
  }
  if (!event->transfer) {
    timeline->levels[timeline->level_count++] = (bl_step_picture_level_t){
        .stage = (uint32_t)event->stage, .time = (double)since_ns * 1e-6, .slots = event->slots_in_use};
  }
}

double bl_ctl_step_timeline_ms(const bl_ctl_step_timeline_t *timeline) {
  double first = 0, last = 0;
  for (size_t i = 0; i < timeline->count; i++) {
    first = i == 0 || timeline->events[i].start < first ? timeline->events[i].start : first;
    last = timeline->events[i].end > last ? timeline->events[i].end : last;
  }
  return last - first;
}

bool bl_ctl_step_timeline_is_picture(const char *path) {
  const char *dot = strrchr(path, '.');
  return dot != NULL && dot != path && (strcmp(dot, ".svg") == 0 || strcmp(dot, ".png") == 0);
}

// Detects two pipes: there are two chunks, and every micro-batch passes only one of them. Then sets the pipe of events
// in place of their chunk.
static bl_status_t tell_pipes(bl_ctl_step_timeline_t *timeline) {
  uint32_t most = 0;
  bool two = false;
  for (size_t i = 0; i < timeline->count; i++) {
    most = timeline->events[i].micro_batch > most ? timeline->events[i].micro_batch : most;
  }
  uint32_t *chunk_of = calloc((size_t)most + 1, sizeof *chunk_of); // one more; 0: not seen
  if (chunk_of == NULL) {
    return BL_EXHAUSTED;
  }
  for (size_t i = 0; i < timeline->count; i++) {
    const bl_step_picture_event_t *event = &timeline->events[i];
    uint32_t *seen = &chunk_of[event->micro_batch];
    if (event->chunk > 1 || (*seen != 0 && *seen != event->chunk + 1)) {
      two = false;
      break;
    }
    *seen = event->chunk + 1;
    two = two || event->chunk == 1;
  }
  for (size_t i = 0; i < timeline->count && two; i++) {
    timeline->events[i].pipe = timeline->events[i].chunk;
    timeline->events[i].chunk = 0;
  }
  free(chunk_of);
  return BL_OK;
}

// Adds what each link moves as events of its stage.
static bl_status_t add_turns(bl_ctl_step_timeline_t *timeline) {
  bl_ctl_link_turns_sort(&timeline->turns);
  timeline->first_turn = timeline->count;
  for (size_t i = 0; i < timeline->turns.count; i++) {
    const bl_ctl_link_turn_t *turn = &timeline->turns.of[i];
    if (!reserve(timeline)) {
      return BL_EXHAUSTED;
    }
    add_event(timeline, turn->stage, turn->op, turn->turn_ns, turn->end_ns);
  }
  return BL_OK;
}

// Adds the events of the links to the picture. Both arrays have space for all turns.
static void add_links(const bl_ctl_step_timeline_t *timeline, bl_step_picture_link_t *links,
                      bl_step_picture_transfer_t *transfers, bl_step_picture_t *picture) {
  for (size_t i = 0; i < timeline->turns.count; i++) {
    const bl_ctl_link_turn_t *turn = &timeline->turns.of[i];
    if (i == 0 || !bl_ctl_link_turns_same_link(turn, turn - 1)) {
      links[picture->link_count++] = (bl_step_picture_link_t){.host = turn->host, .link = turn->link};
    }
    transfers[i] = (bl_step_picture_transfer_t){.row = (uint32_t)picture->link_count - 1,
                                                .of = timeline->events[timeline->first_turn + i],
                                                .asked = (double)turn->asked_ns * 1e-6,
                                                .bytes = (double)turn->bytes};
  }
  picture->links = links;
  picture->transfers = transfers;
  picture->transfer_count = timeline->turns.count;
}

bl_status_t bl_ctl_step_timeline_draw(bl_ctl_step_timeline_t *timeline, const char *title, const char *subtitle,
                                      const char *path, bl_error_t *err) {
  if (timeline->out_of_memory) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for the timeline");
  }
  if (!timeline->divided && add_turns(timeline) != BL_OK) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for the timeline");
  }
  const bool known = timeline->grid.stages > 0;
  const uint32_t stages = known ? timeline->grid.stages : (uint32_t)timeline->stage_count;
  for (size_t i = 0; i < timeline->count && !timeline->divided; i++) {
    timeline->events[i].chunk /= stages;
  }
  if (!timeline->divided && tell_pipes(timeline) != BL_OK) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for the timeline");
  }
  timeline->divided = true;
  bl_step_picture_t picture = {.title = title,
                               .subtitle = subtitle,
                               .unit = "ms",
                               .stages = (uint32_t)timeline->stage_count,
                               .slices = timeline->slices,
                               .replica_stages = stages,
                               .tensor_ranks = known ? timeline->grid.tensor : 1,
                               .events = timeline->events,
                               .event_count = timeline->count,
                               .levels = timeline->levels,
                               .level_count = timeline->level_count};
  bl_step_picture_link_t *links = malloc((timeline->turns.count + 1) * sizeof *links);
  bl_step_picture_transfer_t *transfers = malloc((timeline->turns.count + 1) * sizeof *transfers);
  bl_status_t status;
  if (links == NULL || transfers == NULL) {
    status = bl_error_set(err, BL_EXHAUSTED, "no memory for the timeline");
  } else {
    add_links(timeline, links, transfers, &picture);
    status = bl_step_picture_draw(&picture, path, err);
  }
  free(transfers);
  free(links);
  return status;
}
