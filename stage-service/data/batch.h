// SPDX-License-Identifier: Apache-2.0
// The tokens of one micro-batch. A stage reads only its own: inputs on virtual stage 0, labels on the last one. The
// choice of windows is a pure function of the job and the step, so stages agree without communication.
//
// Every token is checked against the vocabulary when it is read, so that an embedding lookup can rely on it.
//
// Thread: any, over an open dataset. No allocation.
#ifndef BALLAST_STAGE_DATA_BATCH_H
#define BALLAST_STAGE_DATA_BATCH_H

#include "job/dataset.h"

// Both arrays are [micro_batch x count], row-major: the positions [first, first + count) of every sequence; count 0:
// all. Either may be NULL. labels[i] is the token after inputs[i], or BL_LABEL_NONE if that one does not count
// (data.loss).
typedef struct bl_batch {
  int32_t *inputs;
  int32_t *labels;
  uint32_t first, count;
} bl_batch_t;

// Reads training micro-batch `micro_batch` (from 0) of step `step` (from 1, as reported). BL_INVALID with file and
// offset: a token >= vocab; the buffers are undefined then.
BL_MUST_USE bl_status_t bl_batch_read(const bl_dataset_t *dataset, uint64_t step, uint32_t micro_batch,
                                      const bl_batch_t *batch, bl_error_t *err);

// Reads held-out sequences: row j is window first_window + micro_batch * b + j of the held-out windows, modulo their
// number. The dataset must have at least one (validation_windows > 0), else BL_PRECONDITION.
BL_MUST_USE bl_status_t bl_batch_read_validation(const bl_dataset_t *dataset, uint64_t first_window,
                                                 uint32_t micro_batch, const bl_batch_t *batch, bl_error_t *err);

#endif
