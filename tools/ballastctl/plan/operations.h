// SPDX-License-Identifier: Apache-2.0
// Memory that operations need on this machine, for memory plans. Starts the stage-service that would run them and asks
// it (--operation-memory), since ballastctl computes nothing itself.
#ifndef BALLAST_BALLASTCTL_OPERATIONS_H
#define BALLAST_BALLASTCTL_OPERATIONS_H

#include "config/job.h"
#include "model/memory.h"

typedef struct bl_ctl_operations_answer {
  uint32_t micro_batch, slices;
  bl_attention_t attention;
  bl_operation_memory_t memory;
} bl_ctl_operations_answer_t;

typedef struct bl_ctl_operations {
  const bl_job_t *job;                  // borrowed
  bl_ctl_operations_answer_t **answers; // [count], each allocated on its own
  uint32_t count;
  bl_error_t unknown;  // why the last query failed; empty text: none failed
  const char *without; // then: what is left out
} bl_ctl_operations_t;

// Starts no query yet.
void bl_ctl_operations_init(bl_ctl_operations_t *operations, const bl_job_t *job);
void bl_ctl_operations_cleanup(bl_ctl_operations_t *operations); // a zeroed one is fine
// Returns the memory of operations for the job's model, dtype, threads and device at this micro-batch, slices of
// sequences and attention.
// The result lives as long as `operations` (a bl_ctl_operations_t *). If a query fails, `unknown` has the cause and no
// further one is made. The result is then what is known of a GPU without one, and NULL for other devices.
const bl_operation_memory_t *bl_ctl_operations_find(void *operations, uint32_t micro_batch, uint32_t slices,
                                                    bl_attention_t attention);

#endif
