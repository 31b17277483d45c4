// SPDX-License-Identifier: Apache-2.0
#include "job/architecture.h"

#include "formats/hf_config.h"
#include "sys/file.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONFIG_FILE        "config.json"
#define CONFIG_LIMIT_BYTES (1u << 20) // a config.json is a page; more is the wrong file

// Keys that a job may give in addition to a config.json. They must then agree with it.
typedef struct {
  const char *key;
  const bl_optional_int_t *given;
  uint32_t found;
} agreement_t;

static bl_status_t check_agreement(const bl_job_t *job, const bl_model_t *model, const char *path, bl_error_t *err) {
  const agreement_t keys[] = {
      {"model.layers", &job->model.layers, model->layers}, {"model.hidden", &job->model.hidden, model->hidden},
      {"model.heads", &job->model.heads, model->heads},    {"model.kv_heads", &job->model.kv_heads, model->kv_heads},
      {"model.ffn", &job->model.ffn, model->ffn},          {"model.vocab", &job->model.vocab, model->vocab},
  };
  for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
    if (keys[i].given->set && keys[i].given->value != keys[i].found) {
      return bl_job_fail(job, err, keys[i].key, "%" PRId64 " contradicts %s, which says %" PRIu32 "; remove the key",
                         keys[i].given->value, path, keys[i].found);
    }
  }
  if (job->model.family != BL_JOB_FAMILY_NONE &&
      strcmp(bl_job_family_name(job->model.family), bl_family_name(model->family)) != 0) {
    return bl_job_fail(job, err, "model.family", "%s contradicts %s, which says %s; remove the key",
                       bl_job_family_name(job->model.family), path, bl_family_name(model->family));
  }
  if (job->model.tied.set && job->model.tied.value != model->tied) {
    return bl_job_fail(job, err, "model.tied", "%s contradicts %s, which says %s; remove the key",
                       job->model.tied.value ? "true" : "false", path, model->tied ? "true" : "false");
  }
  return BL_OK;
}

// Sets the job's sequence length. A position table that comes with weights keeps all its rows.
static bl_status_t override_seq(const bl_job_t *job, bl_model_t *model, const char *path, bl_error_t *err) {
  if (!job->model.seq.set) {
    return BL_OK;
  }
  int64_t seq = job->model.seq.value;
  if (model->family == BL_FAMILY_GPT2 && job->model.init != NULL) {
    if (seq > model->seq) {
      return bl_job_fail(job, err, "model.seq",
                         "%" PRId64 " is more than the %" PRIu32 " positions of the weights (%s)", seq, model->seq,
                         path);
    }
    model->positions = model->seq;
  }
  model->seq = (uint32_t)seq;
  return BL_OK;
}

static bl_status_t read_config(const bl_job_t *job, const char *path, bl_model_t *model, bl_error_t *err) {
  char *bytes;
  size_t size_bytes;
  bl_status_t status = bl_file_read(path, CONFIG_LIMIT_BYTES, &bytes, &size_bytes, err);
  if (status != BL_OK) {
    bl_error_prefix(err, "%s", job->model.config != NULL ? "model.config" : "model.init");
    return status;
  }
  status = bl_hf_config_parse(model, bytes, size_bytes, err);
  free(bytes);
  if (status != BL_OK) {
    bl_error_prefix(err, "%s", path);
    return status;
  }
  status = check_agreement(job, model, path, err);
  if (status == BL_OK) {
    status = override_seq(job, model, path, err);
  }
  if (status == BL_OK && (status = bl_model_check(model, err)) != BL_OK) {
    bl_error_prefix(err, "%s", path);
  }
  return status;
}

// Repeats a message "model.key: what" of bl_model_check with the position of that key in the job file.
static bl_status_t fail_at_key(const bl_job_t *job, const char *message, bl_error_t *err) {
  const char *colon = strstr(message, ": ");
  char key[64];
  if (colon == NULL || (size_t)(colon - message) >= sizeof key) {
    return bl_error_set(err, BL_INVALID, "%s", message);
  }
  snprintf(key, sizeof key, "%.*s", (int)(colon - message), message);
  if (bl_options_find(bl_job_options(), key) == NULL) {
    return bl_error_set(err, BL_INVALID, "%s", message);
  }
  return bl_job_fail(job, err, key, "%s", colon + 2);
}

// Returns a number of the job, clamped to 32 bits: larger ones are far beyond what bl_model_check accepts.
static uint32_t number(const bl_optional_int_t *value) {
  return value->value < 0 ? 0 : value->value > UINT32_MAX ? UINT32_MAX : (uint32_t)value->value;
}

static bl_status_t read_inline(const bl_job_t *job, bl_model_t *model, bl_error_t *err) {
  *model = (bl_model_t){
      .family = job->model.family == BL_JOB_FAMILY_LLAMA ? BL_FAMILY_LLAMA : BL_FAMILY_GPT2,
      .layers = number(&job->model.layers),
      .hidden = number(&job->model.hidden),
      .heads = number(&job->model.heads),
      .kv_heads = number(&job->model.kv_heads),
      .ffn = number(&job->model.ffn),
      .vocab = number(&job->model.vocab),
      .seq = number(&job->model.seq),
      .tied = job->model.tied.value,
      .norm_epsilon = BL_NORM_EPSILON_DEFAULT,
      .rope.theta = BL_ROPE_THETA_DEFAULT,
  };
  if (model->heads == 0 || model->hidden % model->heads != 0) {
    return bl_job_fail(job, err, "model.heads", "%" PRIu32 " heads do not divide model.hidden, which is %" PRIu32,
                       model->heads, model->hidden);
  }
  if (model->kv_heads == 0) {
    return bl_job_fail(job, err, "model.kv_heads", "must be at least 1");
  }
  model->head_dim = model->hidden / model->heads;
  bl_error_t fault;
  if (bl_model_check(model, &fault) != BL_OK) {
    return fail_at_key(job, fault.text, err);
  }
  return BL_OK;
}

bl_status_t bl_architecture_read(const bl_job_t *job, bl_model_t *model, bl_error_t *err) {
  bl_model_t read;
  bl_status_t status;
  if (job->model.config != NULL) {
    status = read_config(job, job->model.config, &read, err);
  } else if (job->model.init != NULL) {
    char path[PATH_MAX];
    if (bl_path_join(path, sizeof path, job->model.init, CONFIG_FILE) != BL_OK) {
      return bl_job_fail(job, err, "model.init", "the path is too long");
    }
    status = read_config(job, path, &read, err);
  } else {
    status = read_inline(job, &read, err);
  }
  if (status == BL_OK) {
    *model = read;
  }
  return status;
}
