// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/output.h"

#include "base/bytes.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

const char *const bl_ctl_output_names[] = {"table", "wide", "json", "ndjson", "yaml", "name", NULL};

#define CELL_BYTES 256

// Returns the value of a row as a table cell: texts without quotes, absent and empty ones as "-".
static const char *cell_text(const json_t *row, const bl_ctl_column_t *column, char text[CELL_BYTES]) {
  const json_t *value = json_object_get(row, column->key);
  if (value == NULL || json_is_null(value)) {
    return "-";
  }
  if (json_is_string(value)) {
    return json_string_length(value) > 0 ? json_string_value(value) : "-";
  }
  if (json_is_boolean(value)) {
    return json_is_true(value) ? "yes" : "no";
  }
  if (json_is_integer(value) && column->bytes && json_integer_value(value) >= 0) {
    return bl_bytes_format((uint64_t)json_integer_value(value), text);
  }
  if (json_is_integer(value)) {
    snprintf(text, CELL_BYTES, "%lld", (long long)json_integer_value(value));
  } else if (json_is_real(value)) {
    snprintf(text, CELL_BYTES, "%.6g", json_real_value(value));
  } else {
    char *dumped = json_dumps(value, JSON_COMPACT);
    snprintf(text, CELL_BYTES, "%s", dumped != NULL ? dumped : "?");
    free(dumped);
  }
  return text;
}

// Returns the columns that a terminal uses for a text: its number of UTF-8 sequences.
static int width_of(const char *text) {
  int width = 0;
  for (; *text != '\0'; text++) {
    width += ((unsigned char)*text & 0xC0) != 0x80;
  }
  return width;
}

static void print_cell(const char *text, int width, bool right, bool last, FILE *stream) {
  int fill = width - width_of(text);
  if (right) {
    fprintf(stream, "%*s%s", fill, "", text);
  } else {
    fprintf(stream, "%s%*s", text, last ? 0 : fill, "");
  }
  fputs(last ? "\n" : "  ", stream);
}

static void print_table(bool wide, const bl_ctl_column_t *columns, size_t column_count, const json_t *rows,
                        FILE *stream) {
  size_t last = 0;
  for (size_t c = 0; c < column_count; c++) {
    last = wide || !columns[c].wide ? c : last;
  }
  int widths[32] = {0};
  size_t shown = column_count < 32 ? column_count : 32, i;
  json_t *row;
  char text[CELL_BYTES];
  for (size_t c = 0; c < shown; c++) {
    widths[c] = width_of(columns[c].title);
    json_array_foreach((json_t *)(uintptr_t)rows, i, row) {
      int width = width_of(cell_text(row, &columns[c], text));
      widths[c] = width > widths[c] ? width : widths[c];
    }
  }
  for (size_t c = 0; c < shown; c++) {
    if (wide || !columns[c].wide) {
      print_cell(columns[c].title, widths[c], columns[c].right, c == last, stream);
    }
  }
  json_array_foreach((json_t *)(uintptr_t)rows, i, row) {
    for (size_t c = 0; c < shown; c++) {
      if (wide || !columns[c].wide) {
        print_cell(cell_text(row, &columns[c], text), widths[c], columns[c].right, c == last, stream);
      }
    }
  }
}

static bool is_empty(const json_t *value) {
  return json_is_array(value) ? json_array_size(value) == 0 : json_object_size(value) == 0;
}

// Prints block style, with scalars in JSON's spelling, which YAML reads the same.
static void print_yaml(const json_t *value, int indent, bool in_list, FILE *stream) {
  size_t i;
  const char *key;
  json_t *member;
  bool first = in_list; // the first key of a mapping in a list follows its dash
  if (json_is_object(value) && !is_empty(value)) {
    json_object_foreach((json_t *)(uintptr_t)value, key, member) {
      bool nested = (json_is_object(member) || json_is_array(member)) && !is_empty(member);
      fprintf(stream, "%*s%s:%s", first ? 0 : indent, "", key, nested ? "\n" : " ");
      print_yaml(member, indent + 2, false, stream);
      first = false;
    }
  } else if (json_is_array(value) && !is_empty(value)) {
    json_array_foreach((json_t *)(uintptr_t)value, i, member) {
      fprintf(stream, "%*s- ", indent, "");
      print_yaml(member, indent + 2, true, stream);
    }
  } else {
    json_dumpf(value, stream, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(15));
    fputc('\n', stream);
  }
}

static void print_json(const json_t *value, size_t flags, FILE *stream) {
  json_dumpf(value, stream, flags | JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
  fputc('\n', stream);
}

static void print_names(const bl_ctl_column_t *columns, const json_t *rows, FILE *stream) {
  size_t i;
  json_t *row;
  char text[CELL_BYTES];
  json_array_foreach((json_t *)(uintptr_t)rows, i, row) {
    fprintf(stream, "%s\n", cell_text(row, &columns[0], text));
  }
}

static bl_status_t stream_status(FILE *stream) {
  return fflush(stream) == 0 && !ferror(stream) ? BL_OK : BL_IO;
}

bl_status_t bl_ctl_print_rows(bl_ctl_output_t output, const bl_ctl_column_t *columns, size_t column_count,
                              const json_t *rows, FILE *stream) {
  size_t i;
  json_t *row;
  if (rows == NULL) {
    return BL_INTERNAL;
  }
  switch (output) {
  case BL_CTL_TABLE:
  case BL_CTL_WIDE:
    print_table(output == BL_CTL_WIDE, columns, column_count, rows, stream);
    break;
  case BL_CTL_JSON:
    print_json(rows, JSON_INDENT(2), stream);
    break;
  case BL_CTL_NDJSON:
    json_array_foreach((json_t *)(uintptr_t)rows, i, row) {
      print_json(row, JSON_COMPACT, stream);
    }
    break;
  case BL_CTL_YAML:
    print_yaml(rows, 0, false, stream);
    break;
  case BL_CTL_NAME:
    print_names(columns, rows, stream);
    break;
  }
  return stream_status(stream);
}

bl_status_t bl_ctl_print_object(bl_ctl_output_t output, const bl_ctl_column_t *columns, size_t column_count,
                                const json_t *object, FILE *stream) {
  if (object == NULL) {
    return BL_INTERNAL;
  }
  if (output == BL_CTL_JSON) {
    print_json(object, JSON_INDENT(2), stream);
    return stream_status(stream);
  }
  if (output == BL_CTL_YAML) {
    print_yaml(object, 0, false, stream);
    return stream_status(stream);
  }
  json_t *rows = json_array();
  if (rows == NULL || json_array_append(rows, (json_t *)(uintptr_t)object) != 0) {
    json_decref(rows);
    return BL_EXHAUSTED;
  }
  bl_status_t status = bl_ctl_print_rows(output, columns, column_count, rows, stream);
  json_decref(rows);
  return status;
}

bl_status_t bl_ctl_printed(bl_status_t status, bl_error_t *err) {
  if (status == BL_IO && errno == EPIPE) {
    return BL_OK;
  }
  return status == BL_OK ? BL_OK
                         : bl_error_set(err, status, "cannot print: %s",
                                        status == BL_IO         ? strerror(errno)
                                        : status == BL_INTERNAL ? "a result is not a finite number, or memory ran out"
                                                                : bl_status_text(status));
}
