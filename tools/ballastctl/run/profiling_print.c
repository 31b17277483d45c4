// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/run/profiling_core.h"

#include "ballastctl/output.h"
#include "ballastctl/plan/warning.h"

#include "base/sort.h"
#include "base/words.h"

#include <stdio.h>
#include <string.h>

static double median(const bl__series_t *series) {
  bl__series_t sorted = *series;
  return bl_median(sorted.values, sorted.count);
}

static double stalled(const bl_ctl_profiling_t *p, uint32_t s) {
  const bl_simulation_t *simulation = &p->prediction.trial.simulation;
  double sum = 0; // the last cause is not a wait of the executor
  for (int cause = 0; cause < BL_STALL_END; cause++) {
    sum += simulation->stalls[s][cause];
  }
  return sum;
}

static const char *pair(char *text, size_t bytes, double predicted, double measured) {
  snprintf(text, bytes, "%.3g / %.3g ms", 1e3 * predicted, 1e3 * measured);
  return text;
}

static json_t *stage_row(const bl_ctl_profiling_t *p, uint32_t s) {
  const bl__profiled_stage_t *stage = &p->stages[s];
  const bl_simulation_t *simulation = &p->prediction.trial.simulation;
  char slots[32], bytes[64], busy[64], stall[64];
  snprintf(slots, sizeof slots, "%u / %u", simulation->peak_slots[s], stage->peak_slots);
  snprintf(bytes, sizeof bytes, "%llu / %llu", (unsigned long long)p->prediction.training->stages[s].slot_bytes,
           (unsigned long long)stage->slot_bytes);
  return json_pack("{s:i, s:s, s:s, s:s, s:s}", "stage", (int)s, "slots", slots, "bytes", bytes, "busy",
                   pair(busy, sizeof busy, simulation->busy[s], median(&stage->busy)), "stall",
                   pair(stall, sizeof stall, stalled(p, s), median(&stage->stall)));
}

// Returns the median seconds of the traced steps that a stage waited for one cause: as of all that is measured, because
// one step in which another process took a core says nothing.
static double waited(const bl_ctl_profiling_t *p, uint32_t s, int cause) {
  double sorted[BL__TRACED_STEPS];
  memcpy(sorted, p->stages[s].waits[cause], sizeof sorted);
  return bl_median(sorted, (size_t)p->traced);
}

static const char *cause_name(int cause) {
  return cause < BL_STALL_CAUSES ? bl_stall_cause_name((bl_stall_cause_t)cause) : "other";
}

static double predicted_wait(const bl_ctl_profiling_t *p, uint32_t s, int cause) {
  return cause < BL_STALL_CAUSES ? p->prediction.trial.simulation.stalls[s][cause] : 0;
}

static bool has_copies(const bl_ctl_profiling_t *p) {
  return bl_copies_count(bl_grid_copies(&p->training->grid)) > 1;
}

static bool is_wait(const bl_ctl_profiling_t *p, int cause) {
  if (cause < BL_STALL_CAUSES && bl_stall_cause_is_of_replicas((bl_stall_cause_t)cause)) {
    return has_copies(p);
  }
  // The end is not a wait, and there is no NIC within a machine.
  return cause != BL_STALL_END && cause != BL_STALL_NIC;
}

static json_t *waits_row(const bl_ctl_profiling_t *p, uint32_t s) {
  json_t *row = json_pack("{s:i}", "stage", (int)s);
  for (int cause = 0; cause < BL__WAIT_CAUSES; cause++) {
    char text[64];
    json_object_set_new(row, cause_name(cause),
                        json_string(pair(text, sizeof text, predicted_wait(p, s, cause), waited(p, s, cause))));
  }
  return row;
}

static void print_waits(const bl_ctl_profiling_t *p, FILE *stream) {
  static const bl_ctl_column_t columns[] = {{.key = "stage", .title = "STAGE", .right = true},
                                            {.key = "activation", .title = "ACTIVATION", .right = true},
                                            {.key = "gradient", .title = "GRADIENT", .right = true},
                                            {.key = "load", .title = "LOAD", .right = true},
                                            {.key = "slot", .title = "SLOT", .right = true},
                                            {.key = "core", .title = "CORE", .right = true},
                                            {.key = "other", .title = "OTHER", .right = true},
                                            {.key = "gather", .title = "GATHER", .right = true},
                                            {.key = "reduction", .title = "REDUCTION", .right = true}};
  const size_t of_replicas = has_copies(p) ? 0 : 2; // columns to leave out
  json_t *rows = json_array();
  fprintf(stream, "\nwaits by cause, predicted / median of %llu traced steps\n", (unsigned long long)p->traced);
  for (uint32_t s = 0; s < p->stage_count; s++) {
    json_array_append_new(rows, waits_row(p, s));
  }
  if (bl_ctl_print_rows(BL_CTL_TABLE, columns, sizeof columns / sizeof columns[0] - of_replicas, rows, stream) !=
      BL_OK) {
    fputs("(the table of waits could not be printed)\n", stderr);
  }
  json_decref(rows);
}

void bl_ctl_profiling_print(const bl_ctl_profiling_t *p, FILE *stream) {
  static const bl_ctl_column_t columns[] = {{.key = "stage", .title = "STAGE", .right = true},
                                            {.key = "slots", .title = "PEAK SLOTS", .right = true},
                                            {.key = "bytes", .title = "SLOT BYTES", .right = true},
                                            {.key = "busy", .title = "BUSY", .right = true},
                                            {.key = "stall", .title = "STALL", .right = true}};
  if (!p->has_prediction || p->seconds.count == 0) {
    return;
  }
  double predicted = p->prediction.trial.step, measured = median(&p->seconds);
  fprintf(stream, "predicted / measured, median of %zu step%s: step %.4g / %.4g ms (%+.1f %%)\n", p->seconds.count,
          bl_plural(p->seconds.count), 1e3 * predicted, 1e3 * measured, 100 * (predicted / measured - 1));
  if (p->replayed > 0) {
    fprintf(stream, "one step replayed with its own durations: %.4g / %.4g ms (%+.1f %%)\n", 1e3 * p->replayed,
            1e3 * p->profile.replay.makespan, 100 * (p->replayed / p->profile.replay.makespan - 1));
  }
  json_t *rows = json_array();
  for (uint32_t s = 0; rows != NULL && s < p->stage_count; s++) {
    json_array_append_new(rows, stage_row(p, s));
  }
  if (rows == NULL ||
      bl_ctl_print_rows(BL_CTL_TABLE, columns, sizeof columns / sizeof columns[0], rows, stream) != BL_OK) {
    fputs("(the table of the prediction could not be printed)\n", stderr);
  }
  json_decref(rows);
  if (p->traced > 0) {
    print_waits(p, stream);
  }
}

static json_t *both(json_t *predicted, json_t *measured) {
  return json_pack("{s:o, s:o}", "predicted", predicted, "measured", measured);
}

static json_t *waits_json(const bl_ctl_profiling_t *p, uint32_t s) {
  json_t *waits = json_object();
  for (int cause = 0; cause < BL__WAIT_CAUSES; cause++) {
    if (is_wait(p, cause)) {
      json_object_set_new(waits, cause_name(cause),
                          both(json_real(predicted_wait(p, s, cause)), json_real(waited(p, s, cause))));
    }
  }
  return waits;
}

char *bl_ctl_profiling_line(const bl_ctl_profiling_t *p) {
  if (!p->has_prediction || p->seconds.count == 0) {
    return NULL;
  }
  json_t *stages = json_array();
  const bl_simulation_t *simulation = &p->prediction.trial.simulation;
  for (uint32_t s = 0; s < p->stage_count; s++) {
    const bl__profiled_stage_t *stage = &p->stages[s];
    json_array_append_new(
        stages, json_pack("{s:i, s:o, s:o, s:o, s:o, s:o}", "stage", (int)s, "peak_slots",
                          both(json_integer(simulation->peak_slots[s]), json_integer(stage->peak_slots)), "slot_bytes",
                          both(json_integer((json_int_t)p->prediction.training->stages[s].slot_bytes),
                               json_integer((json_int_t)stage->slot_bytes)),
                          "busy_seconds", both(json_real(simulation->busy[s]), json_real(median(&stage->busy))),
                          "stall_seconds", both(json_real(stalled(p, s)), json_real(median(&stage->stall))), "waits",
                          waits_json(p, s)));
  }
  json_t *object = json_pack("{s:s, s:I, s:o, s:o, s:o}", "event", "prediction", "step", (json_int_t)p->last_step,
                             "seconds", both(json_real(p->prediction.trial.step), json_real(median(&p->seconds))),
                             "stages", stages, "warnings", bl_ctl_warning_json(p->prediction.warning));
  if (object != NULL && p->replayed > 0) {
    json_object_set_new(object, "replay_seconds", both(json_real(p->replayed), json_real(p->profile.replay.makespan)));
  }
  char *text = object != NULL ? json_dumps(object, JSON_COMPACT) : NULL;
  json_decref(object);
  return text;
}
