// SPDX-License-Identifier: Apache-2.0
// Command lines of our programs, with the same option tables as job files.
//
//   typedef struct arguments { char *listen; bool linger; bl_text_list_t sets; } arguments_t;
//   static const bl_option_t rows[] = {
//       {.name = "listen", .type = BL_OPTION_TEXT, .offset = offsetof(arguments_t, listen), .argument = "ADDR",
//        .help = "Where to serve: unix:/path or host:port."}, ...};
//   static const bl_flags_t flags = {.program = "stage-service", .usage = "--listen ADDR [options]",
//       .about = "One pipeline stage.", .table = {rows, N, "command line"}};
//
//   bl_flags_result_t result;
//   status = bl_flags_parse(&flags, argc - 1, argv + 1, &arguments, &result, &err);
//   if (result.help) { bl_flags_print_help(&flags, stdout); return 0; }
//
// Forms: "--name value", "--name=value", and "-n value" if the row has a letter. A BOOL row is a switch ("--name", or
// "--name=false"). A list row may be repeated. "--" ends the flags. "-1" is an argument, not a flag. "--help" and "-h"
// are always known. The error for an unknown flag names the flag that was probably meant, if one is near.
//
// Thread: pure functions (print_* write to the stream they are given).
#ifndef BALLAST_CONFIG_FLAGS_H
#define BALLAST_CONFIG_FLAGS_H

#include "config/options.h"

typedef struct bl_flags {
  const char *program;       // "ballastctl run"
  const char *usage;         // the text after the program's name
  const char *about;         // one paragraph
  bl_option_table_t table;   // names are flags without "--"
  size_t positional_minimum; // arguments that are not flags
  size_t positional_maximum;
} bl_flags_t;

#define BL_FLAGS_POSITIONAL 8
#define BL_FLAGS_ROWS       64

typedef struct bl_flags_result {
  bool help;
  const char *positional[BL_FLAGS_POSITIONAL]; // borrowed from argv
  size_t positional_count;
  bool given[BL_FLAGS_ROWS]; // per row of the table
} bl_flags_result_t;

// Sets defaults, then reads argv[0..argc). With --help it stops there, with `help` set and BL_OK. The values own memory
// also after an error: call bl_options_cleanup(&flags->table, values) in every case. BL_INVALID.
BL_MUST_USE bl_status_t bl_flags_parse(const bl_flags_t *flags, int argc, char *const *argv, void *values,
                                       bl_flags_result_t *result, bl_error_t *err);
// Returns whether the command line gave the flag of that name. False: it has its default.
bool bl_flags_given(const bl_flags_t *flags, const bl_flags_result_t *result, const char *name);
void bl_flags_print_help(const bl_flags_t *flags, FILE *stream);
// Print the flags as a section of a manual page and of a Markdown document.
void bl_flags_print_man(const bl_flags_t *flags, FILE *stream);
void bl_flags_print_markdown(const bl_flags_t *flags, FILE *stream);

// From now on bl_flags_print_help passes the flags to `visit` instead of printing. A caller that requests the help of
// every command thus gets all tables of a program. NULL: print. Main thread.
typedef void (*bl_flags_visit_fn)(const bl_flags_t *flags, void *context);
void bl_flags_divert_help(bl_flags_visit_fn visit, void *context);

#endif
