// SPDX-License-Identifier: Apache-2.0
// The summary of a run, collected while it runs and printed at its end: a line, and a table of its stages.
// Thread: belongs to its caller.
#ifndef BALLAST_BALLASTCTL_SUMMARY_H
#define BALLAST_BALLASTCTL_SUMMARY_H

#include "ballastctl/inspect/events.h"

#include "base/status.h"

#include <stdio.h>

typedef struct bl_ctl_summary bl_ctl_summary_t;

BL_MUST_USE bl_status_t bl_ctl_summary_create(bl_ctl_summary_t **summary);
void bl_ctl_summary_destroy(bl_ctl_summary_t *summary); // NULL is fine

// Copies what it keeps. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_ctl_summary_plan(bl_ctl_summary_t *summary, const bl_ctl_plan_t *plan);
void bl_ctl_summary_step(bl_ctl_summary_t *summary, const bl_ctl_step_t *step);
void bl_ctl_summary_validation(bl_ctl_summary_t *summary, const bl_ctl_validation_t *validation);
void bl_ctl_summary_checkpoint(bl_ctl_summary_t *summary,
                               const bl_ctl_checkpoint_t *checkpoint); // a committed one

uint64_t bl_ctl_summary_steps(const bl_ctl_summary_t *summary);     // seen so far
uint64_t bl_ctl_summary_last_step(const bl_ctl_summary_t *summary); // of the whole run; 0: none was seen

// Prints "1.82 M parameters on 4 stages, 1f1b, 4096 tokens a step; 200000 tokens of training data, 20000 held out".
void bl_ctl_summary_print_plan(const bl_ctl_summary_t *summary, FILE *stream);
// Prints "400 steps, 1638400 tokens in 48.2 s (34.0k tokens/s); loss 2.1532, held-out 2.2011" and, if a checkpoint was
// written, "saved: /runs/a/step-000400 (12.3 MiB)".
void bl_ctl_summary_print_line(const bl_ctl_summary_t *summary, FILE *stream);
// Prints the columns STAGE  LAYERS  PARAMETERS  MEMORY  SLOTS  SLOT  BUSY  STALL  PATH.
void bl_ctl_summary_print_stages(const bl_ctl_summary_t *summary, FILE *stream);

#endif
