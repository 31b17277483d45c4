// SPDX-License-Identifier: Apache-2.0
// ballastctl health: asks a run's driver whether all services answer, or checks one health port like a probe.
#include "ballastctl/calls.h"
#include "ballastctl/commands.h"
#include "ballastctl/inspect/ask.h"
#include "ballastctl/inspect/coords.h"
#include "ballastctl/inspect/endpoint.h"

#include "rpc/health.h"

#include <string.h>

typedef struct arguments {
  bl_ctl_ask_arguments_t ask; // first: bl_ctl_ask_rows
  char *port, *service;
} arguments_t;

static const bl_option_t own_rows[] = {
    {.name = "port",
     .type = BL_OPTION_TEXT,
     .offset = offsetof(arguments_t, port),
     .argument = "ADDRESS",
     .help = "Ask this health port (--health-listen of a service) instead of a driver, in plaintext, as a probe does."},
    {.name = "service",
     .type = BL_OPTION_TEXT,
     .offset = offsetof(arguments_t, service),
     .argument = "NAME",
     .preset_help = "whether it lives",
     .help = "What to ask it about: ballast.v1.Stage, ballast.v1.Store or ballast.v1.Driver is whether that is ready."},
};
#define OWN_ROWS (sizeof own_rows / sizeof own_rows[0])

static const bl_ctl_column_t columns[] = {
    {.key = "service", .title = "SERVICE"},
    {.key = "state", .title = "STATE"},
    {.key = "address", .title = "ADDRESS", .wide = true},
};

// Makes a name of a service one word: stage-0-of-replica-1, host-store-0.
static void join_words(char *name) {
  for (char *space = strchr(name, ' '); space != NULL; space = strchr(space, ' ')) {
    *space = '-';
  }
}

// Returns one row per service. A row that is not serving makes the run unhealthy.
static json_t *health_rows(const json_t *answer, bool *healthy) {
  json_t *rows = json_array(), *stage;
  size_t i;
  const bl_grid_t grid = bl_ctl_coords_grid(json_object_get(answer, "stages"));
  json_array_append_new(rows, json_pack("{s:s, s:s}", "service", "driver", "state", "serving"));
  *healthy = true;
  json_array_foreach(json_object_get(answer, "stages"), i, stage) {
    char name[BL_GRID_NAME_BYTES];
    bool reachable = json_is_true(json_object_get(stage, "reachable"));
    (void)bl_ctl_coords_name(&grid, stage, name);
    join_words(name);
    json_array_append_new(rows,
                          json_pack("{s:s, s:s, s:O?}", "service", name, "state", reachable ? "serving" : "unreachable",
                                    "address", json_object_get(stage, "address")));
    *healthy = *healthy && reachable;
  }
  json_t *store;
  json_array_foreach(json_object_get(answer, "stores"), i, store) {
    char name[BL_CTL_OWNER_BYTES];
    bool reachable = json_is_true(json_object_get(store, "reachable"));
    bool draining = json_is_true(json_object_get(store, "draining"));
    (void)bl_ctl_store_name(store, name);
    join_words(name);
    json_array_append_new(rows, json_pack("{s:s, s:s, s:O?}", "service", name, "state",
                                          !reachable ? "unreachable"
                                          : draining ? "draining"
                                                     : "serving",
                                          "address", json_object_get(store, "address")));
    *healthy = *healthy && reachable;
  }
  return rows;
}

static bl_status_t print(const arguments_t *arguments, const json_t *rows, bl_error_t *err) {
  bl_status_t status = bl_ctl_print_rows((bl_ctl_output_t)arguments->ask.output, columns,
                                         sizeof columns / sizeof columns[0], rows, stdout);
  return bl_ctl_printed(status, err);
}

static bl_status_t ask_driver(const arguments_t *arguments, bl_error_t *err) {
  json_t *endpoints = NULL, *answer = NULL;
  bool healthy = true;
  bl_status_t status = bl_ctl_endpoints_find(arguments->ask.endpoint, &endpoints, err);
  if (status == BL_OK) {
    status = bl_ctl_driver_ask(bl_ctl_endpoints_driver(endpoints), arguments->ask.timeout_seconds, &answer, err);
  }
  if (status == BL_OK) {
    json_t *rows = health_rows(answer, &healthy);
    status = print(arguments, rows, err);
    json_decref(rows);
  }
  if (status == BL_OK && !healthy) {
    status = bl_error_set(err, BL_UNHEALTHY, "a stage or a store cannot be reached");
  }
  json_decref(answer);
  json_decref(endpoints);
  return status;
}

// ---- one port

typedef struct check {
  bl_ctl_calls_t calls;
  bl_rpc_health_state_t state;
  bl_error_t err;
} check_t;

static void checked(bl_rpc_health_state_t state, const bl_error_t *err, void *context) {
  check_t *check = context;
  check->state = state;
  check->err = *err;
  bl_ctl_calls_ended(&check->calls);
}

static bl_status_t ask_port(const arguments_t *arguments, bl_error_t *err) {
  const char *service = arguments->service != NULL ? arguments->service : "";
  check_t check = {.state = BL_RPC_HEALTH_UNREACHABLE};
  bl_rpc_channel_t *channel = NULL;
  bl_status_t status = bl_ctl_calls_init(&check.calls, err);
  if (status == BL_OK) {
    status = bl_rpc_channel_create(check.calls.rpc, arguments->port, &(bl_rpc_channel_options_t){.plaintext = true},
                                   &channel, err);
  }
  if (status == BL_OK) {
    status =
        bl_rpc_health_check(channel, service, (uint64_t)(arguments->ask.timeout_seconds * 1000), checked, &check, err);
  }
  if (status == BL_OK) {
    check.calls.open = 1;
    bl_ctl_calls_wait(&check.calls);
  }
  bl_rpc_channel_destroy(channel);
  bl_ctl_calls_cleanup(&check.calls);
  if (status != BL_OK) {
    return status;
  }
  json_t *rows = json_pack("[{s:s, s:s, s:s}]", "service", service, "state", bl_rpc_health_state_name(check.state),
                           "address", arguments->port);
  status = print(arguments, rows, err);
  json_decref(rows);
  if (status == BL_OK && check.state != BL_RPC_HEALTH_SERVING) {
    bool away = check.state == BL_RPC_HEALTH_UNREACHABLE;
    status = away ? bl_error_set(err, BL_UNHEALTHY, "%s", check.err.text) // names the port
                  : bl_error_set(err, BL_UNHEALTHY, "%s%s%s: %s", arguments->port, service[0] != '\0' ? ", " : "",
                                 service, bl_rpc_health_state_name(check.state));
  }
  return status;
}

static bl_status_t body(void *arguments, const bl_flags_result_t *words, bl_error_t *err) {
  const arguments_t *a = arguments;
  (void)words;
  if (a->port == NULL && a->service != NULL) {
    return bl_error_set(err, BL_INVALID, "ballastctl health: --service belongs to --port ADDRESS");
  }
  return a->port != NULL ? ask_port(a, err) : ask_driver(a, err);
}

static int run(int argc, char *const *argv) {
  bl_option_t rows[BL_CTL_ASK_ROWS + OWN_ROWS];
  memcpy(rows, bl_ctl_ask_rows, BL_CTL_ASK_ROWS * sizeof rows[0]);
  memcpy(rows + BL_CTL_ASK_ROWS, own_rows, sizeof own_rows);
  const bl_flags_t flags = {
      .program = "ballastctl health",
      .usage = "[--endpoint ADDRESS] [--port ADDRESS [--service NAME]] [-o FORMAT]",
      .about = "Asks whether the driver answers and reaches all its stages and stores; exit code 9 if it does not. "
               "With --port it asks one health port whether it serves: exit code 0 or 9, for probes.",
      .table = {rows, BL_CTL_ASK_ROWS + OWN_ROWS, "command line"}};
  arguments_t arguments = {0};
  return bl_ctl_run(&flags, &arguments, body, argc, argv);
}

const bl_ctl_command_t bl_ctl_health_command = {"health", "does everything of a run answer", run};
