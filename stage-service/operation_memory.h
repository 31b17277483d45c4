// SPDX-License-Identifier: Apache-2.0
// Prints what operations of a job need on this machine, for a planner in another process (`ballastctl plan`).
//
// Thread: one that computes nothing.
#ifndef BALLAST_STAGE_OPERATION_MEMORY_H
#define BALLAST_STAGE_OPERATION_MEMORY_H

#include "base/error.h"

#include <stdint.h>
#include <stdio.h>

// Reads a job file from `in` and prints a line for each of the micro-batches, "1,2,4", and each kind of attention:
//   MICRO_BATCH ATTENTION PACKED_LAYER PACKED_HEAD LAYER_WORKSPACE HEAD_WORKSPACE HELD    bytes, bl_operation_memory_t;
//   ... LOGITS ROW_MULTIPLE    on the same line, logits
// It leaves out those that make no valid block. BL_INVALID: the job or the list. Otherwise the status of opening the
// device.
BL_MUST_USE bl_status_t bl_operation_memory_print(FILE *in, const char *micro_batches, int32_t gpu, FILE *out,
                                                  bl_error_t *err);

#endif
