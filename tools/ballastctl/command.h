// SPDX-License-Identifier: Apache-2.0
// Commands of ballastctl. A command is one file that defines one bl_ctl_command_t; main.c lists them. To add one:
//
//   schedule.c:  static int show(int argc, char *const *argv) {
//                  arguments_t arguments = {0};
//                  return bl_ctl_run(&show_flags, &arguments, show_body, argc, argv);
//                }
//                static const bl_ctl_command_t commands[] = {{"show", "order of operations of a schedule", show}, ...};
//                static int run(int argc, char *const *argv) {
//                  return bl_ctl_dispatch("ballastctl schedule", commands,
//                                         sizeof commands / sizeof commands[0], argc, argv);
//                }
//                const bl_ctl_command_t bl_ctl_schedule_command = {"schedule", "schedules: show, check, export", run};
//   commands.h:  extern const bl_ctl_command_t bl_ctl_schedule_command;
//   main.c:      one line in the table
//
// Data goes to stdout, messages to stderr. A command holds no logic of its own: it reads its flags, calls a library or
// a service, and prints.
#ifndef BALLAST_BALLASTCTL_COMMAND_H
#define BALLAST_BALLASTCTL_COMMAND_H

#include "base/error.h"
#include "config/flags.h"

#include <stddef.h>

typedef struct bl_ctl_command {
  const char *name;
  const char *summary; // for the list of commands; NULL: not listed
  // `argv` holds the arguments after the command. Returns the exit code of the program (DESIGN.md section 7).
  int (*run)(int argc, char *const *argv);
} bl_ctl_command_t;

// Runs the command that argv[0] names. --help lists the commands; for an unknown command the message names the nearest.
// `program` is what the user typed so far, for messages.
int bl_ctl_dispatch(const char *program, const bl_ctl_command_t *commands, size_t command_count, int argc,
                    char *const *argv);

// Visits the flags of every command in order; for a group of commands, those of each of its commands. The commands are
// those of the first bl_ctl_dispatch, the program's. Used for completions and manuals.
void bl_ctl_visit(bl_flags_visit_fn visit, void *context);
const bl_ctl_command_t *bl_ctl_commands(size_t *count);

// The body of a command, called once its flags are read. `arguments` is what its table fills, `words` the positional
// arguments.
typedef bl_status_t (*bl_ctl_body_fn)(void *arguments, const bl_flags_result_t *words, bl_error_t *err);
// Runs a command from its flags to its exit code: reads them into `arguments`, prints their help or calls `body`, and
// frees what `arguments` owns.
int bl_ctl_run(const bl_flags_t *flags, void *arguments, bl_ctl_body_fn body, int argc, char *const *argv);

// Ends a command. Prints an error as "ballastctl: TEXT" and returns the exit code of `err->status`.
int bl_ctl_finish(bl_status_t status, const bl_error_t *err);

#endif
