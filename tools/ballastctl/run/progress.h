// SPDX-License-Identifier: Apache-2.0
// What a person sees while a run goes on. On a terminal: one line of progress and one memory bar per stage, drawn over
// themselves. Elsewhere: a plain line now and then.
//
//   step 120/400  loss 2.3451  18.3k tokens/s  0:42 left
//     stage 0  ████████████████████████  4/4 slots  12.3 MiB
//     stage 1  ██████████████████······  3/3 slots  9.2 MiB
//
// Time comes in as an argument. Thread: belongs to its caller.
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

// The style that suits a stream: is it a terminal that can move its cursor ($TERM), and does the locale say UTF-8.
bl_ctl_progress_style_t bl_ctl_progress_style_of(FILE *stream);

BL_MUST_USE bl_status_t bl_ctl_progress_create(FILE *stream, bl_ctl_progress_style_t style,
                                               bl_ctl_progress_t **progress);
void bl_ctl_progress_destroy(bl_ctl_progress_t *progress); // NULL is fine

void bl_ctl_progress_plan(bl_ctl_progress_t *progress, const bl_ctl_plan_t *plan);
void bl_ctl_progress_step(bl_ctl_progress_t *progress, const bl_ctl_step_t *step, uint64_t now_ns);
void bl_ctl_progress_validation(bl_ctl_progress_t *progress, const bl_ctl_validation_t *validation, uint64_t now_ns);
// Leaves what stands on the terminal as it is: what is printed next goes below it. Shows the last step if it has not
// been drawn yet.
void bl_ctl_progress_finish(bl_ctl_progress_t *progress);

#endif
