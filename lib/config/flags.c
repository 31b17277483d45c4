// SPDX-License-Identifier: Apache-2.0
#include "config/flags.h"

#include "config/nearest.h"
#include "config/option_help.h"
#include "config/option_value.h"

#include <string.h>

typedef struct parser {
  const bl_flags_t *flags;
  char *const *argv;
  int argc, at; // `at`: index of the next argument
  void *values;
  bl_flags_result_t *result;
  bl_error_t *err;
} parser_t;

static bl_status_t usage(parser_t *parser, const char *what, const char *word, const char *nearest) {
  char quoted[BL__QUOTE_TEXT];
  bl__quote(word, strlen(word), quoted);
  if (nearest != NULL) {
    return bl_error_set(parser->err, BL_INVALID, "%s: %s %s; did you mean '--%s'?", parser->flags->program, what,
                        quoted, nearest);
  }
  return bl_error_set(parser->err, BL_INVALID, "%s: %s %s; --help shows what is known", parser->flags->program, what,
                      quoted);
}

static const bl_option_t *find_letter(const bl_option_table_t *table, char letter) {
  for (size_t i = 0; i < table->count; i++) {
    if (letter != 0 && table->rows[i].letter == letter) {
      return &table->rows[i];
    }
  }
  return NULL;
}

static bl_status_t take_value(parser_t *parser, const bl_option_t *row, const char *value, bool again,
                              bl_error_t *why) {
  bl__scalar_t scalar = {.text = value, .length = strlen(value)};
  if (again && !bl__option_is_list(row)) {
    return bl_error_set(why, BL_INVALID, "is given twice");
  }
  if (bl__option_is_list(row)) {
    if (!again) {
      bl__option_clear(row, parser->values);
    }
    return bl__option_append(row, parser->values, &scalar, NULL, why);
  }
  return bl__option_assign(row, parser->values, &scalar, NULL, why);
}

// `value` is NULL if no '=' joined it. Then a switch is true, and other flags take the next argument.
static bl_status_t take_flag(parser_t *parser, const bl_option_t *row, const char *value) {
  if (value == NULL && row->type == BL_OPTION_BOOL) {
    value = "true";
  }
  if (value == NULL) {
    if (parser->at >= parser->argc) {
      return bl_error_set(parser->err, BL_INVALID, "%s: --%s needs a value", parser->flags->program, row->name);
    }
    value = parser->argv[parser->at++];
    if (value[0] == '-' && value[1] == '-') { // the flag before it has no value
      return bl_error_set(parser->err, BL_INVALID,
                          "%s: --%s needs a value; '%.60s' is a flag (a value that begins so is "
                          "written --%s=%.60s)",
                          parser->flags->program, row->name, value, row->name, value);
    }
  }
  bool *given = &parser->result->given[row - parser->flags->table.rows];
  bl_error_t why;
  bl_status_t status = take_value(parser, row, value, *given, &why);
  *given = true;
  if (status != BL_OK) {
    return bl_error_set(parser->err, status, "%s: --%s %s", parser->flags->program, row->name, why.text);
  }
  return BL_OK;
}

// `word` begins with "--".
static bl_status_t take_long(parser_t *parser, const char *word) {
  const char *equals = strchr(word, '=');
  size_t length = (equals != NULL ? (size_t)(equals - word) : strlen(word)) - 2;
  char name[BL_NEAREST_NAME_BYTES];
  if (length >= sizeof name) {
    return usage(parser, "unknown flag", word, NULL);
  }
  memcpy(name, word + 2, length);
  name[length] = '\0';
  const bl_option_t *row = bl_options_find(&parser->flags->table, name);
  if (row != NULL) {
    return take_flag(parser, row, equals != NULL ? equals + 1 : NULL);
  }
  bl_nearest_t nearest = {.name = name};
  for (size_t i = 0; i < parser->flags->table.count; i++) {
    bl_nearest_offer(&nearest, parser->flags->table.rows[i].name);
  }
  bl_nearest_offer(&nearest, "help");
  return usage(parser, "unknown flag", word, bl_nearest_is_near(name, nearest.best) ? nearest.best : NULL);
}

static bl_status_t take_short(parser_t *parser, const char *word) {
  const bl_option_t *row = find_letter(&parser->flags->table, word[1]);
  if (row == NULL) {
    return usage(parser, "unknown flag", word, NULL);
  }
  if (word[2] == '\0') {
    return take_flag(parser, row, NULL);
  }
  if (row->type == BL_OPTION_BOOL) {
    return usage(parser, "short flags stand alone, not", word, NULL);
  }
  return take_flag(parser, row, word + 2); // -ojson
}

static bl_status_t take_positional(parser_t *parser, const char *word) {
  bl_flags_result_t *result = parser->result;
  const bl_flags_t *flags = parser->flags;
  if (result->positional_count >= flags->positional_maximum || result->positional_count >= BL_FLAGS_POSITIONAL) {
    char quoted[BL__QUOTE_TEXT];
    bl__quote(word, strlen(word), quoted);
    return bl_error_set(parser->err, BL_INVALID, "%s: unexpected argument %s; usage: %s %s", flags->program, quoted,
                        flags->program, flags->usage);
  }
  if (word[0] == '\0') {
    return bl_error_set(parser->err, BL_INVALID, "%s: an argument is empty; usage: %s %s", flags->program,
                        flags->program, flags->usage);
  }
  result->positional[result->positional_count++] = word;
  return BL_OK;
}

// Returns whether the word is an argument also before "--". No flag has a digit as its letter, so "-1" is a number.
static bool is_positional(const char *word) {
  return word[0] != '-' || word[1] == '\0' || (word[1] >= '0' && word[1] <= '9');
}

static bl_status_t take_word(parser_t *parser, bool *flags_ended) {
  const char *word = parser->argv[parser->at++];
  if (*flags_ended || is_positional(word)) {
    return take_positional(parser, word);
  }
  if (strcmp(word, "--") == 0) {
    *flags_ended = true;
    return BL_OK;
  }
  if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
    parser->result->help = true;
    return BL_OK;
  }
  return word[1] == '-' ? take_long(parser, word) : take_short(parser, word);
}

static bl_status_t check_complete(parser_t *parser) {
  const bl_flags_t *flags = parser->flags;
  for (size_t i = 0; i < flags->table.count; i++) {
    if (flags->table.rows[i].required && !parser->result->given[i]) {
      return bl_error_set(parser->err, BL_INVALID, "%s: --%s is missing; usage: %s %s", flags->program,
                          flags->table.rows[i].name, flags->program, flags->usage);
    }
  }
  if (parser->result->positional_count < flags->positional_minimum) {
    return bl_error_set(parser->err, BL_INVALID, "usage: %s %s", flags->program, flags->usage);
  }
  return BL_OK;
}

bool bl_flags_given(const bl_flags_t *flags, const bl_flags_result_t *result, const char *name) {
  const bl_option_t *row = bl_options_find(&flags->table, name);
  return row != NULL && result->given[row - flags->table.rows];
}

bl_status_t bl_flags_parse(const bl_flags_t *flags, int argc, char *const *argv, void *values,
                           bl_flags_result_t *result, bl_error_t *err) {
  *result = (bl_flags_result_t){0};
  bl_status_t status = bl_options_preset(&flags->table, values, err);
  if (status != BL_OK) {
    return status;
  }
  if (flags->table.count > BL_FLAGS_ROWS) {
    return bl_error_set(err, BL_INTERNAL, "%s: more than %d flags", flags->program, BL_FLAGS_ROWS);
  }
  parser_t parser = {flags, argv, argc, 0, values, result, err};
  bool flags_ended = false;
  while (parser.at < argc) {
    status = take_word(&parser, &flags_ended);
    if (status != BL_OK || result->help) {
      return status;
    }
  }
  return check_complete(&parser);
}

static bl_flags_visit_fn diverted;
static void *diverted_context;

void bl_flags_divert_help(bl_flags_visit_fn visit, void *context) {
  diverted = visit;
  diverted_context = context;
}

void bl_flags_print_help(const bl_flags_t *flags, FILE *stream) {
  if (diverted != NULL) {
    diverted(flags, diverted_context);
    return;
  }
  fprintf(stream, "usage: %s %s\n\n", flags->program, flags->usage);
  bl__print_wrapped(flags->about, 0, 0, stream);
  fputc('\n', stream);
  for (size_t i = 0; i < flags->table.count; i++) {
    if (!flags->table.rows[i].hidden) {
      bl__option_print_help(&flags->table.rows[i], "--", stream);
    }
  }
  fprintf(stream, "  -h, --help                  Shows this.\n");
}
