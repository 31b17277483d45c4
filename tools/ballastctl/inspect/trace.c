// SPDX-License-Identifier: Apache-2.0
// ballastctl trace: the operations and waits of the last step, as a file for a trace viewer or as a picture.
#include "ballastctl/calls.h"
#include "ballastctl/commands.h"
#include "ballastctl/inspect/ask.h"
#include "ballastctl/inspect/chrome_trace.h"
#include "ballastctl/inspect/driver_wire.h"
#include "ballastctl/inspect/endpoint.h"
#include "ballastctl/inspect/step_timeline.h"
#include "ballastctl/output_path.h"

#include <stdio.h>
#include <string.h>

typedef struct arguments {
  char *endpoint, *to;
  double timeout_seconds;
} arguments_t;

static const bl_option_t rows[] = {
    {.name = "to",
     .type = BL_OPTION_TEXT,
     .offset = offsetof(arguments_t, to),
     .argument = "FILE",
     .help = "File to write: .svg and .png are pictures of the operations with memory curves, .json (or no ending) is "
             "for chrome://tracing and ui.perfetto.dev."},
    {.name = "endpoint",
     .type = BL_OPTION_TEXT,
     .offset = offsetof(arguments_t, endpoint),
     .argument = "ADDRESS",
     .preset_help = "the newest local run",
     .help = "The driver to ask: host:port or unix:/path."},
    {.name = "timeout",
     .type = BL_OPTION_REAL,
     .offset = offsetof(arguments_t, timeout_seconds),
     .preset = "30",
     .minimum = 0.001,
     .maximum = 86400,
     .unit = "seconds",
     .help = "How long to wait for the answer, which comes at the end of the step that runs."},
};

static const bl_flags_t flags = {.program = "ballastctl trace",
                                 .usage = "--to FILE.json|FILE.svg|FILE.png [--endpoint ADDRESS]",
                                 .about = "Writes what every stage did in the last step, as a picture or in Chrome's "
                                          "trace format with every wait and its reason.",
                                 .table = {rows, sizeof rows / sizeof rows[0], "command line"}};

typedef struct question {
  bl_ctl_calls_t calls;
  bl_ctl_chrome_trace_t *trace; // one of these two is used
  bl_ctl_step_timeline_t *picture;
  bl_error_t *err;
} question_t;

static void traced(const bl_ctl_trace_event_t *event, void *context) {
  question_t *question = context;
  if (question->picture != NULL) {
    bl_ctl_step_timeline_add(question->picture, event);
  } else {
    bl_ctl_chrome_trace_add(question->trace, event);
  }
}

static void done(const bl_error_t *err, void *context) {
  question_t *question = context;
  *question->err = *err;
  bl_ctl_calls_ended(&question->calls);
}

static bl_status_t collect(question_t *question, const char *address, double timeout_seconds) {
  bl_ctl_driver_t *driver = NULL;
  bl_error_t *err = question->err;
  bl_status_t status = bl_ctl_calls_init(&question->calls, err);
  if (status == BL_OK) {
    status = bl_ctl_driver_create(question->calls.rpc, address, &driver, err);
  }
  if (status == BL_OK) {
    status = bl_ctl_driver_trace(driver, (uint64_t)(timeout_seconds * 1000), traced, done, question, err);
  }
  if (status == BL_OK) {
    question->calls.open = 1;
    bl_ctl_calls_wait(&question->calls);
    status = err->status;
  }
  bl_ctl_driver_destroy(driver);
  bl_ctl_calls_cleanup(&question->calls);
  return status;
}

static bl_status_t draw(const question_t *question, const json_t *endpoints, const char *path, bl_error_t *err) {
  const char *name = json_string_value(json_object_get(endpoints, "name"));
  char subtitle[80];
  snprintf(subtitle, sizeof subtitle, "the last step: %.1f ms", bl_ctl_step_timeline_ms(question->picture));
  return bl_ctl_step_timeline_draw(question->picture, name != NULL ? name : "ballast", subtitle, path, err);
}

// Returns whether the name ends in .json or has no ending.
static bool is_json(const char *path) {
  const char *slash = strrchr(path, '/'), *name = slash != NULL ? slash + 1 : path, *dot = strrchr(name, '.');
  return dot == NULL || strcmp(dot, ".json") == 0;
}

static bl_status_t write_trace(const arguments_t *arguments, bl_error_t *err) {
  if (arguments->to == NULL) {
    return bl_error_set(err, BL_INVALID, "trace needs --to FILE: where to write it, .json, .svg or .png");
  }
  const bool drawn = bl_ctl_step_timeline_is_picture(arguments->to);
  if (!drawn && !is_json(arguments->to)) { // the name has the ending of a picture format that we do not support
    return bl_error_set(err, BL_INVALID, "--to %.200s: the name must end in .json, .svg or .png", arguments->to);
  }
  bl_status_t status = bl_ctl_output_path_check("to", arguments->to, err);
  if (status != BL_OK) {
    return status;
  }
  json_t *endpoints = NULL;
  question_t question = {.err = err};
  status = bl_ctl_endpoints_find(arguments->endpoint, &endpoints, err);
  if (status != BL_OK) {
    return status;
  }
  status = drawn ? bl_ctl_step_timeline_create(&question.picture) : bl_ctl_chrome_trace_create(&question.trace);
  if (status != BL_OK) {
    status = bl_error_set(err, status, "no memory for the trace");
  } else {
    status = collect(&question, bl_ctl_endpoints_driver(endpoints), arguments->timeout_seconds);
  }
  if (status == BL_OK) {
    status = drawn ? draw(&question, endpoints, arguments->to, err)
                   : bl_ctl_chrome_trace_write(question.trace, arguments->to, err);
  }
  bl_ctl_step_timeline_destroy(question.picture);
  bl_ctl_chrome_trace_destroy(question.trace);
  json_decref(endpoints);
  return status;
}

static bl_status_t body(void *arguments, const bl_flags_result_t *words, bl_error_t *err) {
  (void)words;
  return write_trace(arguments, err);
}

static int run(int argc, char *const *argv) {
  arguments_t arguments = {0};
  return bl_ctl_run(&flags, &arguments, body, argc, argv);
}

const bl_ctl_command_t bl_ctl_trace_command = {"trace", "the last step for a trace viewer, or as a picture", run};
