// SPDX-License-Identifier: Apache-2.0
#include "job/dataset.h"

#include "job/refuse.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define SAMPLED_WINDOWS 64 // of a .bin, checked before the start: evenly spaced, first and last among them

static bl_status_t open_file(bl_dataset_file_t *file, bl_token_part_t *part, const char *path, const char *key,
                             bl_job_format_t format, bl_error_t *err) {
  file->path = strdup(path);
  if (file->path == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory to open %s", path);
  }
  bl_status_t status = bl_file_map_open(&file->map, path, err);
  if (status != BL_OK) {
    bl_error_prefix(err, "%s", key);
    return status;
  }
  if (format == BL_JOB_FORMAT_TEXT) {
    bl_token_part_text(part, file->map.bytes, file->map.size_bytes);
    return BL_OK;
  }
  status = bl_token_part_bin(part, file->map.bytes, file->map.size_bytes, err);
  if (status != BL_OK) {
    bl_error_prefix(err, "%s: %s", key, path);
  }
  return status;
}

static bl_status_t open_files(bl_dataset_t *dataset, const bl_job_t *job, bl_error_t *err) {
  const bl_text_list_t *lists[] = {&job->data.train, &job->data.validation.files};
  const char *keys[] = {"data.train", "data.validation"};
  size_t total = lists[0]->count + lists[1]->count;
  dataset->files = calloc(total + 1, sizeof *dataset->files);
  dataset->parts = calloc(total + 1, sizeof *dataset->parts);
  if (dataset->files == NULL || dataset->parts == NULL) {
    bl_error_set(err, BL_EXHAUSTED, "no memory for %zu data files", total);
    return BL_EXHAUSTED;
  }
  for (int l = 0; l < 2; l++) {
    for (size_t i = 0; i < lists[l]->count; i++) {
      size_t n = dataset->file_count++;
      bl_status_t status =
          open_file(&dataset->files[n], &dataset->parts[n], lists[l]->items[i], keys[l], job->data.format, err);
      if (status != BL_OK) {
        return status;
      }
      dataset->total_bytes += dataset->files[n].map.size_bytes;
    }
  }
  return BL_OK;
}

// Sets the two streams: held-out files of their own, or the end of the training files.
static bl_status_t cut_streams(bl_dataset_t *dataset, const bl_job_t *job, bl_error_t *err) {
  size_t train_files = job->data.train.count;
  bl_tokens_t train, validation;
  if (bl_tokens_init(&train, dataset->parts, train_files) != BL_OK ||
      bl_tokens_init(&validation, dataset->parts + train_files, dataset->file_count - train_files) != BL_OK) {
    return bl_error_set(err, BL_INVALID, "data: more tokens than can be counted");
  }
  if (job->data.validation.files.count == 0) {
    bl_tokens_t whole = train;
    bl_tokens_split(&whole, job->data.validation.fraction, &train, &validation);
  }
  dataset->train = train;
  dataset->validation = validation;
  return BL_OK;
}

static bl_status_t check_lengths(const bl_dataset_t *dataset, const bl_job_t *job, bl_error_t *err) {
  if (dataset->sampler.windows == 0) {
    return bl_job_fail(job, err, "data.train",
                       "%" PRIu64 " tokens%s are too few for one window of model.seq %" PRIu32 " (needs %" PRIu64 ")",
                       dataset->train.count, dataset->validation.count > 0 ? " beside the held-out part" : "",
                       dataset->seq, (uint64_t)dataset->seq + 1);
  }
  bool holds_out = job->data.validation.files.count > 0 || job->data.validation.fraction > 0;
  if (holds_out && dataset->validation_windows == 0) {
    return bl_job_fail(job, err, "data.validation",
                       "%" PRIu64 " held-out tokens are too few for one window of model.seq %" PRIu32 " (needs %" PRIu64
                       ")",
                       dataset->validation.count, dataset->seq, (uint64_t)dataset->seq + 1);
  }
  return BL_OK;
}

bl_status_t bl_dataset_fail_token(const bl_dataset_t *dataset, const bl_tokens_t *tokens, uint64_t position,
                                  bl_error_t *err) {
  bl_token_place_t place = bl_tokens_place(tokens, position);
  const bl_dataset_file_t *file = &dataset->files[(tokens->parts - dataset->parts) + (ptrdiff_t)place.part];
  int32_t value;
  bl_tokens_read(tokens, position, 1, &value);
  return bl_error_set(err, BL_INVALID,
                      "%s: byte %" PRIu64 ": token %" PRId32 " is not below model.vocab, which is %" PRIu32, file->path,
                      place.offset_bytes, value, dataset->vocab);
}

static bl_status_t check_range(const bl_dataset_t *dataset, const bl_tokens_t *tokens, uint64_t first, uint64_t count,
                               bl_error_t *err) {
  uint64_t bad = bl_tokens_find_above(tokens, first, count, dataset->vocab);
  return bad == BL_TOKENS_NONE ? BL_OK : bl_dataset_fail_token(dataset, tokens, bad, err);
}

static bl_status_t check_tokens(const bl_dataset_t *dataset, const bl_tokens_t *tokens, uint64_t windows, bool whole,
                                bl_error_t *err) {
  if (whole) {
    return check_range(dataset, tokens, 0, tokens->count, err);
  }
  uint64_t samples = windows < SAMPLED_WINDOWS ? windows : SAMPLED_WINDOWS;
  for (uint64_t i = 0; i < samples; i++) {
    uint64_t window = samples == 1 ? 0 : (windows - 1) / (samples - 1) * i;
    if (i == samples - 1) {
      window = windows - 1;
    }
    bl_status_t status = check_range(dataset, tokens, window * dataset->seq, (uint64_t)dataset->seq + 1, err);
    if (status != BL_OK) {
      return status;
    }
  }
  return BL_OK;
}

static bl_status_t prepare(bl_dataset_t *dataset, const bl_job_t *job, bl_error_t *err) {
  bl_status_t status = open_files(dataset, job, err);
  if (status == BL_OK) {
    status = cut_streams(dataset, job, err);
  }
  if (status != BL_OK) {
    return status;
  }
  dataset->sampler = (bl_sampler_t){
      .windows = bl_sampler_window_count(dataset->train.count, dataset->seq),
      .micro_batches = (uint32_t)job->train.micro_batches,
      .micro_batch = (uint32_t)job->train.micro_batch,
      .shuffled = job->data.order == BL_JOB_ORDER_SHUFFLED,
      .seed = (uint64_t)job->train.seed,
  };
  dataset->validation_windows = bl_sampler_window_count(dataset->validation.count, dataset->seq);
  status = check_lengths(dataset, job, err);
  if (status != BL_OK) {
    return status;
  }
  bool whole = job->data.format == BL_JOB_FORMAT_TEXT;
  status = check_tokens(dataset, &dataset->train, dataset->sampler.windows, whole, err);
  if (status == BL_OK) {
    status = check_tokens(dataset, &dataset->validation, dataset->validation_windows, whole, err);
  }
  return status;
}

bl_status_t bl_dataset_open(bl_dataset_t *dataset, const bl_job_t *job, const bl_model_t *model, bl_error_t *err) {
  if (job->data.format == BL_JOB_FORMAT_MEGATRON) {
    return bl__job_refuse(job, err, "data.format", "megatron is not supported in this version; use text or bin");
  }
  bl_dataset_t opened = {.vocab = model->vocab, .seq = model->seq};
  bl_status_t status = prepare(&opened, job, err);
  if (status != BL_OK) {
    bl_dataset_close(&opened);
    return status;
  }
  *dataset = opened;
  return BL_OK;
}

void bl_dataset_close(bl_dataset_t *dataset) {
  for (size_t i = 0; i < dataset->file_count; i++) {
    bl_file_map_close(&dataset->files[i].map);
    free(dataset->files[i].path);
  }
  free(dataset->files);
  free(dataset->parts);
  *dataset = (bl_dataset_t){0};
}
