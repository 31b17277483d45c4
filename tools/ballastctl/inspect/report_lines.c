// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/inspect/report_lines.h"

#include "ballastctl/input_file.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define REPORT_BYTES (1u << 30) // a line is about 1 KiB, so this is a million steps

// Joined or edited reports may contain empty lines.
static bool is_empty(const char *line, const char *end) {
  while (line < end && (*line == ' ' || *line == '\t' || *line == '\r')) {
    line++;
  }
  return line == end;
}

static bl_status_t read_line(const char *line, const char *end, bl_ctl_report_event_fn event, void *context,
                             bl_error_t *err) {
  json_error_t fault;
  json_t *object = json_loadb(line, (size_t)(end - line), JSON_ALLOW_NUL, &fault);
  const char *kind = json_string_value(json_object_get(object, "event"));
  bl_status_t status =
      kind != NULL
          ? event(context, kind, object, err)
          : bl_error_set(err, BL_INVALID, "not a line of a report: %s; ballastctl run --report FILE writes one",
                         object == NULL ? fault.text : "it has no \"event\"");
  json_decref(object);
  return status;
}

bl_status_t bl_ctl_report_lines_read(const char *path, bl_ctl_report_event_fn event, void *context, bl_error_t *err) {
  char *bytes = NULL;
  size_t size, number = 1;
  bl_status_t status = bl_ctl_input_file_read(NULL, path, REPORT_BYTES, &bytes, &size, err);
  const char *line = bytes;
  for (const char *end; status == BL_OK && (end = memchr(line, '\n', size)) != NULL; number++) {
    if (!is_empty(line, end) && (status = read_line(line, end, event, context, err)) != BL_OK) {
      status = bl_error_prefix(err, "%s:%zu", path, number);
    }
    size -= (size_t)(end + 1 - line);
    line = end + 1;
  }
  free(bytes);
  return status;
}
