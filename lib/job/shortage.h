// SPDX-License-Identifier: Apache-2.0
// Private to lib/job: the error for a job whose stages have fewer slots than its schedule keeps blocks.
#ifndef BALLAST_JOB_SHORTAGE_H
#define BALLAST_JOB_SHORTAGE_H

#include "job/training.h"

// Describes the shortage of stage `index`, the first that has too few slots: the operation that finds no slot, the
// smallest memory.slots or memory.activation_bytes with which all stages run, and which settings would make the same
// job fit: a policy, an order searched for these slots, slices, recomputation. Only what has been tried is advised.
// BL_INVALID, names the key.
BL_MUST_USE bl_status_t bl__shortage_fail(const bl_training_t *training, const bl_job_t *job, uint32_t index,
                                          bl_error_t *err);

#endif
