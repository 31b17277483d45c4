// SPDX-License-Identifier: Apache-2.0
#include "config/option_help.h"

#include "config/option_scalar.h"

#include <string.h>

#define HELP_COLUMN 30
#define LINE_WIDTH  100

void bl__print_wrapped(const char *text, size_t column, size_t indent, FILE *stream) {
  bool line_begins = true;
  while (*text != '\0') {
    size_t word = strcspn(text, " ");
    if (column + 1 + word > LINE_WIDTH && !line_begins) {
      fprintf(stream, "\n%*s", (int)indent, "");
      column = indent;
      line_begins = true;
    }
    if (!line_begins) {
      fputc(' ', stream);
      column++;
    }
    fwrite(text, 1, word, stream);
    column += word;
    line_begins = false;
    text += word + (text[word] == ' ');
  }
  fputc('\n', stream);
}

const char *bl__option_argument(const bl_option_t *row) {
  if (row->argument != NULL) {
    return row->argument;
  }
  switch (row->type) {
  case BL_OPTION_BOOL:
    return "true|false";
  case BL_OPTION_INT:
    return "N";
  case BL_OPTION_REAL:
    return "X";
  case BL_OPTION_BYTES:
    return "BYTES";
  case BL_OPTION_ENUM:
    return "NAME";
  case BL_OPTION_TEXT:
    return "TEXT";
  case BL_OPTION_PATH:
    return "PATH";
  case BL_OPTION_TEXT_LIST:
    return "[TEXT, ...]";
  case BL_OPTION_PATH_LIST:
    return "[PATH, ...]";
  case BL_OPTION_INT_LIST:
    return "[N, ...]";
  case BL_OPTION_REAL_LIST:
    return "[X, ...]";
  case BL_OPTION_FILES_OR_FRACTION:
    return "[PATH, ...] or X";
  }
  return "";
}

// Writes "gpt2, llama" to `text`.
static const char *choices_text(const bl_option_t *row, char *text, size_t text_bytes) {
  size_t used = 0;
  text[0] = '\0';
  for (size_t i = 0; row->choices[i] != NULL; i++) {
    if (row->choices[i][0] != '\0' && used < text_bytes) {
      used += (size_t)snprintf(text + used, text_bytes - used, "%s%s", used > 0 ? ", " : "", row->choices[i]);
    }
  }
  return text;
}

static const char *preset_text(const bl_option_t *row) {
  return row->preset_help != NULL ? row->preset_help : row->preset;
}

// Writes all that follows the name: help, choices, range and unit, default.
static void describe(const bl_option_t *row, char *text, size_t text_bytes) {
  char choices[512], range[BL__RANGE_TEXT];
  size_t used = (size_t)snprintf(text, text_bytes, "%s", row->help);
  if (row->type == BL_OPTION_ENUM && used < text_bytes) {
    used +=
        (size_t)snprintf(text + used, text_bytes - used, " One of: %s.", choices_text(row, choices, sizeof choices));
  }
  bl__range_format(row, range);
  if (range[0] != '\0' && used < text_bytes) {
    used += (size_t)snprintf(text + used, text_bytes - used, " Range %s%s%s.", range, row->unit != NULL ? " " : "",
                             row->unit != NULL ? row->unit : "");
  }
  bool is_switch = row->type == BL_OPTION_BOOL && !row->optional;
  if (preset_text(row) != NULL && !is_switch && used < text_bytes) {
    used += (size_t)snprintf(text + used, text_bytes - used, " (default %s)", preset_text(row));
  }
  if (row->required && used < text_bytes) {
    snprintf(text + used, text_bytes - used, " (required)");
  }
}

void bl__option_print_help(const bl_option_t *row, const char *prefix, FILE *stream) {
  char left[128], text[1024], letter[8] = "";
  bool is_switch = prefix[0] != '\0' && row->type == BL_OPTION_BOOL;
  if (row->letter != 0) {
    snprintf(letter, sizeof letter, "-%c, ", row->letter);
  }
  int length = snprintf(left, sizeof left, "  %s%s%s%s%s", letter, prefix, row->name, is_switch ? "" : " ",
                        is_switch ? "" : bl__option_argument(row));
  describe(row, text, sizeof text);
  if (length + 2 > HELP_COLUMN) {
    fprintf(stream, "%s\n%*s", left, HELP_COLUMN, "");
  } else {
    fprintf(stream, "%-*s", HELP_COLUMN, left);
  }
  bl__print_wrapped(text, HELP_COLUMN, HELP_COLUMN, stream);
}

static size_t section_length(const char *name) {
  const char *dot = strchr(name, '.');
  return dot != NULL ? (size_t)(dot - name) : 0;
}

static bool starts_section(const bl_option_table_t *table, size_t i) {
  size_t length = section_length(table->rows[i].name);
  return i == 0 || section_length(table->rows[i - 1].name) != length ||
         strncmp(table->rows[i].name, table->rows[i - 1].name, length) != 0;
}

void bl_options_print_help(const bl_option_table_t *table, FILE *stream) {
  for (size_t i = 0; i < table->count; i++) {
    if (!table->rows[i].hidden) {
      if (i > 0 && starts_section(table, i)) {
        fputc('\n', stream);
      }
      bl__option_print_help(&table->rows[i], "", stream);
    }
  }
}

// Writes text into a table cell and escapes '|', which would end it.
static void print_cell(const char *text, FILE *stream) {
  for (; *text != '\0'; text++) {
    if (*text == '|') {
      fputc('\\', stream);
    }
    fputc(*text, stream);
  }
}

static void print_markdown_row(const bl_option_t *row, FILE *stream) {
  char choices[512], range[BL__RANGE_TEXT];
  fprintf(stream, "| `%s` | ", row->name);
  print_cell(row->type == BL_OPTION_ENUM ? choices_text(row, choices, sizeof choices) : bl__option_argument(row),
             stream);
  bl__range_format(row, range);
  fprintf(stream, "%s%s%s%s | ", range[0] != '\0' ? " in " : "", range, row->unit != NULL ? " " : "",
          row->unit != NULL ? row->unit : "");
  print_cell(row->required ? "required" : preset_text(row) != NULL ? preset_text(row) : "-", stream);
  fputs(" | ", stream);
  print_cell(row->help, stream);
  fputs(" |\n", stream);
}

void bl_options_print_markdown(const bl_option_table_t *table, FILE *stream) {
  for (size_t i = 0; i < table->count; i++) {
    const bl_option_t *row = &table->rows[i];
    if (row->hidden) {
      continue;
    }
    if (starts_section(table, i)) {
      size_t length = section_length(row->name);
      const char *title = length > 0 ? row->name : "Top level";
      fprintf(stream, "\n## %.*s\n\n", (int)(length > 0 ? length : strlen(title)), title);
      fprintf(stream, "| key | value | default | meaning |\n| --- | --- | --- | --- |\n");
    }
    print_markdown_row(row, stream);
  }
}
