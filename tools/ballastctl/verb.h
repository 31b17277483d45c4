// SPDX-License-Identifier: Apache-2.0
// Verbs of ballastctl. A verb is one file that defines one bl_ctl_verb_t; verbs.c lists them. To add one:
//
//   schedule.c:  static int show(int argc, char *const *argv) {
//                  arguments_t arguments = {0};
//                  return bl_ctl_run(&show_flags, &arguments, show_body, argc, argv);
//                }
//                static const bl_ctl_verb_t verbs[] = {{"show", "order of operations of a schedule", show}, ...};
//                static int run(int argc, char *const *argv) {
//                  return bl_ctl_dispatch("ballastctl schedule", verbs, sizeof verbs / sizeof verbs[0], argc, argv);
//                }
//                const bl_ctl_verb_t bl_ctl_schedule_verb = {"schedule", "schedules: show, check, export", run};
//   verbs.h:     extern const bl_ctl_verb_t bl_ctl_schedule_verb;
//   verbs.c:     one line in the table
//
// Data goes to stdout, messages to stderr. A verb holds no logic of its own: it reads its flags, calls a library or a
// service, and prints.
#ifndef BALLAST_BALLASTCTL_VERB_H
#define BALLAST_BALLASTCTL_VERB_H

#include "base/error.h"
#include "config/flags.h"

#include <stddef.h>

typedef struct bl_ctl_verb {
  const char *name;
  const char *summary; // for the list of verbs; NULL: not listed
  // `argv` holds the arguments after the verb. Returns the exit code of the program (DESIGN.md section 7).
  int (*run)(int argc, char *const *argv);
} bl_ctl_verb_t;

// Runs the verb that argv[0] names. --help lists the verbs; for an unknown verb the message names the nearest.
// `program` is what the user typed so far, for messages.
int bl_ctl_dispatch(const char *program, const bl_ctl_verb_t *verbs, size_t verb_count, int argc, char *const *argv);

// Visits the flags of every verb in order; for a group of verbs, those of each of its verbs. The verbs are those of the
// first bl_ctl_dispatch, the program's. Used for completions and manuals.
void bl_ctl_visit(bl_flags_visit_fn visit, void *context);
const bl_ctl_verb_t *bl_ctl_verbs(size_t *count);

// The body of a verb, called once its flags are read. `arguments` is what its table fills, `words` the positional
// arguments.
typedef bl_status_t (*bl_ctl_body_fn)(void *arguments, const bl_flags_result_t *words, bl_error_t *err);
// Runs a verb from its flags to its exit code: reads them into `arguments`, prints their help or calls `body`, and
// frees what `arguments` owns.
int bl_ctl_run(const bl_flags_t *flags, void *arguments, bl_ctl_body_fn body, int argc, char *const *argv);

// Ends a verb. Prints an error as "ballastctl: TEXT" and returns the exit code of `err->status`.
int bl_ctl_finish(bl_status_t status, const bl_error_t *err);

#endif
