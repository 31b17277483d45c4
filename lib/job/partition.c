// SPDX-License-Identifier: Apache-2.0
#include "job/partition.h"

#include "base/words.h"
#include "model/flops.h"

#include <inttypes.h>
#include <stdlib.h>

// Returns the cost of the slowest of count > 1 virtual stages if the last has `last` layers and the others share the
// rest evenly.
static double slowest(uint32_t total, uint32_t count, double head, uint32_t last) {
  uint32_t others = (total - last + count - 2) / (count - 1); // rounded up
  double end = last + head;
  return others > end ? others : end;
}

void bl_partition_balance(uint32_t total, uint32_t count, double head, uint32_t *layers) {
  uint32_t last = total;
  if (count > 1) {
    // More layers at the end keep memory of the early stages low, so the largest of equal choices wins.
    last = 1;
    for (uint32_t candidate = 2; candidate <= total - (count - 1); candidate++) {
      if (slowest(total, count, head, candidate) <= slowest(total, count, head, last)) {
        last = candidate;
      }
    }
    uint32_t base = (total - last) / (count - 1), extra = (total - last) % (count - 1);
    for (uint32_t i = 0; i < count - 1; i++) {
      layers[i] = base + (i >= count - 1 - extra ? 1 : 0);
    }
  }
  layers[count - 1] = last;
}

// Returns the cost of the head in layers.
static double head_cost(const bl_model_t *model) {
  bl_chunk_span_t whole = bl_chunk_span_whole(model);
  bl_flops_t products = bl_flops_matmul(model, whole, 1);
  double head = products.head;
  products.head = 0;
  double layers =
      bl_flops_total(products) + bl_flops_total(bl_flops_attention(model, whole, 1, BL_ATTENTION_NAIVE, true));
  return head / (layers / model->layers);
}

static bl_status_t follow_list(const bl_job_t *job, const bl_model_t *model, uint32_t count, uint32_t *layers,
                               bl_error_t *err) {
  const char *key = "pipeline.layers_per_stage";
  const bl_int_list_t *list = &job->pipeline.layers_per_stage;
  if (list->count != count) {
    return bl_job_fail(job, err, key,
                       "has %zu %s, needs one for each of the %" PRIu32 " virtual stages%s (pipeline.stages %" PRId64
                       " x %" PRId64 " chunk%s)",
                       list->count, bl_one_or_many(list->count, "entry", "entries"), count,
                       bl_job_pipes(job->pipeline.schedule) > 1 ? " of one direction" : "", job->pipeline.stages,
                       count / job->pipeline.stages, bl_plural(count / job->pipeline.stages));
  }
  int64_t sum = 0;
  for (uint32_t i = 0; i < count; i++) {
    if (list->items[i] < 1 || list->items[i] > model->layers) {
      return bl_job_fail(job, err, key,
                         "entry %" PRIu32 " is %" PRId64 ", must be between 1 and model.layers, %" PRIu32, i + 1,
                         list->items[i], model->layers);
    }
    layers[i] = (uint32_t)list->items[i];
    sum += list->items[i];
  }
  if (sum != model->layers) {
    return bl_job_fail(job, err, key, "the entries add up to %" PRId64 " layer%s, the model has %" PRIu32, sum,
                       bl_plural(sum), model->layers);
  }
  return BL_OK;
}

static bl_status_t choose_layers(const bl_job_t *job, const bl_model_t *model, uint32_t count, uint32_t *layers,
                                 bl_error_t *err) {
  if (job->pipeline.layers_per_stage.count > 0) {
    return follow_list(job, model, count, layers, err);
  }
  bl_partition_balance(model->layers, count, head_cost(model), layers);
  return BL_OK;
}

bl_status_t bl_partition_init(bl_partition_t *partition, const bl_job_t *job, const bl_model_t *model,
                              bl_error_t *err) {
  const uint32_t pipes = (uint32_t)bl_job_pipes(job->pipeline.schedule);
  const int64_t chunks = job->pipeline.chunks.value / pipes, wanted = job->pipeline.stages * chunks; // of one pipe
  if (wanted > model->layers) {
    if (chunks == 1) {
      return bl_job_fail(job, err, "pipeline.stages",
                         "%" PRId64 " stages are more than the model's %" PRIu32 " layer%s; each needs at least one",
                         job->pipeline.stages, model->layers, bl_plural(model->layers));
    }
    return bl_job_fail(job, err, "pipeline.stages",
                       "%" PRId64 " stage%s of %" PRId64 " chunks are more than the model's %" PRIu32
                       " layer%s; each chunk needs at least one",
                       job->pipeline.stages, bl_plural(job->pipeline.stages), chunks, model->layers,
                       bl_plural(model->layers));
  }
  uint32_t count = (uint32_t)wanted;
  uint32_t *layers = calloc(count, sizeof *layers);
  bl_chunk_span_t *spans = calloc((size_t)count * pipes, sizeof *spans);
  bl_status_t status = BL_EXHAUSTED;
  if (layers == NULL || spans == NULL) {
    bl_error_set(err, BL_EXHAUSTED, "no memory for %" PRIu32 " virtual stages", count);
    goto cleanup;
  }
  status = choose_layers(job, model, count, layers, err);
  if (status == BL_OK) {
    uint32_t first = 0;
    for (uint32_t i = 0; i < count; i++) {
      spans[i] = (bl_chunk_span_t){
          .first_layer = first, .layer_count = layers[i], .embedding = i == 0, .head = i == count - 1};
      first += layers[i];
    }
    for (uint32_t i = count; i < count * pipes; i++) {
      spans[i] = spans[i - count];
    }
    *partition = (bl_partition_t){.spans = spans, .count = count * pipes};
    spans = NULL;
  }
cleanup:
  free(spans);
  free(layers);
  return status;
}

void bl_partition_cleanup(bl_partition_t *partition) {
  free(partition->spans);
  *partition = (bl_partition_t){0};
}
