// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/inspect/link_turns.h"

#include "base/minmax.h"

#include <stdlib.h>
#include <string.h>

bl_status_t bl_ctl_link_turns_add(bl_ctl_link_turns_t *turns, const bl_ctl_trace_event_t *event) {
  bl_op_t op;
  if (!event->transfer || event->stage < 0 || !bl_op_parse(event->name, strlen(event->name), &op) ||
      !bl_ctl_op_is_at_host(&event->grid, op)) {
    return BL_OK;
  }
  if (turns->count == turns->capacity) {
    const size_t capacity = turns->capacity == 0 ? 64 : 2 * turns->capacity;
    bl_ctl_link_turn_t *of = realloc(turns->of, capacity * sizeof *of);
    if (of == NULL) {
      return BL_EXHAUSTED;
    }
    turns->of = of;
    turns->capacity = capacity;
  }
  turns->sliced = turns->sliced || strchr(event->name, '.') != NULL;
  turns->of[turns->count++] = (bl_ctl_link_turn_t){.host = event->host,
                                                   .link = event->link,
                                                   .stage = (uint32_t)event->stage,
                                                   .op = op,
                                                   .bytes = event->bytes,
                                                   .asked_ns = event->start_ns,
                                                   .turn_ns = event->turn_ns,
                                                   .end_ns = event->end_ns};
  return BL_OK;
}

static int compare(const void *one, const void *other) {
  const bl_ctl_link_turn_t *a = one, *b = other;
  if (!bl_ctl_link_turns_same_link(a, b)) {
    return a->host != b->host ? (a->host < b->host ? -1 : 1) : (a->link < b->link ? -1 : 1);
  }
  if (a->end_ns != b->end_ns) {
    return a->end_ns < b->end_ns ? -1 : 1;
  }
  return a->asked_ns < b->asked_ns ? -1 : a->asked_ns > b->asked_ns;
}

void bl_ctl_link_turns_sort(bl_ctl_link_turns_t *turns) {
  if (turns->count == 0) {
    return;
  }
  qsort(turns->of, turns->count, sizeof *turns->of, compare);
  for (size_t i = 0; i < turns->count; i++) {
    bl_ctl_link_turn_t *turn = &turns->of[i];
    const bool follows = i > 0 && bl_ctl_link_turns_same_link(turn, turn - 1);
    if (turn->turn_ns == 0) {
      turn->turn_ns = bl_max_u64(turn->asked_ns, follows ? turn[-1].end_ns : 0);
    }
  }
}

void bl_ctl_link_turns_cleanup(bl_ctl_link_turns_t *turns) {
  free(turns->of);
  *turns = (bl_ctl_link_turns_t){0};
}
