// SPDX-License-Identifier: Apache-2.0
// The costs of operations that a job gives (pipeline.costs), for schedules whose order is searched, and of copies
// between devices (balance.slow_paths).
//
//   bl_job_costs_t costs;
//   if (bl_job_costs_init(&costs, &job, &err) == BL_OK) {
//     request.costs = &costs.costs;
//     ...
//     bl_job_costs_cleanup(&costs);
//   }
//
// Pure but for memory. Thread: belongs to its caller.
#ifndef BALLAST_JOB_COSTS_H
#define BALLAST_JOB_COSTS_H

#include "config/job.h"
#include "schedule/ir/costs.h"

typedef struct bl_job_costs {
  bl_costs_t costs;         // costs.chunks is `chunks`; costs.path is a copy to memory of the host
  bl_chunk_costs_t *chunks; // [stages * chunks]; NULL: the job gives none, and all are equal
} bl_job_costs_t;

// BL_EXHAUSTED. On failure there is nothing to clean up.
BL_MUST_USE bl_status_t bl_job_costs_init(bl_job_costs_t *costs, const bl_job_t *job, bl_error_t *err);
void bl_job_costs_cleanup(bl_job_costs_t *costs); // a zeroed one is fine

// Reads what a copy between two devices costs, as [stages * stages]; malloc'd, or NULL: the job gives no costs, and all
// are equal. BL_INVALID names the key and what is wrong with it; BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_job_copies_read(const bl_job_t *job, uint32_t stages, double **copies, bl_error_t *err);

#endif
