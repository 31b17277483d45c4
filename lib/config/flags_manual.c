// SPDX-License-Identifier: Apache-2.0
// Flag tables as Markdown and as a manual page.
#include "config/flags.h"

#include "config/option_help.h"

#include <string.h>

// ---- Markdown

static void print_escaped(const char *text, FILE *stream) {
  for (; *text != '\0'; text++) {
    fprintf(stream, *text == '|' ? "\\|" : "%c", *text);
  }
}

static void print_choices(const bl_option_t *row, const char *between, FILE *stream) {
  bool first = true;
  for (size_t i = 0; row->choices != NULL && row->choices[i] != NULL; i++) {
    if (row->choices[i][0] != '\0') {
      fprintf(stream, "%s%s", first ? "" : between, row->choices[i]);
      first = false;
    }
  }
}

static const char *preset_of(const bl_option_t *row) {
  return row->preset_help != NULL ? row->preset_help : row->preset;
}

void bl_flags_print_markdown(const bl_flags_t *flags, FILE *stream) {
  fprintf(stream, "    %s %s\n\n", flags->program, flags->usage);
  print_escaped(flags->about, stream);
  fprintf(stream, "\n\n| flag | meaning | default |\n| --- | --- | --- |\n");
  for (size_t i = 0; i < flags->table.count; i++) {
    const bl_option_t *row = &flags->table.rows[i];
    if (row->hidden) {
      continue;
    }
    fprintf(stream, "| `--%s`", row->name);
    if (row->letter != 0) {
      fprintf(stream, ", `-%c`", row->letter);
    }
    if (row->type != BL_OPTION_BOOL) {
      fprintf(stream, " `");
      print_escaped(bl__option_argument(row), stream);
      fprintf(stream, "`");
    }
    fprintf(stream, " | ");
    print_escaped(row->help, stream);
    if (row->choices != NULL) {
      fprintf(stream, " One of: ");
      print_choices(row, ", ", stream);
      fprintf(stream, ".");
    }
    fprintf(stream, " | ");
    if (preset_of(row) != NULL) {
      print_escaped(preset_of(row), stream);
    }
    fprintf(stream, "%s%s |\n", preset_of(row) != NULL && row->unit != NULL ? " " : "",
            preset_of(row) != NULL && row->unit != NULL ? row->unit : "");
  }
}

// ---- roff

// Prints text as roff: no line begins with a control character; hyphens and backslashes print as themselves.
static void print_roff(const char *text, FILE *stream) {
  bool line_begins = true;
  for (; *text != '\0'; text++) {
    if (line_begins && (*text == '.' || *text == '\'')) {
      fputs("\\&", stream);
    }
    if (*text == '-') {
      fputs("\\-", stream);
    } else if (*text == '\\') {
      fputs("\\e", stream);
    } else {
      fputc(*text, stream);
    }
    line_begins = *text == '\n';
  }
}

void bl_flags_print_man(const bl_flags_t *flags, FILE *stream) {
  fprintf(stream, ".nf\n\\fB");
  print_roff(flags->program, stream);
  fprintf(stream, "\\fR ");
  print_roff(flags->usage, stream);
  fprintf(stream, "\n.fi\n.PP\n");
  print_roff(flags->about, stream);
  fputc('\n', stream);
  for (size_t i = 0; i < flags->table.count; i++) {
    const bl_option_t *row = &flags->table.rows[i];
    if (row->hidden) {
      continue;
    }
    fprintf(stream, ".TP\n\\fB");
    if (row->letter != 0) {
      fprintf(stream, "\\-%c\\fR, \\fB", row->letter);
    }
    fprintf(stream, "\\-\\-");
    print_roff(row->name, stream);
    fprintf(stream, "\\fR");
    if (row->type != BL_OPTION_BOOL) {
      fprintf(stream, " \\fI");
      print_roff(bl__option_argument(row), stream);
      fprintf(stream, "\\fR");
    }
    fputc('\n', stream);
    print_roff(row->help, stream);
    if (row->choices != NULL) {
      fprintf(stream, " One of: ");
      print_choices(row, ", ", stream);
      fprintf(stream, ".");
    }
    if (preset_of(row) != NULL) {
      fprintf(stream, " Default: ");
      print_roff(preset_of(row), stream);
      fprintf(stream, "%s%s.", row->unit != NULL ? " " : "", row->unit != NULL ? row->unit : "");
    }
    fputc('\n', stream);
  }
}
