// SPDX-License-Identifier: Apache-2.0
#include "config/option_value.h"

#include "base/utf8.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Writes a double-quoted YAML scalar. All but printable ASCII is escaped, because YAML folds some Unicode line ends.
// BL_INVALID: the text, e.g. a folder's name, is not UTF-8.
static bl_status_t put_quoted(FILE *out, const char *value) {
  const char *const end = value + strlen(value);
  putc('"', out);
  for (const char *at = value; at < end;) {
    uint32_t code;
    size_t length = bl_utf8_decode(at, (size_t)(end - at), &code);
    if (length == 0) {
      return BL_INVALID;
    }
    if (code == '"' || code == '\\') {
      fprintf(out, "\\%c", (char)code);
    } else if (code >= 0x20 && code < 0x7F) {
      putc((int)code, out);
    } else if (code <= 0xFFFF) {
      fprintf(out, "\\u%04X", code);
    } else {
      fprintf(out, "\\U%08X", code);
    }
    at += length;
  }
  putc('"', out);
  return BL_OK;
}

static bl_status_t put_text_list(FILE *out, const bl_text_list_t *list) {
  bl_status_t status = BL_OK;
  for (size_t i = 0; i < list->count && status == BL_OK; i++) {
    fputs("\n    - ", out);
    status = put_quoted(out, list->items[i]);
  }
  return status;
}

static void put_int_list(FILE *out, const bl_int_list_t *list) {
  for (size_t i = 0; i < list->count; i++) {
    fprintf(out, "%s%" PRId64, i == 0 ? " [" : ", ", list->items[i]);
  }
  putc(']', out);
}

static void put_real(FILE *out, const char *before, double value) {
  char number[BL__REAL_TEXT];
  fprintf(out, "%s%s", before, bl__real_format(value, number));
}

static void put_real_list(FILE *out, const bl_real_list_t *list) {
  for (size_t i = 0; i < list->count; i++) {
    put_real(out, i == 0 ? " [" : ", ", list->items[i]);
  }
  putc(']', out);
}

// Writes " value", or the lines of a list.
static bl_status_t put_value(FILE *out, const bl_option_t *row, const void *values) {
  const void *field = bl__option_value(row, values);
  const bl_files_or_fraction_t *either = field;
  bool truth;
  int64_t integer;
  switch (row->type) {
  case BL_OPTION_BOOL:
    truth = row->optional ? ((const bl_optional_bool_t *)field)->value : *(const bool *)field;
    fputs(truth ? " true" : " false", out);
    return BL_OK;
  case BL_OPTION_INT:
  case BL_OPTION_BYTES:
    integer = row->optional ? ((const bl_optional_int_t *)field)->value : *(const int64_t *)field;
    fprintf(out, " %" PRId64, integer);
    return BL_OK;
  case BL_OPTION_REAL:
    put_real(out, " ", row->optional ? ((const bl_optional_real_t *)field)->value : *(const double *)field);
    return BL_OK;
  case BL_OPTION_ENUM:
    fprintf(out, " %s", row->choices[*(const int *)field]);
    return BL_OK;
  case BL_OPTION_TEXT:
  case BL_OPTION_PATH:
    putc(' ', out);
    return put_quoted(out, *(char *const *)field);
  case BL_OPTION_TEXT_LIST:
  case BL_OPTION_PATH_LIST:
    return put_text_list(out, field);
  case BL_OPTION_INT_LIST:
    put_int_list(out, field);
    return BL_OK;
  case BL_OPTION_REAL_LIST:
    put_real_list(out, field);
    return BL_OK;
  case BL_OPTION_FILES_OR_FRACTION:
    if (either->files.count > 0) {
      return put_text_list(out, &either->files);
    }
    put_real(out, " ", either->fraction);
    return BL_OK;
  }
  return BL_INTERNAL;
}

static bool same_section(const bl_option_t *row, const char *section, size_t section_bytes) {
  return section_bytes > 0 && strncmp(row->name, section, section_bytes) == 0 && row->name[section_bytes] == '.';
}

static bl_status_t put_table(FILE *out, const bl_option_table_t *table, const void *values) {
  const char *section = "";
  size_t section_bytes = 0;
  bl_status_t status = BL_OK;
  for (size_t i = 0; i < table->count && status == BL_OK; i++) {
    const bl_option_t *row = &table->rows[i];
    if (!bl__option_is_present(row, values)) {
      continue;
    }
    const char *dot = strchr(row->name, '.');
    if (dot != NULL && !same_section(row, section, section_bytes)) {
      section = row->name;
      section_bytes = (size_t)(dot - row->name);
      fprintf(out, "%.*s:\n", (int)section_bytes, section);
    }
    fprintf(out, "%s%s:", dot != NULL ? "  " : "", dot != NULL ? dot + 1 : row->name);
    status = put_value(out, row, values);
    putc('\n', out);
  }
  return status;
}

// Joins the lines of a list of texts. No text has an unescaped line end.
static void join_lines(char *text) {
  static const char between[] = "\n    - ";
  char *to = text;
  for (const char *from = text; *from != '\0';) {
    if (strncmp(from, between, strlen(between)) != 0) {
      *to++ = *from++;
      continue;
    }
    if (to > text) {
      *to++ = ',';
      *to++ = ' ';
    }
    from += strlen(between);
  }
  *to = '\0';
}

char *bl_option_text(const bl_option_t *row, const void *values) {
  char *text = NULL;
  size_t text_bytes = 0;
  if (!bl__option_is_present(row, values)) {
    return strdup("none");
  }
  FILE *out = open_memstream(&text, &text_bytes);
  if (out == NULL) {
    return NULL;
  }
  const bl_status_t status = put_value(out, row, values);
  const bool whole = !ferror(out);
  if (fclose(out) != 0 || !whole || text == NULL || status != BL_OK) {
    free(text);
    return NULL;
  }
  if (text[0] == ' ') {
    memmove(text, text + 1, strlen(text));
  }
  join_lines(text);
  return text;
}

bl_status_t bl_options_dump(const bl_option_table_t *table, const void *values, char **result, size_t *result_bytes) {
  char *text = NULL;
  size_t text_bytes = 0;
  FILE *out = open_memstream(&text, &text_bytes);
  if (out == NULL) {
    return BL_EXHAUSTED;
  }
  bl_status_t status = put_table(out, table, values);
  const bool whole = !ferror(out);
  // A text that could not be read back is an error.
  if ((fclose(out) != 0 || !whole || text == NULL || text_bytes >= BL_OPTIONS_FILE_BYTES) && status == BL_OK) {
    status = BL_EXHAUSTED;
  }
  if (status != BL_OK) {
    free(text);
    return status;
  }
  *result = text;
  *result_bytes = text_bytes;
  return BL_OK;
}
