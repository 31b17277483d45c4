// SPDX-License-Identifier: Apache-2.0
#include "job/costs.h"

#include "simulate/host_order.h"

#include <stdlib.h>

// A list of one entry applies to all virtual stages.
static double entry(const bl_real_list_t *list, size_t virtual_stage) {
  return list->items[list->count > 1 ? virtual_stage : 0];
}

bl_status_t bl_job_costs_init(bl_job_costs_t *costs, const bl_job_t *job, bl_error_t *err) {
  const bl_real_list_t *forward = &job->pipeline.costs.forward, *recompute = &job->pipeline.costs.recompute;
  const size_t count = (size_t)(job->pipeline.stages * job->pipeline.chunks.value);
  *costs = (bl_job_costs_t){.costs = BL_COSTS_UNIT};
  if (forward->count > 0) {
    costs->chunks = calloc(count, sizeof *costs->chunks);
    if (costs->chunks == NULL) {
      return bl_error_set(err, BL_EXHAUSTED, "no memory for the costs of %zu virtual stages", count);
    }
    costs->costs = (bl_costs_t){.chunks = costs->chunks,
                                .boundary = job->pipeline.costs.boundary.set ? job->pipeline.costs.boundary.value : 0};
  }
  for (size_t v = 0; costs->chunks != NULL && v < count; v++) {
    costs->chunks[v] = (bl_chunk_costs_t){.forward = entry(forward, v),
                                          .input = entry(&job->pipeline.costs.input, v),
                                          .weight = entry(&job->pipeline.costs.weight, v),
                                          .recompute = entry(recompute->count > 0 ? recompute : forward, v)};
  }
  costs->costs.path = job->pipeline.costs.host_copy.set ? job->pipeline.costs.host_copy.value
                                                        : bl_host_copy_assumed(&costs->costs, (uint32_t)count);
  return BL_OK;
}

void bl_job_costs_cleanup(bl_job_costs_t *costs) {
  free(costs->chunks);
  *costs = (bl_job_costs_t){0};
}

bl_status_t bl_job_copies_read(const bl_job_t *job, uint32_t stages, double **copies, bl_error_t *err) {
  const bl_text_list_t *paths = &job->balance.slow_paths;
  bl_error_t fault;
  bl_status_t status = bl_costs_parse_paths(paths->items, paths->count, stages, copies, &fault);
  return status == BL_INVALID ? bl_job_fail(job, err, "balance.slow_paths", "%s", fault.text)
         : status != BL_OK    ? bl_error_set(err, status, "%s", fault.text)
                              : BL_OK;
}
