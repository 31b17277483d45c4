// SPDX-License-Identifier: Apache-2.0
// The cost of a checkpoint for a stage: the copy during which training pauses, compared with memcpy in one thread, and
// the durable write. tools/bench/checkpoint.py compares the latter with dd.
#include "bench.h"

#include "base/bytes.h"
#include "base/sort.h"
#include "checkpoint/shard.h"
#include "checkpoint/snapshot.h"
#include "measure.h"
#include "model/memory.h"
#include "program.h"
#include "sys/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PAIRS_MAX 99
#define SHARDS    2

typedef struct {
  int64_t hidden, layers, pairs, writes, processor;
  char *folder;
} settings_t;

static const bl_option_t rows[] = {
    BL_BENCH_INT(settings_t, hidden, "hidden", "768", 64, 65536, "A multiple of 64."),
    BL_BENCH_INT(settings_t, layers, "layers", "6", 1, 1024, "Layers of the stage."),
    BL_BENCH_PAIRS(settings_t, pairs, "9", PAIRS_MAX, "memcpy and snapshot"),
    {.name = "folder",
     .type = BL_OPTION_PATH,
     .offset = offsetof(settings_t, folder),
     .help = "Where to write; absent: copies alone."},
    BL_BENCH_INT(settings_t, writes, "writes", "3", 1, PAIRS_MAX,
                 "Times to write, with --folder; each prints its rate."),
    BL_BENCH_PROCESSOR(settings_t, processor, "Processor to run on; -1: any."),
};

static const bl_flags_t flags = {.program = "ballast-bench checkpoint",
                                 .usage = "[options]",
                                 .about = "Times a stage's snapshot beside memcpy, and writing it to disk.",
                                 .table = {rows, sizeof rows / sizeof rows[0], "command line"}};

typedef struct {
  bl_snapshot_tensor_t *tensors;
  uint32_t count;
  float *source, *plain; // all parts of all tensors; the destination of memcpy
  uint8_t *memory;
  uint64_t elements;
  bl_snapshot_t *snapshot;
} bench_t;

static void *block(uint64_t bytes) {
  void *made = aligned_alloc(4096, bl_align_up(bytes + 1, 4096));
  if (made != NULL) {
    memset(made, 1, bl_align_up(bytes + 1, 4096)); // touches the pages now
  }
  return made;
}

static bl_status_t prepare(const settings_t *settings, bench_t *bench, bl_error_t *err) {
  const bl_model_t model = {.family = BL_FAMILY_GPT2,
                            .layers = (uint32_t)settings->layers,
                            .hidden = (uint32_t)settings->hidden,
                            .heads = (uint32_t)settings->hidden / 64,
                            .kv_heads = (uint32_t)settings->hidden / 64,
                            .head_dim = 64,
                            .ffn = 4 * (uint32_t)settings->hidden,
                            .vocab = 64,
                            .seq = 64,
                            .tied = true,
                            .norm_epsilon = BL_NORM_EPSILON_DEFAULT};
  bl_status_t status = bl_model_check(&model, err);
  if (status != BL_OK) {
    return status;
  }
  bench->count = bl_parameter_count(&model);
  bench->elements = bl_model_parameter_elements(&model);
  bench->tensors = calloc(bench->count, sizeof *bench->tensors);
  bench->source = block(BL_CHECKPOINT_PARTS * bench->elements * sizeof(float));
  bench->plain = block(BL_CHECKPOINT_PARTS * bench->elements * sizeof(float));
  if (bench->tensors == NULL || bench->source == NULL || bench->plain == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for the stage");
  }
  uint64_t at = 0;
  for (uint32_t i = 0; i < bench->count; i++) {
    bench->tensors[i].parameter = bl_parameter_get(&model, i);
    bench->tensors[i].slice = bl_layer_part_slice(&model, &bench->tensors[i].parameter, 1, 0);
    bench->tensors[i].tile = bench->tensors[i].parameter.elements;
    for (int part = 0; part < BL_CHECKPOINT_PARTS; part++) {
      bench->tensors[i].parts[part] = bench->source + (uint64_t)part * bench->elements + at;
    }
    at += bench->tensors[i].parameter.elements;
  }
  // NOLINTNEXTLINE(clang-analyzer-unix.Malloc): the caller frees the contents of `bench`
  status = bl_snapshot_create(bench->tensors, bench->count, true, bl_device_host(), &bench->snapshot, err);
  if (status != BL_OK) {
    return status;
  }
  bench->memory = block(bl_snapshot_bytes(bench->snapshot));
  if (bench->memory == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for the snapshot");
  }
  bl_snapshot_use_memory(bench->snapshot, bench->memory);
  return BL_OK;
}

static void release(bench_t *bench) {
  bl_snapshot_destroy(bench->snapshot);
  free(bench->tensors);
  free(bench->source);
  free(bench->plain);
  free(bench->memory);
}

// Copies the same bytes, tensor by tensor from their places, as a stage without a snapshot would.
static double memcpy_seconds(bench_t *bench) {
  const uint64_t start = bl_clock_now_ns();
  for (int part = 0; part < BL_CHECKPOINT_PARTS; part++) {
    for (uint32_t i = 0; i < bench->count; i++) {
      const float *from = bench->tensors[i].parts[part];
      memcpy(bench->plain + (from - bench->source), from, bench->tensors[i].parameter.elements * sizeof(float));
    }
  }
  return (double)(bl_clock_now_ns() - start) * 1e-9;
}

static bl_status_t time_copies(bench_t *bench, const settings_t *settings, bl_error_t *err) {
  double plain[PAIRS_MAX], taken[PAIRS_MAX], ratios[PAIRS_MAX];
  const size_t pairs = (size_t)settings->pairs;
  const double bytes = (double)(BL_CHECKPOINT_PARTS * bench->elements * sizeof(float));
  for (size_t i = 0; i < pairs; i++) {
    plain[i] = memcpy_seconds(bench);
    const uint64_t start = bl_clock_now_ns();
    bl_status_t status = bl_snapshot_take(bench->snapshot, err);
    if (status != BL_OK) {
      return status;
    }
    taken[i] = (double)(bl_clock_now_ns() - start) * 1e-9;
    ratios[i] = taken[i] / plain[i];
  }
  char text[BL_BYTES_TEXT];
  printf("snapshot of %s: %.1f ms, %.2f GB/s; memcpy %.1f ms, %.2f GB/s; snapshot/memcpy %.3f\n",
         bl_bytes_format((uint64_t)bytes, text), 1e3 * bl_median(taken, pairs), bytes / bl_median(taken, pairs) * 1e-9,
         1e3 * bl_median(plain, pairs), bytes / bl_median(plain, pairs) * 1e-9, bl_median(ratios, pairs));
  return BL_OK;
}

static bl_status_t write_once(bench_t *bench, const char *folder, bl_error_t *err) {
  uint64_t bytes = 0;
  bl_status_t status = BL_OK;
  char path[SHARDS][4096];
  const uint64_t start = bl_clock_now_ns();
  for (int i = 0; i < SHARDS && status == BL_OK; i++) {
    const bl_shard_image_t *image = bl_snapshot_image(bench->snapshot, (bl_checkpoint_shard_kind_t)i);
    bl_shard_checksums_t checksums = {.tensors = calloc(image->tensor_count + 1, sizeof(uint64_t))};
    snprintf(path[i], sizeof path[i], "%s/ballast-bench-%d-%d", folder, (int)getpid(), i);
    status = checksums.tensors != NULL ? bl_shard_write(image, path[i], &checksums, err)
                                       : bl_error_set(err, BL_EXHAUSTED, "no memory for checksums");
    bytes += image->size_bytes;
    free(checksums.tensors);
  }
  const double seconds = (double)(bl_clock_now_ns() - start) * 1e-9;
  for (int i = 0; i < SHARDS; i++) {
    (void)unlink(path[i]);
  }
  if (status == BL_OK) {
    printf("written %llu bytes in %.3f s: %.1f MB/s\n", (unsigned long long)bytes, seconds,
           (double)bytes / seconds * 1e-6);
  }
  return status;
}

static bl_status_t run(const void *values, bl_error_t *err) {
  const settings_t *settings = values;
  bench_t bench = {0};
  bl_status_t status = bl_bench_pin(settings->processor, 1, err);
  if (status != BL_OK) {
    return status;
  }
  status = prepare(settings, &bench, err);
  if (status == BL_OK) {
    status = time_copies(&bench, settings, err);
  }
  for (int64_t i = 0; i < settings->writes && settings->folder != NULL && status == BL_OK; i++) {
    status = write_once(&bench, settings->folder, err);
  }
  release(&bench);
  return status;
}

int bl_bench_checkpoint(int argc, char **argv) {
  settings_t settings;
  return bl_bench_program(&flags, &settings, run, argc, argv);
}
