// SPDX-License-Identifier: Apache-2.0
// What the files of `ballast-bench stage --model` share: shard.c reads the words and goes through the micro-batches,
// shard_batch.c makes one and times its parts, shard_products.c times the products alone, shard_kernels.c asks which
// kernels took the time, shard_block.c counts what a block should have, shard_report.c prints and writes.
#ifndef BALLAST_BENCH_SHARD_H
#define BALLAST_BENCH_SHARD_H

#include "compute/model/chunk.h"
#include "compute/ops/select.h"
#include "device/profiler.h"
#include "stopwatch.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define BL_SHARD_SAMPLES_MAX 99
#define BL_SHARD_ARENAS      24
#define BL_SHARD_KERNELS     10 // that are named

typedef struct bl_shard_settings {
  char *model, *batches, *write;
  int device, attention, recompute, dtype;
  int64_t gpu, layers, shard, seq, samples, hidden, threads;
  double peak;
  bool head;
} bl_shard_settings_t;

extern const char *const bl_shard_attentions[], *const bl_shard_recomputes[], *const bl_shard_dtypes[];

typedef struct bl_shard {
  const bl_shard_settings_t *settings;
  bl_model_t model; // of the part, as many layers as are measured
  bl_device_t *device;
  const bl_ops_t *ops; // with a stopwatch (timed_ops.h)
  bl_arena_t weights;  // drawn once: every micro-batch has the same; until bl_shard_drop_weights
  bool drawn;          // they are
  // Of one micro-batch.
  bl_compute_t *compute;
  bl_device_stream_t *stream;
  bl_stopwatch_t watch;
  bl_chunk_t *chunk;
  bl_chunk_sizes_t sizes;
  bl_arena_t arenas[BL_SHARD_ARENAS];
  size_t arena_count;
  void *slot, *in, *out, *kept; // kept: what in and out are filled from
  int32_t *labels;              // of the head; NULL without, as
  bl_chunk_loss_t *loss;        // what it gives
  uint32_t micro_batch;
  uint64_t updates;
} bl_shard_t;

typedef struct bl_shard_kernels { // of one F, R (where it is part of a step), I and W
  const char *by;                 // "kernel", or "operation" where the device does not name its kernels
  bl_error_t why;                 // it does not
  bl_device_kernel_t top[BL_SHARD_KERNELS];
  size_t count;
  uint64_t total_ns; // of all
} bl_shard_kernels_t;

// Bytes of a block per layer in units of tokens x hidden: as it lies in the slot when F is over, and as it should.
typedef struct bl_shard_block {
  double kept;
  double linear, scores; // Korthikanti et al. (arXiv 2205.05198), table 2, with tensor parallelism
  double masks;          // what Ballast leaves out: dropout,
  double edge;           // the first layer's input, which is the edge buffer,
  double output;         // the output of attention, which `recompute attention` makes again;
  double statistics;     // and what it has besides: float sums of norms and of flash attention
  double expected, rest; // the published one and these; kept - expected
} bl_shard_block_t;

typedef struct bl_shard_result {
  bl_layout_options_t layout;                                       // micro-batch and what the part was made with
  double forward, input, weight, recompute, update, products, copy; // seconds
  double rate;                                                      // of the products, FLOP/s
  double peak, mfu, hfu; // FLOP/s that utilisation is relative to: the same for all micro-batches of a run
  uint64_t slot_bytes, evict_bytes, edge_bytes;
  bl_shard_block_t block;
  bl_shard_kernels_t kernels;
} bl_shard_result_t;

enum {
  BL_SHARD_FORWARD,
  BL_SHARD_INPUT,
  BL_SHARD_WEIGHT,
  BL_SHARD_RECOMPUTE,
  BL_SHARD_COPY,
  BL_SHARD_UPDATE,
  BL_SHARD_PARTS
};

static inline bl_chunk_span_t bl_shard_span(const bl_shard_t *bench) {
  return (bl_chunk_span_t){0, bench->model.layers, false, bench->settings->head};
}

// Makes the part for one micro-batch, with all its memory; bl_shard_close ends it whether that succeeded or not.
BL_MUST_USE bl_status_t bl_shard_open(bl_shard_t *bench, uint32_t micro_batch, bl_error_t *err);
void bl_shard_close(bl_shard_t *bench);
void bl_shard_drop_weights(bl_shard_t *bench); // after the last of them
// Seconds of F, R, I, W, the update (AdamW on every parameter, gradients back to zero) and a bare copy, once.
BL_MUST_USE bl_status_t bl_shard_sample(bl_shard_t *bench, double seconds[BL_SHARD_PARTS], bl_error_t *err);

// The same once without looking at the time, and waits for it.
BL_MUST_USE bl_status_t bl_shard_run(bl_shard_t *bench, bl_error_t *err);

// Runs once more and finds what took longest.
BL_MUST_USE bl_status_t bl_shard_find_kernels(bl_shard_t *bench, bl_shard_kernels_t *found, bl_error_t *err);
// stage_seconds: of F, R, I and W as they were measured before.
void bl_shard_print_kernels(const bl_shard_kernels_t *found, double stage_seconds);
void bl_shard_kernels_json(const bl_shard_kernels_t *found, FILE *file); // members of an object

// Memory of the device until bl_shard_close; *(void **)place is where.
BL_MUST_USE bl_status_t bl_shard_take(bl_shard_t *bench, uint64_t bytes, void *place, bl_error_t *err);
// Seconds until what was asked for in between is over, and whether that went well.
BL_MUST_USE bl_status_t bl_shard_start(bl_shard_t *bench, bl_error_t *err);
BL_MUST_USE bl_status_t bl_shard_stop(bl_shard_t *bench, double *seconds, bl_error_t *err);

// Sets result's products and rate: seconds of all products of the stage, forward and both backwards, one after the other
// and nothing else.
BL_MUST_USE bl_status_t bl_shard_time_products(bl_shard_t *bench, bl_shard_result_t *result, bl_error_t *err);

// Seconds of the operations that one micro-batch asks for.
double bl_shard_seconds(const bl_shard_result_t *result);
// What a block has and should have; from result's layout and evict_bytes.
bl_shard_block_t bl_shard_block(const bl_model_t *model, const bl_shard_result_t *result);

// What larger micro-batches would bring to a pipeline, if transfers cost nothing (arXiv 2401.02088): from sequences per
// second, as `ballastctl estimate` has it from two profiles.
void bl_shard_print_gains(const bl_shard_result_t *results, size_t count);
void bl_shard_print(const bl_shard_t *bench, const bl_shard_result_t *result);
// The profile and the line of results; `first` of this run begins the latter's file anew.
BL_MUST_USE bl_status_t bl_shard_write(const bl_shard_t *bench, const bl_shard_result_t *result, bool first,
                                       bl_error_t *err);

#endif
