// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/plan/plan_job.h"

#include "ballastctl/job_file.h"

#include "sys/file.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Keys of the job that describe another schedule. They are reset, so that the job uses the defaults of the planned
// schedule. The slots of an order that was searched within them, and its groups, are set again.
static const char *const resets[] = {"memory.slots",          "memory.activation_bytes", "pipeline.group",
                                     "pipeline.slices",       "parallel.tensor_parts",   "parallel.data_parts",
                                     "train.optimizer_memory"};

#define SETTINGS 32 // maximum number of settings of set_all

// Settings on top of the job: "KEY=VALUE" texts, malloc'd. The first failure is kept, so that callers check once.
typedef struct settings {
  char *texts[SETTINGS];
  size_t count;
  bool failed; // no memory
} settings_t;

static void set(settings_t *settings, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void set(settings_t *settings, const char *format, ...) {
  char *text;
  va_list values;
  va_start(values, format);
  if (vasprintf(&text, format, values) >= 0) {
    settings->texts[settings->count++] = text;
  } else {
    settings->failed = true;
  }
  va_end(values);
}

// Sets "KEY=[...]". The values were written to `stream`, which this closes, and are in *text. A NULL stream: no memory.
static void set_list(settings_t *settings, const char *key, FILE *stream, char **text) {
  if (stream != NULL && fclose(stream) == 0 && *text != NULL) {
    set(settings, "%s=[%s]", key, *text);
  } else {
    settings->failed = true;
  }
  free(*text);
}

static void set_layers(settings_t *settings, const bl_plan_candidate_t *c) {
  char *text = NULL;
  size_t size;
  FILE *stream = open_memstream(&text, &size);
  for (uint32_t v = 0; stream != NULL && v < c->stages * c->chunks; v++) {
    fprintf(stream, v == 0 ? "%u" : ", %u", c->layers[v]);
  }
  set_list(settings, "pipeline.layers_per_stage", stream, &text);
}

// Sets one kind of cost, at `offset` in the costs of a virtual stage; as one number if all are equal.
static void set_costs(settings_t *settings, const char *key, const bl_plan_candidate_t *c, size_t offset) {
  char *text = NULL;
  size_t size, count = (size_t)c->stages * c->chunks, same = 1;
  const char *costs = (const char *)c->costs + offset;
  const double first = *(const double *)costs;
  while (same < count && *(const double *)(costs + same * sizeof *c->costs) == first) {
    same++;
  }
  FILE *stream = open_memstream(&text, &size);
  for (size_t v = 0; stream != NULL && v < (same == count ? 1 : count); v++) {
    fprintf(stream, v == 0 ? "%.6g" : ", %.6g", *(const double *)(costs + v * sizeof *c->costs));
  }
  set_list(settings, key, stream, &text);
}

// Sets the costs with which the order was searched, so that the run's search finds the same order.
static void set_all_costs(settings_t *settings, const bl_plan_candidate_t *c) {
  set_costs(settings, "pipeline.costs.forward", c, offsetof(bl_chunk_costs_t, forward));
  set_costs(settings, "pipeline.costs.input", c, offsetof(bl_chunk_costs_t, input));
  set_costs(settings, "pipeline.costs.weight", c, offsetof(bl_chunk_costs_t, weight));
  set_costs(settings, "pipeline.costs.recompute", c, offsetof(bl_chunk_costs_t, recompute));
  set(settings, "pipeline.costs.boundary=%.6g", c->boundary);
  if (c->host_path > 0) {
    set(settings, "pipeline.costs.host_copy=%.6g", c->host_path);
  } else {
    set(settings, "pipeline.costs.host_copy=null");
  }
}

// Sets the paths between nodes, for policies that choose where blocks are parked.
static void set_slow_paths(settings_t *settings, const bl_plan_request_t *r, const bl_plan_candidate_t *c) {
  const bool chooses = r->cluster.nodes > 0 && (c->policy == BL_POLICY_CAP || c->policy == BL_POLICY_AUTO);
  bl_nodes_t nodes = {0};
  const char *separator = "";
  char *text = NULL;
  size_t size;
  if (chooses && bl_nodes_init(&nodes, &r->cluster, c->order, c->stages, c->parallel.tensor) != BL_OK) {
    settings->failed = true;
    return;
  }
  FILE *stream = open_memstream(&text, &size);
  for (uint32_t s = 0; stream != NULL && s < nodes.stages; s++) {
    for (uint32_t d = s + 1; d < nodes.stages; d++) {
      double longer = bl_nodes_copy(&nodes, s, d);
      if (longer != 1) {
        fprintf(stream, "%s\"%u-%u=%.6g\"", separator, s, d, longer);
        separator = ", ";
      }
    }
  }
  set_list(settings, "balance.slow_paths", stream, &text);
  bl_nodes_cleanup(&nodes);
}

static void set_all(settings_t *settings, const bl_plan_request_t *r, const bl_plan_candidate_t *c) {
  set(settings, "pipeline.stages=%u", c->stages);
  set(settings, "pipeline.chunks=%u", c->chunks);
  set(settings, "train.micro_batch=%u", c->micro_batch);
  set(settings, "parallel.tensor=%u", c->parallel.tensor);
  set(settings, "parallel.data=%u", c->parallel.data);
  set(settings, "train.micro_batches=%llu", (unsigned long long)c->micro_batches * c->parallel.data);
  set(settings, "pipeline.schedule=%s", c->schedule);
  set_layers(settings, c);
  set_all_costs(settings, c);
  set(settings, "pipeline.attention=%s", bl_attention_name(c->attention));
  set(settings, "pipeline.recompute=%s", bl_recompute_name(c->recompute));
  set(settings, "balance.policy=%s", bl_policy_kind_name(c->policy));
  if (c->policy != BL_POLICY_NONE) {
    set(settings, "balance.cap=%u", c->cap);
  } else {
    set(settings, "balance.cap=null");
  }
  if (r->host.bytes > 0 && (bl_policy_copies(c->policy) || c->policy == BL_POLICY_AUTO)) {
    set(settings, "balance.host=%.0f", r->host.bytes);
  }
  for (size_t i = 0; i < sizeof resets / sizeof resets[0]; i++) {
    set(settings, "%s=null", resets[i]);
  }
  if (c->slots > 0) {
    set(settings, "memory.slots=%u", c->slots);
  }
  if (c->slices > 1) {
    set(settings, "pipeline.slices=%u", c->slices);
  }
  if (c->group > 0) {
    set(settings, "pipeline.group=%u", c->group);
  }
  if (r->optimizer_on_host) {
    set(settings, "train.optimizer_memory=host");
  }
  if (r->asynchronous) {
    set(settings, "pipeline.device=cuda");
  }
  set(settings, "train.dtype=%s", bl_dtype_name(r->dtype));
  set_slow_paths(settings, r, c);
}

static bl_status_t make_with(const bl_ctl_plan_flags_t *a, const char *path, const settings_t *settings, bl_job_t *job,
                             bl_error_t *err) {
  char **all = calloc(a->sets.count + settings->count + 1, sizeof *all);
  if (all == NULL || settings->failed) {
    free(all);
    return bl_error_set(err, BL_EXHAUSTED, "no memory");
  }
  memcpy(all, a->sets.items, a->sets.count * sizeof *all);
  memcpy(all + a->sets.count, settings->texts, settings->count * sizeof *all);
  bl_text_list_t list = {.items = all, .count = a->sets.count + settings->count};
  bl_status_t status = bl_ctl_job_read(path, &list, NULL, job, err);
  free(all);
  return status;
}

bl_status_t bl_ctl_plan_job_make(const bl_ctl_plan_flags_t *a, const char *path, const bl_plan_request_t *r,
                                 const bl_plan_candidate_t *best, bl_job_t *job, bl_error_t *err) {
  settings_t settings = {0};
  set_all(&settings, r, best);
  bl_status_t status = make_with(a, path, &settings, job, err);
  for (size_t i = 0; i < settings.count; i++) {
    free(settings.texts[i]);
  }
  return status;
}

bl_status_t bl_ctl_plan_job_write(const bl_ctl_plan_flags_t *a, const bl_job_t *job, bl_error_t *err) {
  char *text = NULL;
  size_t size;
  bl_status_t status = bl_job_dump(job, &text, &size);
  if (status != BL_OK) {
    return bl_error_set(err, status, "the job cannot be written down: %s", bl_status_text(status));
  }
  status = bl_file_replace(a->write, text, size, err);
  free(text);
  if (status == BL_OK) {
    fprintf(stderr, "ballastctl: wrote %s\n", a->write);
  }
  return status;
}
