// SPDX-License-Identifier: Apache-2.0
// Private to lib/config: the events of one YAML document, and errors with their places. Only this module uses libyaml.
//
// It uses events instead of libyaml's documents: a value of a wrong shape is reported at its place and skipped, no tree
// is built in memory, and a counter bounds the depth. Anchors, aliases and tags are refused.
// Thread: belongs to its caller.
#ifndef BALLAST_CONFIG_YAML_STREAM_H
#define BALLAST_CONFIG_YAML_STREAM_H

#include "config/option_scalar.h"

#include <yaml.h>

typedef struct bl__yaml {
  const bl_option_source_t *source;
  bool has_places; // true: errors are "NAME:LINE:COLUMN: message"; false: "NAME message"
  yaml_parser_t parser;
  yaml_event_t event; // the current event
  bool has_event;
  bl_error_t *err; // one line per error
  size_t error_count;
  bl_status_t fatal; // not BL_OK: reading cannot continue
} bl__yaml_t;

BL_MUST_USE bl_status_t bl__yaml_init(bl__yaml_t *yaml, const bl_option_source_t *source, bool has_places,
                                      bl_error_t *err);
// Returns BL_OK if no error was reported.
BL_MUST_USE bl_status_t bl__yaml_cleanup(bl__yaml_t *yaml);

// Moves to the first event of the document. False: there is none.
bool bl__yaml_open_document(bl__yaml_t *yaml);
// Call after the document's last event. Reports a second document.
void bl__yaml_close_document(bl__yaml_t *yaml);
// Moves to the next event. False: reading cannot continue.
bool bl__yaml_next(bl__yaml_t *yaml);
// Skips the value whose first event is the current one, up to its last event.
bool bl__yaml_skip_value(bl__yaml_t *yaml);
// Returns the current event, which must be a scalar. Borrowed until the next event.
bl__scalar_t bl__yaml_scalar(const bl__yaml_t *yaml);

// Reports at the current event: "name: message", or the message alone if `name` is "".
void bl__yaml_report(bl__yaml_t *yaml, const char *name, const char *message);
// Reports at a place. `line` and `column` count from 0, as in libyaml.
void bl__yaml_report_at(bl__yaml_t *yaml, size_t line, size_t column, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#endif
