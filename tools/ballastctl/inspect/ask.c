// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/inspect/ask.h"

#include "ballastctl/calls.h"
#include "ballastctl/inspect/driver_wire.h"
#include "ballastctl/inspect/endpoint.h"

const bl_option_t bl_ctl_ask_rows[BL_CTL_ASK_ROWS] = {
    {.name = "endpoint",
     .type = BL_OPTION_TEXT,
     .offset = offsetof(bl_ctl_ask_arguments_t, endpoint),
     .argument = "ADDRESS",
     .preset_help = "the newest local run",
     .help = "The driver to ask: host:port or unix:/path."},
    BL_CTL_OUTPUT_FLAG(bl_ctl_ask_arguments_t, output),
    {.name = "timeout",
     .type = BL_OPTION_REAL,
     .offset = offsetof(bl_ctl_ask_arguments_t, timeout_seconds),
     .preset = "5",
     .minimum = 0.001,
     .maximum = 86400,
     .unit = "seconds",
     .help = "How long to wait for an answer."},
};

typedef struct question {
  bl_ctl_calls_t calls;
  json_t *answer;
  bl_error_t *err;
} question_t;

static void answered(json_t *value, const bl_error_t *err, void *context) {
  question_t *question = context;
  question->answer = json_incref(value);
  *question->err = *err;
  bl_ctl_calls_ended(&question->calls);
}

bl_status_t bl_ctl_driver_ask(const char *address, double timeout_seconds, json_t **answer, bl_error_t *err) {
  question_t question = {.err = err};
  bl_ctl_driver_t *driver = NULL;
  bl_status_t status = bl_ctl_calls_init(&question.calls, err);
  if (status == BL_OK) {
    status = bl_ctl_driver_create(question.calls.rpc, address, &driver, err);
  }
  if (status == BL_OK) {
    status = bl_ctl_driver_status(driver, (uint64_t)(timeout_seconds * 1000), answered, &question, err);
  }
  if (status == BL_OK) {
    question.calls.open = 1;
    bl_ctl_calls_wait(&question.calls);
    status = err->status;
    *answer = question.answer;
  }
  bl_ctl_driver_destroy(driver);
  bl_ctl_calls_cleanup(&question.calls);
  return status;
}

bl_status_t bl_ctl_ask_status(const char *program, const char *about, int argc, char *const *argv,
                              bl_ctl_output_t *output, json_t **status_json, bl_error_t *err) {
  const bl_flags_t flags = {.program = program,
                            .usage = "[--endpoint ADDRESS] [-o FORMAT]",
                            .about = about,
                            .table = {bl_ctl_ask_rows, BL_CTL_ASK_ROWS, "command line"}};
  bl_ctl_ask_arguments_t arguments;
  bl_flags_result_t result;
  json_t *endpoints = NULL;
  *status_json = NULL;
  bl_status_t status = bl_flags_parse(&flags, argc, argv, &arguments, &result, err);
  if (status == BL_OK && result.help) {
    bl_flags_print_help(&flags, stdout);
  } else if (status == BL_OK) {
    *output = (bl_ctl_output_t)arguments.output;
    status = bl_ctl_endpoints_find(arguments.endpoint, &endpoints, err);
    if (status == BL_OK) {
      status = bl_ctl_driver_ask(bl_ctl_endpoints_driver(endpoints), arguments.timeout_seconds, status_json, err);
    }
  }
  json_decref(endpoints);
  bl_options_cleanup(&flags.table, &arguments);
  return status;
}
