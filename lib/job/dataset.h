// SPDX-License-Identifier: Apache-2.0
// The data files of a job, mapped: the training tokens and what is held out.
//
//   bl_dataset_t dataset;
//   if (bl_dataset_open(&dataset, &job, &model, &err) == BL_OK) {
//     ... dataset.train, bl_sampler_window(&dataset.sampler, ...) ...
//     bl_dataset_close(&dataset);
//   }
//
// Opening checks what can be checked without reading everything: formats and lengths, that training data has a window,
// that text (all of it) and the first and last windows and a sample of a .bin have no token >= vocab. Windows of a
// .bin are checked in full when they are read (stage-service/data).
//
// Reads files. Thread: one opens and closes; a dataset is immutable in between and may be read by any.
#ifndef BALLAST_JOB_DATASET_H
#define BALLAST_JOB_DATASET_H

#include "config/job.h"
#include "formats/sampler.h"
#include "formats/tokens.h"
#include "model/model.h"
#include "sys/file.h"

typedef struct bl_dataset_file {
  char *path;
  bl_file_map_t map;
} bl_dataset_file_t;

typedef struct bl_dataset {
  bl_tokens_t train;
  bl_tokens_t validation;      // count 0 when nothing is held out
  bl_sampler_t sampler;        // of the training windows, in the job's order
  uint64_t validation_windows; // floor((tokens - 1) / seq), read in order
  uint64_t total_bytes;        // of all files
  uint32_t vocab;
  uint32_t seq;
  bl_dataset_file_t *files; // training files, then held-out files
  bl_token_part_t *parts;   // of the same order
  size_t file_count;
} bl_dataset_t;

// BL_INVALID names the file and the job's key: data shorter than one window, a token >= vocab (file, offset, value), a
// wrong format. BL_UNIMPLEMENTED: data.format megatron. BL_NOT_FOUND, BL_DENIED, BL_DATA_LOSS, BL_IO, BL_EXHAUSTED name
// the file. On failure there is nothing to close.
BL_MUST_USE bl_status_t bl_dataset_open(bl_dataset_t *dataset, const bl_job_t *job, const bl_model_t *model,
                                        bl_error_t *err);
void bl_dataset_close(bl_dataset_t *dataset); // a zeroed one is fine

// Reports the token at `position` of `tokens` (a stream of this dataset) as too large for the vocabulary: BL_INVALID
// with file, offset and value.
bl_status_t bl_dataset_fail_token(const bl_dataset_t *dataset, const bl_tokens_t *tokens, uint64_t position,
                                  bl_error_t *err);

#endif
