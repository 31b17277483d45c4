// SPDX-License-Identifier: Apache-2.0
// Reads job files over libyaml's event interface. Events rather than documents: the first value of a wrong shape is
// reported where it stands and skipped, nothing is ever built in memory, and depth is bounded by a counter.
#include "config/nearest.h"
#include "config/option_value.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

typedef struct reader {
  const bl_option_table_t *table;
  void *values;
  bl_option_mark_t *marks;
  const bl_option_source_t *source;
  bl_option_origin_t origin;
  const char *assigned; // --set: the key, which stands for a position in messages; NULL for a file
  yaml_parser_t parser;
  yaml_event_t event; // the present one
  bool has_event;
  bool *seen; // per row: already given in this file; also for the first row of each section
  bl_error_t *err;
  size_t error_count;
  bl_status_t fatal; // not BL_OK: reading cannot go on
} reader_t;

// ---- errors ----

static void report_at(reader_t *reader, size_t line, size_t column, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

// Adds one line to the error; line and column count from 0, as libyaml does.
static void report_at(reader_t *reader, size_t line, size_t column, const char *format, ...) {
  char message[BL_ERROR_TEXT_BYTES];
  va_list args;
  va_start(args, format);
  vsnprintf(message, sizeof message, format, args);
  va_end(args);
  char place[64] = "";
  if (reader->assigned == NULL) {
    snprintf(place, sizeof place, ":%zu:%zu", line + 1, column + 1);
  }
  const char *name = reader->assigned == NULL ? reader->source->name : "--set";
  const char *join = reader->assigned == NULL ? ":" : "";
  if (reader->error_count == 0) {
    bl_error_set(reader->err, BL_INVALID, "%s%s%s %s", name, place, join, message);
  } else if (reader->err != NULL) {
    bl_error_set(reader->err, BL_INVALID, "%s\n%s%s%s %s", reader->err->text, name, place, join, message);
  }
  reader->error_count++;
  if (reader->error_count >= BL_OPTIONS_ERRORS) {
    reader->fatal = BL_INVALID;
  }
}

// The byte after `line` line ends, or the end.
static const char *find_line(const bl_option_source_t *source, size_t line) {
  const char *at = source->bytes, *end = source->bytes + source->size_bytes;
  for (size_t i = 0; i < line && at < end; i++) {
    const char *newline = memchr(at, '\n', (size_t)(end - at));
    at = newline != NULL ? newline + 1 : end;
  }
  return at;
}

static bool indented_by_tab(const bl_option_source_t *source, size_t line) {
  const char *at = find_line(source, line), *end = source->bytes + source->size_bytes;
  while (at < end && *at == ' ') {
    at++;
  }
  return at < end && *at == '\t';
}

static void report_parser(reader_t *reader) {
  const yaml_parser_t *parser = &reader->parser;
  size_t line = parser->problem_mark.line, column = parser->problem_mark.column;
  const char *problem = parser->problem != NULL ? parser->problem : "unreadable";
  if (parser->error == YAML_MEMORY_ERROR) {
    reader->fatal = bl_error_set(reader->err, BL_EXHAUSTED, "%s: no memory", reader->source->name);
    return;
  }
  if (parser->error == YAML_READER_ERROR) { // has a byte offset only
    line = column = 0;
    for (size_t i = 0; i < parser->problem_offset && i < reader->source->size_bytes; i++) {
      column = reader->source->bytes[i] == '\n' ? 0 : column + 1;
      line += reader->source->bytes[i] == '\n';
    }
    report_at(reader, line, column, "is not a text file in UTF-8: %s", problem);
  } else if (indented_by_tab(reader->source, line)) {
    report_at(reader, line, column, "YAML does not allow tabs for indentation; use spaces");
  } else if (parser->context != NULL) {
    report_at(reader, line, column, "not valid YAML: %s, %s", parser->context, problem);
  } else {
    report_at(reader, line, column, "not valid YAML: %s", problem);
  }
  reader->fatal = BL_INVALID;
}

static void report_event(reader_t *reader, const char *name, const char *message) {
  const yaml_mark_t *mark = &reader->event.start_mark;
  report_at(reader, mark->line, mark->column, "%s%s%s", name, name[0] != '\0' ? ": " : "", message);
}

// ---- events ----

// Moves to the next event; false when reading cannot go on. Anchors and tags are refused wherever they stand.
static bool next(reader_t *reader) {
  if (reader->fatal != BL_OK) {
    return false;
  }
  if (reader->has_event) {
    yaml_event_delete(&reader->event);
    reader->has_event = false;
  }
  if (!yaml_parser_parse(&reader->parser, &reader->event)) {
    report_parser(reader);
    return false;
  }
  reader->has_event = true;
  const yaml_event_t *event = &reader->event;
  bool anchor = event->type == YAML_ALIAS_EVENT ||
                (event->type == YAML_SCALAR_EVENT && event->data.scalar.anchor != NULL) ||
                (event->type == YAML_SEQUENCE_START_EVENT && event->data.sequence_start.anchor != NULL) ||
                (event->type == YAML_MAPPING_START_EVENT && event->data.mapping_start.anchor != NULL);
  bool tag = (event->type == YAML_SCALAR_EVENT && event->data.scalar.tag != NULL) ||
             (event->type == YAML_SEQUENCE_START_EVENT && event->data.sequence_start.tag != NULL) ||
             (event->type == YAML_MAPPING_START_EVENT && event->data.mapping_start.tag != NULL);
  if (anchor || tag) {
    report_event(reader, "",
                 anchor ? "anchors and aliases (& and *) are not supported; write the value out"
                        : "tags (!) are not supported; write the value plainly");
    reader->fatal = BL_INVALID;
    return false;
  }
  return true;
}

static bool skip_collection(reader_t *reader) {
  for (size_t depth = 1; depth > 0;) {
    if (!next(reader)) {
      return false;
    }
    switch (reader->event.type) {
    case YAML_SEQUENCE_START_EVENT:
    case YAML_MAPPING_START_EVENT:
      if (++depth > BL_OPTIONS_DEPTH) {
        report_event(reader, "", "nested too deeply");
        reader->fatal = BL_INVALID;
        return false;
      }
      break;
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT:
      depth--;
      break;
    default:
      break;
    }
  }
  return true;
}

// Skips the value whose first event is the present one, to its last event.
static bool skip_value(reader_t *reader) {
  return reader->event.type == YAML_SCALAR_EVENT || skip_collection(reader);
}

static bl__scalar_t scalar_of(const yaml_event_t *event) {
  return (bl__scalar_t){.text = (const char *)event->data.scalar.value,
                        .length = event->data.scalar.length,
                        .quoted = event->data.scalar.style != YAML_PLAIN_SCALAR_STYLE};
}

// ---- values ----

// Takes the outcome of one assignment; false when reading cannot go on.
static bool take_status(reader_t *reader, const bl_option_t *row, bl_status_t status, const bl_error_t *why) {
  if (status == BL_INVALID) {
    report_event(reader, row->name, why->text);
  } else if (status != BL_OK) {
    reader->fatal = bl_error_set(reader->err, status, "%s: %s", row->name, why->text);
  }
  return reader->fatal == BL_OK;
}

static bool read_scalar(reader_t *reader, const bl_option_t *row) {
  bl__scalar_t scalar = scalar_of(&reader->event);
  bl_error_t why;
  bl_status_t status;
  if (bl__scalar_is_null(&scalar)) {
    status = bl__option_preset(row, reader->values, &why);
    reader->marks[row - reader->table->rows] = (bl_option_mark_t){0};
  } else if (row->type == BL_OPTION_INT_LIST) {
    status = bl_error_set(&why, BL_INVALID, "must be a list such as [2, 1]");
  } else if (scalar.length == 0 && !scalar.quoted) {
    status = bl_error_set(&why, BL_INVALID, "has no value; write null for the default, or leave the key out");
  } else {
    status = bl__option_assign(row, reader->values, &scalar, reader->source->folder, &why);
  }
  return take_status(reader, row, status, &why);
}

static bl_status_t append_entry(reader_t *reader, const bl_option_t *row, bl_error_t *why) {
  if (reader->event.type != YAML_SCALAR_EVENT) {
    return bl_error_set(why, BL_INVALID, "an entry must be a single value");
  }
  bl__scalar_t scalar = scalar_of(&reader->event);
  if (bl__scalar_is_null(&scalar) || (scalar.length == 0 && !scalar.quoted)) {
    return bl_error_set(why, BL_INVALID, "an entry has no value");
  }
  return bl__option_append(row, reader->values, &scalar, reader->source->folder, why);
}

// Of a list the first wrong entry is reported.
static bool read_list(reader_t *reader, const bl_option_t *row) {
  if (!bl__option_is_list(row)) {
    report_event(reader, row->name, "must be a single value, is a list");
    return skip_collection(reader);
  }
  bl__option_clear(row, reader->values);
  bool good = true;
  while (next(reader)) {
    if (reader->event.type == YAML_SEQUENCE_END_EVENT) {
      return true;
    }
    if (good) {
      bl_error_t why;
      bl_status_t status = append_entry(reader, row, &why);
      good = status == BL_OK;
      if (!take_status(reader, row, status, &why)) {
        return false;
      }
    }
    if (!skip_value(reader)) {
      return false;
    }
  }
  return false;
}

// Reads the value whose first event is the present one.
static bool read_value(reader_t *reader, const bl_option_t *row) {
  bl_option_mark_t *mark = &reader->marks[row - reader->table->rows];
  mark->origin = reader->origin;
  mark->line = (uint32_t)reader->event.start_mark.line + 1;
  mark->column = (uint32_t)reader->event.start_mark.column + 1;
  switch (reader->event.type) {
  case YAML_SCALAR_EVENT:
    return read_scalar(reader, row);
  case YAML_SEQUENCE_START_EVENT:
    return read_list(reader, row);
  default:
    report_event(reader, row->name,
                 bl__option_is_list(row) ? "must be a list, is a mapping" : "must be a single value, is a mapping");
    return skip_collection(reader);
  }
}

// ---- keys ----

// Whether row's name is "section.<leaf>".
static bool in_section(const bl_option_t *row, const char *section, size_t section_bytes) {
  return strncmp(row->name, section, section_bytes) == 0 && row->name[section_bytes] == '.';
}

// The index of the first row of a section, or the table's count.
static size_t find_section(const bl_option_table_t *table, const char *section) {
  size_t section_bytes = strlen(section);
  size_t i = 0;
  while (i < table->count && !in_section(&table->rows[i], section, section_bytes)) {
    i++;
  }
  return i;
}

static const char *leaf_of(const char *name) {
  const char *dot = strrchr(name, '.');
  return dot != NULL ? dot + 1 : name;
}

static void report_unknown(reader_t *reader, const char *name) {
  const yaml_mark_t *mark = &reader->event.start_mark;
  const bl_option_t *row = bl_options_find(reader->table, name);
  if (row != NULL) { // a dotted key, good for --set only
    report_at(reader, mark->line, mark->column, "%s: write '%s' under the section '%.*s:'", name, leaf_of(name),
              (int)(leaf_of(name) - name - 1), name);
    return;
  }
  row = bl_options_nearest(reader->table, name);
  bool near = bl_nearest_is_near(name, row->name) || bl_nearest_is_near(leaf_of(name), leaf_of(row->name));
  char quoted[BL__QUOTE_TEXT];
  report_at(reader, mark->line, mark->column, "unknown key %s; %s '%s'%s", bl__quote(name, strlen(name), quoted),
            near ? "did you mean" : "the nearest known one is", row->name, near ? "?" : "");
}

static void report_unknown_section(reader_t *reader, const char *name) {
  bl_nearest_t nearest = {.name = name};
  for (size_t i = 0; i < reader->table->count; i++) {
    const char *dot = strchr(reader->table->rows[i].name, '.');
    char section[BL_NEAREST_NAME_BYTES];
    if (dot == NULL) {
      continue;
    }
    snprintf(section, sizeof section, "%.*s", (int)(dot - reader->table->rows[i].name), reader->table->rows[i].name);
    if (nearest.best == NULL || bl_edit_distance(name, section) < nearest.distance) {
      nearest.best = reader->table->rows[i].name;
      nearest.distance = bl_edit_distance(name, section);
    }
  }
  char quoted[BL__QUOTE_TEXT];
  bl__quote(name, strlen(name), quoted);
  const yaml_mark_t *mark = &reader->event.start_mark;
  int best_bytes = nearest.best != NULL ? (int)(strchr(nearest.best, '.') - nearest.best) : 0;
  report_at(reader, mark->line, mark->column, "unknown section %s; did you mean '%.*s'?", quoted, best_bytes,
            nearest.best != NULL ? nearest.best : "");
}

// A key, whose event is the present one: copies its text to `name`, prefixed by the section. False when it is no
// usable key; the reason was reported.
static bool take_key(reader_t *reader, const char *section, char *name, size_t name_bytes) {
  if (reader->event.type != YAML_SCALAR_EVENT) {
    report_event(reader, section, "a key must be a plain word");
    return false;
  }
  const char *text = (const char *)reader->event.data.scalar.value;
  int length = snprintf(name, name_bytes, "%s%s%s", section, section[0] != '\0' ? "." : "", text);
  if ((size_t)length >= name_bytes || strlen(text) != reader->event.data.scalar.length) {
    char quoted[BL__QUOTE_TEXT];
    const yaml_mark_t *mark = &reader->event.start_mark;
    report_at(reader, mark->line, mark->column, "unknown key %s%s%s", section, section[0] != '\0' ? "." : "",
              bl__quote(text, strlen(text), quoted));
    return false;
  }
  return true;
}

#define KEY_BYTES 256

static bool skip_key_and_value(reader_t *reader) {
  return skip_value(reader) && next(reader) && skip_value(reader);
}

static bool take_first_use(reader_t *reader, size_t row, const char *name) {
  if (reader->seen[row]) {
    report_event(reader, name, "given twice");
    return false;
  }
  reader->seen[row] = true;
  return true;
}

// One known-or-not key of a section, and its value.
static bool read_entry(reader_t *reader, const char *section) {
  char name[KEY_BYTES];
  if (!take_key(reader, section, name, sizeof name)) {
    return skip_key_and_value(reader);
  }
  const bl_option_t *row = bl_options_find(reader->table, name);
  if (row == NULL) {
    report_unknown(reader, name);
    return skip_key_and_value(reader);
  }
  if (!take_first_use(reader, (size_t)(row - reader->table->rows), name)) {
    return skip_key_and_value(reader);
  }
  return next(reader) && read_value(reader, row);
}

// The mapping of a section; its key is the present event.
static bool read_section(reader_t *reader, const char *section, size_t first_row) {
  if (!take_first_use(reader, reader->table->count + first_row, section)) {
    return skip_key_and_value(reader);
  }
  if (!next(reader)) {
    return false;
  }
  if (reader->event.type == YAML_SCALAR_EVENT) {
    bl__scalar_t scalar = scalar_of(&reader->event);
    if (scalar.quoted || (scalar.length > 0 && !bl__scalar_is_null(&scalar))) {
      report_event(reader, section, "is a section of keys, not a single value");
    }
    return reader->fatal == BL_OK; // "memory:" with everything under it commented out
  }
  if (reader->event.type != YAML_MAPPING_START_EVENT) {
    report_event(reader, section, "is a section of keys, not a list");
    return skip_collection(reader);
  }
  while (next(reader)) {
    if (reader->event.type == YAML_MAPPING_END_EVENT) {
      return true;
    }
    if (!read_entry(reader, section)) {
      return false;
    }
  }
  return false;
}

// A key at the left margin that is neither option nor section: the kind of its value says which was meant.
static bool read_stranger(reader_t *reader, const char *name) {
  yaml_event_t key = reader->event;
  reader->has_event = false; // kept until its kind is known
  if (!next(reader)) {
    yaml_event_delete(&key);
    return false;
  }
  yaml_event_t value = reader->event;
  reader->event = key; // for its position
  if (value.type == YAML_MAPPING_START_EVENT) {
    report_unknown_section(reader, name);
  } else {
    report_unknown(reader, name);
  }
  yaml_event_delete(&key);
  reader->event = value;
  return skip_value(reader);
}

static bool read_root(reader_t *reader) {
  if (reader->event.type != YAML_MAPPING_START_EVENT) {
    report_event(reader, "", "must hold sections such as 'model:' and 'train:'");
    return false;
  }
  while (next(reader)) {
    char name[KEY_BYTES];
    if (reader->event.type == YAML_MAPPING_END_EVENT) {
      return true;
    }
    bool going;
    if (!take_key(reader, "", name, sizeof name)) {
      going = skip_key_and_value(reader);
    } else if (find_section(reader->table, name) < reader->table->count) {
      going = read_section(reader, name, find_section(reader->table, name));
    } else if (bl_options_find(reader->table, name) != NULL && strchr(name, '.') == NULL) {
      going = read_entry(reader, "");
    } else {
      going = read_stranger(reader, name);
    }
    if (!going) {
      return false;
    }
  }
  return false;
}

// ---- documents ----

// Opens the stream up to the first event of the document; false when there is none.
static bool open_document(reader_t *reader) {
  if (!next(reader) || !next(reader)) {
    return false;
  }
  if (reader->event.type == YAML_STREAM_END_EVENT) {
    return false;
  }
  return next(reader);
}

static void close_document(reader_t *reader) {
  if (!next(reader) || !next(reader)) {
    return;
  }
  if (reader->event.type != YAML_STREAM_END_EVENT) {
    report_event(reader, "", "a second document begins here; a job is one document");
  }
}

static bl_status_t reader_init(reader_t *reader) {
  reader->seen = calloc(2 * reader->table->count, sizeof reader->seen[0]);
  if (reader->seen == NULL || !yaml_parser_initialize(&reader->parser)) {
    free(reader->seen);
    return bl_error_set(reader->err, BL_EXHAUSTED, "%s: no memory", reader->source->name);
  }
  yaml_parser_set_encoding(&reader->parser, YAML_UTF8_ENCODING);
  yaml_parser_set_input_string(&reader->parser, (const unsigned char *)reader->source->bytes,
                               reader->source->size_bytes);
  return BL_OK;
}

static bl_status_t reader_finish(reader_t *reader) {
  if (reader->has_event) {
    yaml_event_delete(&reader->event);
  }
  yaml_parser_delete(&reader->parser);
  free(reader->seen);
  if (reader->fatal != BL_OK) {
    return reader->fatal;
  }
  return reader->error_count > 0 ? BL_INVALID : BL_OK;
}

bl_status_t bl_options_read(const bl_option_table_t *table, void *values, bl_option_mark_t *marks,
                            const bl_option_source_t *source, bl_error_t *err) {
  if (source->size_bytes > BL_OPTIONS_FILE_BYTES) {
    return bl_error_set(err, BL_INVALID, "%s: has %zu bytes, more than the %d a %s may have; is it the right file?",
                        source->name, source->size_bytes, BL_OPTIONS_FILE_BYTES, table->noun);
  }
  reader_t reader = {
      .table = table, .values = values, .marks = marks, .source = source, .origin = BL_ORIGIN_FILE, .err = err};
  bl_status_t status = reader_init(&reader);
  if (status != BL_OK) {
    return status;
  }
  if (open_document(&reader)) {
    if (read_root(&reader)) {
      close_document(&reader);
    }
  } else if (reader.error_count == 0 && reader.fatal == BL_OK) {
    report_at(&reader, 0, 0, "is empty");
  }
  return reader_finish(&reader);
}

bl_status_t bl_options_set(const bl_option_table_t *table, void *values, bl_option_mark_t *marks,
                           const char *assignment, const char *folder, bl_error_t *err) {
  const char *equals = strchr(assignment, '=');
  char name[KEY_BYTES], quoted[BL__QUOTE_TEXT];
  if (equals == NULL || equals == assignment || (size_t)(equals - assignment) >= sizeof name) {
    return bl_error_set(err, BL_INVALID, "--set %s: must be KEY=VALUE, such as train.steps=100",
                        bl__quote(assignment, strlen(assignment), quoted));
  }
  memcpy(name, assignment, (size_t)(equals - assignment));
  name[equals - assignment] = '\0';
  const bl_option_t *row = bl_options_find(table, name);
  if (row == NULL) {
    return bl_error_set(err, BL_INVALID, "--set: unknown key %s; did you mean '%s'?",
                        bl__quote(name, strlen(name), quoted), bl_options_nearest(table, name)->name);
  }
  bl_option_source_t source = {"--set", equals + 1, strlen(equals + 1), folder};
  if (source.size_bytes > BL_OPTIONS_FILE_BYTES) {
    return bl_error_set(err, BL_INVALID, "--set %s: the value is too long", name);
  }
  reader_t reader = {.table = table,
                     .values = values,
                     .marks = marks,
                     .source = &source,
                     .origin = BL_ORIGIN_SET,
                     .assigned = name,
                     .err = err};
  bl_status_t status = reader_init(&reader);
  if (status != BL_OK) {
    return status;
  }
  if (open_document(&reader)) {
    if (read_value(&reader, row)) {
      close_document(&reader);
    }
  } else if (reader.error_count == 0 && reader.fatal == BL_OK) {
    report_at(&reader, 0, 0, "%s: has no value; write %s=null for the default", name, name);
  }
  return reader_finish(&reader);
}
