// SPDX-License-Identifier: Apache-2.0
// A small model whose weights and moments are numbers made from the step, and its whole way into a checkpoint folder: what
// two stages and a driver do, in one thread.
#ifndef BALLAST_TESTS_CHECKPOINT_SAVED_MODEL_H
#define BALLAST_TESTS_CHECKPOINT_SAVED_MODEL_H

#include "checkpoint/snapshot.h"
#include "job/checkpoint.h"
#include "job/checkpoint_folder.h"

#define SAVED_STAGES 2

typedef struct saved_model {
  bl_model_t model;
  float *values; // all parts of all parameters
  uint64_t value_count;
  bl_snapshot_t *snapshots[SAVED_STAGES];
  uint8_t *memory[SAVED_STAGES];
} saved_model_t;

// False without memory. The values are those of `step`.
bool saved_model_init(saved_model_t *saved, uint64_t step);
void saved_model_cleanup(saved_model_t *saved);
void saved_model_set(saved_model_t *saved, uint64_t step);

// Writes the checkpoint of `step` and keeps the `keep` newest.
bl_status_t saved_model_write(const saved_model_t *saved, const char *folder, uint64_t step, uint64_t keep,
                              bl_error_t *err);

// Reads everything of the newest checkpoint back and compares it with what its step makes. The step, or 0 and `err`.
uint64_t saved_model_read(const char *folder, bl_error_t *err);

#endif
