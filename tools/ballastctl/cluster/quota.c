// SPDX-License-Identifier: Apache-2.0
// ballastctl quota: limits what a job may reserve at stores.
#include "ballastctl/cluster/store_ask.h"
#include "ballastctl/commands.h"

#include "base/bytes.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct arguments {
  bl_ctl_store_arguments_t common; // must be first for bl_ctl_stores_act
  bl_optional_int_t stage;
  uint64_t bytes;
  bool unlimited; // `bytes` is ignored
} arguments_t;

static json_t *row_of(const bl_ctl_store_question_t *quota, const bl_ctl_store_reply_t *reply,
                      const bl_ctl_stores_t *stores, size_t number) {
  json_t *row = json_pack("{s:I, s:s}", "store", (json_int_t)number, "job", quota->job);
  bl_ctl_store_set_of(stores, number, row);
  if (quota->stage >= 0) {
    json_object_set_new(row, "stage", json_integer(quota->stage));
  }
  if (reply->value == NULL) {
    json_object_set_new(row, "error", json_string(reply->err.text));
  } else {
    json_object_set_new(row, "quota_bytes",
                        quota->unlimited ? json_string("unlimited") : json_integer((json_int_t)quota->bytes));
  }
  return row;
}

static bl_status_t set(void *context, const bl_ctl_stores_t *stores, const bl_flags_result_t *words, bl_error_t *err) {
  const arguments_t *arguments = context;
  const bl_text_list_t *addresses = &stores->addresses;
  static const bl_ctl_column_t columns[] = {{.key = "store", .title = "STORE", .right = true},
                                            BL_CTL_STORE_OF_COLUMN,
                                            {.key = "job", .title = "JOB"},
                                            {.key = "stage", .title = "STAGE", .right = true},
                                            {.key = "quota_bytes", .title = "QUOTA", .right = true, .bytes = true},
                                            {.key = "error", .title = "ERROR", .wide = true}};
  const bl_ctl_store_question_t quota = {.kind = BL_CTL_STORE_QUOTA,
                                         .job = words->positional[0],
                                         .stage = arguments->stage.set ? arguments->stage.value : -1,
                                         .bytes = arguments->bytes,
                                         .unlimited = arguments->unlimited};
  bl_ctl_store_reply_t *replies = calloc(addresses->count, sizeof *replies);
  if (replies == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory");
  }
  bl_status_t status = bl_ctl_stores_ask(addresses, arguments->common.timeout_seconds, &quota, replies, err);
  if (status != BL_OK) {
    free(replies);
    return status;
  }
  bl_ctl_column_t shown[sizeof columns / sizeof columns[0]];
  const size_t count = bl_ctl_store_columns(stores, columns, sizeof columns / sizeof columns[0], shown);
  json_t *rows = json_array();
  for (size_t i = 0; i < addresses->count; i++) {
    json_array_append_new(rows, row_of(&quota, &replies[i], stores, i));
    json_decref(replies[i].value);
  }
  status = bl_ctl_print_rows((bl_ctl_output_t)arguments->common.output, shown, count, rows, stdout);
  json_decref(rows);
  status = bl_ctl_printed(status, err);
  if (status == BL_OK) {
    status = bl_ctl_stores_verdict(replies, addresses->count, err);
  }
  free(replies);
  return status;
}

static const bl_option_t rows[] = {BL_CTL_STORE_ROWS(arguments_t, common),
                                   {.name = "stage",
                                    .type = BL_OPTION_INT,
                                    .offset = offsetof(arguments_t, stage),
                                    .optional = true,
                                    .minimum = 0,
                                    .maximum = UINT32_MAX,
                                    .preset_help = "all stages together",
                                    .help = "Only this stage of the job; at a store of a host, only this rank."}};

static const bl_flags_t flags = {
    .program = "ballastctl quota",
    .usage = "JOB BYTES|unlimited [--stage N]",
    .about = "Limits what a job, or one stage of it, may reserve at every store. The quota applies from the next "
             "reservation on; nothing is revoked. It counts one plan, since two plans of a job are never in use "
             "together. A store that is restarted has no quotas.",
    .table = {rows, sizeof rows / sizeof rows[0], "command line"},
    .positional_minimum = 2,
    .positional_maximum = 2};

static bl_status_t body(void *context, const bl_flags_result_t *words, bl_error_t *err) {
  arguments_t *arguments = context;
  arguments->unlimited = strcmp(words->positional[1], "unlimited") == 0;
  if (!arguments->unlimited && !bl_bytes_parse(words->positional[1], &arguments->bytes)) {
    return bl_error_set(err, BL_INVALID, "'%.100s' is no number of bytes, such as 512 MiB, nor 'unlimited'",
                        words->positional[1]);
  }
  return bl_ctl_stores_act(set, arguments, words, err);
}

static int run(int argc, char *const *argv) {
  arguments_t arguments = {0};
  return bl_ctl_run(&flags, &arguments, body, argc, argv);
}

const bl_ctl_command_t bl_ctl_quota_command = {"quota", "what a job may reserve at stores", run};
