// SPDX-License-Identifier: Apache-2.0
#include "plan_job.h"

#include "job_file.h"

#include "sys/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Of the job that was read, and about another schedule: without them the job takes what the planned one needs. The slots
// of an order that was searched within them, and its groups, are written again.
static const char *const resets[] = {"memory.slots", "memory.activation_bytes", "pipeline.group"};

#define SETTINGS 24

// "KEY=[a, b, ...]" of one kind of cost, which lies at `offset` in those of a virtual stage; one where all are the same.
static int set_costs(char **set, const char *key, const bl_plan_candidate_t *c, size_t offset) {
  char *text = NULL;
  size_t size, count = (size_t)c->stages * c->chunks, same = 1;
  FILE *stream = open_memstream(&text, &size);
  if (stream == NULL) {
    return -1;
  }
  const char *costs = (const char *)c->costs + offset;
  const double first = *(const double *)costs;
  while (same < count && *(const double *)(costs + same * sizeof *c->costs) == first) {
    same++;
  }
  fprintf(stream, "%s=[", key);
  for (size_t v = 0; v < (same == count ? 1 : count); v++) {
    fprintf(stream, v == 0 ? "%.6g" : ", %.6g", *(const double *)(costs + v * sizeof *c->costs));
  }
  fputc(']', stream);
  if (fclose(stream) != 0) {
    free(text);
    return -1;
  }
  *set = text;
  return 0;
}

// What the order was searched with, so that the run's search finds it again.
static int set_all_costs(char *sets[SETTINGS], size_t *count, const bl_plan_candidate_t *c) {
  static const struct {
    const char *key;
    size_t offset;
  } kinds_of_cost[] = {{"pipeline.costs.forward", offsetof(bl_chunk_costs_t, forward)},
                       {"pipeline.costs.input", offsetof(bl_chunk_costs_t, input)},
                       {"pipeline.costs.weight", offsetof(bl_chunk_costs_t, weight)},
                       {"pipeline.costs.recompute", offsetof(bl_chunk_costs_t, recompute)}};
  int done = 0;
  for (size_t i = 0; i < sizeof kinds_of_cost / sizeof kinds_of_cost[0] && done >= 0; i++) {
    done = set_costs(&sets[(*count)++], kinds_of_cost[i].key, c, kinds_of_cost[i].offset);
  }
  return done < 0 ? done : asprintf(&sets[(*count)++], "pipeline.costs.boundary=%.6g", c->boundary);
}

// Paths between nodes, for policies that choose where blocks go. A malloc'd text; NULL: no memory.
static char *paths_of(const bl_plan_request_t *r, const bl_plan_candidate_t *c) {
  const bool chooses = r->cluster.nodes > 0 && (c->policy == BL_PLAN_CAP || c->policy == BL_PLAN_AUTO);
  bl_nodes_t nodes = {0};
  const char *between = "";
  char *text = NULL;
  size_t size;
  if (chooses && bl_nodes_init(&nodes, &r->cluster, c->order, c->stages, c->parallel.tensor) != BL_OK) {
    return NULL;
  }
  FILE *stream = open_memstream(&text, &size);
  for (uint32_t s = 0; stream != NULL && s < nodes.stages; s++) {
    for (uint32_t d = s + 1; d < nodes.stages; d++) {
      double longer = bl_nodes_copy(&nodes, s, d);
      if (longer != 1) {
        fprintf(stream, "%s\"%u-%u=%.6g\"", between, s, d, longer);
        between = ", ";
      }
    }
  }
  if (stream != NULL) {
    fclose(stream);
  }
  bl_nodes_cleanup(&nodes);
  return text;
}

// What is set on top of the job; malloc'd texts.
static bl_status_t settings_of(const bl_plan_request_t *r, const bl_plan_candidate_t *c, char *sets[SETTINGS],
                               size_t *count) {
  char *layers = NULL;
  size_t size;
  FILE *stream = open_memstream(&layers, &size);
  if (stream == NULL) {
    return BL_EXHAUSTED;
  }
  for (uint32_t v = 0; v < c->stages * c->chunks; v++) {
    fprintf(stream, v == 0 ? "%u" : ", %u", c->layers[v]);
  }
  fclose(stream);
  const struct {
    const char *key;
    uint32_t value;
  } numbers[] = {{"pipeline.stages", c->stages},
                 {"pipeline.chunks", c->chunks},
                 {"train.micro_batch", c->micro_batch},
                 {"train.micro_batches", c->micro_batches}};
  int done = 0;
  for (size_t i = 0; i < 4 && done >= 0; i++) {
    done = asprintf(&sets[(*count)++], "%s=%u", numbers[i].key, numbers[i].value);
  }
  done = done < 0 ? done : asprintf(&sets[(*count)++], "pipeline.schedule=%s", c->schedule);
  done = done < 0 ? done : asprintf(&sets[(*count)++], "pipeline.layers_per_stage=[%s]", layers);
  done = done < 0 ? done : set_all_costs(sets, count, c);
  done = done < 0 ? done : asprintf(&sets[(*count)++], "pipeline.attention=%s", bl_attention_name(c->attention));
  done = done < 0 ? done : asprintf(&sets[(*count)++], "pipeline.recompute=%s", bl_recompute_name(c->recompute));
  done = done < 0 ? done : asprintf(&sets[(*count)++], "balance.policy=%s", bl_plan_policy_name(c->policy));
  if (done >= 0 && c->policy != BL_PLAN_NONE) {
    done = asprintf(&sets[(*count)++], "balance.cap=%u", c->cap);
  } else if (done >= 0) {
    done = asprintf(&sets[(*count)++], "balance.cap=null");
  }
  for (size_t i = 0; i < sizeof resets / sizeof resets[0] && done >= 0; i++) {
    done = asprintf(&sets[(*count)++], "%s=null", resets[i]);
  }
  if (done >= 0 && c->slots > 0) {
    done = asprintf(&sets[(*count)++], "memory.slots=%u", c->slots);
  }
  if (done >= 0 && c->group > 0) {
    done = asprintf(&sets[(*count)++], "pipeline.group=%u", c->group);
  }
  char *paths = paths_of(r, c);
  done = done < 0 || paths == NULL ? -1 : asprintf(&sets[(*count)++], "balance.slow_paths=[%s]", paths);
  free(paths);
  free(layers);
  return done < 0 ? BL_EXHAUSTED : BL_OK;
}

static bl_status_t write_with(const bl_ctl_plan_flags_t *a, const char *path, char *const *sets, size_t count,
                              bl_error_t *err) {
  char **all = calloc(a->sets.count + count + 1, sizeof *all);
  if (all == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory");
  }
  memcpy(all, a->sets.items, a->sets.count * sizeof *all);
  memcpy(all + a->sets.count, sets, count * sizeof *all);
  bl_text_list_t list = {.items = all, .count = a->sets.count + count};
  bl_job_t job = {0};
  char *text = NULL;
  size_t size;
  bl_status_t status = bl_ctl_job_read(path, &list, NULL, &job, err);
  if (status == BL_OK && (status = bl_job_dump(&job, &text, &size)) != BL_OK) {
    (void)bl_error_set(err, status, "the job cannot be written down: %s", bl_status_text(status));
  }
  if (status == BL_OK) {
    status = bl_file_replace(a->write, text, size, err);
  }
  free(text);
  bl_job_cleanup(&job);
  free(all);
  return status;
}

bl_status_t bl_ctl_plan_job_write(const bl_ctl_plan_flags_t *a, const char *path, const bl_plan_request_t *r,
                                  const bl_plan_candidate_t *best, bl_error_t *err) {
  char *sets[SETTINGS] = {NULL};
  size_t count = 0;
  if (best->parallel.tensor > 1 || best->parallel.data > 1) {
    return bl_error_set(err, BL_PRECONDITION,
                        "nothing was written to %s: the best way uses tensor parallelism %u and %u replicas, and a job "
                        "file has pipeline parallelism alone; with --tensor 1 and --stages as many as devices it has",
                        a->write, best->parallel.tensor, best->parallel.data);
  }
  bl_status_t status = settings_of(r, best, sets, &count);
  if (status != BL_OK) {
    (void)bl_error_set(err, status, "no memory");
  } else {
    status = write_with(a, path, sets, count, err);
  }
  for (size_t i = 0; i < count; i++) {
    free(sets[i]);
  }
  if (status == BL_OK) {
    fprintf(stderr, "ballastctl: wrote %s\n", a->write);
  }
  return status;
}
