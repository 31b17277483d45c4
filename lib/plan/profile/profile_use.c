// SPDX-License-Identifier: Apache-2.0
#include "plan/profile/profile_use.h"

#include "base/words.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define RECORD "record one of this job with ballastctl run JOB --profile FILE"

static const char *device_name(bl_profile_device_t device) {
  return device == BL_PROFILE_CUDA ? "cuda" : "host";
}

static uint32_t layers_of(const bl_profile_t *profile) {
  const bl_chunk_span_t last = profile->chunks[profile->chunk_count - 1].span;
  return last.first_layer + last.layer_count;
}

// ---- what says nothing

static bl_status_t check_model(const bl_profile_t *profile, const bl_model_t *model, const char *name,
                               bl_error_t *err) {
  char text[192];
  bl_profile_model_text(model, text);
  if (profile->model_digest != bl_profile_model_digest(model)) {
    return bl_error_set(err, BL_INVALID, "profile %s is of another model (%s); the job's is %s; " RECORD, name,
                        profile->model_text, text);
  }
  if (layers_of(profile) != model->layers) {
    return bl_error_set(err, BL_INVALID,
                        "profile %s: chunks have %u layer%s together, its model has %u: the file is damaged; " RECORD,
                        name, layers_of(profile), bl_plural(layers_of(profile)), model->layers);
  }
  return BL_OK;
}

bl_status_t bl_profile_check(const bl_profile_t *profile, const bl_profile_use_t *use, const char *name,
                             bl_error_t *err) {
  bl_status_t status = check_model(profile, use->model, name, err);
  if (status != BL_OK || !profile->setting.known) {
    return status;
  }
  if (profile->options.dtype != use->options.dtype) {
    return bl_error_set(err, BL_INVALID,
                        "profile %s: dtype is %s, the job's train.dtype is %s, whose times are others; " RECORD, name,
                        bl_dtype_name(profile->options.dtype), bl_dtype_name(use->options.dtype));
  }
  const uint32_t ranks = bl_layer_parts_ranks(profile->options.layer_parts),
                 wanted = bl_layer_parts_ranks(use->options.layer_parts);
  if (ranks != wanted) {
    return bl_error_set(err, BL_INVALID,
                        "profile %s: tensor is %u, the job's parallel.tensor is %u, whose times are others; " RECORD,
                        name, ranks, wanted);
  }
  if (profile->setting.device != use->device) {
    return bl_error_set(err, BL_INVALID,
                        "profile %s: device is %s, the job's pipeline.device is %s, whose times are others; " RECORD,
                        name, device_name(profile->setting.device), device_name(use->device));
  }
  return BL_OK;
}

#define REPLAY "a replay needs one of the same schedule, order and micro-batch: without --replay means are taken, or "

bl_status_t bl_profile_check_replay(const bl_profile_t *profile, const bl_schedule_t *schedule, uint32_t micro_batch,
                                    const char *name, bl_error_t *err) {
  if (profile->stage_count != schedule->stages || profile->chunk_count != schedule->virtual_stages) {
    return bl_error_set(err, BL_INVALID,
                        "profile %s: has %u stage%s with %u chunk%s in all, the job %u with %u; " REPLAY RECORD, name,
                        profile->stage_count, bl_plural(profile->stage_count), profile->chunk_count,
                        bl_plural(profile->chunk_count), schedule->stages, schedule->virtual_stages);
  }
  if (profile->options.micro_batch != micro_batch) {
    return bl_error_set(err, BL_INVALID,
                        "profile %s: micro_batch is %u, the job's train.micro_batch %u; " REPLAY RECORD, name,
                        profile->options.micro_batch, micro_batch);
  }
  if (profile->micro_batches != schedule->micro_batches) {
    return bl_error_set(err, BL_INVALID,
                        "profile %s: micro_batches is %u, the job's train.micro_batches %u; " REPLAY RECORD, name,
                        profile->micro_batches, schedule->micro_batches);
  }
  if (bl_layout_slices(profile->options) != schedule->slices) {
    return bl_error_set(err, BL_INVALID, "profile %s: slices is %u, the job's pipeline.slices %u; " REPLAY RECORD, name,
                        bl_layout_slices(profile->options), schedule->slices);
  }
  if (strcmp(profile->schedule, schedule->name) != 0) {
    return bl_error_set(err, BL_INVALID, "profile %s: schedule is %s, the job's is %s; " REPLAY RECORD, name,
                        profile->schedule, schedule->name);
  }
  if (profile->stages[0].time_count == 0) {
    return bl_error_set(err, BL_INVALID, "profile %s: stages[0].times is empty, there is no step to replay; " RECORD,
                        name);
  }
  if (profile->setting.known && profile->setting.order != bl_profile_order(schedule)) {
    return bl_error_set(
        err, BL_INVALID,
        "profile %s: order is another one than the job's %s has with these costs, limits and policy; " REPLAY RECORD,
        name, schedule->name);
  }
  return BL_OK;
}

bl_status_t bl_profile_check_pair(const bl_profile_t *first, const char *first_name, const bl_profile_t *second,
                                  const char *second_name, bl_error_t *err) {
  if (first->model_digest != second->model_digest) {
    return bl_error_set(err, BL_INVALID, "%s is of %s, %s of another model (%s)", first_name, first->model_text,
                        second_name, second->model_text);
  }
  if (layers_of(first) != layers_of(second)) {
    return bl_error_set(err, BL_INVALID, "%s has %u layer%s in its chunks, %s has %u", first_name, layers_of(first),
                        bl_plural(layers_of(first)), second_name, layers_of(second));
  }
  const uint32_t slices[] = {bl_layout_slices(first->options), bl_layout_slices(second->options)};
  if (slices[0] > 1 || slices[1] > 1) {
    return bl_error_set(err, BL_INVALID,
                        "sequences are in %u slices in %s and in %u in %s: what is compared are whole sequences",
                        slices[0], first_name, slices[1], second_name);
  }
  if (first->stage_count != second->stage_count) {
    return bl_error_set(err, BL_INVALID, "%s has %u stage%s, %s has %u", first_name, first->stage_count,
                        bl_plural(first->stage_count), second_name, second->stage_count);
  }
  if (!first->setting.known || !second->setting.known) {
    return BL_OK;
  }
  if (first->options.dtype != second->options.dtype) {
    return bl_error_set(err, BL_INVALID, "dtype of %s is %s, of %s %s: record both with the same train.dtype",
                        first_name, bl_dtype_name(first->options.dtype), second_name,
                        bl_dtype_name(second->options.dtype));
  }
  if (first->setting.device != second->setting.device) {
    return bl_error_set(err, BL_INVALID, "device of %s is %s, of %s %s: record both with the same pipeline.device",
                        first_name, device_name(first->setting.device), second_name,
                        device_name(second->setting.device));
  }
  return BL_OK;
}

// ---- what is near

// Reasons, one after the other; the advice comes last.
typedef struct warnings {
  char *text;
  size_t used;
} warnings_t;

__attribute__((format(printf, 2, 3))) static void add(warnings_t *warnings, const char *format, ...) {
  va_list arguments;
  size_t room = BL_PROFILE_WARNING - warnings->used;
  if (room <= 2) {
    return;
  }
  int written = warnings->used > 0 ? snprintf(warnings->text + warnings->used, room, "; ") : 0;
  va_start(arguments, format);
  written += vsnprintf(warnings->text + warnings->used + written, room - (size_t)written, format, arguments);
  va_end(arguments);
  warnings->used += (size_t)written < room ? (size_t)written : room - 1;
}

// Warns about stages that move blocks but have no measured copies in the profile.
// A head on GPUs takes the same time for all losses.
static bool has_other_losses(const bl_profile_t *profile, bool masked) {
  return profile->setting.known && profile->setting.device == BL_PROFILE_HOST && profile->setting.masked != masked;
}

static const char *loss_name(bool masked) {
  return masked ? "masked" : "all";
}

static void doubt_copies(const bl_profile_t *profile, const bl_schedule_t *schedule, warnings_t *warnings) {
  uint32_t unseen = 0, first = 0;
  bool any = false;
  for (uint32_t s = 0; s < profile->stage_count; s++) {
    any = any || profile->stages[s].path_rate > 0;
  }
  for (uint32_t s = 0; s < schedule->stages; s++) {
    bool moves = false;
    for (size_t i = 0; i < schedule->lists[s].count && !moves; i++) {
      moves = schedule->lists[s].ops[i].type == BL_OP_E && schedule->lists[s].ops[i].store < schedule->stages;
    }
    if (moves && (s >= profile->stage_count || profile->stages[s].path_rate <= 0)) {
      first = unseen++ == 0 ? s : first;
    }
  }
  if (unseen > 0) {
    add(warnings, "path_rate: no copies of stage %u%s were measured, taken is %s", first,
        unseen > 1 ? " and of others" : "", any ? "the mean of the stages that made some" : "4 GB/s");
  }
}

// The same for stages that park at the host.
static void doubt_host(const bl_profile_t *profile, const bl_schedule_t *schedule, warnings_t *warnings) {
  uint32_t unseen = 0, first = 0;
  for (uint32_t s = 0; s < schedule->stages && schedule->hosts > 0; s++) {
    bool moves = false;
    for (size_t i = 0; i < schedule->lists[s].count && !moves; i++) {
      moves = schedule->lists[s].ops[i].type == BL_OP_E && schedule->lists[s].ops[i].store >= schedule->stages;
    }
    if (moves && (s >= profile->stage_count || profile->stages[s].host_rate <= 0)) {
      first = unseen++ == 0 ? s : first;
    }
  }
  if (unseen > 0) {
    add(warnings,
        "host_rate: no copies of stage %u%s at the host were measured, taken is the mean of those that were, of "
        "copies at other stores, or 4 GB/s",
        first, unseen > 1 ? " and of others" : "");
  }
}

// Returns whether the profile's stages shared cores differently than they would share `cores`; 0: not known.
static bool share_otherwise(const bl_profile_t *profile, uint32_t cores) {
  const uint32_t fewer = cores < profile->cores ? cores : profile->cores;
  return fewer > 0 && profile->cores != cores && fewer < profile->stage_count;
}

static bool end(warnings_t *warnings, const char *advice) {
  if (warnings->used > 0) {
    add(warnings, "times are an approximation: %s", advice);
  }
  return warnings->used > 0;
}

bool bl_profile_warning(const bl_profile_t *profile, const bl_profile_use_t *use, char warning[BL_PROFILE_WARNING]) {
  const bl_layout_options_t *mine = &profile->options, *others = &use->options;
  warnings_t warnings = {.text = warning};
  warning[0] = '\0';
  if (!profile->setting.known) {
    add(&warnings, "dtype, device, threads and order are not in it, an older program wrote it: taken to be the job's");
  } else if (profile->setting.threads != use->threads) {
    add(&warnings, "threads is %u, the job's pipeline.threads %u", profile->setting.threads, use->threads);
  }
  if (share_otherwise(profile, use->cores)) {
    add(&warnings, "cores is %u, here stages have %u", profile->cores, use->cores);
  }
  const uint32_t tensor = bl_layer_parts_ranks(mine->layer_parts);
  if (tensor > 1 && profile->cores > 0 && profile->cores < profile->stage_count * tensor) {
    add(&warnings, "cores is %u for %u ranks that share layers: operations took as long as they waited for each other",
        profile->cores, profile->stage_count * tensor);
  }
  if (mine->attention != others->attention) {
    add(&warnings, "attention is %s, the job's pipeline.attention %s", bl_attention_name(mine->attention),
        bl_attention_name(others->attention));
  }
  if (mine->recompute != others->recompute) {
    add(&warnings, "recompute is %s, the job's pipeline.recompute %s", bl_recompute_name(mine->recompute),
        bl_recompute_name(others->recompute));
  }
  if (has_other_losses(profile, use->masked)) {
    add(&warnings, "loss is %s, the job's data.loss %s", loss_name(profile->setting.masked), loss_name(use->masked));
  }
  if (mine->micro_batch != others->micro_batch) {
    add(&warnings, "micro_batch is %u, the job's train.micro_batch %u: scaled in proportion", mine->micro_batch,
        others->micro_batch);
  }
  if (bl_layout_slices(*mine) != bl_layout_slices(*others)) {
    add(&warnings, "slices is %u, the job's pipeline.slices %u: what a slice takes is scaled by its keys",
        bl_layout_slices(*mine), bl_layout_slices(*others));
  }
  if (use->schedule != NULL) {
    doubt_copies(profile, use->schedule, &warnings);
    doubt_host(profile, use->schedule, &warnings);
  }
  return end(&warnings, RECORD);
}

bool bl_profile_warning_pair(const bl_profile_t *first, const bl_profile_t *second, char warning[BL_PROFILE_WARNING]) {
  warnings_t warnings = {.text = warning};
  warning[0] = '\0';
  if (!first->setting.known || !second->setting.known) {
    add(&warnings, "dtype, device and threads are not in %s, an older program wrote %s: taken to be the same",
        !first->setting.known && !second->setting.known ? "either" : "one of them",
        !first->setting.known && !second->setting.known ? "them" : "it");
  } else if (first->setting.threads != second->setting.threads) {
    add(&warnings, "threads is %u in one, %u in the other", first->setting.threads, second->setting.threads);
  }
  if (share_otherwise(first, second->cores)) {
    add(&warnings, "cores is %u in one, %u in the other", first->cores, second->cores);
  }
  if (has_other_losses(first, second->setting.masked)) {
    add(&warnings, "loss is %s in one, %s in the other", loss_name(first->setting.masked),
        loss_name(second->setting.masked));
  }
  return end(&warnings, "record both with the same settings");
}
