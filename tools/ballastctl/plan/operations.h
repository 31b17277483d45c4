// SPDX-License-Identifier: Apache-2.0
// What operations ask for on this machine, for plans of memory: stage-service, which would run them, is started and asked
// (--operation-memory). ballastctl computes nothing itself.
#ifndef BALLAST_BALLASTCTL_OPERATIONS_H
#define BALLAST_BALLASTCTL_OPERATIONS_H

#include "config/job.h"
#include "model/memory.h"

#define BL_CTL_OPERATIONS_LEFT_OUT "copies of weights that products read, and workspace of operations"

typedef struct bl_ctl_operations_answer {
  uint32_t micro_batch;
  bl_attention_t attention;
  bl_operation_memory_t memory;
} bl_ctl_operations_answer_t;

typedef struct bl_ctl_operations {
  const bl_job_t *job;                  // borrowed
  bl_ctl_operations_answer_t **answers; // [count], each of its own
  uint32_t count;
  bl_error_t unknown; // why it is not known, where it was asked for; else without text
} bl_ctl_operations_t;

// Asks nothing yet.
void bl_ctl_operations_init(bl_ctl_operations_t *operations, const bl_job_t *job);
void bl_ctl_operations_cleanup(bl_ctl_operations_t *operations); // a zeroed one is fine
// Of the job's model, dtype, threads and device at that micro-batch and attention; the answer lasts as long as `operations`
// (a bl_ctl_operations_t *). NULL: nobody could say, `unknown` has why, and nobody is asked again.
const bl_operation_memory_t *bl_ctl_operations_find(void *operations, uint32_t micro_batch, bl_attention_t attention);
// How logits lie where nobody could say: by the job's device.
bl_logits_t bl_ctl_logits(const bl_job_t *job);

#endif
