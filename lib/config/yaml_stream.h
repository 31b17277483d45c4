// SPDX-License-Identifier: Apache-2.0
// The events of one YAML document, and errors at their places. Shared inside lib/config; the only user of libyaml.
//
// Events rather than libyaml's documents: the first value of a wrong shape is reported where it stands and skipped,
// nothing is ever built in memory, and depth is bounded by a counter. Anchors, aliases and tags are refused.
// Thread: belongs to its caller.
#ifndef BALLAST_CONFIG_YAML_STREAM_H
#define BALLAST_CONFIG_YAML_STREAM_H

#include "config/option_scalar.h"

#include <yaml.h>

typedef struct bl__yaml {
  const bl_option_source_t *source;
  bool has_places; // errors are "NAME:LINE:COLUMN: message"; else "NAME message"
  yaml_parser_t parser;
  yaml_event_t event; // the present one
  bool has_event;
  bl_error_t *err; // one line per error reported
  size_t error_count;
  bl_status_t fatal; // not BL_OK: reading cannot go on
} bl__yaml_t;

BL_MUST_USE bl_status_t bl__yaml_init(bl__yaml_t *yaml, const bl_option_source_t *source, bool has_places,
                                      bl_error_t *err);
// BL_OK when nothing was reported.
BL_MUST_USE bl_status_t bl__yaml_cleanup(bl__yaml_t *yaml);

// Moves to the first event of the document; false when there is none.
bool bl__yaml_open_document(bl__yaml_t *yaml);
// After the document's last event: reports a second one.
void bl__yaml_close_document(bl__yaml_t *yaml);
// Moves to the next event; false when reading cannot go on.
bool bl__yaml_next(bl__yaml_t *yaml);
// Skips the value whose first event is the present one, to its last event.
bool bl__yaml_skip_value(bl__yaml_t *yaml);
// The present event, which is a scalar; borrowed until the next.
bl__scalar_t bl__yaml_scalar(const bl__yaml_t *yaml);

// Reports at the present event: "name: message", or the message alone for "".
void bl__yaml_report(bl__yaml_t *yaml, const char *name, const char *message);
// Line and column count from 0, as libyaml does.
void bl__yaml_report_at(bl__yaml_t *yaml, size_t line, size_t column, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#endif
