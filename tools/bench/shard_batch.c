// SPDX-License-Identifier: Apache-2.0
// One micro-batch of the part: memory, and the time of F, R, I, W and the update.
#include "shard.h"

#include "base/random.h"
#include "sys/thread.h"

#include <string.h>

#define MICRO_BATCHES 16 // divisor of the loss scale

static bl_status_t take(bl_shard_t *bench, bl_arena_kind_t kind, uint64_t bytes, void *place, bl_error_t *err) {
  bl_arena_t *arena = &bench->arenas[bench->arena_count];
  bl_status_t status = bl_arena_create(bench->device, NULL, BL_MEMORY_DATA, kind, bytes, arena, err);
  if (status == BL_OK) {
    bench->arena_count++;
    memcpy(place, &arena->base, sizeof arena->base);
  }
  return status;
}

bl_status_t bl_shard_take(bl_shard_t *bench, uint64_t bytes, void *place, bl_error_t *err) {
  return take(bench, BL_ARENA_PRIVATE, bytes, place, err);
}

// Creates the labels, and memory for the loss.
static bl_status_t make_labels(bl_shard_t *bench, bl_error_t *err) {
  const uint64_t rows = (uint64_t)bench->micro_batch * bench->model.seq;
  bl_status_t status = take(bench, BL_ARENA_STAGING, sizeof *bench->loss, &bench->loss, err);
  status = status == BL_OK ? take(bench, BL_ARENA_STAGING, rows * sizeof *bench->labels, &bench->labels, err) : status;
  for (uint64_t i = 0; i < rows && status == BL_OK; i++) {
    bench->labels[i] = (int32_t)bl_random_below(1, i, bench->model.vocab);
  }
  return status;
}

static bl_status_t make_chunk(bl_shard_t *bench, bl_error_t *err) {
  const bl_shard_settings_t *settings = bench->settings;
  bl_chunk_options_t options = {.ops = bench->ops,
                                .compute = bench->compute,
                                .device = bench->device,
                                .model = &bench->model,
                                .span = bl_shard_span(bench),
                                .layout = {.micro_batch = bench->micro_batch,
                                           .attention = (bl_attention_t)settings->attention,
                                           .backward = BL_BACKWARD_SPLIT,
                                           .recompute = (bl_recompute_t)settings->recompute,
                                           .dtype = (bl_dtype_t)settings->dtype},
                                .micro_batches = MICRO_BATCHES,
                                .prepack = true};
  return bl_chunk_create(&options, &bench->chunk, err);
}

// Draws the weights, or uses those of the previous micro-batch: updates are so small that the weights are unchanged.
static bl_status_t make_weights(bl_shard_t *bench, const bl_chunk_arenas_t *parts, bl_error_t *err) {
  bl_device_t *device = bench->device;
  if (!bench->drawn) {
    const uint32_t threads =
        device->host_memory ? (uint32_t)bench->settings->threads : (uint32_t)bl_thread_processors();
    return bl_chunk_initialize(bench->chunk, 1, threads, err);
  }
  bl_status_t status = bl_device_fill(device, NULL, parts->first_moments, 0, bench->sizes.moment_bytes, err);
  if (status == BL_OK) {
    status = bl_device_fill(device, NULL, parts->second_moments, 0, bench->sizes.moment_bytes, err);
  }
  if (status == BL_OK) {
    bl_chunk_weights_changed(bench->chunk);
  }
  return status;
}

static bl_status_t make_memory(bl_shard_t *bench, bl_error_t *err) {
  bl_chunk_arenas_t parts = {0};
  void *workspace = NULL;
  const uint64_t ops_bytes = bench->ops->workspace_bytes(bench->compute);
  bench->sizes = bl_chunk_sizes(bench->chunk);
  const struct {
    uint64_t bytes;
    void *place;
  } wanted[] = {{bench->sizes.gradient_bytes, &parts.gradients},
                {bench->sizes.moment_bytes, &parts.first_moments},
                {bench->sizes.moment_bytes, &parts.second_moments},
                {bench->sizes.packed_bytes, &parts.packed},
                {bench->sizes.workspace_bytes, &parts.workspace},
                {ops_bytes, &workspace},
                {bench->sizes.slot_bytes, &bench->slot},
                {bench->sizes.edge_bytes, &bench->in},
                {bench->sizes.edge_bytes, &bench->out},
                {bench->sizes.edge_bytes, &bench->kept}};
  bl_status_t status = BL_OK;
  if (bench->weights.base == NULL) {
    status = bl_arena_create(bench->device, NULL, BL_MEMORY_DATA, BL_ARENA_PRIVATE, bench->sizes.weight_bytes,
                             &bench->weights, err);
  }
  for (size_t i = 0; i < sizeof wanted / sizeof wanted[0] && status == BL_OK; i++) {
    status = bl_shard_take(bench, wanted[i].bytes, wanted[i].place, err);
  }
  if (status != BL_OK) {
    return status;
  }
  parts.weights = (float *)bench->weights.base;
  bench->ops->use_workspace(bench->compute, workspace, ops_bytes);
  bl_chunk_use_arenas(bench->chunk, &parts);
  status = make_weights(bench, &parts, err);
  bench->drawn = status == BL_OK;
  // Never zeros: they hide mistakes and can be faster. The weights serve as well as any numbers.
  if (status == BL_OK) {
    uint64_t bytes =
        bench->sizes.edge_bytes < bench->sizes.weight_bytes ? bench->sizes.edge_bytes : bench->sizes.weight_bytes;
    const void *numbers = parts.packed != NULL && bench->sizes.packed_bytes >= bytes ? parts.packed : parts.weights;
    status = bl_device_copy(bench->device, bench->stream, bench->kept, numbers, bytes, err);
  }
  return status;
}

bl_status_t bl_shard_open(bl_shard_t *bench, uint32_t micro_batch, bl_error_t *err) {
  bl_compute_options_t options = {.threads = (uint32_t)bench->settings->threads, .device = bench->device};
  bench->micro_batch = micro_batch;
  bl_status_t status = bench->ops->create(&options, &bench->compute, err);
  if (status != BL_OK) {
    return status;
  }
  bench->ops->attach(bench->compute);
  bench->stream = bench->ops->stream == NULL ? NULL : bench->ops->stream(bench->compute);
  status = bl_stopwatch_open(&bench->watch, bench->device, bench->stream, err);
  if (status == BL_OK) {
    status = make_chunk(bench, err);
  }
  status = status == BL_OK ? make_memory(bench, err) : status;
  return status == BL_OK && bench->settings->head ? make_labels(bench, err) : status;
}

void bl_shard_close(bl_shard_t *bench) {
  bl_chunk_destroy(bench->chunk);
  bl_stopwatch_close(&bench->watch);
  bench->ops->destroy(bench->compute);
  while (bench->arena_count > 0) {
    bl_arena_destroy(&bench->arenas[--bench->arena_count]);
  }
  bench->chunk = NULL;
  bench->labels = NULL;
  bench->loss = NULL;
  bench->compute = NULL;
}

void bl_shard_drop_weights(bl_shard_t *bench) {
  bl_arena_destroy(&bench->weights);
}

bl_status_t bl_shard_start(bl_shard_t *bench, bl_error_t *err) {
  return bl_stopwatch_start(&bench->watch, err);
}

bl_status_t bl_shard_stop(bl_shard_t *bench, double *seconds, bl_error_t *err) {
  bl_status_t status = bl_stopwatch_stop(&bench->watch, seconds, err);
  return status == BL_OK ? bench->ops->status(bench->compute, err) : status;
}

// ---- samples

static void do_part(bl_shard_t *bench, int part) {
  const bool full = bench->settings->recompute == BL_RECOMPUTE_FULL;
  switch (part) {
  case BL_SHARD_FORWARD:
    bl_chunk_forward(bench->chunk, NULL, bench->in, full ? NULL : bench->slot, bench->out);
    break;
  case BL_SHARD_RECOMPUTE:
    bl_chunk_recompute(bench->chunk, bench->in, bench->slot);
    break;
  case BL_SHARD_INPUT:
    bl_chunk_backward_input(bench->chunk, bench->labels, bench->in, bench->slot, bench->out, bench->settings->head,
                            bench->loss);
    break;
  case BL_SHARD_WEIGHT:
    bl_chunk_backward_weight(bench->chunk, NULL, bench->in, bench->slot, bench->out);
    break;
  case BL_SHARD_UPDATE: // so small that the weights do not change
    bl_chunk_update(bench->chunk, &(bl_adamw_settings_t){0.9, 0.95, 1e-8, 0.1, BL_DECAY_MATRICES},
                    &(bl_adamw_step_t){.step = ++bench->updates, .rate = 1e-9, .gradient_scale = 1});
    bl_chunk_begin_step(bench->chunk);
    break;
  }
}

static bl_status_t fill(bl_shard_t *bench, void *edge, bl_error_t *err) {
  return bl_device_copy(bench->device, bench->stream, edge, bench->kept, bench->sizes.edge_bytes, err);
}

bl_status_t bl_shard_sample(bl_shard_t *bench, double seconds[BL_SHARD_PARTS], bl_error_t *err) {
  static const int order[] = {BL_SHARD_FORWARD, BL_SHARD_RECOMPUTE, BL_SHARD_INPUT, BL_SHARD_WEIGHT, BL_SHARD_UPDATE};
  bl_status_t status = fill(bench, bench->in, err);
  for (size_t i = 0; i < sizeof order / sizeof order[0] && status == BL_OK; i++) {
    if (order[i] == BL_SHARD_INPUT && !bench->settings->head) {
      status = fill(bench, bench->out, err); // the gradient that would be received
    }
    status = status == BL_OK ? bl_shard_start(bench, err) : status;
    if (status == BL_OK) {
      do_part(bench, order[i]);
      status = bl_shard_stop(bench, &seconds[order[i]], err);
    }
  }
  status = status == BL_OK ? bl_shard_start(bench, err) : status; // a bare copy of an edge buffer: the rate of memory
  status = status == BL_OK ? fill(bench, bench->in, err) : status;
  return status == BL_OK ? bl_shard_stop(bench, &seconds[BL_SHARD_COPY], err) : status;
}

bl_status_t bl_shard_run(bl_shard_t *bench, bl_error_t *err) {
  const bool full = bench->settings->recompute == BL_RECOMPUTE_FULL;
  double seconds;
  bl_status_t status = fill(bench, bench->in, err);
  status = status == BL_OK ? bl_shard_start(bench, err) : status;
  status = status == BL_OK ? bl_shard_stop(bench, &seconds, err) : status; // from here on the run is the stage's alone
  if (status != BL_OK) {
    return status;
  }
  do_part(bench, BL_SHARD_FORWARD);
  if (full) {
    do_part(bench, BL_SHARD_RECOMPUTE);
  }
  do_part(bench, BL_SHARD_INPUT); // the output serves as its own gradient
  do_part(bench, BL_SHARD_WEIGHT);
  return bl_shard_stop(bench, &seconds, err);
}
