// SPDX-License-Identifier: Apache-2.0
// The data files of a job, mapped: the training tokens and the held-out tokens.
//
//   bl_dataset_t dataset;
//   if (bl_dataset_open(&dataset, &job, &model, &err) == BL_OK) {
//     ... dataset.train, bl_sampler_window(&dataset.sampler, ...) ...
//     bl_dataset_close(&dataset);
//   }
//
// Sources: without data.weights the training files are one source, joined in their order. With weights each file is a
// source of its own, and which of them a sequence comes from is a pure function of the sequence's number
// (formats/mixture.h). A source that has been read completely starts over, in another order if the job shuffles.
//
// Held-out data: files of their own, or the end of each source. In Megatron's files the cut moves back to the start of
// its document, so that no document is on both sides, unless nothing would be left to train on.
//
// Opening checks what can be checked without reading everything: formats and lengths, that every source has a window,
// and that there is no token >= vocab in text (all of it) and in the first, the last and a sample of the other windows.
// Windows are checked in full when they are read (stage-service/data).
//
// Reads files. Thread: one thread opens and closes; a dataset is immutable in between, and any thread may read it.
#ifndef BALLAST_JOB_DATASET_H
#define BALLAST_JOB_DATASET_H

#include "config/job.h"
#include "formats/megatron.h"
#include "formats/mixture.h"
#include "formats/sampler.h"
#include "formats/tokens.h"
#include "model/model.h"
#include "sys/file_map.h"

typedef struct bl_dataset_file {
  char *path;
  bl_file_map_t map;
  bl_file_map_t index; // of Megatron's files
  bl_megatron_index_t documents;
} bl_dataset_file_t;

typedef struct bl_dataset_source {
  bl_tokens_t tokens;
  uint64_t windows; // floor((tokens - 1) / seq), at least 1
} bl_dataset_source_t;

// Window `window` of `tokens` is tokens [window seq, window seq + seq].
typedef struct bl_dataset_window {
  const bl_tokens_t *tokens;
  uint64_t window;
} bl_dataset_window_t;

typedef struct bl_dataset {
  bl_tokens_t train;      // of all sources
  bl_tokens_t validation; // count 0: nothing is held out
  bl_sampler_t sampler;   // of a step's sequences; windows: of all sources
  bl_dataset_source_t *sources;
  size_t source_count;
  bl_mixture_t mixture;        // of the sources, if there are several
  uint64_t *bounds;            // of the mixture
  uint64_t validation_windows; // floor((tokens - 1) / seq), read in order
  uint64_t total_bytes;        // of all files
  uint32_t vocab;
  uint32_t seq;
  bl_dataset_file_t *files; // training files, then held-out files
  size_t file_count;
  bl_token_part_t *parts; // training data, then held-out data
  size_t *part_files;     // of each part
} bl_dataset_t;

// BL_INVALID names the file and the job's key: data shorter than one window, a token >= vocab (file, offset, value), a
// wrong format. BL_NOT_FOUND, BL_DENIED, BL_DATA_LOSS, BL_IO, BL_EXHAUSTED name the file. On failure there is nothing
// to close.
BL_MUST_USE bl_status_t bl_dataset_open(bl_dataset_t *dataset, const bl_job_t *job, const bl_model_t *model,
                                        bl_error_t *err);
void bl_dataset_close(bl_dataset_t *dataset); // a zeroed one is fine

// Returns the position of sequence `sequence` of micro-batch `micro_batch` of step `step` (all from 0). A pure function
// of the job.
bl_dataset_window_t bl_dataset_window(const bl_dataset_t *dataset, uint64_t step, uint32_t micro_batch,
                                      uint32_t sequence);

// Reports the token at `position` of `tokens` (a stream of this dataset) as too large for the vocabulary: BL_INVALID
// with file, offset and value.
bl_status_t bl_dataset_fail_token(const bl_dataset_t *dataset, const bl_tokens_t *tokens, uint64_t position,
                                  bl_error_t *err);

#endif
