// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/inspect/diagnosis.h"

#include "ballastctl/inspect/coords.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

// Stages report their waits one after the other, and a sender and its receiver wait for each other until the tensor is
// transferred; and the driver waits in every step. So waits that are younger than this mean nothing.
#define BL_CTL_STUCK_SECONDS 1.0

// Finds a stage by its rank, which is the number that peers use and its position in the list.
static const json_t *find_stage(const json_t *stages, json_int_t rank) {
  return json_array_get(stages, (size_t)rank);
}

static bool answers(const json_t *stage) {
  return json_is_true(json_object_get(stage, "reachable"));
}

// Returns the stage that this one waits for, or -1. The last report of a stage that does not answer is ignored.
static json_int_t peer_of(const json_t *stage) {
  const json_t *waits = json_object_get(stage, "waits");
  if (!answers(stage) || json_array_size(waits) == 0) {
    return -1;
  }
  const json_t *peer = json_object_get(json_array_get(waits, 0), "peer");
  return peer != NULL ? json_integer_value(peer) : -1;
}

// Returns the end of the chain of waits that begins at `stage`; `stage` itself if it waits for no stage. A circular
// chain is followed for as many links as there are stages.
static const json_t *end_of_chain(const json_t *stages, const json_t *stage) {
  for (size_t links = json_array_size(stages); links > 0; links--) {
    const json_t *next = peer_of(stage) < 0 ? NULL : find_stage(stages, peer_of(stage));
    if (next == NULL) {
      break;
    }
    stage = next;
  }
  return stage;
}

// Returns the shortest wait of the circle that contains `member`. The circle exists for no longer than its youngest
// wait.
static double shortest_wait_of_circle(const json_t *stages, const json_t *member) {
  const json_t *stage = member;
  double shortest = -1;
  do {
    const double seconds =
        json_number_value(json_object_get(json_array_get(json_object_get(stage, "waits"), 0), "seconds"));
    shortest = shortest < 0 || seconds < shortest ? seconds : shortest;
    stage = find_stage(stages, peer_of(stage));
  } while (stage != NULL && stage != member);
  return shortest;
}

static bool is_waited_for(const json_t *stages, const json_t *stage) {
  size_t i;
  json_t *other;
  json_array_foreach(stages, i, other) {
    if (other != stage && peer_of(other) >= 0 && end_of_chain(stages, other) == stage) {
      return true;
    }
  }
  return false;
}

static void add_rows(json_t *rows, const json_t *stages, const json_t *stage) {
  char who[BL_GRID_NAME_BYTES];
  const bl_grid_t grid = bl_ctl_coords_grid(stages);
  (void)bl_ctl_coords_name(&grid, stage, who);
  const json_t *phase = json_object_get(stage, "phase"), *operation = json_object_get(stage, "operation");
  const json_t *waits = json_object_get(stage, "waits");
  const char *state = !answers(stage) ? "does not answer" : phase != NULL ? json_string_value(phase) : "unknown";
  const bool cause = is_waited_for(stages, stage) && peer_of(stage) < 0;
  const size_t count = answers(stage) ? json_array_size(waits) : 0;
  for (size_t i = 0; i < (count == 0 ? 1 : count); i++) {
    json_t *row = json_pack("{s:s, s:s, s:b}", "who", who, "state", state, "cause", (int)cause);
    if (json_object_get(stage, "device") != NULL) {
      json_object_set(row, "device", json_object_get(stage, "device"));
    }
    if (json_object_get(stage, "age_seconds") != NULL) {
      json_object_set(row, "age_seconds", json_object_get(stage, "age_seconds"));
    }
    if (operation != NULL) { // of a stage that does not answer: its operation when it last answered
      json_object_set(row, "operation", (json_t *)operation);
    }
    if (count > 0) {
      const json_t *wait = json_array_get(waits, i);
      static const char *const keys[] = {"seconds", "peer", "micro_batch", "store", "lease", "chunk"};
      json_object_set(row, "waits_for", json_object_get(wait, "what"));
      for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++) {
        json_t *value = json_object_get(wait, keys[k]);
        if (value != NULL) { // a wait has those that it is about
          json_object_set(row, keys[k], value);
        }
      }
    }
    json_array_append_new(rows, row);
  }
}

// Returns what a stage waits for; NULL: it waits for nothing.
static const json_t *wait_of(const json_t *stage) {
  return json_array_get(json_object_get(stage, "waits"), 0);
}

// Adds one row per store that does not answer. Its blocks are recomputed, so no stage waits for it for long.
static size_t add_stores(json_t *rows, const json_t *stores, char verdict[BL_CTL_VERDICT_BYTES]) {
  size_t i, silent = 0;
  json_t *store;
  json_array_foreach(stores, i, store) {
    if (!json_is_true(json_object_get(store, "reachable"))) {
      char who[BL_CTL_OWNER_BYTES];
      (void)bl_ctl_store_name(store, who);
      json_array_append_new(rows, json_pack("{s:s, s:s, s:b}", "who", who, "state", "does not answer", "cause", 0));
      if (silent++ == 0) {
        snprintf(verdict, BL_CTL_VERDICT_BYTES, "%s (%.100s) does not answer; what it held is recomputed", who,
                 json_string_value(json_object_get(store, "address")));
      }
    }
  }
  return silent;
}

static void judge(const json_t *status, size_t silent, char verdict[BL_CTL_VERDICT_BYTES]) {
  const json_t *stages = json_object_get(status, "stages");
  char rank_name[BL_GRID_NAME_BYTES];
  const bl_grid_t grid = bl_ctl_coords_grid(stages);
  size_t i;
  json_t *stage;
  json_array_foreach(stages, i, stage) {
    const bool waited_for = is_waited_for(stages, stage);
    if (!answers(stage) || (silent == 0 && waited_for && peer_of(stage) < 0)) {
      const char *operation = json_string_value(json_object_get(stage, "operation"));
      const char *words = answers(stage) ? "computes " : "does not answer; it was last seen at ";
      if (answers(stage) && wait_of(stage) != NULL) { // for a store, or for a core
        words = json_object_get(wait_of(stage), "store") != NULL ? "waits for its " : "waits for ";
        operation = json_string_value(json_object_get(wait_of(stage), "what"));
      }
      if (operation == NULL || operation[0] == '\0') {
        operation = "";
        words = answers(stage) ? "waits for no process" : "does not answer";
      }
      const json_int_t process = json_integer_value(json_object_get(stage, "pid")); // 0: it was never met
      char pid[32] = "";
      if (process != 0) {
        snprintf(pid, sizeof pid, ", pid %lld", (long long)process);
      }
      snprintf(verdict, BL_CTL_VERDICT_BYTES, "%s (%.100s%s) %s%s%s", bl_ctl_coords_name(&grid, stage, rank_name),
               json_string_value(json_object_get(stage, "address")), pid, words, operation,
               waited_for ? "; others wait for it" : "");
      return;
    }
  }
  const double waiting = json_number_value(json_object_get(status, "waiting_seconds"));
  int length = snprintf(verdict, BL_CTL_VERDICT_BYTES, "no stage waits for another");
  if (waiting >= BL_CTL_STUCK_SECONDS) {
    snprintf(verdict + length, BL_CTL_VERDICT_BYTES - (size_t)length, "; for %.1f s the driver has waited for %.150s",
             waiting, json_string_value(json_object_get(status, "waiting_for")));
  }
  json_array_foreach(stages, i, stage) {
    if (peer_of(stage) < 0) {
      continue;
    }
    const json_t *member = end_of_chain(stages, stage);
    const double seconds = shortest_wait_of_circle(stages, member);
    if (seconds < BL_CTL_STUCK_SECONDS) {
      snprintf(verdict, BL_CTL_VERDICT_BYTES, "stages pass tensors to each other; none is stuck");
    } else {
      snprintf(verdict, BL_CTL_VERDICT_BYTES, "stages have waited for each other in a circle for %.1f s, %s in it",
               seconds, bl_ctl_coords_name(&grid, member, rank_name));
      return;
    }
  }
}

json_t *bl_ctl_diagnose(const json_t *status, char verdict[BL_CTL_VERDICT_BYTES], size_t *silent) {
  const json_t *stages = json_object_get(status, "stages");
  const char *waiting_for = json_string_value(json_object_get(status, "waiting_for"));
  json_t *rows = json_array();
  json_t *driver = json_pack("{s:s, s:O, s:b}", "who", "driver", "state", json_object_get(status, "phase"), "cause", 0);
  if (waiting_for != NULL && waiting_for[0] != '\0') {
    json_object_set(driver, "waits_for", json_object_get(status, "waiting_for"));
    json_object_set(driver, "seconds", json_object_get(status, "waiting_seconds"));
  }
  json_array_append_new(rows, driver);
  size_t i;
  json_t *stage;
  *silent = 0;
  json_array_foreach(stages, i, stage) {
    add_rows(rows, stages, stage);
    *silent += !answers(stage);
  }
  const size_t silent_stages = *silent;
  char about_store[BL_CTL_VERDICT_BYTES] = "";
  *silent += add_stores(rows, json_object_get(status, "stores"), about_store);
  judge(status, silent_stages, verdict);
  if (silent_stages == 0 && about_store[0] != '\0') {
    memcpy(verdict, about_store, sizeof about_store);
  }
  return rows;
}
