// SPDX-License-Identifier: Apache-2.0
#include "config/job.h"

#include "config/job_check.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bl_grid_t bl_job_grid(const bl_job_t *job) {
  return (bl_grid_t){.stages = (uint32_t)job->pipeline.stages,
                     .tensor = (uint32_t)job->parallel.tensor,
                     .data = (uint32_t)job->parallel.data,
                     .tensor_parts = (uint32_t)job->parallel.tensor_parts.value,
                     .data_parts = (uint32_t)job->parallel.data_parts.value,
                     .pipes = (uint32_t)bl_job_pipes(job->pipeline.schedule)};
}

uint32_t bl_job_replica_micro_batches(const bl_job_t *job) {
  return (uint32_t)(job->train.micro_batches / job->parallel.data);
}

static const struct {
  int64_t chunks, slices, pipes;
} shapes[] = {
#define X(id, name, chunks, slices, pipes) {chunks, slices, pipes},
    BL_SCHEDULE_NAMES(X)
#undef X
};

int64_t bl_job_default_chunks(bl_schedule_kind_t schedule) {
  return shapes[schedule].chunks;
}

int64_t bl_job_pipes(bl_schedule_kind_t schedule) {
  return shapes[schedule].pipes;
}

static void preset_int(bl_optional_int_t *value, int64_t preset) {
  if (!value->set) {
    *value = (bl_optional_int_t){true, preset};
  }
}

// Fills in defaults that follow from other keys. A second call changes nothing, so a dumped job reads back equal.
static void derive(bl_job_t *job) {
  bool is_inline = job->model.config == NULL && job->model.init == NULL;
  if (is_inline && job->model.family != BL_JOB_FAMILY_NONE) {
    if (job->model.heads.set) {
      preset_int(&job->model.kv_heads, job->model.heads.value);
    }
    if (job->model.family == BL_JOB_FAMILY_GPT2 && job->model.hidden.set) {
      preset_int(&job->model.ffn, 4 * job->model.hidden.value);
    }
    if (!job->model.tied.set) {
      job->model.tied = (bl_optional_bool_t){true, job->model.family == BL_JOB_FAMILY_GPT2};
    }
  }
  if (!job->train.min_lr.set) {
    job->train.min_lr = (bl_optional_real_t){true, job->train.lr / 10};
  }
  preset_int(&job->parallel.tensor_parts, job->parallel.tensor);
  const int64_t pipes = bl_job_pipes(job->pipeline.schedule);
  preset_int(&job->parallel.data_parts, job->parallel.data * pipes);
  preset_int(&job->pipeline.chunks, bl_job_default_chunks(job->pipeline.schedule));
  preset_int(&job->pipeline.slices, shapes[job->pipeline.schedule].slices);
  if (job->pipeline.schedule == BL_SCHEDULE_GROUPED_INTERLEAVED) {
    preset_int(&job->pipeline.group, job->pipeline.stages);
  }
}

static bl_status_t read_all(bl_job_t *job, const bl_job_source_t *source, bl_error_t *err) {
  const bl_option_table_t *table = bl_job_options();
  bl_status_t status = bl_options_read(table, job, job->marks, &source->file, err);
  for (size_t i = 0; status == BL_OK && i < source->set_count; i++) {
    status = bl_options_set(table, job, job->marks, source->sets[i], source->sets_folder, err);
  }
  if (status == BL_OK) {
    status = bl_options_check_required(table, job->marks, source->file.name, err);
  }
  if (status == BL_OK) {
    derive(job);
    status = bl__job_check(job, err);
  }
  return status;
}

bl_status_t bl_job_parse(bl_job_t *result, const bl_job_source_t *source, bl_error_t *err) {
  bl_job_t job = {0};
  bl_status_t status = bl_options_preset(bl_job_options(), &job, err);
  if (status != BL_OK) {
    return status;
  }
  job.file = strdup(source->file.name);
  if (job.file == NULL) {
    status = bl_error_set(err, BL_EXHAUSTED, "%s: no memory", source->file.name);
  } else {
    status = read_all(&job, source, err);
  }
  if (status != BL_OK) {
    bl_job_cleanup(&job);
    return status;
  }
  *result = job;
  return BL_OK;
}

void bl_job_cleanup(bl_job_t *job) {
  bl_options_cleanup(bl_job_options(), job);
  free(job->file);
  *job = (bl_job_t){0};
}

bl_status_t bl_job_dump(const bl_job_t *job, char **text, size_t *text_bytes) {
  return bl_options_dump(bl_job_options(), job, text, text_bytes);
}

static const bl_option_mark_t *find_mark(const bl_job_t *job, const char *key) {
  const bl_option_t *row = bl_options_find(bl_job_options(), key);
  return row != NULL ? &job->marks[row - bl_job_options()->rows] : NULL;
}

bool bl_job_given(const bl_job_t *job, const char *key) {
  const bl_option_mark_t *mark = find_mark(job, key);
  return mark != NULL && mark->origin != BL_ORIGIN_PRESET;
}

bl_status_t bl_job_fail(const bl_job_t *job, bl_error_t *err, const char *key, const char *format, ...) {
  char message[BL_ERROR_TEXT_BYTES];
  va_list args;
  va_start(args, format);
  vsnprintf(message, sizeof message, format, args);
  va_end(args);
  const bl_option_mark_t *mark = find_mark(job, key);
  const char *file = job->file != NULL ? job->file : "job";
  if (mark != NULL && mark->origin == BL_ORIGIN_FILE) {
    return bl_error_set(err, BL_INVALID, "%s:%u:%u: %s: %s", file, mark->line, mark->column, key, message);
  }
  if (mark != NULL && mark->origin == BL_ORIGIN_SET) {
    return bl_error_set(err, BL_INVALID, "--set %s: %s", key, message);
  }
  return bl_error_set(err, BL_INVALID, "%s: %s: %s", file, key, message);
}
