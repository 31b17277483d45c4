// SPDX-License-Identifier: Apache-2.0
#include "data/batch.h"

// Copies window `window` of `tokens` into row `row` of the buffers.
static bl_status_t read_window(const bl_dataset_t *dataset, const bl_tokens_t *tokens, uint64_t window, uint32_t row,
                               const bl_batch_t *batch, bl_error_t *err) {
  const uint64_t count = batch->count != 0 ? batch->count : dataset->seq;
  const uint64_t first = window * dataset->seq + batch->first;
  const uint64_t bad = bl_tokens_find_above(tokens, first, count + 1, dataset->vocab);
  if (bad != BL_TOKENS_NONE) {
    return bl_dataset_fail_token(dataset, tokens, bad, err);
  }
  if (batch->inputs != NULL) {
    bl_tokens_read(tokens, first, count, batch->inputs + row * count);
  }
  if (batch->labels != NULL) {
    bl_tokens_read_labels(tokens, first + 1, count, batch->labels + row * count);
  }
  return BL_OK;
}

bl_status_t bl_batch_read(const bl_dataset_t *dataset, uint64_t step, uint32_t micro_batch, const bl_batch_t *batch,
                          bl_error_t *err) {
  const bl_sampler_t *sampler = &dataset->sampler;
  for (uint32_t row = 0; row < sampler->micro_batch; row++) {
    bl_dataset_window_t at = bl_dataset_window(dataset, step - 1, micro_batch, row);
    bl_status_t status = read_window(dataset, at.tokens, at.window, row, batch, err);
    if (status != BL_OK) {
      return status;
    }
  }
  return BL_OK;
}

bl_status_t bl_batch_read_validation(const bl_dataset_t *dataset, uint64_t first_window, uint32_t micro_batch,
                                     const bl_batch_t *batch, bl_error_t *err) {
  if (dataset->validation_windows == 0) {
    return bl_error_set(err, BL_PRECONDITION, "data.validation: the job holds nothing out");
  }
  uint32_t rows = dataset->sampler.micro_batch;
  for (uint32_t row = 0; row < rows; row++) {
    uint64_t window = (first_window + (uint64_t)micro_batch * rows + row) % dataset->validation_windows;
    bl_status_t status = read_window(dataset, &dataset->validation, window, row, batch, err);
    if (status != BL_OK) {
      return status;
    }
  }
  return BL_OK;
}
