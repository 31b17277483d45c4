// SPDX-License-Identifier: Apache-2.0
// The command line of a benchmark: rows of common options, and a run from arguments to exit code.
//
//   static const bl_option_t rows[] = {BL_BENCH_INT(settings_t, hidden, "hidden", "768", 64, 65536, "Width."),
//                                      BL_BENCH_PAIRS(settings_t, pairs, "7", 99, "ceiling and stage")};
//   int bl_bench_x(int argc, char **argv) {
//     settings_t settings;
//     return bl_bench_program(&flags, &settings, run, argc, argv);
//   }
#ifndef BALLAST_BENCH_PROGRAM_H
#define BALLAST_BENCH_PROGRAM_H

#include "config/flags.h"

#include <stddef.h>

#define BL_BENCH_ROW(kind, type_, member, name_, text)                                                                 \
  .name = name_, .type = kind, .offset = offsetof(type_, member), .help = text
#define BL_BENCH_INT(type_, member, name_, preset_, least, most, text)                                                 \
  { BL_BENCH_ROW(BL_OPTION_INT, type_, member, name_, text), .preset = preset_, .minimum = least, .maximum = most }
#define BL_BENCH_BYTES(type_, member, name_, preset_, least, most, text)                                               \
  { BL_BENCH_ROW(BL_OPTION_BYTES, type_, member, name_, text), .preset = preset_, .minimum = least, .maximum = most }
#define BL_BENCH_ENUM(type_, member, name_, choices_, preset_, text)                                                   \
  { BL_BENCH_ROW(BL_OPTION_ENUM, type_, member, name_, text), .choices = choices_, .preset = preset_ }
#define BL_BENCH_SWITCH(type_, member, name_, text)                                                                    \
  { BL_BENCH_ROW(BL_OPTION_BOOL, type_, member, name_, text) }
#define BL_BENCH_PAIRS(type_, member, preset_, most, which)                                                            \
  BL_BENCH_INT(type_, member, "pairs", preset_, 1, most, "Pairs of " which " to take medians of.")
#define BL_BENCH_THREADS(type_, member, text)   BL_BENCH_INT(type_, member, "threads", "1", 1, 1024, text)
#define BL_BENCH_PROCESSOR(type_, member, text) BL_BENCH_INT(type_, member, "processor", "0", -1, 1023, text)

// Runs the benchmark with `settings`, the values of the table. The caller prints a failure with the program's name
// before it.
typedef bl_status_t (*bl_bench_run_fn)(const void *settings, bl_error_t *err);

// Parses the arguments, runs the benchmark (or prints the help) and frees the settings. Returns the program's exit
// code.
int bl_bench_program(const bl_flags_t *flags, void *settings, bl_bench_run_fn run, int argc, char **argv);

// Binds this thread to `processor` (-1: any) if it is the only thread that computes. BL_INVALID.
BL_MUST_USE bl_status_t bl_bench_pin(int64_t processor, int64_t threads, bl_error_t *err);

#endif
