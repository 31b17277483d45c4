// SPDX-License-Identifier: Apache-2.0
#include "job/dataset.h"

#include "base/random.h"
#include "base/words.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RAW_SAMPLED     65536 // first tokens of a file without a header, by which its width is checked
#define SAMPLED_WINDOWS 64    // of a .bin, checked at the start: evenly spaced, including the first and the last

static bool ends_with(const char *path, const char *suffix) {
  const size_t length = strlen(path), suffix_length = strlen(suffix);
  return length > suffix_length && strcmp(path + length - suffix_length, suffix) == 0;
}

// Opens NAME.idx and NAME.bin for NAME, NAME.bin or NAME.idx; file->path becomes that of the .bin.
static bl_status_t open_megatron(bl_dataset_file_t *file, bl_token_part_t *part, const char *path, bl_error_t *err) {
  const size_t suffix = ends_with(path, ".bin") || ends_with(path, ".idx") ? 4 : 0;
  const int stem = (int)(strlen(path) - suffix);
  char *index_path = NULL;
  free(file->path);
  file->path = NULL;
  if (asprintf(&file->path, "%.*s.bin", stem, path) < 0 || asprintf(&index_path, "%.*s.idx", stem, path) < 0) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory to open %s", path);
  }
  bl_status_t status = bl_file_map_open(&file->index, index_path, err);
  if (status == BL_OK) {
    status = bl_megatron_index_parse(&file->documents, file->index.bytes, file->index.size_bytes, err);
    if (status != BL_OK) {
      bl_error_prefix(err, "%s", index_path);
    }
  }
  free(index_path);
  if (status != BL_OK) {
    return status;
  }
  status = bl_file_map_open(&file->map, file->path, err);
  if (status == BL_OK) {
    status = bl_megatron_part(part, &file->documents, file->map.bytes, file->map.size_bytes, err);
    if (status != BL_OK) {
      bl_error_prefix(err, "%s", file->path);
    }
  }
  return status;
}

static bl_status_t open_flat(bl_dataset_file_t *file, bl_token_part_t *part, const char *path, bl_job_format_t format,
                             bl_error_t *err) {
  bl_status_t status = bl_file_map_open(&file->map, path, err);
  if (status != BL_OK) {
    return status;
  }
  if (format == BL_JOB_FORMAT_TEXT) {
    bl_token_part_text(part, file->map.bytes, file->map.size_bytes);
    return BL_OK;
  }
  status = bl_token_part_bin(part, file->map.bytes, file->map.size_bytes, err);
  if (status != BL_OK) {
    bl_error_prefix(err, "%s", path);
  }
  return status;
}

// Opens the mask of an open file.
static bl_status_t open_mask(bl_dataset_file_t *file, bl_token_part_t *part, bl_error_t *err) {
  char *path = NULL;
  if (asprintf(&path, "%s" BL_DATASET_MASK_SUFFIX, file->path) < 0) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory to open the mask of %s", file->path);
  }
  bl_status_t status = bl_file_map_open(&file->mask, path, err);
  if (status == BL_OK && file->mask.size_bytes != part->count) {
    status = bl_error_set(
        err, BL_INVALID, "%s: has %zu byte%s, one for each of the %" PRIu64 " token%s of %s is needed", path,
        file->mask.size_bytes, bl_plural(file->mask.size_bytes), part->count, bl_plural(part->count), file->path);
  }
  free(path);
  part->mask = file->mask.bytes;
  return status == BL_NOT_FOUND && err != NULL
             ? bl_error_set(err, status, "%s; with data.loss: masked every file needs a mask", err->text)
             : status;
}

static bl_status_t open_file(bl_dataset_file_t *file, bl_token_part_t *part, const char *path, const char *key,
                             const bl_job_t *job, bl_error_t *err) {
  file->path = strdup(path);
  if (file->path == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory to open %s", path);
  }
  bl_status_t status = job->data.format == BL_JOB_FORMAT_MEGATRON ? open_megatron(file, part, path, err)
                                                                  : open_flat(file, part, path, job->data.format, err);
  if (status != BL_OK) {
    bl_error_prefix(err, "%s", key);
    return status;
  }
  status = job->data.loss == BL_JOB_LOSS_MASKED ? open_mask(file, part, err) : BL_OK;
  if (status != BL_OK) {
    bl_error_prefix(err, "data.loss");
  }
  return status;
}

static bl_status_t no_memory(bl_error_t *err, size_t files) {
  return bl_error_set(err, BL_EXHAUSTED, "no memory for %zu data files", files);
}

// If ids need more than 16 bits, a file of uint32 without a header looks like uint16 tokens of which every second one
// is tiny. Training on it would give a meaningless model.
static bool looks_like_u32(const bl_token_part_t *part, uint32_t vocab) {
  const uint64_t count = part->count < RAW_SAMPLED ? part->count & ~(uint64_t)1 : RAW_SAMPLED;
  bool any = false;
  for (uint64_t i = 0; i < count; i += 2) {
    const uint8_t *bytes = part->bytes + i * BL_TOKEN_U16;
    any = any || bytes[0] != 0 || bytes[1] != 0;
    if ((uint32_t)(bytes[2] | bytes[3] << 8) > (vocab - 1) >> 16) {
      return false;
    }
  }
  return any;
}

static bl_status_t check_raw(const bl_dataset_file_t *file, const bl_token_part_t *part, const char *key,
                             uint32_t vocab, bl_error_t *err) {
  if (vocab <= 1u << 16 || part->width != BL_TOKEN_U16 || part->offset_bytes > 0 || !looks_like_u32(part, vocab)) {
    return BL_OK;
  }
  return bl_error_set(
      err, BL_INVALID,
      "%s: %s: without llm.c's header it is read as uint16 tokens, but it looks like uint32: write it with the "
      "header (magic 20240801, version 7), or as Megatron-LM's files (data.format: megatron)",
      key, file->path);
}

// Opens all files. Parts are those of the training files, then those of held-out files.
static bl_status_t open_files(bl_dataset_t *dataset, const bl_job_t *job, bl_error_t *err) {
  const bl_text_list_t *lists[] = {&job->data.train, &job->data.validation.files};
  const char *keys[] = {"data.train", "data.validation"};
  size_t total = lists[0]->count + lists[1]->count;
  dataset->files = calloc(total + 1, sizeof *dataset->files);
  dataset->parts = calloc(2 * total + 1, sizeof *dataset->parts); // a held-out end is a part of its own
  dataset->part_files = calloc(2 * total + 1, sizeof *dataset->part_files);
  dataset->sources = calloc(total + 1, sizeof *dataset->sources);
  dataset->bounds = calloc(total + 1, sizeof *dataset->bounds);
  if (dataset->files == NULL || dataset->parts == NULL || dataset->part_files == NULL || dataset->sources == NULL ||
      dataset->bounds == NULL) {
    return no_memory(err, total);
  }
  for (int l = 0; l < 2; l++) {
    for (size_t i = 0; i < lists[l]->count; i++) {
      size_t n = dataset->file_count++;
      dataset->part_files[n] = n;
      bl_status_t status = open_file(&dataset->files[n], &dataset->parts[n], lists[l]->items[i], keys[l], job, err);
      if (status == BL_OK && job->data.format == BL_JOB_FORMAT_BIN) {
        status = check_raw(&dataset->files[n], &dataset->parts[n], keys[l], dataset->vocab, err);
      }
      if (status == BL_OK && lists[l]->count > 1 && dataset->parts[n].count == 0) {
        status = bl_job_fail(job, err, keys[l], "%s: has no tokens; take it off the list", dataset->files[n].path);
      }
      if (status != BL_OK) {
        return status;
      }
    }
  }
  return BL_OK;
}

// Returns the number of tokens of one file to train on if `held` tokens of its end are held out. `first`: there are no
// training data before the file.
static uint64_t kept_tokens(const bl_dataset_file_t *file, uint64_t count, uint64_t held, bool first) {
  const uint64_t kept = count - held;
  if (file->documents.bounds == 0 || held == 0) {
    return kept;
  }
  const uint64_t document = bl_megatron_document_start(&file->documents, kept);
  return document > 0 || !first ? document : kept;
}

// Cuts the end off parts [first, first + count), one source, and appends it to the held-out parts.
static void hold_out(bl_dataset_t *dataset, size_t first, size_t count, double fraction, size_t *part_count) {
  uint64_t tokens = 0;
  for (size_t i = 0; i < count; i++) {
    tokens += dataset->parts[first + i].count;
  }
  uint64_t held = (uint64_t)floor(fraction * (double)tokens);
  // The cut lies in one part. The parts after it are held out completely.
  size_t cut = first + count - 1;
  uint64_t behind = 0;
  while (cut > first && behind + dataset->parts[cut].count <= held) {
    behind += dataset->parts[cut--].count;
  }
  for (size_t i = cut; i < first + count; i++) {
    bl_token_part_t *part = &dataset->parts[i], *end = &dataset->parts[*part_count];
    const bl_dataset_file_t *file = &dataset->files[dataset->part_files[i]];
    const uint64_t kept = i == cut ? kept_tokens(file, part->count, held - behind, cut == first) : 0;
    *end = *part;
    end->bytes = part->bytes + kept * part->width;
    end->offset_bytes += kept * part->width;
    end->count = part->count - kept;
    end->mask = part->mask != NULL ? part->mask + kept : NULL;
    part->count = kept;
    dataset->part_files[(*part_count)++] = dataset->part_files[i];
  }
}

static bl_status_t make_sources(bl_dataset_t *dataset, const bl_job_t *job, bl_error_t *err) {
  const size_t files = job->data.train.count;
  if (job->data.weights.count == 0) {
    dataset->source_count = 1;
    return BL_OK;
  }
  if (job->data.weights.count != files) {
    return bl_job_fail(job, err, "data.weights", "has %zu %s; data.train has %zu file%s", job->data.weights.count,
                       bl_one_or_many(job->data.weights.count, "entry", "entries"), files, bl_plural(files));
  }
  if (!bl_mixture_bounds(job->data.weights.items, files, dataset->bounds)) {
    return bl_job_fail(job, err, "data.weights",
                       "one is so small compared with the others that its file would never be read");
  }
  dataset->source_count = files;
  dataset->mixture = (bl_mixture_t){
      .bounds = dataset->bounds,
      .sources = files,
      .offset = job->data.order == BL_JOB_ORDER_SHUFFLED
                    ? (uint32_t)bl_random_bits(bl_random_key((uint64_t)job->train.seed, "data.weights"), 0)
                    : 0};
  return BL_OK;
}

// Sets the streams: of all training data, of each source, and of what is held out.
static bl_status_t cut_streams(bl_dataset_t *dataset, const bl_job_t *job, bl_error_t *err) {
  const size_t train_files = job->data.train.count, each = train_files / dataset->source_count;
  const double fraction = job->data.validation.files.count == 0 ? job->data.validation.fraction : 0;
  size_t part_count = dataset->file_count;
  for (size_t i = 0; i < dataset->source_count && fraction > 0; i++) {
    hold_out(dataset, i * each, each, fraction, &part_count);
  }
  // NOLINTNEXTLINE(clang-analyzer-unix.Malloc): bl_dataset_close frees it all
  bool counted = bl_tokens_init(&dataset->train, dataset->parts, train_files) == BL_OK;
  const size_t held_out = part_count - train_files;
  counted = counted && bl_tokens_init(&dataset->validation, dataset->parts + train_files, held_out) == BL_OK;
  for (size_t i = 0; i < dataset->source_count && counted; i++) {
    bl_dataset_source_t *source = &dataset->sources[i];
    counted = bl_tokens_init(&source->tokens, dataset->parts + i * each, each) == BL_OK;
    source->windows = bl_sampler_window_count(source->tokens.count, dataset->seq);
    dataset->sampler.windows += source->windows;
  }
  return counted ? BL_OK : bl_error_set(err, BL_INVALID, "data: more tokens than can be counted");
}

#define COUNT_TEXT 80

// Formats "1 held-out token is", "7 tokens in addition to the held-out part are".
static void count_tokens(uint64_t count, const char *kind, const char *rest, char text[COUNT_TEXT]) {
  snprintf(text, COUNT_TEXT, "%" PRIu64 " %stoken%s%s %s", count, kind, bl_plural(count), rest,
           bl_one_or_many(count, "is", "are"));
}

static bl_status_t check_lengths(const bl_dataset_t *dataset, const bl_job_t *job, bl_error_t *err) {
  for (size_t i = 0; i < dataset->source_count; i++) {
    const bl_dataset_source_t *source = &dataset->sources[i];
    if (source->windows == 0) {
      const bool several = dataset->source_count > 1;
      const char *rest = dataset->validation.count > 0 ? " in addition to the held-out part" : "";
      char tokens[COUNT_TEXT];
      count_tokens(source->tokens.count, "", rest, tokens);
      return bl_job_fail(
          job, err, "data.train", "%s%s%s too few for one window of model.seq %" PRIu32 " (needs %" PRIu64 ")",
          several ? dataset->files[i].path : "", several ? ": " : "", tokens, dataset->seq, (uint64_t)dataset->seq + 1);
    }
  }
  bool holds_out = job->data.validation.files.count > 0 || job->data.validation.fraction > 0;
  if (holds_out && dataset->validation_windows == 0) {
    char tokens[COUNT_TEXT];
    count_tokens(dataset->validation.count, "held-out ", "", tokens);
    return bl_job_fail(job, err, "data.validation",
                       "%s too few for one window of model.seq %" PRIu32 " (needs %" PRIu64 ")", tokens, dataset->seq,
                       (uint64_t)dataset->seq + 1);
  }
  return BL_OK;
}

bl_status_t bl_dataset_fail_token(const bl_dataset_t *dataset, const bl_tokens_t *tokens, uint64_t position,
                                  bl_error_t *err) {
  bl_token_place_t place = bl_tokens_place(tokens, position);
  const size_t part = (size_t)(tokens->parts - dataset->parts) + place.part;
  const bl_dataset_file_t *file = &dataset->files[dataset->part_files[part]];
  const int64_t value = bl_tokens_value(tokens, position);
  if (value < 0) {
    return bl_error_set(err, BL_INVALID,
                        "%s: byte %" PRIu64 ": token %" PRId64 " is negative; tokens count from 0 to model.vocab - 1",
                        file->path, place.offset_bytes, value);
  }
  return bl_error_set(err, BL_INVALID,
                      "%s: byte %" PRIu64 ": token %" PRId64 " is not below model.vocab, which is %" PRIu32, file->path,
                      place.offset_bytes, value, dataset->vocab);
}

// Adds the labels that count among tokens first .. first + count - 1 to *counted.
static bl_status_t count_range(const bl_dataset_t *dataset, const bl_tokens_t *tokens, uint64_t first, uint64_t count,
                               uint64_t *counted, bl_error_t *err) {
  uint64_t bad;
  *counted += bl_tokens_count_labels(tokens, first, count, &bad);
  if (bad == BL_TOKENS_NONE) {
    return BL_OK;
  }
  const bl_token_place_t place = bl_tokens_place(tokens, bad);
  const bl_token_part_t *part = &tokens->parts[place.part];
  const bl_dataset_file_t *file = &dataset->files[dataset->part_files[part - dataset->parts]];
  return bl_error_set(err, BL_INVALID, "data.loss: %s" BL_DATASET_MASK_SUFFIX ": byte %td is %u, a mask has 0 and 1",
                      file->path, part->mask + place.index - file->mask.bytes, part->mask[place.index]);
}

static bl_status_t count_window(const bl_dataset_t *dataset, const bl_tokens_t *tokens, uint64_t window,
                                uint64_t *counted, bl_error_t *err) {
  return count_range(dataset, tokens, window * dataset->seq + 1, dataset->seq, counted, err);
}

static bl_status_t check_range(const bl_dataset_t *dataset, const bl_tokens_t *tokens, uint64_t first, uint64_t count,
                               bl_error_t *err) {
  const uint64_t bad = bl_tokens_find_above(tokens, first, count, dataset->vocab);
  uint64_t counted = 0;
  return bad != BL_TOKENS_NONE ? bl_dataset_fail_token(dataset, tokens, bad, err)
                               : count_range(dataset, tokens, first, count, &counted, err);
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

// Checks that there is a label that counts.
static bl_status_t check_labels(const bl_dataset_t *dataset, const bl_job_t *job, bl_error_t *err) {
  for (size_t i = 0; i < dataset->source_count; i++) {
    const bl_dataset_source_t *source = &dataset->sources[i];
    uint64_t counted = 0;
    for (uint64_t window = 0; window < source->windows && counted == 0; window++) { // as a rule it is the first
      bl_status_t status = count_window(dataset, &source->tokens, window, &counted, err);
      if (status != BL_OK) {
        return status;
      }
    }
    if (counted == 0) {
      return bl_job_fail(job, err, "data.loss", "no token to train on counts in the mask of %s%s",
                         dataset->files[i].path,
                         dataset->source_count < job->data.train.count ? " and the others" : "");
    }
  }
  uint64_t counted = 1;
  bl_status_t status =
      dataset->validation_windows > 0 ? bl_dataset_count_validation_labels(dataset, &counted, err) : BL_OK;
  if (status == BL_OK && counted == 0) {
    status = bl_job_fail(job, err, "data.loss", "no token of the first %d held-out windows counts in the masks",
                         BL_DATASET_VALIDATION_WINDOWS);
  }
  return status;
}

static bl_status_t prepare(bl_dataset_t *dataset, const bl_job_t *job, bl_error_t *err) {
  bl_status_t status = open_files(dataset, job, err);
  if (status == BL_OK) {
    status = make_sources(dataset, job, err);
  }
  if (status != BL_OK) {
    return status;
  }
  dataset->sampler = (bl_sampler_t){
      .micro_batches = (uint32_t)job->train.micro_batches,
      .micro_batch = (uint32_t)job->train.micro_batch,
      .shuffled = job->data.order == BL_JOB_ORDER_SHUFFLED,
      .seed = (uint64_t)job->train.seed,
  };
  status = cut_streams(dataset, job, err);
  if (status != BL_OK) {
    return status;
  }
  dataset->validation_windows = bl_sampler_window_count(dataset->validation.count, dataset->seq);
  status = check_lengths(dataset, job, err);
  bool whole = job->data.format == BL_JOB_FORMAT_TEXT;
  for (size_t i = 0; i < dataset->source_count && status == BL_OK; i++) {
    status = check_tokens(dataset, &dataset->sources[i].tokens, dataset->sources[i].windows, whole, err);
  }
  if (status == BL_OK) {
    status = check_tokens(dataset, &dataset->validation, dataset->validation_windows, whole, err);
  }
  if (status == BL_OK && dataset->masked) {
    status = check_labels(dataset, job, err);
  }
  return status;
}

bl_status_t bl_dataset_open(bl_dataset_t *dataset, const bl_job_t *job, const bl_model_t *model, bl_error_t *err) {
  bl_dataset_t opened = {.vocab = model->vocab, .seq = model->seq, .masked = job->data.loss == BL_JOB_LOSS_MASKED};
  bl_status_t status = prepare(&opened, job, err);
  if (status != BL_OK) {
    bl_dataset_close(&opened);
    return status;
  }
  *dataset = opened;
  return BL_OK;
}

bl_dataset_window_t bl_dataset_window(const bl_dataset_t *dataset, uint64_t step, uint32_t micro_batch,
                                      uint32_t sequence) {
  const bl_sampler_t *sampler = &dataset->sampler;
  if (dataset->source_count == 1) {
    return (bl_dataset_window_t){&dataset->sources[0].tokens, bl_sampler_window(sampler, step, micro_batch, sequence)};
  }
  const bl_mixture_pick_t pick =
      bl_mixture_pick(&dataset->mixture, bl_sampler_number(sampler, step, micro_batch, sequence));
  const bl_dataset_source_t *source = &dataset->sources[pick.source];
  uint64_t window = pick.index % source->windows;
  if (sampler->shuffled) { // so that files of the same length are not shuffled alike
    const uint64_t seed = bl_random_bits(bl_random_key(sampler->seed, "data.source"), pick.source);
    window = bl_sampler_permute(seed, pick.index / source->windows, source->windows, window);
  }
  return (bl_dataset_window_t){&source->tokens, window};
}

uint64_t bl_dataset_validation_micro_batches(const bl_dataset_t *dataset) {
  const uint64_t windows = dataset->validation_windows, most = BL_DATASET_VALIDATION_WINDOWS;
  const uint64_t count = (windows < most ? windows : most) / dataset->sampler.micro_batch;
  return windows > 0 && count == 0 ? 1 : count;
}

bl_status_t bl_dataset_count_labels(const bl_dataset_t *dataset, uint64_t step, uint64_t *counted, bl_error_t *err) {
  const bl_sampler_t *sampler = &dataset->sampler;
  bl_status_t status = BL_OK;
  *counted = 0;
  for (uint32_t i = 0; i < sampler->micro_batches && status == BL_OK; i++) {
    for (uint32_t row = 0; row < sampler->micro_batch && status == BL_OK; row++) {
      const bl_dataset_window_t at = bl_dataset_window(dataset, step, i, row);
      status = count_window(dataset, at.tokens, at.window, counted, err);
    }
  }
  return status;
}

bl_status_t bl_dataset_count_validation_labels(const bl_dataset_t *dataset, uint64_t *counted, bl_error_t *err) {
  const uint64_t rows = bl_dataset_validation_micro_batches(dataset) * dataset->sampler.micro_batch;
  bl_status_t status = BL_OK;
  *counted = 0;
  for (uint64_t row = 0; row < rows && status == BL_OK; row++) {
    status = count_window(dataset, &dataset->validation, row % dataset->validation_windows, counted, err);
  }
  return status;
}

const char *bl_dataset_unused_mask(const bl_dataset_t *dataset) {
  const char *found = NULL;
  for (size_t i = 0; i < dataset->file_count && !dataset->masked && found == NULL; i++) {
    char path[PATH_MAX];
    const int size = snprintf(path, sizeof path, "%s" BL_DATASET_MASK_SUFFIX, dataset->files[i].path);
    found = size < (int)sizeof path && access(path, F_OK) == 0 ? dataset->files[i].path : NULL;
  }
  return found;
}

void bl_dataset_close(bl_dataset_t *dataset) {
  for (size_t i = 0; i < dataset->file_count; i++) {
    bl_file_map_close(&dataset->files[i].map);
    bl_file_map_close(&dataset->files[i].index);
    bl_file_map_close(&dataset->files[i].mask);
    free(dataset->files[i].path);
  }
  free(dataset->files);
  free(dataset->parts);
  free(dataset->part_files);
  free(dataset->sources);
  free(dataset->bounds);
  *dataset = (bl_dataset_t){0};
}
