// SPDX-License-Identifier: Apache-2.0
// The child's side of child.h: ends when the parent dies, and reports to the parent that it is ready. Lifetime and
// thread rules: loop.h.
//
//   if (options.lifeline_fd >= 0) bl_lifeline_create(loop, options.lifeline_fd, parent_gone, self, &lifeline, err);
//   ... listen ...
//   if (options.ready_fd >= 0) bl_ready_send(options.ready_fd, "ready unix:/run/x unix:/run/y", err);
#ifndef BALLAST_LOOP_LIFELINE_H
#define BALLAST_LOOP_LIFELINE_H

#include "loop/loop.h"

typedef struct bl_lifeline bl_lifeline_t;
typedef void (*bl_lifeline_fn)(bl_lifeline_t *lifeline, void *context);

// Watches `fd`, the read end of a pipe, and takes ownership: marks it close-on-exec and closes it in the end. `cut`
// fires once when no process holds the write end any more. BL_INVALID: `fd` is not an open pipe or socket.
BL_MUST_USE bl_status_t bl_lifeline_create(bl_loop_t *loop, int fd, bl_lifeline_fn cut, void *context,
                                           bl_lifeline_t **lifeline, bl_error_t *err);
void bl_lifeline_destroy(bl_lifeline_t *lifeline); // NULL is fine

// The maximum length of a ready line with its '\n'. Two addresses need less. It bounds what a broken child can make its
// parent keep.
#define BL_READY_LINE_BYTES 1024

// Writes `line` and '\n' to the ready pipe and closes it. BL_INVALID: too long, or not one line. BL_UNAVAILABLE: the
// parent no longer reads the pipe.
BL_MUST_USE bl_status_t bl_ready_send(int fd, const char *line, bl_error_t *err);

#endif
