// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/run/summary.h"

#include "ballastctl/inspect/coords.h"
#include "ballastctl/output.h"

#include "base/bytes.h"
#include "base/minmax.h"
#include "base/words.h"

#include <stdlib.h>
#include <string.h>

typedef struct stage {
  int stage;
  unsigned tensor, data;
  char layers[64]; // "0-2", "0-1 6-7"
  char path[16];
  uint64_t parameters, planned_bytes, slot_bytes;
  uint32_t own_slots, peak_slots;
  double busy_seconds, stall_seconds;
} stage_t;

struct bl_ctl_summary {
  char schedule[32];
  uint64_t parameters, train_tokens, validation_tokens, step_tokens;
  stage_t *stages; // [stage_count], of all ranks
  size_t stage_count;
  unsigned tensor_ranks, replicas;
  uint64_t steps, last_step, tokens;
  double seconds, loss, validation_loss;
  bool has_validation;
  char *saved; // folder of the last checkpoint; NULL: none
};

bl_status_t bl_ctl_summary_create(bl_ctl_summary_t **summary) {
  *summary = calloc(1, sizeof **summary);
  return *summary != NULL ? BL_OK : BL_EXHAUSTED;
}

void bl_ctl_summary_destroy(bl_ctl_summary_t *summary) {
  if (summary != NULL) {
    free(summary->stages);
    free(summary->saved);
    free(summary);
  }
}

static void keep_stage(stage_t *stage, const bl_ctl_stage_plan_t *plan) {
  size_t used = 0;
  for (size_t i = 0; i < plan->layers_count && used < sizeof stage->layers; i++) {
    int first = plan->layers[i].first, last = first + plan->layers[i].count - 1;
    used += (size_t)snprintf(stage->layers + used, sizeof stage->layers - used, last > first ? "%s%d-%d" : "%s%d",
                             i > 0 ? " " : "", first, last);
  }
  for (size_t i = 0; i < plan->memory_count; i++) {
    stage->planned_bytes += plan->memory[i].planned_bytes;
  }
  snprintf(stage->path, sizeof stage->path, "%s", plan->data_path[0] != '\0' ? plan->data_path : "-");
  stage->stage = plan->stage;
  stage->tensor = plan->tensor;
  stage->data = plan->data;
  stage->parameters = plan->parameters;
  stage->slot_bytes = plan->slot_bytes;
  stage->own_slots = plan->own_slots;
}

bl_status_t bl_ctl_summary_plan(bl_ctl_summary_t *summary, const bl_ctl_plan_t *plan) {
  stage_t *stages = calloc(plan->stage_count + 1, sizeof *stages);
  if (stages == NULL) {
    return BL_EXHAUSTED;
  }
  for (size_t i = 0; i < plan->stage_count; i++) {
    if (i < summary->stage_count) { // a driver that was started again says it, too
      stages[i].busy_seconds = summary->stages[i].busy_seconds;
      stages[i].stall_seconds = summary->stages[i].stall_seconds;
      stages[i].peak_slots = summary->stages[i].peak_slots;
    }
    keep_stage(&stages[i], &plan->stages[i]);
  }
  free(summary->stages);
  summary->stages = stages;
  summary->stage_count = plan->stage_count;
  summary->tensor_ranks = plan->tensor_ranks;
  summary->replicas = plan->replicas;
  snprintf(summary->schedule, sizeof summary->schedule, "%s", plan->schedule);
  summary->parameters = plan->parameters;
  summary->train_tokens = plan->train_tokens;
  summary->validation_tokens = plan->validation_tokens;
  summary->step_tokens = plan->step_tokens;
  return BL_OK;
}

void bl_ctl_summary_step(bl_ctl_summary_t *summary, const bl_ctl_step_t *step) {
  summary->steps++;
  summary->last_step = step->step;
  summary->tokens += step->tokens;
  summary->seconds += step->seconds;
  summary->loss = step->loss;
  for (size_t i = 0; i < step->stage_count && i < summary->stage_count; i++) {
    const bl_ctl_stage_step_t *from = &step->stages[i];
    stage_t *stage = &summary->stages[i];
    stage->busy_seconds += 1e-9 * (double)from->counters.busy_ns;
    stage->stall_seconds += 1e-9 * (double)from->counters.stall_ns;
    stage->own_slots = from->counters.own_slots;
    stage->peak_slots = bl_max_u32(from->counters.peak_slots, stage->peak_slots);
  }
}

void bl_ctl_summary_validation(bl_ctl_summary_t *summary, const bl_ctl_validation_t *validation) {
  summary->has_validation = true;
  summary->validation_loss = validation->loss;
}

void bl_ctl_summary_checkpoint(bl_ctl_summary_t *summary, const bl_ctl_checkpoint_t *checkpoint) {
  char bytes[BL_BYTES_TEXT];
  free(summary->saved);
  if (asprintf(&summary->saved, "%s (%s)", checkpoint->folder, bl_bytes_format(checkpoint->bytes, bytes)) < 0) {
    summary->saved = NULL;
  }
}

uint64_t bl_ctl_summary_steps(const bl_ctl_summary_t *summary) {
  return summary->steps;
}

uint64_t bl_ctl_summary_last_step(const bl_ctl_summary_t *summary) {
  return summary->last_step;
}

// "1.82 M"
static const char *count_text(double count, char text[24]) {
  const char *const units[] = {"", " k", " M", " G", " T"};
  size_t unit = 0;
  while (count >= 999.5 && unit < 4) {
    count /= 1000;
    unit++;
  }
  snprintf(text, 24, unit == 0 || count >= 99.95 ? "%.0f%s" : count >= 9.995 ? "%.1f%s" : "%.2f%s", count, units[unit]);
  return text;
}

void bl_ctl_summary_print_plan(const bl_ctl_summary_t *summary, FILE *stream) {
  char parameters[24], train[24], held_out[24];
  const unsigned of_a_stage = summary->tensor_ranks * summary->replicas;
  const size_t stages = summary->stage_count / (of_a_stage > 0 ? of_a_stage : 1);
  fprintf(stream, "%s parameters on %zu stage%s", count_text((double)summary->parameters, parameters), stages,
          bl_plural(stages));
  if (summary->tensor_ranks > 1) {
    fprintf(stream, " of %u tensor ranks", summary->tensor_ranks);
  }
  if (summary->replicas > 1) {
    fprintf(stream, " in %u replicas", summary->replicas);
  }
  fprintf(stream, ", %s, %llu tokens a step; %s tokens of training data", summary->schedule,
          (unsigned long long)summary->step_tokens, count_text((double)summary->train_tokens, train));
  if (summary->validation_tokens > 0) {
    fprintf(stream, ", %s held out", count_text((double)summary->validation_tokens, held_out));
  }
  fputc('\n', stream);
}

void bl_ctl_summary_print_line(const bl_ctl_summary_t *summary, FILE *stream) {
  char tokens[24], rate[24];
  fprintf(stream, "%llu step%s, %s tokens in %.1f s (%s tokens/s)", (unsigned long long)summary->steps,
          bl_plural(summary->steps), count_text((double)summary->tokens, tokens), summary->seconds,
          count_text(summary->seconds > 0 ? (double)summary->tokens / summary->seconds : 0, rate));
  if (summary->steps > 0) {
    fprintf(stream, "; loss %.4f", summary->loss);
  }
  if (summary->has_validation) {
    fprintf(stream, ", held-out %.4f", summary->validation_loss);
  }
  fputc('\n', stream);
  if (summary->saved != NULL) {
    fprintf(stream, "saved: %s\n", summary->saved);
  }
}

static json_t *stage_row(const bl_ctl_summary_t *summary, size_t i) {
  const stage_t *stage = &summary->stages[i];
  char parameters[24], memory[BL_BYTES_TEXT], slot[BL_BYTES_TEXT], slots[32], busy[16], stall[16];
  double seconds = summary->seconds > 0 ? summary->seconds : 1;
  snprintf(slots, sizeof slots, "%u/%u", stage->peak_slots, stage->own_slots);
  snprintf(busy, sizeof busy, "%.0f %%", 100 * stage->busy_seconds / seconds);
  snprintf(stall, sizeof stall, "%.0f %%", 100 * stage->stall_seconds / seconds);
  return json_pack("{s:i, s:i, s:i, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s}", "stage", stage->stage, "tensor",
                   (int)stage->tensor, "data", (int)stage->data, "layers", stage->layers, "parameters",
                   count_text((double)stage->parameters, parameters), "memory",
                   bl_bytes_format(stage->planned_bytes, memory), "slots", slots, "slot",
                   bl_bytes_format(stage->slot_bytes, slot), "busy", busy, "stall", stall, "path", stage->path);
}

void bl_ctl_summary_print_stages(const bl_ctl_summary_t *summary, FILE *stream) {
  static const bl_ctl_column_t columns[] = {
      BL_CTL_COORDS_COLUMNS,
      {.key = "layers", .title = "LAYERS"},
      {.key = "parameters", .title = "PARAMETERS", .right = true},
      {.key = "memory", .title = "MEMORY", .right = true},
      {.key = "slots", .title = "PEAK/OWN SLOTS", .right = true},
      {.key = "slot", .title = "SLOT", .right = true},
      {.key = "busy", .title = "BUSY", .right = true},
      {.key = "stall", .title = "STALL", .right = true},
      {.key = "path", .title = "PATH"},
  };
  json_t *rows = json_array();
  for (size_t i = 0; rows != NULL && i < summary->stage_count; i++) {
    json_array_append_new(rows, stage_row(summary, i));
  }
  bl_ctl_column_t shown[sizeof columns / sizeof columns[0]];
  const size_t count = bl_ctl_coords_columns(columns, sizeof columns / sizeof columns[0], summary->tensor_ranks > 1,
                                             summary->replicas > 1, shown);
  if (rows == NULL || bl_ctl_print_rows(BL_CTL_TABLE, shown, count, rows, stream) != BL_OK) {
    fputs("(the table of stages could not be printed)\n", stderr);
  }
  json_decref(rows);
}
