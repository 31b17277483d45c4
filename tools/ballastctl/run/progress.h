// SPDX-License-Identifier: Apache-2.0
// The live view of a run. A terminal shows one line of progress and one memory bar per stage, redrawn in place. Any
// other stream gets a plain line from time to time.
//
//   step 120/400  loss 2.3451  18.3k tokens/s  0:42 left
//     stage 0  ████████████████████████  4/4 slots  12.3 MiB
//     stage 1  ██████████████████······  3/3 slots  9.2 MiB
//
// Time is an argument. Thread: belongs to its caller.
#ifndef BALLAST_BALLASTCTL_PROGRESS_H
#define BALLAST_BALLASTCTL_PROGRESS_H

#include "ballastctl/inspect/events.h"

#include "base/status.h"

#include <stdio.h>

typedef enum bl_ctl_progress_style {
  BL_CTL_PROGRESS_PLAIN,   // lines
  BL_CTL_PROGRESS_ASCII,   // a terminal without UTF-8
  BL_CTL_PROGRESS_UNICODE, // a terminal
} bl_ctl_progress_style_t;

typedef struct bl_ctl_progress bl_ctl_progress_t;

// Returns the style for a stream, by whether it is a terminal that can move its cursor ($TERM), and whether the locale
// is UTF-8.
bl_ctl_progress_style_t bl_ctl_progress_style_of(FILE *stream);

BL_MUST_USE bl_status_t bl_ctl_progress_create(FILE *stream, bl_ctl_progress_style_t style,
                                               bl_ctl_progress_t **progress);
void bl_ctl_progress_destroy(bl_ctl_progress_t *progress); // NULL is fine

void bl_ctl_progress_plan(bl_ctl_progress_t *progress, const bl_ctl_plan_t *plan);
void bl_ctl_progress_step(bl_ctl_progress_t *progress, const bl_ctl_step_t *step, uint64_t now_ns);
void bl_ctl_progress_validation(bl_ctl_progress_t *progress, const bl_ctl_validation_t *validation, uint64_t now_ns);
// Leaves what the terminal shows: later output appears below it. Draws the last step first if it is not on the screen
// yet.
void bl_ctl_progress_finish(bl_ctl_progress_t *progress);

#endif
