// SPDX-License-Identifier: Apache-2.0
// What commands print: rows of JSON objects, shown as the user asked with -o.
//
//   static const bl_ctl_column_t columns[] = {{"stage", "STAGE", .right = true}, {"address", "ADDRESS", .wide = true}};
//   bl_ctl_print_rows(arguments.output, columns, 2, rows, stdout);
//
// table   the columns that are not `wide`          wide   all columns
// json    one array (print_object: one object)     ndjson one line per row
// yaml    a list of mappings                       name   the first column alone, one per line
#ifndef BALLAST_BALLASTCTL_OUTPUT_H
#define BALLAST_BALLASTCTL_OUTPUT_H

#include "config/options.h"

#include <jansson.h>
#include <stdio.h>

typedef enum bl_ctl_output {
  BL_CTL_TABLE,
  BL_CTL_WIDE,
  BL_CTL_JSON,
  BL_CTL_NDJSON,
  BL_CTL_YAML,
  BL_CTL_NAME
} bl_ctl_output_t;

// The row of a flag table for "-o"; `member` is a bl_ctl_output_t.
#define BL_CTL_OUTPUT_FLAG(type_, member)                                                                              \
  {                                                                                                                    \
    .name = "output", .letter = 'o', .type = BL_OPTION_ENUM, .offset = offsetof(type_, member),                        \
    .choices = bl_ctl_output_names, .preset = "table", .help = "How results are printed."                              \
  }
extern const char *const bl_ctl_output_names[];

typedef struct bl_ctl_column {
  const char *key;   // of the row's object
  const char *title; // of the table
  bool right;        // numbers
  bool wide;         // shown by -o wide only
  bool bytes;        // tables show the number as "1.5 GiB"
} bl_ctl_column_t;

// Prints `rows`, an array of objects; borrowed. BL_IO: the stream failed. BL_INTERNAL: `rows` or `object` is NULL,
// because one of its values is not a finite number or memory ran out; nothing is printed.
BL_MUST_USE bl_status_t bl_ctl_print_rows(bl_ctl_output_t output, const bl_ctl_column_t *columns, size_t column_count,
                                          const json_t *rows, FILE *stream);
// Prints one object: alone as json and yaml, as a table of one row in the other formats.
BL_MUST_USE bl_status_t bl_ctl_print_object(bl_ctl_output_t output, const bl_ctl_column_t *columns, size_t column_count,
                                            const json_t *object, FILE *stream);
// Converts the status of printing into the status of the command: on an error, `err` gets a message with the cause. A
// reader that closed the pipe, as in `... | head -1`, is not an error: BL_OK. Call it right after printing, because it
// reads errno.
BL_MUST_USE bl_status_t bl_ctl_printed(bl_status_t status, bl_error_t *err);

#endif
