// SPDX-License-Identifier: Apache-2.0
// Which layers each virtual stage holds. Virtual stage 0 has the embedding, the last one final norm, head and loss;
// which device holds a virtual stage is the schedule's matter.
//
// `pipeline.layers_per_stage` is followed to the letter. Without it the slowest virtual stage is made as fast as
// possible, counting the head at what it costs in layers (multiply-adds per token) and the embedding at nothing, every
// virtual stage having at least one layer. What is left to choose goes towards the end of the model, because under
// 1F1B the earlier a stage is the more activation blocks it keeps.
//
// Pure. Thread: any; a partition is immutable.
#ifndef BALLAST_JOB_PARTITION_H
#define BALLAST_JOB_PARTITION_H

#include "config/job.h"
#include "model/chunk_span.h"
#include "model/model.h"

typedef struct bl_partition {
  bl_chunk_span_t *spans; // [count], by virtual stage
  uint32_t count;         // virtual stages: pipeline.stages * pipeline.chunks; those of two pipes are the same twice
} bl_partition_t;

// BL_INVALID names pipeline.stages (more virtual stages than layers) or pipeline.layers_per_stage (wrong number of
// entries, a stage without layers, layers not covered). BL_EXHAUSTED. On failure there is nothing to clean up.
BL_MUST_USE bl_status_t bl_partition_init(bl_partition_t *partition, const bl_job_t *job, const bl_model_t *model,
                                          bl_error_t *err);
void bl_partition_cleanup(bl_partition_t *partition); // a zeroed one is fine

// Layers of cost 1 each on `count` virtual stages, the last of which costs `head` more; layers[count] is set. Needs
// 1 <= count <= total. Exposed for its tests and for the planner.
void bl_partition_balance(uint32_t total, uint32_t count, double head, uint32_t *layers);

#endif
