// SPDX-License-Identifier: Apache-2.0
// ballastctl leases: what stores hold, and for whom; list, get, revoke. watch is in lease_watch.c.
#include "ballastctl/cluster/store_ask.h"
#include "ballastctl/commands.h"

#include "base/words.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const bl_ctl_column_t columns[] = {
    {.key = "lease", .title = "LEASE"},
    BL_CTL_STORE_OF_COLUMN, // at a host store the stage is the number of a rank
    {.key = "state", .title = "STATE"},
    {.key = "job", .title = "JOB"},
    {.key = "stage", .title = "STAGE", .right = true},
    {.key = "step", .title = "STEP", .right = true},
    {.key = "chunk", .title = "CHUNK", .right = true},
    {.key = "micro_batch", .title = "MICRO-BATCH", .right = true},
    {.key = "room_bytes", .title = "ROOM", .right = true, .bytes = true},
    {.key = "age_seconds", .title = "SECONDS", .right = true},
    {.key = "plan", .title = "PLAN", .right = true, .wide = true},
    {.key = "generation", .title = "GENERATION", .right = true, .wide = true},
    {.key = "session", .title = "SESSION", .wide = true},
    {.key = "block_bytes", .title = "BLOCK", .right = true, .bytes = true, .wide = true},
    {.key = "checksum", .title = "CHECKSUM", .wide = true},
    {.key = "offset_bytes", .title = "OFFSET", .right = true, .wide = true},
    {.key = "tier", .title = "TIER", .wide = true},
};
#define COLUMNS (sizeof columns / sizeof columns[0])

static const char *const states[] = {"", "reserved", "writing", "sealed", "loading", "lost", "quarantined", NULL};

typedef struct arguments {
  bl_ctl_store_arguments_t common; // must be first for bl_ctl_stores_act
  char *job, *session;
  int state;
  int64_t generation;
  bool dry_run;
} arguments_t;

// Puts the lease's name in front, so that it is the first member in every format.
static json_t *named(json_t *lease, const bl_ctl_stores_t *stores, size_t store) {
  char name[48];
  snprintf(name, sizeof name, "%zu/%" PRId64, store, (int64_t)json_integer_value(json_object_get(lease, "id")));
  json_t *row = json_pack("{s:s, s:I}", "lease", name, "store", (json_int_t)store);
  bl_ctl_store_set_of(stores, store, row);
  json_object_update(row, lease);
  return row;
}

// ---- list

static bl_status_t print_list(const arguments_t *arguments, const bl_ctl_stores_t *stores, const json_t *rows,
                              bl_error_t *err) {
  bl_ctl_column_t shown[COLUMNS];
  const size_t count = bl_ctl_store_columns(stores, columns, COLUMNS, shown);
  return bl_ctl_printed(bl_ctl_print_rows((bl_ctl_output_t)arguments->common.output, shown, count, rows, stdout), err);
}

static bl_status_t list(void *context, const bl_ctl_stores_t *stores, const bl_flags_result_t *words, bl_error_t *err) {
  arguments_t *arguments = context;
  const bl_text_list_t *addresses = &stores->addresses;
  (void)words;
  const bl_ctl_store_question_t question = {.kind = BL_CTL_STORE_LIST,
                                            .job = arguments->job,
                                            .state = arguments->state == 0 ? NULL : states[arguments->state]};
  bl_ctl_store_reply_t *replies = calloc(addresses->count, sizeof *replies);
  if (replies == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory");
  }
  bl_status_t status = bl_ctl_stores_ask(addresses, arguments->common.timeout_seconds, &question, replies, err);
  if (status != BL_OK) {
    free(replies);
    return status;
  }
  json_t *rows = json_array(), *lease;
  for (size_t i = 0; i < addresses->count; i++) {
    size_t k;
    json_array_foreach(json_object_get(replies[i].value, "leases"), k, lease) {
      json_array_append_new(rows, named(lease, stores, i));
    }
  }
  status = bl_ctl_stores_verdict(replies, addresses->count, err);
  if (status == BL_OK || status == BL_PARTIAL) {
    bl_error_t fault;
    if (print_list(arguments, stores, rows, &fault) != BL_OK) {
      *err = fault;
      status = fault.status;
    }
  }
  json_decref(rows);
  for (size_t i = 0; i < addresses->count; i++) {
    json_decref(replies[i].value);
  }
  free(replies);
  return status;
}

// ---- get

static bl_status_t get(void *context, const bl_ctl_stores_t *stores, const bl_flags_result_t *words, bl_error_t *err) {
  const arguments_t *arguments = context;
  const bl_text_list_t *addresses = &stores->addresses;
  size_t store;
  bl_ctl_store_question_t question = {.kind = BL_CTL_STORE_GET};
  json_t *lease = NULL;
  bl_status_t status = bl_ctl_lease_parse(words->positional[0], addresses->count, &store, &question.id, err);
  if (status == BL_OK) {
    status = bl_ctl_store_ask(addresses->items[store], arguments->common.timeout_seconds, &question, &lease, err);
  }
  if (status == BL_OK) {
    json_t *row = named(lease, stores, store);
    bl_ctl_column_t shown[COLUMNS];
    const size_t count = bl_ctl_store_columns(stores, columns, COLUMNS, shown);
    status =
        bl_ctl_printed(bl_ctl_print_object((bl_ctl_output_t)arguments->common.output, shown, count, row, stdout), err);
    json_decref(row);
  }
  json_decref(lease);
  return status;
}

// ---- revoke

static const bl_ctl_column_t revoked_columns[] = {{.key = "lease", .title = "LEASE"},
                                                  {.key = "result", .title = "RESULT"},
                                                  {.key = "error", .title = "ERROR", .wide = true}};

static bl_status_t revoke_one(const arguments_t *arguments, const char *address,
                              const bl_ctl_store_question_t *question, const char *name, json_t *rows,
                              bl_error_t *err) {
  json_t *answer = NULL;
  bl_status_t status = bl_ctl_store_ask(address, arguments->common.timeout_seconds, question, &answer, err);
  const char *result = status != BL_OK ? "failed" : arguments->dry_run ? "would be revoked" : "revoked";
  json_t *row = json_pack("{s:s, s:s}", "lease", name, "result", result);
  if (status != BL_OK) {
    json_object_set_new(row, "error", json_string(err->text));
  }
  json_array_append_new(rows, row);
  json_decref(answer);
  return status;
}

static bl_status_t revoke_leases(const arguments_t *arguments, const bl_text_list_t *addresses,
                                 const bl_flags_result_t *words, json_t *rows, bl_error_t *err) {
  size_t failed = 0, stores[BL_FLAGS_POSITIONAL];
  bl_ctl_store_question_t questions[BL_FLAGS_POSITIONAL];
  for (size_t i = 0; i < words->positional_count; i++) { // checks all names before the first lease is revoked
    questions[i] = (bl_ctl_store_question_t){.kind = arguments->dry_run ? BL_CTL_STORE_GET : BL_CTL_STORE_REVOKE,
                                             .generation = (uint64_t)arguments->generation};
    bl_status_t status = bl_ctl_lease_parse(words->positional[i], addresses->count, &stores[i], &questions[i].id, err);
    if (status != BL_OK) {
      return status;
    }
  }
  bl_error_t first = {0};
  for (size_t i = 0; i < words->positional_count; i++) {
    char name[48];
    bl_error_t fault;
    snprintf(name, sizeof name, "%zu/%" PRIu64, stores[i], questions[i].id);
    if (revoke_one(arguments, addresses->items[stores[i]], &questions[i], name, rows, &fault) != BL_OK) {
      first = failed++ == 0 ? fault : first;
      fprintf(stderr, "ballastctl: %s: %s\n", name, fault.text);
    }
  }
  if (failed == 0) {
    return BL_OK;
  }
  return bl_error_set(err, failed == words->positional_count ? first.status : BL_PARTIAL,
                      "%zu of %zu lease%s not revoked", failed, words->positional_count,
                      bl_one_or_many(words->positional_count, " was", "s were"));
}

static bl_status_t revoke_session(const arguments_t *arguments, const bl_text_list_t *addresses, json_t *rows,
                                  bl_error_t *err) {
  char *end;
  const bl_ctl_store_question_t question = {.kind = BL_CTL_STORE_REVOKE,
                                            .session = strtoull(arguments->session, &end, 16)};
  if (question.session == 0 || *end != '\0') {
    return bl_error_set(err, BL_INVALID, "--session '%.40s' is none: they are 16 hexadecimal digits",
                        arguments->session);
  }
  if (addresses->count != 1) {
    return bl_error_set(err, BL_INVALID, "--session: a session is of one store; --store ADDRESS names it");
  }
  if (arguments->dry_run) {
    return bl_error_set(err, BL_INVALID, "--dry-run is for leases; 'ballastctl stores -o json' lists sessions");
  }
  return revoke_one(arguments, addresses->items[0], &question, arguments->session, rows, err);
}

static bl_status_t revoke(void *context, const bl_ctl_stores_t *stores, const bl_flags_result_t *words,
                          bl_error_t *err) {
  const arguments_t *arguments = context;
  const bl_text_list_t *addresses = &stores->addresses;
  json_t *rows = json_array();
  bl_status_t status = arguments->session != NULL ? revoke_session(arguments, addresses, rows, err)
                                                  : revoke_leases(arguments, addresses, words, rows, err);
  bl_error_t fault;
  if (json_array_size(rows) > 0 &&
      bl_ctl_printed(bl_ctl_print_rows((bl_ctl_output_t)arguments->common.output, revoked_columns,
                                       sizeof revoked_columns / sizeof revoked_columns[0], rows, stdout),
                     &fault) != BL_OK &&
      status == BL_OK) {
    *err = fault;
    status = fault.status;
  }
  json_decref(rows);
  return status;
}

// ---- commands

#define COMMON BL_CTL_STORE_ROWS(arguments_t, common)
static const bl_option_t list_rows[] = {COMMON,
                                        {.name = "job",
                                         .type = BL_OPTION_TEXT,
                                         .offset = offsetof(arguments_t, job),
                                         .argument = "NAME",
                                         .help = "Only those of this job."},
                                        {.name = "state",
                                         .type = BL_OPTION_ENUM,
                                         .offset = offsetof(arguments_t, state),
                                         .choices = states,
                                         .help = "Only those in this state."}};
static const bl_option_t get_rows[] = {COMMON};
static const bl_option_t revoke_rows[] = {COMMON,
                                          {.name = "generation",
                                           .type = BL_OPTION_INT,
                                           .offset = offsetof(arguments_t, generation),
                                           .minimum = 0,
                                           .maximum = 9e15,
                                           .help = "Only if it is still of this generation; 0 takes any."},
                                          {.name = "session",
                                           .type = BL_OPTION_TEXT,
                                           .offset = offsetof(arguments_t, session),
                                           .argument = "HEX",
                                           .help = "Instead of leases: end this session, with all that it holds."},
                                          {.name = "dry-run",
                                           .type = BL_OPTION_BOOL,
                                           .offset = offsetof(arguments_t, dry_run),
                                           .help = "Only print what would be revoked."}};

#define TABLE(rows_) .table = {rows_, sizeof rows_ / sizeof rows_[0], "command line"}
static const bl_flags_t list_flags = {.program = "ballastctl leases list",
                                      .usage = "[--job NAME] [--state STATE] [-o FORMAT]",
                                      .about = "Lists the leases of stores: each block's holder, place, state and age.",
                                      TABLE(list_rows)};
static const bl_flags_t get_flags = {.program = "ballastctl leases get",
                                     .usage = "STORE/NUMBER [-o FORMAT]",
                                     .about = "Shows one lease; exit code 3 if no session holds it.",
                                     TABLE(get_rows),
                                     .positional_minimum = 1,
                                     .positional_maximum = 1};
static const bl_flags_t revoke_flags = {
    .program = "ballastctl leases revoke",
    .usage = "STORE/NUMBER... | --session HEX",
    .about = "Revokes leases: their slots are freed, their blocks are lost, and the stages recompute them. Exit code 3 "
             "if no session holds the lease, 4 if it is of another generation, 10 if some were not revoked.",
    TABLE(revoke_rows),
    .positional_maximum = BL_FLAGS_POSITIONAL};

static bl_status_t list_body(void *arguments, const bl_flags_result_t *words, bl_error_t *err) {
  return bl_ctl_stores_act(list, arguments, words, err);
}

static int list_run(int argc, char *const *argv) {
  arguments_t arguments = {0};
  return bl_ctl_run(&list_flags, &arguments, list_body, argc, argv);
}

static bl_status_t get_body(void *arguments, const bl_flags_result_t *words, bl_error_t *err) {
  return bl_ctl_stores_act(get, arguments, words, err);
}

static int get_run(int argc, char *const *argv) {
  arguments_t arguments = {0};
  return bl_ctl_run(&get_flags, &arguments, get_body, argc, argv);
}

static bl_status_t revoke_body(void *context, const bl_flags_result_t *words, bl_error_t *err) {
  arguments_t *arguments = context;
  if ((arguments->session != NULL) == (words->positional_count > 0)) {
    return bl_error_set(err, BL_INVALID, "name leases, such as 0/17, or a session with --session");
  }
  return bl_ctl_stores_act(revoke, arguments, words, err);
}

static int revoke_run(int argc, char *const *argv) {
  arguments_t arguments = {0};
  return bl_ctl_run(&revoke_flags, &arguments, revoke_body, argc, argv);
}

static const bl_ctl_command_t commands[] = {{"list", "the leases of stores", list_run},
                                            {"get", "one lease", get_run},
                                            {"watch", "changes as they happen, without gaps", bl_ctl_leases_watch},
                                            {"revoke", "take leases from their holders", revoke_run}};

static int run(int argc, char *const *argv) {
  return bl_ctl_dispatch("ballastctl leases", commands, sizeof commands / sizeof commands[0], argc, argv);
}

const bl_ctl_command_t bl_ctl_leases_command = {"leases", "what stores hold: list, get, watch, revoke", run};
