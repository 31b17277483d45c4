// SPDX-License-Identifier: Apache-2.0
// ballastctl policy: shows the balancing policy in force, sets another one, or goes back to an earlier one.
#include "ballastctl/commands.h"
#include "ballastctl/inspect/ask.h"
#include "ballastctl/inspect/endpoint.h"
#include "ballastctl/inspect/policy_wire.h"

#include "config/flags.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct arguments {
  bl_ctl_ask_arguments_t ask; // must be first: its rows come before ours
  char *mode;
  bl_int_list_t devices;
  bool wait, dry_run;
  uint64_t number; // the cap or version on the command line; 0: none
} arguments_t;

#define ROW(member) offsetof(arguments_t, member)

#define ROW_WAIT                                                                                                       \
  {                                                                                                                    \
    .name = "wait", .type = BL_OPTION_BOOL, .offset = ROW(wait),                                                       \
    .help = "Wait for the step boundary however long that takes, instead of --timeout."                                \
  }
#define ROW_DRY_RUN                                                                                                    \
  {                                                                                                                    \
    .name = "dry-run", .type = BL_OPTION_BOOL, .offset = ROW(dry_run),                                                 \
    .help = "Only print what it would need of every device and host store, or why it is impossible."                   \
  }

static const bl_option_t set_rows[] = {
    {.name = "mode",
     .type = BL_OPTION_TEXT,
     .offset = ROW(mode),
     .argument = "overlap|fewest",
     .preset_help = "balance.mode of the job",
     .help = "Copies during operations (overlap), or as few of them as possible."},
    {.name = "device",
     .type = BL_OPTION_INT_LIST,
     .offset = ROW(devices),
     .argument = "N",
     .minimum = 0,
     .maximum = 65535,
     .preset_help = "all",
     .help = "A device whose store may take blocks; may be repeated."},
    ROW_WAIT,
    ROW_DRY_RUN,
};
static const bl_option_t rollback_rows[] = {ROW_WAIT, ROW_DRY_RUN};

#define SHOWN                                                                                                          \
  {.key = "policy", .title = "POLICY"}, {.key = "cap", .title = "CAP", .right = true},                                 \
      {.key = "version", .title = "VERSION", .right = true},                                                           \
      {.key = "from_step", .title = "FROM STEP", .right = true}, {                                                     \
    .key = "mode", .title = "MODE", .wide = true                                                                       \
  }
static const bl_ctl_column_t change_columns[] = {
    SHOWN,
    {.key = "own", .title = "OWN SLOTS", .wide = true},
    {.key = "lent", .title = "LENT SLOTS", .wide = true},
    {.key = "host", .title = "HOST SLOTS", .wide = true},
    {.key = "evictions", .title = "EVICTIONS", .wide = true},
    {.key = "dropped", .title = "DROPPED", .wide = true},
    {.key = "chosen", .title = "CHOSEN", .wide = true},
    {.key = "order", .title = "ORDER", .wide = true},
};
static const bl_ctl_column_t history_columns[] = {
    SHOWN,
    {.key = "chosen", .title = "CHOSEN", .wide = true},
    {.key = "restores", .title = "RESTORES", .right = true, .wide = true},
};
#define COLUMNS(columns) columns, sizeof(columns) / sizeof(columns)[0]

// Adds one number per device, or per host store, as text for tables: "4 3 2 1".
static void add_list(json_t *answer, const char *list, const char *key, const char *member) {
  char text[512] = "";
  size_t i, used = 0;
  json_t *device;
  json_array_foreach(json_object_get(answer, list), i, device) {
    int length = snprintf(text + used, sizeof text - used, "%s%lld", i > 0 ? " " : "",
                          (long long)json_integer_value(json_object_get(device, member)));
    if (length < 0 || used + (size_t)length >= sizeof text) {
      break;
    }
    used += (size_t)length;
  }
  json_object_set_new(answer, key, json_string(text));
}

static bl_status_t print_policy(const arguments_t *arguments, json_t *answer, bl_error_t *err) {
  bl_ctl_output_t output = (bl_ctl_output_t)arguments->ask.output;
  if (output == BL_CTL_WIDE || output == BL_CTL_TABLE) {
    add_list(answer, "devices", "own", "own_slots");
    add_list(answer, "devices", "lent", "lent_slots");
    if (json_array_size(json_object_get(answer, "hosts")) > 0) {
      add_list(answer, "hosts", "host", "lent_slots");
    }
    add_list(answer, "devices", "evictions", "evictions");
    add_list(answer, "devices", "dropped", "dropped");
  }
  return bl_ctl_printed(bl_ctl_print_object(output, COLUMNS(change_columns), answer, stdout), err);
}

// The body of a command, called once its command line is read and the driver is found.
typedef bl_status_t (*act_fn)(const char *address, uint64_t timeout_ms, const arguments_t *arguments,
                              const bl_flags_result_t *result, bl_error_t *err);

// Reads the words of a command line before the driver is looked for.
typedef bl_status_t (*read_fn)(arguments_t *arguments, const bl_flags_result_t *result, bl_error_t *err);

static bl_status_t read_nothing(arguments_t *arguments, const bl_flags_result_t *result, bl_error_t *err) {
  (void)arguments, (void)result, (void)err;
  return BL_OK;
}

static int run_command(bl_flags_t flags, const bl_option_t *own, size_t own_count, read_fn read, act_fn act, int argc,
                       char *const *argv) {
  bl_option_t rows[BL_CTL_ASK_ROWS + sizeof set_rows / sizeof set_rows[0]];
  memcpy(rows, bl_ctl_ask_rows, BL_CTL_ASK_ROWS * sizeof rows[0]);
  if (own_count > 0) {
    memcpy(rows + BL_CTL_ASK_ROWS, own, own_count * sizeof rows[0]);
  }
  flags.table = (bl_option_table_t){rows, BL_CTL_ASK_ROWS + own_count, "command line"};
  arguments_t arguments = {0};
  bl_flags_result_t result;
  bl_error_t err = {0};
  json_t *endpoints = NULL;
  bl_status_t status = bl_flags_parse(&flags, argc, argv, &arguments, &result, &err);
  if (status == BL_OK && result.help) {
    bl_flags_print_help(&flags, stdout);
  } else if (status == BL_OK) {
    status = read(&arguments, &result, &err);
    if (status == BL_OK) {
      status = bl_ctl_endpoints_find(arguments.ask.endpoint, &endpoints, &err);
    }
    if (status == BL_OK) {
      uint64_t timeout_ms = (uint64_t)(arguments.ask.timeout_seconds * 1000);
      status = act(bl_ctl_endpoints_driver(endpoints), timeout_ms, &arguments, &result, &err);
    }
  }
  json_decref(endpoints);
  bl_options_cleanup(&flags.table, &arguments);
  return bl_ctl_finish(status, &err);
}

// ---- get, history ---------------------------------------------------------------------------------------------------

// Prints the options that auto compared, one per line, and what it does on every device.
static void explain(const json_t *answer) {
  const char *text = json_string_value(json_object_get(answer, "decision"));
  size_t i;
  const json_t *device;
  if (text == NULL) {
    return;
  }
  static const char listed[] = "Predicted: ";
  const char *list = strstr(text, listed);
  if (list == NULL) {
    printf("\n%s\n", text);
  } else {
    printf("\n%.*s\n", (int)(list - text + (ptrdiff_t)strlen(listed) - 1), text);
    for (const char *at = list + strlen(listed); *at != '\0';) {
      const char *end = strstr(at, "; ");
      int length = end != NULL ? (int)(end - at) : (int)strlen(at);
      printf("  %.*s\n", length, at);
      at += end != NULL ? length + 2 : length;
    }
  }
  json_array_foreach(json_object_get(answer, "devices"), i, device) {
    const char *reason = json_string_value(json_object_get(device, "reason"));
    if (reason != NULL) {
      printf("device %lld %s\n", (long long)json_integer_value(json_object_get(device, "device")), reason);
    }
  }
}

static bl_status_t act_get(const char *address, uint64_t timeout_ms, const arguments_t *arguments,
                           const bl_flags_result_t *result, bl_error_t *err) {
  (void)result;
  json_t *answer = NULL;
  bl_status_t status = bl_ctl_policy_get(address, timeout_ms, &answer, err);
  if (status == BL_OK) {
    status = print_policy(arguments, answer, err);
  }
  if (status == BL_OK && (arguments->ask.output == BL_CTL_TABLE || arguments->ask.output == BL_CTL_WIDE)) {
    explain(answer);
  }
  json_decref(answer);
  return status;
}

static int run_get(int argc, char *const *argv) {
  bl_flags_t flags = {
      .program = "ballastctl policy get",
      .usage = "[--endpoint ADDRESS] [-o FORMAT]",
      .about =
          "Shows the balancing policy in force; -o wide and json add what it needs of every device and host store."};
  return run_command(flags, NULL, 0, read_nothing, act_get, argc, argv);
}

static bl_status_t act_history(const char *address, uint64_t timeout_ms, const arguments_t *arguments,
                               const bl_flags_result_t *result, bl_error_t *err) {
  (void)result;
  json_t *answer = NULL;
  bl_status_t status = bl_ctl_policy_history(address, timeout_ms, &answer, err);
  if (status == BL_OK) {
    bl_ctl_output_t output = (bl_ctl_output_t)arguments->ask.output;
    status = bl_ctl_printed(bl_ctl_print_rows(output, COLUMNS(history_columns), answer, stdout), err);
  }
  json_decref(answer);
  return status;
}

static int run_history(int argc, char *const *argv) {
  bl_flags_t flags = {.program = "ballastctl policy history",
                      .usage = "[--endpoint ADDRESS] [-o FORMAT]",
                      .about = "Lists the policies of a run, newest first."};
  return run_command(flags, NULL, 0, read_nothing, act_history, argc, argv);
}

// ---- set, rollback --------------------------------------------------------------------------------------------------

#define FOREVER_MS (UINT64_C(365) * 86400 * 1000)

static bl_status_t change(const char *address, uint64_t timeout_ms, const arguments_t *arguments,
                          const bl_ctl_policy_change_t *wanted, bl_error_t *err) {
  json_t *answer = NULL;
  uint64_t wait_ms = arguments->wait ? FOREVER_MS : timeout_ms;
  bl_status_t status = bl_ctl_policy_set(address, wait_ms, wanted, &answer, err);
  if (status == BL_OK && json_is_true(json_object_get(answer, "unchanged"))) {
    fprintf(stderr, "ballastctl: this policy is in force already\n");
  }
  if (status == BL_OK) {
    status = print_policy(arguments, answer, err);
  } else if (status == BL_DEADLINE) {
    status = bl_error_set(err, BL_DEADLINE, "no answer from %s within %.3g s: %s", address, (double)wait_ms / 1000,
                          wanted->dry_run
                              ? "a dry run changes nothing, and waits while a run is set up; see ballastctl status"
                              : "the change may still come into force at the end of the step that runs; see ballastctl "
                                "policy get, or set with --wait");
  }
  json_decref(answer);
  return status;
}

// Reads a number of decimal digits.
static bl_status_t read_number(const char *text, uint64_t maximum, uint64_t *value, const char *what, bl_error_t *err) {
  char *end;
  bool digits = text[0] >= '0' && text[0] <= '9';
  unsigned long long number = digits ? strtoull(text, &end, 10) : 0;
  if (!digits || *end != '\0' || number < 1 || number > maximum) {
    return bl_error_set(err, BL_INVALID, "'%.40s' is no %s: a whole number from 1 on", text, what);
  }
  *value = number;
  return BL_OK;
}

static bl_status_t read_cap(arguments_t *arguments, const bl_flags_result_t *result, bl_error_t *err) {
  return result->positional_count > 1 ? read_number(result->positional[1], UINT32_MAX, &arguments->number, "cap", err)
                                      : BL_OK;
}

static bl_status_t read_version(arguments_t *arguments, const bl_flags_result_t *result, bl_error_t *err) {
  return result->positional_count > 0
             ? read_number(result->positional[0], UINT64_MAX, &arguments->number, "version", err)
             : BL_OK;
}

static bl_status_t act_set(const char *address, uint64_t timeout_ms, const arguments_t *arguments,
                           const bl_flags_result_t *result, bl_error_t *err) {
  uint32_t *devices = calloc(arguments->devices.count + 1, sizeof *devices);
  if (devices == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory");
  }
  for (size_t i = 0; i < arguments->devices.count; i++) {
    devices[i] = (uint32_t)arguments->devices.items[i];
  }
  bl_ctl_policy_change_t wanted = {.name = result->positional[0],
                                   .cap = (uint32_t)arguments->number,
                                   .mode = arguments->mode,
                                   .devices = devices,
                                   .device_count = arguments->devices.count,
                                   .dry_run = arguments->dry_run};
  bl_status_t status = change(address, timeout_ms, arguments, &wanted, err);
  free(devices);
  return status;
}

static int run_set(int argc, char *const *argv) {
  bl_flags_t flags = {.program = "ballastctl policy set",
                      .usage = "none | bpipe [CAP] | cap CAP | drop [CAP] | offload [CAP] | auto [CAP] [--mode MODE] "
                               "[--device N]... [--wait | --dry-run]",
                      .about = "Changes the balancing policy of a run: at one step boundary on all stages, or not at "
                               "all if one of them refuses. Returns when it is in force.",
                      .positional_minimum = 1,
                      .positional_maximum = 2};
  return run_command(flags, set_rows, sizeof set_rows / sizeof set_rows[0], read_cap, act_set, argc, argv);
}

static bl_status_t act_rollback(const char *address, uint64_t timeout_ms, const arguments_t *arguments,
                                const bl_flags_result_t *result, bl_error_t *err) {
  (void)result;
  bl_ctl_policy_change_t wanted = {.to_version = arguments->number, .dry_run = arguments->dry_run};
  return change(address, timeout_ms, arguments, &wanted, err);
}

static int run_rollback(int argc, char *const *argv) {
  bl_flags_t flags = {.program = "ballastctl policy rollback",
                      .usage = "[VERSION] [--wait | --dry-run]",
                      .about =
                          "Restores an earlier policy as a new version: VERSION, or the one before the current one.",
                      .positional_maximum = 1};
  return run_command(flags, rollback_rows, sizeof rollback_rows / sizeof rollback_rows[0], read_version, act_rollback,
                     argc, argv);
}

static int run(int argc, char *const *argv) {
  static const bl_ctl_command_t commands[] = {
      {"get", "the policy in force", run_get},
      {"set", "another one: none, bpipe, cap K, drop, offload, auto", run_set},
      {"history", "policies and since when", run_history},
      {"rollback", "an earlier one again", run_rollback},
  };
  return bl_ctl_dispatch("ballastctl policy", commands, sizeof commands / sizeof commands[0], argc, argv);
}

const bl_ctl_command_t bl_ctl_policy_command = {"policy", "the balancing policy: get, set, history, rollback", run};
