// SPDX-License-Identifier: Apache-2.0
// Which layers each virtual stage holds. Virtual stage 0 has the embedding, the last one final norm, head and loss. The
// schedule decides which device holds a virtual stage.
//
// `pipeline.layers_per_stage` is followed exactly. Without it the slowest virtual stage is made as fast as possible.
// The head counts as its cost in layers (multiply-adds per token), the embedding as nothing, and every virtual stage
// has at least one layer. Among equal choices layers move towards the end of the model, because under 1F1B the earlier
// a stage is, the more activation blocks it keeps.
//
// Pure. Thread: any; a partition is immutable.
#ifndef BALLAST_JOB_PARTITION_H
#define BALLAST_JOB_PARTITION_H

#include "config/job.h"
#include "model/chunk_span.h"
#include "model/model.h"

typedef struct bl_partition {
  bl_chunk_span_t *spans; // [count], by virtual stage
  uint32_t count;         // virtual stages: pipeline.stages * pipeline.chunks; two pipes have the same ones twice
} bl_partition_t;

// BL_INVALID names pipeline.stages (more virtual stages than layers) or pipeline.layers_per_stage (wrong number of
// entries, a stage without layers, layers not covered). BL_EXHAUSTED. On failure there is nothing to clean up.
BL_MUST_USE bl_status_t bl_partition_init(bl_partition_t *partition, const bl_job_t *job, const bl_model_t *model,
                                          bl_error_t *err);
void bl_partition_cleanup(bl_partition_t *partition); // a zeroed one is fine

// Divides layers of cost 1 each over `count` virtual stages, the last of which costs `head` more. Sets layers[count].
// Needs 1 <= count <= total. Exposed for its tests and for the planner.
void bl_partition_balance(uint32_t total, uint32_t count, double head, uint32_t *layers);

#endif
