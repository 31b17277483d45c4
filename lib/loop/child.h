// SPDX-License-Identifier: Apache-2.0
// Child processes: the parent's side. Lifetime and thread rules: loop.h. The child's side: lifeline.h.
//
// Two pipes connect a child to its parent. Both are optional and have fixed descriptor numbers in the child:
//   lifeline  the child reads it; it ends when the parent dies in any way, and then the child should end
//   ready     the child writes one line when it serves, and closes the pipe
//
//   const char *argv[] = {"/usr/bin/stage-service", "--lifeline-fd", BL_CHILD_LIFELINE_FD_TEXT,
//                         "--ready-fd", BL_CHILD_READY_FD_TEXT, NULL};
//   bl_child_options_t options = {.argv = argv, .lifeline = true, .on_ready = ready, .on_exit = gone, .context = self};
//   bl_child_create(loop, &options, &child, err);
//
// The child is executed directly (no shell, no wrapper), so it keeps its own program name. It inherits /dev/null as
// standard input, standard output and error as the options say, the pipes, and no other descriptor.
#ifndef BALLAST_LOOP_CHILD_H
#define BALLAST_LOOP_CHILD_H

#include "loop/loop.h"

#include <sys/types.h>

#define BL_CHILD_LIFELINE_FD      3
#define BL_CHILD_READY_FD         4
#define BL_CHILD_LIFELINE_FD_TEXT "3"
#define BL_CHILD_READY_FD_TEXT    "4"

typedef struct bl_child bl_child_t;

// `line` is what the child wrote, without '\n', valid during the call. NULL: the child closed the pipe before it was
// ready, or wrote more than BL_READY_LINE_BYTES (lifeline.h). Fires at most once, and not after on_exit.
typedef void (*bl_child_ready_fn)(bl_child_t *child, const char *line, void *context);
// Fires exactly once, after the process has ended and was reaped. `term_signal` is 0 if the process exited by itself
// with `exit_code`. The callback may destroy the child.
typedef void (*bl_child_exit_fn)(bl_child_t *child, int exit_code, int term_signal, void *context);

typedef struct bl_child_options {
  const char *const *argv;        // NULL-terminated; argv[0] is the program: a path, or a name that is searched in PATH
  const char *const *environment; // NULL-terminated "NAME=value"; NULL: the parent's
  const char *folder;             // working folder; NULL: the parent's
  const char *stdout_path;        // appended to, created with mode 0600; NULL: the parent's standard output
  const char *stderr_path;        // the same for standard error; may equal stdout_path
  bool lifeline;                  // the child gets the lifeline at BL_CHILD_LIFELINE_FD
  bool own_session;           // setsid: Ctrl-C in the terminal reaches only the parent, which then ends its children
  bl_child_ready_fn on_ready; // NULL: no ready pipe
  bl_child_exit_fn on_exit;   // required
  void *context;
} bl_child_options_t;

// Starts the process. BL_NOT_FOUND (program or folder does not exist), BL_DENIED, BL_EXHAUSTED. `err` names the
// program.
BL_MUST_USE bl_status_t bl_child_create(bl_loop_t *loop, const bl_child_options_t *options, bl_child_t **child,
                                        bl_error_t *err);
// Closes the lifeline, which asks the child to end, and drops the callbacks. The loop no longer reaps a process that
// still runs. If its end matters, kill it and wait for on_exit first. NULL is fine.
void bl_child_destroy(bl_child_t *child);

pid_t bl_child_pid(const bl_child_t *child);
// Sends a signal. BL_NOT_FOUND: the child has already ended. Never reaches another process that got the same pid.
bl_status_t bl_child_kill(bl_child_t *child, int number);
// Closes the parent's end of the lifeline, which asks the child to end as if the parent had died.
void bl_child_close_lifeline(bl_child_t *child);

// Formats how a process ended, for messages: "exit code 3", "signal 9 (Killed)". Returns `text`.
#define BL_CHILD_EXIT_TEXT_BYTES 64
const char *bl_child_exit_text(int exit_code, int term_signal, char text[BL_CHILD_EXIT_TEXT_BYTES]);

#endif
