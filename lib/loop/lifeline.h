// SPDX-License-Identifier: Apache-2.0
// The child's side of child.h: end when the parent is gone, and tell the parent that one is ready. Lifetime and thread
// rules: loop.h.
//
//   if (options.lifeline_fd >= 0) bl_lifeline_create(loop, options.lifeline_fd, parent_gone, self, &lifeline, err);
//   ... listen ...
//   if (options.ready_fd >= 0) bl_ready_send(options.ready_fd, "ready unix:/run/x unix:/run/y", err);
#ifndef BALLAST_LOOP_LIFELINE_H
#define BALLAST_LOOP_LIFELINE_H

#include "loop/loop.h"

typedef struct bl_lifeline bl_lifeline_t;
typedef void (*bl_lifeline_fn)(bl_lifeline_t *lifeline, void *context);

// Watches `fd`, the reading end of a pipe, and takes it over (marks it close-on-exec, closes it in the end). `cut`
// fires once when no process holds the writing end any more. BL_INVALID: not an open descriptor of that kind.
BL_MUST_USE bl_status_t bl_lifeline_create(bl_loop_t *loop, int fd, bl_lifeline_fn cut, void *context,
                                           bl_lifeline_t **lifeline, bl_error_t *err);
void bl_lifeline_destroy(bl_lifeline_t *lifeline); // NULL is fine

// The longest ready line with its end; more than two addresses need, and all that a broken child can make its parent keep.
#define BL_READY_LINE_BYTES 1024

// Writes `line` and '\n' to the ready pipe and closes it. BL_INVALID: too long, or not one line. BL_UNAVAILABLE when the
// parent no longer reads it.
BL_MUST_USE bl_status_t bl_ready_send(int fd, const char *line, bl_error_t *err);

#endif
