// SPDX-License-Identifier: Apache-2.0
// Private to `ballast-bench stage --model`. shard.c parses the arguments and loops over the micro-batches,
// shard_batch.c creates one and times its parts, shard_products.c times the products alone, shard_kernels.c finds the
// kernels that took the time, shard_block.c computes the published size of a block, shard_report.c prints and writes.
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
#define BL_SHARD_KERNELS     10 // that are named in the report

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
  bl_model_t model; // of the part, with as many layers as are measured
  bl_device_t *device;
  const bl_ops_t *ops; // with a stopwatch (timed_ops.h)
  bl_arena_t weights;  // drawn once, the same for every micro-batch; freed by bl_shard_drop_weights
  bool drawn;          // the weights are drawn
  // For the current micro-batch.
  bl_compute_t *compute;
  bl_device_stream_t *stream;
  bl_stopwatch_t watch;
  bl_chunk_t *chunk;
  bl_chunk_sizes_t sizes;
  bl_arena_t arenas[BL_SHARD_ARENAS];
  size_t arena_count;
  void *slot, *in, *out, *kept; // kept: source of the contents of in and out
  int32_t *labels;              // for the head; NULL without head
  bl_chunk_loss_t *loss;        // result of the head; NULL without head
  uint32_t micro_batch;
  uint64_t updates;
} bl_shard_t;

typedef struct bl_shard_kernels { // of one F, R (if it is part of a step), I and W
  const char *by;                 // "kernel", or "operation" if the device does not name its kernels
  bl_error_t why;                 // why it does not
  bl_device_kernel_t top[BL_SHARD_KERNELS];
  size_t count;
  uint64_t total_ns; // of all kernels
} bl_shard_kernels_t;

// Bytes of a block per layer, in units of tokens x hidden: as measured in the slot after F (kept), and as expected.
typedef struct bl_shard_block {
  double kept;
  double linear, scores; // Korthikanti et al. (arXiv 2205.05198), table 2, with tensor parallelism
  double masks;          // not in Ballast: dropout,
  double edge;           // the first layer's input, which is the edge buffer,
  double output;         // the output of attention with `recompute attention`;
  double statistics;     // only in Ballast: float sums of norms and of flash attention
  double expected, rest; // expected: the published size with these corrections; rest: kept - expected
} bl_shard_block_t;

typedef struct bl_shard_result {
  bl_layout_options_t layout;                                       // the micro-batch, and the options of the part
  double forward, input, weight, recompute, update, products, copy; // seconds
  double rate;                                                      // of the products, FLOP/s
  double peak, mfu, hfu; // peak: FLOP/s to which utilisation is relative; the same for all micro-batches of a run
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

// Creates the part for one micro-batch, with all its memory. Call bl_shard_close whether this succeeds or not.
BL_MUST_USE bl_status_t bl_shard_open(bl_shard_t *bench, uint32_t micro_batch, bl_error_t *err);
void bl_shard_close(bl_shard_t *bench);
void bl_shard_drop_weights(bl_shard_t *bench); // after the last micro-batch
// Measures once the seconds of F, R, I, W, the update (AdamW on every parameter, and zeroing the gradients) and a bare
// copy.
BL_MUST_USE bl_status_t bl_shard_sample(bl_shard_t *bench, double seconds[BL_SHARD_PARTS], bl_error_t *err);

// Runs the same once without timing, and waits for its end.
BL_MUST_USE bl_status_t bl_shard_run(bl_shard_t *bench, bl_error_t *err);

// Runs once more and finds the kernels that took longest.
BL_MUST_USE bl_status_t bl_shard_find_kernels(bl_shard_t *bench, bl_shard_kernels_t *found, bl_error_t *err);
// stage_seconds: the measured seconds of F, R, I and W together.
void bl_shard_print_kernels(const bl_shard_kernels_t *found, double stage_seconds);
void bl_shard_kernels_json(const bl_shard_kernels_t *found, FILE *file); // members of an object

// Allocates device memory until bl_shard_close; its address is written to *(void **)place.
BL_MUST_USE bl_status_t bl_shard_take(bl_shard_t *bench, uint64_t bytes, void *place, bl_error_t *err);
// bl_shard_stop sets the seconds until the work queued since bl_shard_start is complete, or returns its failure.
BL_MUST_USE bl_status_t bl_shard_start(bl_shard_t *bench, bl_error_t *err);
BL_MUST_USE bl_status_t bl_shard_stop(bl_shard_t *bench, double *seconds, bl_error_t *err);

// Sets result's products and rate: the seconds of all products of the stage, forward and both backwards, one after the
// other and nothing else.
BL_MUST_USE bl_status_t bl_shard_time_products(bl_shard_t *bench, bl_shard_result_t *result, bl_error_t *err);

// Returns the seconds of the operations of one micro-batch.
double bl_shard_seconds(const bl_shard_result_t *result);
// Returns the measured and the expected size of a block, from result's layout and evict_bytes.
bl_shard_block_t bl_shard_block(const bl_model_t *model, const bl_shard_result_t *result);

// Prints what larger micro-batches would gain in a pipeline if transfers cost nothing (arXiv 2401.02088). It uses
// sequences per second, as `ballastctl estimate` derives them from two profiles.
void bl_shard_print_gains(const bl_shard_result_t *results, size_t count);
void bl_shard_print(const bl_shard_t *bench, const bl_shard_result_t *result);
// Writes the profile and the line of results. `first`: replaces the file of results.
BL_MUST_USE bl_status_t bl_shard_write(const bl_shard_t *bench, const bl_shard_result_t *result, bool first,
                                       bl_error_t *err);

#endif
