// SPDX-License-Identifier: Apache-2.0
#include "config/option_value.h"

#include "base/utf8.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

// Text that grows; the first failure sticks, so that writers need not look at every call.
typedef struct text {
  char *bytes;
  size_t used, room;
  bl_status_t status;
} text_t;

static void text_add(text_t *text, const char *bytes, size_t count) {
  if (text->status != BL_OK) {
    return;
  }
  if (text->used + count + 1 > BL_OPTIONS_FILE_BYTES) {
    text->status = BL_EXHAUSTED; // what could not be read back is not written
    return;
  }
  if (text->used + count + 1 > text->room) {
    size_t room = 2 * (text->used + count + 1);
    char *grown = realloc(text->bytes, room);
    if (grown == NULL) {
      text->status = BL_EXHAUSTED;
      return;
    }
    text->bytes = grown;
    text->room = room;
  }
  memcpy(text->bytes + text->used, bytes, count);
  text->used += count;
  text->bytes[text->used] = '\0';
}

static void text_print(text_t *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void text_print(text_t *text, const char *format, ...) {
  char line[512];
  va_list args;
  va_start(args, format);
  int length = vsnprintf(line, sizeof line, format, args);
  va_end(args);
  if (length < 0 || (size_t)length >= sizeof line) {
    text->status = text->status == BL_OK ? BL_INTERNAL : text->status;
    return;
  }
  text_add(text, line, (size_t)length);
}

// A double-quoted YAML scalar. Everything but printable ASCII is escaped, because YAML folds some Unicode line ends.
static void text_add_quoted(text_t *text, const char *value) {
  text_add(text, "\"", 1);
  size_t left = strlen(value);
  for (const char *at = value; left > 0;) {
    uint32_t code;
    size_t length = bl_utf8_decode(at, left, &code);
    if (length == 0) {
      text->status = text->status == BL_OK ? BL_INVALID : text->status; // a folder's name that is not UTF-8
      return;
    }
    if (code == '"' || code == '\\') {
      text_print(text, "\\%c", (char)code);
    } else if (code >= 0x20 && code < 0x7F) {
      text_add(text, at, 1);
    } else if (code <= 0xFFFF) {
      text_print(text, "\\u%04X", code);
    } else {
      text_print(text, "\\U%08X", code);
    }
    at += length;
    left -= length;
  }
  text_add(text, "\"", 1);
}

static void add_text_list(text_t *text, const bl_text_list_t *list) {
  for (size_t i = 0; i < list->count; i++) {
    text_add(text, "\n    - ", 7);
    text_add_quoted(text, list->items[i]);
  }
}

static void add_int_list(text_t *text, const bl_int_list_t *list) {
  for (size_t i = 0; i < list->count; i++) {
    text_print(text, "%s%lld", i == 0 ? " [" : ", ", (long long)list->items[i]);
  }
  text_add(text, "]", 1);
}

static void add_real(text_t *text, double value) {
  char number[BL__REAL_TEXT];
  text_print(text, " %s", bl__real_format(value, number));
}

static void add_real_list(text_t *text, const bl_real_list_t *list) {
  for (size_t i = 0; i < list->count; i++) {
    char number[BL__REAL_TEXT];
    text_print(text, "%s%s", i == 0 ? " [" : ", ", bl__real_format(list->items[i], number));
  }
  text_add(text, "]", 1);
}

// " value", or the lines of a list.
static void add_value(text_t *text, const bl_option_t *row, const void *values) {
  const void *field = bl__option_value(row, values);
  const bl_files_or_fraction_t *either = field;
  bool truth;
  int64_t integer;
  switch (row->type) {
  case BL_OPTION_BOOL:
    truth = row->optional ? ((const bl_optional_bool_t *)field)->value : *(const bool *)field;
    text_print(text, " %s", truth ? "true" : "false");
    break;
  case BL_OPTION_INT:
  case BL_OPTION_BYTES:
    integer = row->optional ? ((const bl_optional_int_t *)field)->value : *(const int64_t *)field;
    text_print(text, " %lld", (long long)integer);
    break;
  case BL_OPTION_REAL:
    add_real(text, row->optional ? ((const bl_optional_real_t *)field)->value : *(const double *)field);
    break;
  case BL_OPTION_ENUM:
    text_print(text, " %s", row->choices[*(const int *)field]);
    break;
  case BL_OPTION_TEXT:
  case BL_OPTION_PATH:
    text_add(text, " ", 1);
    text_add_quoted(text, *(char *const *)field);
    break;
  case BL_OPTION_TEXT_LIST:
  case BL_OPTION_PATH_LIST:
    add_text_list(text, field);
    break;
  case BL_OPTION_INT_LIST:
    add_int_list(text, field);
    break;
  case BL_OPTION_REAL_LIST:
    add_real_list(text, field);
    break;
  case BL_OPTION_FILES_OR_FRACTION:
    if (either->files.count > 0) {
      add_text_list(text, &either->files);
    } else {
      add_real(text, either->fraction);
    }
    break;
  }
}

static bool same_section(const bl_option_t *row, const char *section, size_t section_bytes) {
  return section_bytes > 0 && strncmp(row->name, section, section_bytes) == 0 && row->name[section_bytes] == '.';
}

bl_status_t bl_options_dump(const bl_option_table_t *table, const void *values, char **result, size_t *result_bytes) {
  text_t text = {0};
  const char *section = "";
  size_t section_bytes = 0;
  text_add(&text, "", 0);
  for (size_t i = 0; i < table->count; i++) {
    const bl_option_t *row = &table->rows[i];
    if (!bl__option_is_present(row, values)) {
      continue;
    }
    const char *dot = strchr(row->name, '.');
    if (dot != NULL && !same_section(row, section, section_bytes)) {
      section = row->name;
      section_bytes = (size_t)(dot - row->name);
      text_print(&text, "%.*s:\n", (int)section_bytes, section);
    }
    text_print(&text, "%s%s:", dot != NULL ? "  " : "", dot != NULL ? dot + 1 : row->name);
    add_value(&text, row, values);
    text_add(&text, "\n", 1);
  }
  if (text.status != BL_OK) {
    free(text.bytes);
    return text.status;
  }
  *result = text.bytes;
  *result_bytes = text.used;
  return BL_OK;
}
