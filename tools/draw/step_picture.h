// SPDX-License-Identifier: Apache-2.0
// The picture of one step. A row per stage shows its operations in time (waits hatched), and below them the slots in
// use. A row per link to memory of a host shows which transfer it moves, and below that how many wait for the link. The
// time axis is at the bottom. Written as SVG or PNG by the ending of the file name.
//
//   bl_step_picture_event_t events[] = {{.stage = 0, .type = 'F', .micro_batch = 0, .start = 0, .end = 1}, ...};
//   bl_step_picture_t picture = {.title = "1f1b", .unit = "ms", .stages = 4, .events = events, .event_count = n};
//   status = bl_step_picture_draw(&picture, "step.svg", &err);
//
// Thread: any; everything is borrowed for the call.
#ifndef BALLAST_DRAW_STEP_PICTURE_H
#define BALLAST_DRAW_STEP_PICTURE_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

// Returns the letter for an eviction to, or a load from, a host store.
static inline char bl_step_picture_host_type(char type) {
  return type == 'E' ? 'e' : type == 'L' ? 'l' : type;
}

typedef struct bl_step_picture_event {
  uint32_t stage;
  // F, B, I, W, R: a box with its micro-batch. E, L: a thin box below; e, l: with a host store. Any other: grey.
  char type;
  uint32_t chunk; // index among the chunks of the stage and direction, from 0; later chunks are darker
  uint32_t pipe;  // direction: 0, or 1 from the last stage to the first; 1 is darker, too
  uint32_t micro_batch, slice;
  double start, end; // in `unit`, on one clock for all stages
  // Of a box: how much of it was waits for other ranks. They are short and many; the end of the box shows their sum.
  double waited;
} bl_step_picture_event_t;

// From `time` on, the stage has `slots` slots in use, and `lent` further slots hold blocks of other stages.
typedef struct bl_step_picture_level {
  uint32_t stage;
  double time;
  double slots, lent;
} bl_step_picture_level_t;

// A link of a machine's devices to memory of its host, by the number of the host store.
typedef struct bl_step_picture_link {
  uint32_t host, link;
} bl_step_picture_link_t;

// A transfer to the host (e) or back (l): from start to end it has the link.
typedef struct bl_step_picture_transfer {
  uint32_t row; // of `links`
  bl_step_picture_event_t of;
  double asked; // when it was requested, at its start or before
  double bytes; // 0: not known
} bl_step_picture_transfer_t;

typedef struct bl_step_picture {
  const char *title;
  const char *subtitle;                  // NULL: none
  const char *unit;                      // of all times, for the axis: "ms", "s", "units of cost"
  uint32_t stages;                       // rows
  uint32_t replica_stages;               // stages of each replica, replica by replica; 0: every row is a stage
  uint32_t tensor_ranks;                 // of each stage, with `replica_stages`; 0: one
  uint32_t slices;                       // of a sequence; if above 1, boxes show "3.1" for slice 1 of micro-batch 3
  const bl_step_picture_event_t *events; // sorted by start within each stage; stages in any order
  size_t event_count;
  const bl_step_picture_level_t *levels; // sorted by time within each stage; NULL: no memory curves
  size_t level_count;
  const bl_step_picture_link_t *links; // [link_count] rows below those of stages
  size_t link_count;
  const bl_step_picture_transfer_t *transfers; // one at a time per link, in any order
  size_t transfer_count;
  const double *slots_available; // [stages] own and lent slots, as a dashed line over the memory curve; NULL: no line
  double width;                  // pixels; 0: 1400, or more if boxes then hold their numbers
} bl_step_picture_t;

// If no box has space for its micro-batch, the heading says so. Times are shifted so that the first event starts at 0.
// BL_INVALID: no events, or another ending of the path; BL_IO.
BL_MUST_USE bl_status_t bl_step_picture_draw(const bl_step_picture_t *picture, const char *path, bl_error_t *err);

#endif
