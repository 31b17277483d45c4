// SPDX-License-Identifier: Apache-2.0
// Option tables. One declaration per option serves the YAML file, `--set key=value`, command-line flags, help text,
// generated documentation, validation and the canonical dump.
//
//   typedef struct settings { int64_t layers; char *title; bl_optional_int_t cap; } settings_t;
//   static const bl_option_t rows[] = {
//       {.name = "model.layers", .type = BL_OPTION_INT, .offset = offsetof(settings_t, layers),
//        .preset = "12", .minimum = 1, .maximum = 4096, .help = "Number of transformer layers."},
//       ...
//   };
//   static const bl_option_table_t table = {rows, sizeof rows / sizeof rows[0], "settings"};
//
//   bl_option_mark_t marks[N] = {0};
//   bl_options_preset(&table, &settings);                        // every default
//   bl_options_read(&table, &settings, marks, &source, &err);    // the file
//   bl_options_set(&table, &settings, marks, "model.layers=4", NULL, &err);
//   ...
//   bl_options_cleanup(&table, &settings);
//
// A name is "key" or "section.key". Rows of one section are adjacent. Values live in a plain struct of the caller, in
// the C type that belongs to the row's type. PURE: bytes in, values out; no function opens a file. Errors read
// "job.yaml:12:7: unknown key 'train.microbatch'; did you mean 'train.micro_batch'?". Several errors are joined by
// newlines. Work is linear in the size of the input.
//
// Thread: pure functions; each struct of values belongs to its caller.
#ifndef BALLAST_CONFIG_OPTIONS_H
#define BALLAST_CONFIG_OPTIONS_H

#include "base/error.h"
#include "base/library.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

// Limits of the input. Each bounds the cost of a wrong or hostile file.
#define BL_OPTIONS_FILE_BYTES 1048576 // a job file has a page or two: a larger one is the wrong file
#define BL_OPTIONS_TEXT_BYTES 4096    // PATH_MAX: longer paths cannot be opened
#define BL_OPTIONS_LIST_COUNT 4096    // entries of one list, e.g. data files of a job
#define BL_OPTIONS_DEPTH      16      // depth of nesting that is skipped in order to report further errors
#define BL_OPTIONS_ERRORS     8       // errors reported before reading stops

typedef struct bl_optional_int {
  bool set;
  int64_t value;
} bl_optional_int_t;

typedef struct bl_optional_real {
  bool set;
  double value;
} bl_optional_real_t;

typedef struct bl_optional_bool {
  bool set;
  bool value;
} bl_optional_bool_t;

typedef struct bl_text_list {
  char **items; // owned, as is each item
  size_t count;
} bl_text_list_t;

typedef struct bl_int_list {
  int64_t *items; // owned
  size_t count;
} bl_int_list_t;

typedef struct bl_real_list {
  double *items; // owned
  size_t count;
} bl_real_list_t;

// Files, or the fraction of the data that is held out. Neither: no files and 0.
typedef struct bl_files_or_fraction {
  bl_text_list_t files;
  double fraction; // in (0, 1) if given
} bl_files_or_fraction_t;

typedef enum bl_option_type {
  BL_OPTION_BOOL,              // bool; optional: bl_optional_bool_t
  BL_OPTION_INT,               // int64_t; optional: bl_optional_int_t
  BL_OPTION_REAL,              // double, finite; optional: bl_optional_real_t
  BL_OPTION_BYTES,             // int64_t; written 1048576 or "64 MiB"; optional: bl_optional_int_t
  BL_OPTION_ENUM,              // int, index into `choices`
  BL_OPTION_TEXT,              // char *, owned; NULL when absent
  BL_OPTION_PATH,              // char *, owned; NULL when absent; relative paths are joined to a folder
  BL_OPTION_TEXT_LIST,         // bl_text_list_t; one scalar is a list of one
  BL_OPTION_PATH_LIST,         // bl_text_list_t of paths; one scalar is a list of one
  BL_OPTION_INT_LIST,          // bl_int_list_t
  BL_OPTION_REAL_LIST,         // bl_real_list_t, finite; one scalar is a list of one
  BL_OPTION_FILES_OR_FRACTION, // bl_files_or_fraction_t
} bl_option_type_t;

typedef struct bl_option {
  const char *name; // "section.key" or "key"
  bl_option_type_t type;
  size_t offset;     // of the value in the caller's struct
  bool optional;     // the value has a `set` member; absent has a meaning of its own
  bool required;     // must be given in the file or by --set
  bool hidden;       // not in help and documentation
  char letter;       // command-line flags only: the short form; 0: none
  bool minimum_open; // the minimum itself is not allowed
  bool maximum_open;
  double minimum; // of INT, REAL, BYTES and of entries of INT_LIST and REAL_LIST; both 0: unbounded
  double maximum;
  const char *const *choices; // of ENUM: NULL-terminated; an empty string means "absent" and cannot be written
  const char *preset;         // default, written as in the file; NULL: zero, NULL or not set
  const char *preset_help;    // the default in words, if it is derived from other keys
  const char *unit;           // "steps", "tokens", "bytes"; NULL: none
  const char *argument;       // placeholder for the value in help; NULL: by type
  const char *help;           // one or more sentences
} bl_option_t;

typedef struct bl_option_table {
  const bl_option_t *rows;
  size_t count;
  const char *noun; // name of the input in messages: "job file"
} bl_option_table_t;

// Origin of a value.
typedef enum bl_option_origin { BL_ORIGIN_PRESET, BL_ORIGIN_FILE, BL_ORIGIN_SET } bl_option_origin_t;

typedef struct bl_option_mark {
  bl_option_origin_t origin;
  uint32_t line; // from 1; of the value; BL_ORIGIN_FILE only
  uint32_t column;
} bl_option_mark_t;

typedef struct bl_option_source {
  const char *name;  // of the file, for messages
  const char *bytes; // not necessarily terminated
  size_t size_bytes;
  const char *folder; // relative paths are joined to it; NULL: they stay as they are
} bl_option_source_t;

// Return the row of that name (NULL: none) and the nearest row that is not hidden (NULL: there is none).
const bl_option_t *bl_options_find(const bl_option_table_t *table, const char *name);
const bl_option_t *bl_options_nearest(const bl_option_table_t *table, const char *name);

// Sets every value to its default, without reading or freeing old values (the struct may be uninitialised). Fails only
// if memory runs out (BL_EXHAUSTED) or the table itself is wrong (BL_INTERNAL).
BL_MUST_USE bl_status_t bl_options_preset(const bl_option_table_t *table, void *values, bl_error_t *err);
// Frees what the values own and zeroes them.
void bl_options_cleanup(const bl_option_table_t *table, void *values);

// Reads one YAML document over the present values. `marks` has one entry per row, in the table's order, and records
// origins. A key given twice is an error. After an error some values may have changed. BL_INVALID, BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_options_read(const bl_option_table_t *table, void *values, bl_option_mark_t *marks,
                                        const bl_option_source_t *source, bl_error_t *err);
// Applies one "dotted.key=value". The value is read as YAML ("[1, 2]", "null" for the default). Relative paths are
// joined to `folder`.
BL_MUST_USE bl_status_t bl_options_set(const bl_option_table_t *table, void *values, bl_option_mark_t *marks,
                                       const char *assignment, const char *folder, bl_error_t *err);
// Returns whether keys have sections, as those of jobs do. Such keys can also be given by --set.
bool bl_options_have_sections(const bl_option_table_t *table);
// BL_INVALID: a required option was not given; `err` names it.
BL_MUST_USE bl_status_t bl_options_check_required(const bl_option_table_t *table, const bl_option_mark_t *marks,
                                                  const char *source_name, bl_error_t *err);

// Writes the canonical text of the values: every option that has a value, in the table's order, so that reading it
// gives the same values. *text is malloc'd and terminated; the caller frees it. BL_INVALID: a text is not UTF-8.
// BL_EXHAUSTED: no memory, or more than BL_OPTIONS_FILE_BYTES, which could not be read back.
BL_MUST_USE bl_status_t bl_options_dump(const bl_option_table_t *table, const void *values, char **text,
                                        size_t *text_bytes);

// Returns the value of a row as a message shows it, in one line: `0.1`, `"a", "b"`, `none` if it has no value. malloc'd;
// NULL: no memory, or a text is not UTF-8. Two values are the same if their texts are.
char *bl_option_text(const bl_option_t *row, const void *values);

// Print help for a terminal ("  model.layers N        Number of ... [1..4096]") and Markdown tables, one per section.
void bl_options_print_help(const bl_option_table_t *table, FILE *stream);
void bl_options_print_markdown(const bl_option_table_t *table, FILE *stream);

extern const bl_library_t bl_options_library; // libyaml

#endif
