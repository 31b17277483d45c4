// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/cluster/preflight_gpus.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define ROW_BYTES 768

static bool answered(const bl_ctl_explorer_t *stage) {
  return stage->address != NULL && stage->err.status == BL_OK;
}

static bool has_gpu(const bl_ctl_explorer_t *stage) {
  return answered(stage) && stage->gpu[0] != '\0';
}

// Returns a tensor rank of the same layers that would compute on the same GPU; `number` if there is none.
static uint32_t shares_gpu(const bl_grid_t *grid, uint32_t number, const bl_ctl_explorer_t *stages) {
  bl_coords_t coords = bl_grid_coords(grid, number);
  for (coords.tensor = 0; coords.tensor < grid->tensor; coords.tensor++) {
    const uint32_t other = bl_grid_rank(grid, coords);
    if (other != number && has_gpu(&stages[other]) && bl_ctl_explorers_are_near(&stages[number], &stages[other]) &&
        strcmp(stages[number].gpu, stages[other].gpu) == 0) {
      return other;
    }
  }
  return number;
}

static void note_gpu(bl_ctl_checklist_t *list, const bl_grid_t *grid, uint32_t number,
                     const bl_ctl_explorer_t *stages) {
  const bl_ctl_explorer_t *stage = &stages[number];
  char subject[BL_GRID_NAME_BYTES], other[BL_GRID_NAME_BYTES];
  bl_error_t err = {0};
  const uint32_t same = stage->gpu[0] == '\0' ? number : shares_gpu(grid, number, stages);
  if (stage->gpu[0] == '\0') {
    (void)bl_error_set(&err, BL_UNHEALTHY, "%.400s; give its container a GPU and the CUDA image", stage->device_text);
  } else if (same != number) {
    (void)bl_error_set(
        &err, BL_PRECONDITION,
        "%.300s; %s is on the same GPU, and NCCL takes one rank of a group on each: give every container "
        "its own, or a smaller parallel.tensor",
        stage->device_text, bl_grid_name(grid, same, other));
  }
  bl_ctl_checklist_note(list, "gpu", bl_grid_name(grid, number, subject), &err, stage->device_text);
}

// ---- peer access

typedef struct row {
  char text[ROW_BYTES];
  size_t used;
} row_t;

static void append(row_t *row, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void append(row_t *row, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const int length = vsnprintf(row->text + row->used, sizeof row->text - row->used, format, arguments);
  va_end(arguments);
  row->used += length > 0 ? (size_t)length : 0;
  row->used = row->used < sizeof row->text ? row->used : sizeof row->text - 1;
}

// Returns why stage `a` cannot read memory of stage `b` directly; NULL: it can.
static const char *obstacle(const bl_ctl_explorer_t *a, const bl_ctl_explorer_t *b) {
  if (!has_gpu(b)) {
    return "it has no GPU";
  }
  if (!bl_ctl_explorers_are_near(a, b)) {
    return "it is on another machine";
  }
  if (b->gpu_closed[0] != '\0') {
    return b->gpu_closed;
  }
  for (size_t i = 0; i < a->reach_count; i++) {
    if (strcmp(a->reaches[i].gpu, b->gpu) == 0) {
      return a->reaches[i].reached ? NULL : a->reaches[i].reason;
    }
  }
  return "it did not say";
}

// Appends the stages whose obstacle is `why` (NULL: those without one), starting at `from`, as "1, 2". Returns false if
// there was none.
static bool append_stages(row_t *row, const char *before, uint32_t number, const bl_ctl_explorer_t *stages,
                          uint32_t from, uint32_t count, const char *why) {
  bool any = false;
  for (uint32_t d = from; d < count; d++) {
    const char *found = d != number ? obstacle(&stages[number], &stages[d]) : NULL;
    if (d != number && (why == NULL ? found == NULL : found != NULL && strcmp(found, why) == 0)) {
      append(row, "%s%u", any ? ", " : before, d);
      any = true;
    }
  }
  return any;
}

static bool was_said(uint32_t number, const bl_ctl_explorer_t *stages, uint32_t until, const char *why) {
  for (uint32_t d = 0; d < until; d++) {
    const char *found = d != number ? obstacle(&stages[number], &stages[d]) : NULL;
    if (found != NULL && strcmp(found, why) == 0) {
      return true;
    }
  }
  return false;
}

// Blocks are parked within a plane: the same tensor rank of the same replica.
static bool exchanges_blocks(const bl_grid_t *grid, const bl_device_slots_t *device_slots, uint32_t a, uint32_t b) {
  const bl_coords_t one = bl_grid_coords(grid, a), two = bl_grid_coords(grid, b);
  return one.tensor == two.tensor && one.data == two.data && one.stage < device_slots->devices &&
         two.stage < device_slots->devices &&
         (bl_device_slots_reserved(device_slots, one.stage, two.stage) > 0 ||
          bl_device_slots_reserved(device_slots, two.stage, one.stage) > 0);
}

// Adds one row of the matrix: the stages that this one reads directly, and each reason why it cannot read others once.
static void note_access(bl_ctl_checklist_t *list, const bl_job_t *job, const bl_training_t *training,
                        const bl_device_slots_t *device_slots, uint32_t number, const bl_ctl_explorer_t *stages,
                        uint32_t count) {
  const bl_grid_t *grid = &training->grid;
  const bool single = grid->tensor * grid->data == 1; // ranks are stages
  char subject[BL_GRID_NAME_BYTES], other[BL_GRID_NAME_BYTES];
  row_t row = {.used = 0};
  bl_error_t err = {0};
  (void)append_stages(&row, single ? "reads memory of stages " : "reads memory of ranks ", number, stages, 0, count,
                      NULL);
  for (uint32_t d = 0; d < count; d++) {
    const char *why = d != number ? obstacle(&stages[number], &stages[d]) : NULL;
    if (why != NULL && !was_said(number, stages, d, why)) {
      (void)append_stages(&row,
                          row.used > 0 ? "; not of "
                          : single     ? "not of stages "
                                       : "not of ranks ",
                          number, stages, d, count, why);
      append(&row, ": %s", why);
    }
  }
  for (uint32_t d = 0; d < count && err.status == BL_OK; d++) {
    const bool blocks = exchanges_blocks(grid, device_slots, number, d) &&
                        bl_job_block_path(job) == BL_JOB_DATA_PATH_CUDA_IPC,
               tensors =
                   bl_training_exchange(training, number, d) && bl_job_boundary_path(job) == BL_JOB_DATA_PATH_CUDA_IPC;
    if (d != number && (blocks || tensors) && obstacle(&stages[number], &stages[d]) != NULL) {
      const bool required = !tensors && job->balance.require == BL_JOB_DATA_PATH_CUDA_IPC;
      (void)bl_error_set(&err, BL_PRECONDITION,
                         "%.500s. %s go between it and %s, and balance.%s is cuda-ipc: give both GPUs to "
                         "the containers of both (ballastctl render --pairing pod, or a shared claim), or %s less",
                         row.text, tensors ? "Tensors" : "Blocks", bl_grid_name(grid, d, other),
                         required ? "require" : "data_path", required ? "require" : "ask for");
    }
  }
  bl_ctl_checklist_note(list, "peer access", bl_grid_name(grid, number, subject), &err,
                        row.used == 0 ? "there is no other stage" : row.text);
}

// ---- NCCL

static bool has_nccl(const bl_ctl_explorer_t *stage) {
  return has_gpu(stage) && stage->nccl[0] != '\0';
}

// Returns the first stage with the most common version; `count` if no stage has NCCL.
static uint32_t most_common(const bl_ctl_explorer_t *stages, uint32_t count) {
  uint32_t best = count, best_votes = 0;
  for (uint32_t s = 0; s < count; s++) {
    uint32_t votes = 0;
    for (uint32_t other = 0; has_nccl(&stages[s]) && other < count; other++) {
      votes += has_nccl(&stages[other]) && strcmp(stages[other].nccl, stages[s].nccl) == 0;
    }
    if (votes > best_votes) {
      best = s;
      best_votes = votes;
    }
  }
  return best;
}

static void note_nccl(bl_ctl_checklist_t *list, const bl_grid_t *grid, const bl_ctl_explorer_t *stages,
                      uint32_t count) {
  const uint32_t common = most_common(stages, count);
  const size_t failed = list->failed;
  char subject[BL_GRID_NAME_BYTES], other[BL_GRID_NAME_BYTES], text[320];
  for (uint32_t s = 0; s < count; s++) {
    const bl_ctl_explorer_t *stage = &stages[s];
    bl_error_t err = {0};
    if (!has_gpu(stage)) {
      continue;
    }
    if (common == count) {
      snprintf(text, sizeof text, "no stage has NCCL: %s", stage->no_nccl);
      if (grid->tensor > 1) {
        (void)bl_error_set(&err, BL_PRECONDITION, "%s; tensor ranks need it", text);
        bl_ctl_checklist_note(list, "nccl", "all stages", &err, "");
      } else {
        bl_ctl_checklist_skip(list, "nccl", "all stages", text);
      }
      return;
    }
    (void)bl_grid_name(grid, s, subject);
    if (!has_nccl(stage)) {
      (void)bl_error_set(&err, BL_PRECONDITION, "it has no NCCL (%s), %s has %s: run all stages from one image",
                         stage->no_nccl, bl_grid_name(grid, common, other), stages[common].nccl);
      bl_ctl_checklist_note(list, "nccl", subject, &err, "");
    } else if (strcmp(stage->nccl, stages[common].nccl) != 0) {
      (void)bl_error_set(&err, BL_PRECONDITION, "it has NCCL %s, %s has %s: run all stages from one image", stage->nccl,
                         bl_grid_name(grid, common, other), stages[common].nccl);
      bl_ctl_checklist_note(list, "nccl", subject, &err, "");
    }
  }
  if (common < count && list->failed == failed) {
    snprintf(text, sizeof text, "NCCL %s", stages[common].nccl);
    bl_ctl_checklist_note(list, "nccl", "all stages", NULL, text);
  }
}

void bl_ctl_preflight_gpus(bl_ctl_checklist_t *list, const bl_job_t *job, const bl_training_t *training,
                           const bl_device_slots_t *device_slots, const bl_ctl_explorer_t *stages, uint32_t count) {
  static const char *const checks[] = {"gpu", "peer access", "nccl"};
  const bool host = job->pipeline.device == BL_JOB_DEVICE_HOST;
  for (size_t i = 0; host && i < sizeof checks / sizeof checks[0]; i++) {
    bl_ctl_checklist_skip(list, checks[i], "all stages", "pipeline.device is host");
  }
  for (uint32_t s = 0; s < count && !host; s++) {
    if (answered(&stages[s])) {
      note_gpu(list, &training->grid, s, stages);
    }
  }
  for (uint32_t s = 0; s < count && !host; s++) {
    if (has_gpu(&stages[s])) {
      note_access(list, job, training, device_slots, s, stages, count);
    }
  }
  if (!host) {
    note_nccl(list, &training->grid, stages, count);
  }
}
