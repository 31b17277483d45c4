// SPDX-License-Identifier: Apache-2.0
#include "config/yaml_stream.h"

#include "config/options.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

// ---- errors ----

// Adds one line to the error. `line` and `column` count from 0, as in libyaml.
void bl__yaml_report_at(bl__yaml_t *yaml, size_t line, size_t column, const char *format, ...) {
  char message[BL_ERROR_TEXT_BYTES];
  va_list args;
  va_start(args, format);
  vsnprintf(message, sizeof message, format, args);
  va_end(args);
  char place[64] = "";
  if (yaml->has_places) {
    snprintf(place, sizeof place, ":%zu:%zu", line + 1, column + 1);
  }
  const char *name = yaml->source->name;
  const char *join = yaml->has_places ? ":" : "";
  if (yaml->error_count == 0) {
    bl_error_set(yaml->err, BL_INVALID, "%s%s%s %s", name, place, join, message);
  } else if (yaml->err != NULL) {
    bl_error_set(yaml->err, BL_INVALID, "%s\n%s%s%s %s", yaml->err->text, name, place, join, message);
  }
  yaml->error_count++;
  if (yaml->error_count >= BL_OPTIONS_ERRORS) {
    yaml->fatal = BL_INVALID;
  }
}

// Returns the address after `line` line ends, or the end.
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

static void report_parser(bl__yaml_t *yaml) {
  const yaml_parser_t *parser = &yaml->parser;
  size_t line = parser->problem_mark.line, column = parser->problem_mark.column;
  const char *problem = parser->problem != NULL ? parser->problem : "unreadable";
  if (parser->error == YAML_MEMORY_ERROR) {
    yaml->fatal = bl_error_set(yaml->err, BL_EXHAUSTED, "%s: no memory", yaml->source->name);
    return;
  }
  if (parser->error == YAML_READER_ERROR) { // has only a byte offset
    line = column = 0;
    for (size_t i = 0; i < parser->problem_offset && i < yaml->source->size_bytes; i++) {
      column = yaml->source->bytes[i] == '\n' ? 0 : column + 1;
      line += yaml->source->bytes[i] == '\n';
    }
    bl__yaml_report_at(yaml, line, column, "is not a text file in UTF-8: %s", problem);
  } else if (indented_by_tab(yaml->source, line)) {
    bl__yaml_report_at(yaml, line, column, "YAML does not allow tabs for indentation; use spaces");
  } else if (parser->context != NULL && strstr(parser->context, "block mapping") != NULL) {
    bl__yaml_report_at(yaml, line, column,
                       "not valid YAML: indented unlike the lines around it; keys of one section stand in one column");
  } else if (strstr(problem, "mapping values are not allowed") != NULL) {
    bl__yaml_report_at(yaml, line, column,
                       "not valid YAML: no key may stand here; is the line indented as its neighbours are?");
  } else if (parser->context != NULL) {
    bl__yaml_report_at(yaml, line, column, "not valid YAML: %s, %s", parser->context, problem);
  } else {
    bl__yaml_report_at(yaml, line, column, "not valid YAML: %s", problem);
  }
  yaml->fatal = BL_INVALID;
}

void bl__yaml_report(bl__yaml_t *yaml, const char *name, const char *message) {
  const yaml_mark_t *mark = &yaml->event.start_mark;
  bl__yaml_report_at(yaml, mark->line, mark->column, "%s%s%s", name, name[0] != '\0' ? ": " : "", message);
}

// ---- events ----

// Refuses anchors and tags at every place.
bool bl__yaml_next(bl__yaml_t *yaml) {
  if (yaml->fatal != BL_OK) {
    return false;
  }
  if (yaml->has_event) {
    yaml_event_delete(&yaml->event);
    yaml->has_event = false;
  }
  if (!yaml_parser_parse(&yaml->parser, &yaml->event)) {
    report_parser(yaml);
    return false;
  }
  yaml->has_event = true;
  const yaml_event_t *event = &yaml->event;
  bool anchor = event->type == YAML_ALIAS_EVENT ||
                (event->type == YAML_SCALAR_EVENT && event->data.scalar.anchor != NULL) ||
                (event->type == YAML_SEQUENCE_START_EVENT && event->data.sequence_start.anchor != NULL) ||
                (event->type == YAML_MAPPING_START_EVENT && event->data.mapping_start.anchor != NULL);
  bool tag = (event->type == YAML_SCALAR_EVENT && event->data.scalar.tag != NULL) ||
             (event->type == YAML_SEQUENCE_START_EVENT && event->data.sequence_start.tag != NULL) ||
             (event->type == YAML_MAPPING_START_EVENT && event->data.mapping_start.tag != NULL);
  if (anchor || tag) {
    bl__yaml_report(yaml, "",
                    anchor ? "anchors and aliases (& and *) are not supported; write the value out"
                           : "tags (!) are not supported; write the value plainly");
    yaml->fatal = BL_INVALID;
    return false;
  }
  return true;
}

static bool skip_collection(bl__yaml_t *yaml) {
  for (size_t depth = 1; depth > 0;) {
    if (!bl__yaml_next(yaml)) {
      return false;
    }
    switch (yaml->event.type) {
    case YAML_SEQUENCE_START_EVENT:
    case YAML_MAPPING_START_EVENT:
      if (++depth > BL_OPTIONS_DEPTH) {
        bl__yaml_report(yaml, "", "nested too deeply");
        yaml->fatal = BL_INVALID;
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

bool bl__yaml_skip_value(bl__yaml_t *yaml) {
  return yaml->event.type == YAML_SCALAR_EVENT || skip_collection(yaml);
}

bl__scalar_t bl__yaml_scalar(const bl__yaml_t *yaml) {
  const yaml_event_t *event = &yaml->event;
  return (bl__scalar_t){.text = (const char *)event->data.scalar.value,
                        .length = event->data.scalar.length,
                        .quoted = event->data.scalar.style != YAML_PLAIN_SCALAR_STYLE};
}

// ---- life ----

bl_status_t bl__yaml_init(bl__yaml_t *yaml, const bl_option_source_t *source, bool has_places, bl_error_t *err) {
  *yaml = (bl__yaml_t){.source = source, .has_places = has_places, .err = err};
  if (!yaml_parser_initialize(&yaml->parser)) {
    return bl_error_set(err, BL_EXHAUSTED, "%s: no memory", source->name);
  }
  yaml_parser_set_encoding(&yaml->parser, YAML_UTF8_ENCODING);
  yaml_parser_set_input_string(&yaml->parser, (const unsigned char *)source->bytes, source->size_bytes);
  return BL_OK;
}

bl_status_t bl__yaml_cleanup(bl__yaml_t *yaml) {
  if (yaml->has_event) {
    yaml_event_delete(&yaml->event);
  }
  yaml_parser_delete(&yaml->parser);
  if (yaml->fatal != BL_OK) {
    return yaml->fatal;
  }
  return yaml->error_count > 0 ? BL_INVALID : BL_OK;
}

static bool next_of(bl__yaml_t *yaml, int count) {
  bool going = true;
  for (int i = 0; going && i < count; i++) {
    going = bl__yaml_next(yaml);
  }
  return going;
}

bool bl__yaml_open_document(bl__yaml_t *yaml) {
  if (!next_of(yaml, 2)) { // the start of the stream, then of the document
    return false;
  }
  return yaml->event.type != YAML_STREAM_END_EVENT && bl__yaml_next(yaml);
}

void bl__yaml_close_document(bl__yaml_t *yaml) {
  if (next_of(yaml, 2) && yaml->event.type != YAML_STREAM_END_EVENT) {
    bl__yaml_report(yaml, "", "a second document begins here; a job is one document");
  }
}

const bl_library_t bl_options_library = {"libyaml", yaml_get_version_string};
