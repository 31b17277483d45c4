// SPDX-License-Identifier: Apache-2.0
// ballastctl doctor: who waits for what, while the job is stuck.
#include "ask.h"
#include "diagnosis.h"
#include "store_ask.h"
#include "verbs.h"

#define LEASE_SECONDS 2 // for a store to say which lease it is: a help, not worth a long wait

static bl_status_t list_question(bl_ctl_store_t *store, uint64_t deadline_ms, bl_ctl_store_fn done, void *done_context,
                                 void *context, bl_error_t *err) {
  (void)context;
  return bl_ctl_store_list(store, NULL, NULL, deadline_ms, done, done_context, err);
}

static bool is_number(const json_t *object, const char *key, const json_t *value) {
  return json_integer_value(json_object_get(object, key)) == json_integer_value(value);
}

// Adds the lease that a wait for a store is about, if the store says. It may not: then the wait is told without.
static void name_lease(json_t *row, const json_t *stores) {
  const json_t *number = json_object_get(row, "store");
  const char *address =
      json_string_value(json_object_get(json_array_get(stores, (size_t)json_integer_value(number)), "address"));
  json_t *answer = NULL, *lease;
  size_t i;
  bl_error_t err;
  if (address == NULL || bl_ctl_store_ask(address, LEASE_SECONDS, list_question, NULL, &answer, &err) != BL_OK) {
    return;
  }
  json_array_foreach(json_object_get(answer, "leases"), i, lease) {
    if (json_object_get(lease, "micro_batch") != NULL && is_number(lease, "stage", json_object_get(row, "stage")) &&
        is_number(lease, "micro_batch", json_object_get(row, "micro_batch"))) {
      char name[48];
      snprintf(name, sizeof name, "%lld/%lld", (long long)json_integer_value(number),
               (long long)json_integer_value(json_object_get(lease, "id")));
      json_object_set_new(row, "lease", json_string(name));
      break;
    }
  }
  json_decref(answer);
}

static int run(int argc, char *const *argv) {
  static const bl_ctl_column_t columns[] = {
      {.key = "who", .title = "WHO"},
      {.key = "state", .title = "STATE"},
      {.key = "operation", .title = "OPERATION"},
      {.key = "waits_for", .title = "WAITS FOR"},
      {.key = "seconds", .title = "SECONDS", .right = true},
      {.key = "peer", .title = "PEER", .right = true},
      {.key = "micro_batch", .title = "MICRO-BATCH", .right = true},
      {.key = "lease", .title = "LEASE"},
      {.key = "cause", .title = "CAUSE", .wide = true},
  };
  bl_error_t err;
  bl_ctl_output_t output;
  json_t *answer;
  bl_status_t status =
      bl_ctl_ask_status("ballastctl doctor",
                        "Says who waits for what, since when, for which peer, store, lease and micro-batch, and who "
                        "holds everybody up; works while the job is stuck. Exit code 9 when a stage "
                        "or a store does not answer.",
                        argc, argv, &output, &answer, &err);
  if (status == BL_OK && answer != NULL) {
    char verdict[BL_CTL_VERDICT_BYTES];
    size_t silent;
    json_t *rows = bl_ctl_diagnose(answer, verdict, &silent), *row;
    size_t i;
    json_array_foreach(rows, i, row) {
      if (json_object_get(row, "store") != NULL) {
        name_lease(row, json_object_get(answer, "stores"));
      }
    }
    status = bl_ctl_print_rows(output, columns, sizeof columns / sizeof columns[0], rows, stdout);
    json_decref(rows);
    if (status != BL_OK) {
      status = bl_error_set(&err, status, "cannot print: %s", bl_status_text(status));
    } else if (silent > 0) {
      status = bl_error_set(&err, BL_UNHEALTHY, "%s", verdict);
    } else {
      fprintf(stderr, "%s\n", verdict);
    }
  }
  json_decref(answer);
  return bl_ctl_finish(status, &err);
}

const bl_ctl_verb_t bl_ctl_doctor_verb = {"doctor", "who waits for what, also while the job is stuck", run};
