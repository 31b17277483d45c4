// SPDX-License-Identifier: Apache-2.0
// ballastctl stores: shows what stores have and lend. ballastctl drain: empties one.
#include "ballastctl/cluster/store_ask.h"
#include "ballastctl/commands.h"

#include "sys/clock.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define POLL_MS 200

typedef struct arguments {
  bl_ctl_store_arguments_t common; // must be first for bl_ctl_stores_act
  bool undrain;
  double wait_seconds;
} arguments_t;

// ---- stores

static const bl_ctl_column_t columns[] = {
    {.key = "store", .title = "STORE", .right = true},
    BL_CTL_STORE_OF_COLUMN,
    {.key = "state", .title = "STATE"},
    {.key = "sessions_count", .title = "SESSIONS", .right = true},
    {.key = "leases_count", .title = "LEASES", .right = true},
    {.key = "held_bytes", .title = "HELD", .right = true, .bytes = true},
    {.key = "in_flight_bytes", .title = "IN FLIGHT", .right = true, .bytes = true},
    {.key = "arena_bytes", .title = "TAKEN", .right = true, .bytes = true}, // part of the capacity in arenas
    {.key = "capacity_bytes", .title = "CAPACITY", .right = true, .bytes = true},
    {.key = "address", .title = "ADDRESS"},
    {.key = "free_bytes", .title = "FREE OF TAKEN", .right = true, .wide = true, .bytes = true},
    {.key = "largest_free_bytes", .title = "LARGEST FREE", .right = true, .bytes = true, .wide = true},
    {.key = "quarantined_bytes", .title = "QUARANTINED", .right = true, .bytes = true, .wide = true},
    {.key = "revision", .title = "REVISION", .right = true, .wide = true},
    {.key = "device", .title = "DEVICE", .wide = true},
    {.key = "incarnation", .title = "INCARNATION", .wide = true},
    {.key = "error", .title = "ERROR", .wide = true},
};

static json_t *store_row(const bl_ctl_store_reply_t *reply, const bl_ctl_stores_t *stores, size_t number) {
  json_t *row = json_pack("{s:I, s:s}", "store", (json_int_t)number, "address", stores->addresses.items[number]);
  bl_ctl_store_set_of(stores, number, row);
  if (reply->value == NULL) {
    const bool other = reply->err.status == BL_UNIMPLEMENTED; // another kind of service answered
    json_object_set_new(row, "state", json_string(other ? "no store" : "unreachable"));
    json_object_set_new(row, "error", json_string(reply->err.text));
    return row;
  }
  uint64_t leases = 0; // wraps if a store says nonsense
  const char *state;
  json_t *count;
  json_object_foreach(json_object_get(reply->value, "leases"), state, count) {
    leases += (uint64_t)json_integer_value(count);
  }
  json_object_set_new(row, "sessions_count",
                      json_integer((json_int_t)json_array_size(json_object_get(reply->value, "sessions"))));
  json_object_set_new(row, "leases_count", json_integer((json_int_t)leases));
  json_object_update(row, reply->value);
  return row;
}

static bl_status_t list(void *context, const bl_ctl_stores_t *stores, const bl_flags_result_t *words, bl_error_t *err) {
  const arguments_t *arguments = context;
  (void)words;
  const bl_ctl_store_question_t question = {.kind = BL_CTL_STORE_STATUS};
  const bl_text_list_t *addresses = &stores->addresses;
  bl_ctl_store_reply_t *replies = calloc(addresses->count, sizeof *replies);
  if (replies == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory");
  }
  bl_status_t status = bl_ctl_stores_ask(addresses, arguments->common.timeout_seconds, &question, replies, err);
  if (status != BL_OK) {
    free(replies);
    return status;
  }
  bl_ctl_column_t shown[sizeof columns / sizeof columns[0]];
  const size_t count = bl_ctl_store_columns(stores, columns, sizeof columns / sizeof columns[0], shown);
  json_t *rows = json_array();
  for (size_t i = 0; i < addresses->count; i++) {
    json_array_append_new(rows, store_row(&replies[i], stores, i));
    json_decref(replies[i].value);
  }
  status = bl_ctl_print_rows((bl_ctl_output_t)arguments->common.output, shown, count, rows, stdout);
  json_decref(rows);
  if (bl_ctl_printed(status, err) == BL_OK) {
    status = bl_ctl_stores_verdict(replies, addresses->count, err);
  }
  free(replies);
  return status;
}

// ---- drain

// Finds the store that the argument names: a number in the run, or an address. If there is one store, no argument is
// needed.
static bl_status_t choose(const bl_text_list_t *addresses, const char *word, size_t *number, bl_error_t *err) {
  if (word == NULL && addresses->count == 1) {
    *number = 0;
    return BL_OK;
  }
  if (word == NULL) {
    return bl_error_set(err, BL_INVALID, "which of %zu stores? 'ballastctl stores' lists them", addresses->count);
  }
  char *end;
  unsigned long value = strtoul(word, &end, 10);
  for (size_t i = 0; i < addresses->count; i++) {
    if (strcmp(addresses->items[i], word) == 0 || (*end == '\0' && end != word && value == i)) {
      *number = i;
      return BL_OK;
    }
  }
  return bl_error_set(err, BL_NOT_FOUND, "there is no store '%.100s'; 'ballastctl stores' lists them", word);
}

static void pause_ms(unsigned milliseconds) {
  nanosleep(&(struct timespec){.tv_nsec = (long)milliseconds * 1000000}, NULL);
}

static bl_status_t drain(void *context, const bl_ctl_stores_t *stores, const bl_flags_result_t *words,
                         bl_error_t *err) {
  arguments_t *arguments = context;
  const bl_text_list_t *addresses = &stores->addresses;
  static const bl_ctl_column_t drained_columns[] = {{.key = "store", .title = "STORE", .right = true},
                                                    BL_CTL_STORE_OF_COLUMN,
                                                    {.key = "state", .title = "STATE"},
                                                    {.key = "address", .title = "ADDRESS"}};
  size_t number = 0;
  bl_status_t status = choose(addresses, words->positional_count > 0 ? words->positional[0] : NULL, &number, err);
  if (status != BL_OK) {
    return status;
  }
  const uint64_t until_ns = bl_clock_now_ns() + (uint64_t)(arguments->wait_seconds * 1e9);
  const bl_ctl_store_question_t question = {.kind = BL_CTL_STORE_DRAIN, .undrain = arguments->undrain};
  bool drained = false, again;
  do { // draining a store twice changes nothing
    json_t *answer = NULL;
    status = bl_ctl_store_ask(addresses->items[number], arguments->common.timeout_seconds, &question, &answer, err);
    drained = json_is_true(json_object_get(answer, "drained"));
    json_decref(answer);
    again = status == BL_OK && !drained && !arguments->undrain && bl_clock_now_ns() < until_ns;
    if (again) {
      pause_ms(POLL_MS);
    }
  } while (again);
  if (status != BL_OK) {
    return status;
  }
  json_t *row = json_pack("{s:I, s:s, s:s}", "store", (json_int_t)number, "state",
                          arguments->undrain ? "serving"
                          : drained          ? "drained"
                                             : "draining",
                          "address", addresses->items[number]);
  bl_ctl_store_set_of(stores, number, row);
  bl_ctl_column_t shown[sizeof drained_columns / sizeof drained_columns[0]];
  const size_t count =
      bl_ctl_store_columns(stores, drained_columns, sizeof drained_columns / sizeof drained_columns[0], shown);
  status = bl_ctl_print_object((bl_ctl_output_t)arguments->common.output, shown, count, row, stdout);
  json_decref(row);
  if (bl_ctl_printed(status, err) != BL_OK) {
    return status;
  }
  if (arguments->wait_seconds > 0 && !drained && !arguments->undrain) {
    return bl_error_set(err, BL_DEADLINE, "store %zu drains, but leases are still held after %g s", number,
                        arguments->wait_seconds);
  }
  return BL_OK;
}

// ---- commands

static const bl_option_t list_rows[] = {BL_CTL_STORE_ROWS(arguments_t, common)};
static const bl_option_t drain_rows[] = {
    BL_CTL_STORE_ROWS(arguments_t, common),
    {.name = "undrain",
     .type = BL_OPTION_BOOL,
     .offset = offsetof(arguments_t, undrain),
     .help = "Ends draining: the store lends again."},
    {.name = "wait",
     .type = BL_OPTION_REAL,
     .offset = offsetof(arguments_t, wait_seconds),
     .minimum = 0,
     .maximum = 86400,
     .unit = "seconds",
     .help = "Wait so long for the last lease to go; exit code 6 when some are left."}};

static const bl_flags_t list_flags = {.program = "ballastctl stores",
                                      .usage = "[-o FORMAT]",
                                      .about = "Lists the stores of a run: what each has, lends and moves. Exit code "
                                               "10 if some do not answer; if none answers, that of the first.",
                                      .table = {list_rows, sizeof list_rows / sizeof list_rows[0], "command line"}};
static const bl_flags_t drain_flags = {
    .program = "ballastctl drain",
    .usage = "[STORE] [--wait SECONDS] [--undrain]",
    .about = "Stops a store from taking new blocks; what it holds stays until its holders are done. STORE is its "
             "number or address, and may be left out if there is only one.",
    .table = {drain_rows, sizeof drain_rows / sizeof drain_rows[0], "command line"},
    .positional_maximum = 1};

static bl_status_t list_body(void *arguments, const bl_flags_result_t *words, bl_error_t *err) {
  return bl_ctl_stores_act(list, arguments, words, err);
}

static int list_run(int argc, char *const *argv) {
  arguments_t arguments = {0};
  return bl_ctl_run(&list_flags, &arguments, list_body, argc, argv);
}

static bl_status_t drain_body(void *arguments, const bl_flags_result_t *words, bl_error_t *err) {
  return bl_ctl_stores_act(drain, arguments, words, err);
}

static int drain_run(int argc, char *const *argv) {
  arguments_t arguments = {0};
  return bl_ctl_run(&drain_flags, &arguments, drain_body, argc, argv);
}

const bl_ctl_command_t bl_ctl_stores_command = {"stores", "what stores have and lend", list_run};
const bl_ctl_command_t bl_ctl_drain_command = {"drain", "makes a store take nothing new", drain_run};
