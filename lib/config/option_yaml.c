// SPDX-License-Identifier: Apache-2.0
// Reads the values of an option table from YAML: sections, keys, and values of the types that rows declare.
#include "config/nearest.h"
#include "config/option_value.h"
#include "config/yaml_stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct reader {
  bl__yaml_t yaml;
  const bl_option_table_t *table;
  void *values;
  bl_option_mark_t *marks;
  bl_option_origin_t origin;
  // Given already in this file: one flag per row, then one per section at table->count + its first row.
  bool *seen;
} reader_t;

// ---- values ----

// Handles the result of one assignment. False: reading cannot continue.
static bool take_status(reader_t *reader, const bl_option_t *row, bl_status_t status, const bl_error_t *why) {
  if (status == BL_INVALID) {
    bl__yaml_report(&reader->yaml, row->name, why->text);
  } else if (status != BL_OK) {
    reader->yaml.fatal = bl_error_set(reader->yaml.err, status, "%s: %s", row->name, why->text);
  }
  return reader->yaml.fatal == BL_OK;
}

static bool read_scalar(reader_t *reader, const bl_option_t *row) {
  bl__scalar_t scalar = bl__yaml_scalar(&reader->yaml);
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
    status = bl__option_assign(row, reader->values, &scalar, reader->yaml.source->folder, &why);
  }
  return take_status(reader, row, status, &why);
}

static bl_status_t append_entry(reader_t *reader, const bl_option_t *row, bl_error_t *why) {
  if (reader->yaml.event.type != YAML_SCALAR_EVENT) {
    return bl_error_set(why, BL_INVALID, "an entry must be a single value");
  }
  bl__scalar_t scalar = bl__yaml_scalar(&reader->yaml);
  if (bl__scalar_is_null(&scalar) || (scalar.length == 0 && !scalar.quoted)) {
    return bl_error_set(why, BL_INVALID, "an entry has no value");
  }
  return bl__option_append(row, reader->values, &scalar, reader->yaml.source->folder, why);
}

// Adds the entry's number for --set, whose values have no line and column.
static void number_entry(const reader_t *reader, size_t entry, bl_error_t *why) {
  if (reader->origin == BL_ORIGIN_SET) {
    bl_error_prefix(why, "entry %zu", entry);
  }
}

// Reports only the first wrong entry of a list.
static bool read_list(reader_t *reader, const bl_option_t *row) {
  if (!bl__option_is_list(row)) {
    bl__yaml_report(&reader->yaml, row->name, "must be a single value, is a list");
    return bl__yaml_skip_value(&reader->yaml);
  }
  bl__option_clear(row, reader->values);
  bool good = true;
  for (size_t entry = 1; bl__yaml_next(&reader->yaml); entry++) {
    if (reader->yaml.event.type == YAML_SEQUENCE_END_EVENT) {
      return true;
    }
    if (good) {
      bl_error_t why;
      bl_status_t status = append_entry(reader, row, &why);
      good = status == BL_OK;
      if (!good) {
        number_entry(reader, entry, &why);
      }
      if (!take_status(reader, row, status, &why)) {
        return false;
      }
    }
    if (!bl__yaml_skip_value(&reader->yaml)) {
      return false;
    }
  }
  return false;
}

// Reads the value whose first event is the current one.
static bool read_value(reader_t *reader, const bl_option_t *row) {
  bl_option_mark_t *mark = &reader->marks[row - reader->table->rows];
  mark->origin = reader->origin;
  mark->line = (uint32_t)reader->yaml.event.start_mark.line + 1;
  mark->column = (uint32_t)reader->yaml.event.start_mark.column + 1;
  switch (reader->yaml.event.type) {
  case YAML_SCALAR_EVENT:
    return read_scalar(reader, row);
  case YAML_SEQUENCE_START_EVENT:
    return read_list(reader, row);
  default:
    bl__yaml_report(&reader->yaml, row->name,
                    bl__option_is_list(row) ? "must be a list, is a mapping" : "must be a single value, is a mapping");
    return bl__yaml_skip_value(&reader->yaml);
  }
}

// ---- keys ----

// Returns whether the row's name is "section.<leaf>".
static bool in_section(const bl_option_t *row, const char *section, size_t section_bytes) {
  return strncmp(row->name, section, section_bytes) == 0 && row->name[section_bytes] == '.';
}

// Returns the index of the first row of a section, or the table's count.
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

// An unknown key of one section may be right in another one.
static const char *advise_key(const bl_option_table_t *table, const char *name, char advice[BL_NEAREST_ADVICE_BYTES]) {
  const bl_option_t *row = bl_options_nearest(table, name);
  bool moved = bl_nearest_is_near(leaf_of(name), leaf_of(row->name));
  bl_nearest_t nearest = {.name = moved ? row->name : name, .best = row->name};
  return bl_nearest_advise(&nearest, advice);
}

static void report_unknown(reader_t *reader, const char *name) {
  const yaml_mark_t *mark = &reader->yaml.event.start_mark;
  const bl_option_t *row = bl_options_find(reader->table, name);
  if (row != NULL) { // a dotted key, which only --set accepts
    bl__yaml_report_at(&reader->yaml, mark->line, mark->column, "%s: write '%s' under the section '%.*s:'", name,
                       leaf_of(name), (int)(leaf_of(name) - name - 1), name);
    return;
  }
  char quoted[BL__QUOTE_TEXT], advice[BL_NEAREST_ADVICE_BYTES];
  bl__yaml_report_at(&reader->yaml, mark->line, mark->column, "unknown key %s; %s",
                     bl__quote(name, strlen(name), quoted), advise_key(reader->table, name, advice));
}

static void report_unknown_section(reader_t *reader, const char *name) {
  bl_nearest_t nearest = {.name = name};
  char sections[2][BL_NEAREST_NAME_BYTES] = {""}; // the section being offered, and the best so far
  for (size_t i = 0; i < reader->table->count; i++) {
    const char *dot = strchr(reader->table->rows[i].name, '.');
    if (dot == NULL) {
      continue;
    }
    char *offered = sections[nearest.best == sections[0]];
    snprintf(offered, sizeof sections[0], "%.*s", (int)(dot - reader->table->rows[i].name),
             reader->table->rows[i].name);
    bl_nearest_offer(&nearest, offered);
  }
  char quoted[BL__QUOTE_TEXT], advice[BL_NEAREST_ADVICE_BYTES];
  const yaml_mark_t *mark = &reader->yaml.event.start_mark;
  bl__yaml_report_at(&reader->yaml, mark->line, mark->column, "unknown section %s; %s",
                     bl__quote(name, strlen(name), quoted), bl_nearest_advise(&nearest, advice));
}

// Takes a key, which is the current event: copies its text to `name`, prefixed by the section. Returns false if it is
// not a usable key. The reason was reported then.
static bool take_key(reader_t *reader, const char *section, char *name, size_t name_bytes) {
  if (reader->yaml.event.type != YAML_SCALAR_EVENT) {
    bl__yaml_report(&reader->yaml, section, "a key must be a plain scalar");
    return false;
  }
  const char *text = (const char *)reader->yaml.event.data.scalar.value;
  int length = snprintf(name, name_bytes, "%s%s%s", section, section[0] != '\0' ? "." : "", text);
  if ((size_t)length >= name_bytes || strlen(text) != reader->yaml.event.data.scalar.length) {
    char quoted[BL__QUOTE_TEXT];
    const yaml_mark_t *mark = &reader->yaml.event.start_mark;
    bl__yaml_report_at(&reader->yaml, mark->line, mark->column, "unknown key %s%s%s", section,
                       section[0] != '\0' ? "." : "", bl__quote(text, strlen(text), quoted));
    return false;
  }
  return true;
}

#define KEY_BYTES 256

static bool skip_key_and_value(reader_t *reader) {
  return bl__yaml_skip_value(&reader->yaml) && bl__yaml_next(&reader->yaml) && bl__yaml_skip_value(&reader->yaml);
}

static bool take_first_use(reader_t *reader, size_t row, const char *name) {
  if (reader->seen[row]) {
    bl__yaml_report(&reader->yaml, name, "given twice");
    return false;
  }
  reader->seen[row] = true;
  return true;
}

static bool read_section(reader_t *reader, const char *section, size_t first_row);

// Reads one key of a section, known or not, and its value, or a section within it.
static bool read_entry(reader_t *reader, const char *section) {
  char name[KEY_BYTES];
  if (!take_key(reader, section, name, sizeof name)) {
    return skip_key_and_value(reader);
  }
  const bl_option_t *row = bl_options_find(reader->table, name);
  if (row == NULL && find_section(reader->table, name) < reader->table->count) {
    return read_section(reader, name, find_section(reader->table, name));
  }
  if (row == NULL) {
    report_unknown(reader, name);
    return skip_key_and_value(reader);
  }
  if (!take_first_use(reader, (size_t)(row - reader->table->rows), name)) {
    return skip_key_and_value(reader);
  }
  return bl__yaml_next(&reader->yaml) && read_value(reader, row);
}

// Reads the mapping of a section, whose key is the current event.
static bool read_section(reader_t *reader, const char *section, size_t first_row) {
  if (!take_first_use(reader, reader->table->count + first_row, section)) {
    return skip_key_and_value(reader);
  }
  if (!bl__yaml_next(&reader->yaml)) {
    return false;
  }
  if (reader->yaml.event.type == YAML_SCALAR_EVENT) {
    bl__scalar_t scalar = bl__yaml_scalar(&reader->yaml);
    if (scalar.quoted || (scalar.length > 0 && !bl__scalar_is_null(&scalar))) {
      bl__yaml_report(&reader->yaml, section, "is a section of keys, not a single value");
    }
    return reader->yaml.fatal == BL_OK; // "memory:" with all its keys commented out
  }
  if (reader->yaml.event.type != YAML_MAPPING_START_EVENT) {
    bl__yaml_report(&reader->yaml, section, "is a section of keys, not a list");
    return bl__yaml_skip_value(&reader->yaml);
  }
  while (bl__yaml_next(&reader->yaml)) {
    if (reader->yaml.event.type == YAML_MAPPING_END_EVENT) {
      return true;
    }
    if (!read_entry(reader, section)) {
      return false;
    }
  }
  return false;
}

// Reads a key at the left margin that is neither option nor section. The kind of its value shows which was meant.
static bool read_stranger(reader_t *reader, const char *name) {
  yaml_event_t key = reader->yaml.event;
  reader->yaml.has_event = false; // kept until the kind of the value is known
  if (!bl__yaml_next(&reader->yaml)) {
    yaml_event_delete(&key);
    return false;
  }
  yaml_event_t value = reader->yaml.event;
  reader->yaml.event = key; // for its position
  if (value.type == YAML_MAPPING_START_EVENT) {
    report_unknown_section(reader, name);
  } else {
    report_unknown(reader, name);
  }
  yaml_event_delete(&key);
  reader->yaml.event = value;
  return bl__yaml_skip_value(&reader->yaml);
}

static bool read_root(reader_t *reader) {
  if (reader->yaml.event.type != YAML_MAPPING_START_EVENT) {
    bl__yaml_report(&reader->yaml, "",
                    bl_options_have_sections(reader->table) ? "must hold sections such as 'model:' and 'train:'"
                                                            : "must hold lines of 'key: value'");
    return false;
  }
  while (bl__yaml_next(&reader->yaml)) {
    char name[KEY_BYTES];
    if (reader->yaml.event.type == YAML_MAPPING_END_EVENT) {
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

// ---- sources ----

static bl_status_t reader_init(reader_t *reader, const bl_option_source_t *source, bool has_places, bl_error_t *err) {
  reader->seen = calloc(2 * reader->table->count, sizeof reader->seen[0]);
  if (reader->seen == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "%s: no memory", source->name);
  }
  bl_status_t status = bl__yaml_init(&reader->yaml, source, has_places, err);
  if (status != BL_OK) {
    free(reader->seen);
  }
  return status;
}

static bl_status_t reader_cleanup(reader_t *reader) {
  free(reader->seen);
  return bl__yaml_cleanup(&reader->yaml);
}

static bool nothing_reported(const reader_t *reader) {
  return reader->yaml.error_count == 0 && reader->yaml.fatal == BL_OK;
}

bl_status_t bl_options_read(const bl_option_table_t *table, void *values, bl_option_mark_t *marks,
                            const bl_option_source_t *source, bl_error_t *err) {
  if (source->size_bytes > BL_OPTIONS_FILE_BYTES) {
    return bl_error_set(err, BL_INVALID, "%s: has %zu bytes, more than the %d a %s may have; is it the right file?",
                        source->name, source->size_bytes, BL_OPTIONS_FILE_BYTES, table->noun);
  }
  reader_t reader = {.table = table, .values = values, .marks = marks, .origin = BL_ORIGIN_FILE};
  bl_status_t status = reader_init(&reader, source, true, err);
  if (status != BL_OK) {
    return status;
  }
  if (bl__yaml_open_document(&reader.yaml)) {
    if (read_root(&reader)) {
      bl__yaml_close_document(&reader.yaml);
    }
  } else if (nothing_reported(&reader)) {
    bl__yaml_report_at(&reader.yaml, 0, 0, "is empty");
  }
  return reader_cleanup(&reader);
}

bl_status_t bl_options_set(const bl_option_table_t *table, void *values, bl_option_mark_t *marks,
                           const char *assignment, const char *folder, bl_error_t *err) {
  const char *equals = strchr(assignment, '=');
  char name[KEY_BYTES], quoted[BL__QUOTE_TEXT], advice[BL_NEAREST_ADVICE_BYTES];
  if (equals == NULL || equals == assignment || (size_t)(equals - assignment) >= sizeof name) {
    return bl_error_set(err, BL_INVALID, "--set %s: must be KEY=VALUE, such as train.steps=100",
                        bl__quote(assignment, strlen(assignment), quoted));
  }
  memcpy(name, assignment, (size_t)(equals - assignment));
  name[equals - assignment] = '\0';
  const bl_option_t *row = bl_options_find(table, name);
  if (row == NULL) {
    return bl_error_set(err, BL_INVALID, "--set: unknown key %s; %s", bl__quote(name, strlen(name), quoted),
                        advise_key(table, name, advice));
  }
  bl_option_source_t source = {"--set", equals + 1, strlen(equals + 1), folder};
  if (source.size_bytes > BL_OPTIONS_FILE_BYTES) {
    return bl_error_set(err, BL_INVALID, "--set %s: the value is too long", name);
  }
  reader_t reader = {.table = table, .values = values, .marks = marks, .origin = BL_ORIGIN_SET};
  bl_status_t status = reader_init(&reader, &source, false, err);
  if (status != BL_OK) {
    return status;
  }
  if (bl__yaml_open_document(&reader.yaml)) {
    if (read_value(&reader, row)) {
      bl__yaml_close_document(&reader.yaml);
    }
  } else if (nothing_reported(&reader)) {
    bl__yaml_report_at(&reader.yaml, 0, 0, "%s: has no value; write %s=null for the default", name, name);
  }
  return reader_cleanup(&reader);
}
