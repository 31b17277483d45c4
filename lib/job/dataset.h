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
// Labels: with data.loss masked every file has a mask beside it, and a label whose token has a 0 there has no loss.
//
// Opening checks what can be checked without reading everything: formats and lengths, that every source has a window,
// and that there is no token >= vocab in text (all of it) and in the first, the last and a sample of the other windows.
// Windows are checked in full when they are read (stage-service/data). Every source, and the held-out windows, must have
// a label that counts.
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
  bl_file_map_t mask; // of a job with data.loss masked
} bl_dataset_file_t;

// What follows the path of a file (of Megatron-LM: of its .bin) in the path of its mask.
#define BL_DATASET_MASK_SUFFIX ".mask"
// Maximum of held-out windows in one validation. They are always the first ones, so that losses of different steps
// compare. Bounds the time of a validation to a few steps.
#define BL_DATASET_VALIDATION_WINDOWS 256

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
  uint32_t vocab;
  uint32_t seq;
  bool masked;              // not every label counts
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

// Returns how many micro-batches of held-out windows a validation reads, at least 1: from the first window on, modulo
// their number. 0 if nothing is held out.
uint64_t bl_dataset_validation_micro_batches(const bl_dataset_t *dataset);

// Sets *counted to the number of labels that count in all micro-batches of training step `step` (from 0), or of a
// validation. Reads the masks of their windows. BL_INVALID: a mask that is neither 0 nor 1, with file and byte.
bl_status_t bl_dataset_count_labels(const bl_dataset_t *dataset, uint64_t step, uint64_t *counted, bl_error_t *err);
bl_status_t bl_dataset_count_validation_labels(const bl_dataset_t *dataset, uint64_t *counted, bl_error_t *err);

// Returns the path of the first file that has a mask which the job does not ask for (data.loss all); NULL: there is none.
// Looks at files.
const char *bl_dataset_unused_mask(const bl_dataset_t *dataset);

// Reports the token at `position` of `tokens` (a stream of this dataset) as too large for the vocabulary: BL_INVALID
// with file, offset and value.
bl_status_t bl_dataset_fail_token(const bl_dataset_t *dataset, const bl_tokens_t *tokens, uint64_t position,
                                  bl_error_t *err);

#endif
