// SPDX-License-Identifier: Apache-2.0
// How much copies between a GPU and pinned host memory slow down products that run at the same time. A block is copied
// out and one back, at the pace of a stage and without a pause. No store is needed: this is the cost of the copy engine
// alone.
#include "bench.h"

#include "device/open.h"
#include "products.h"
#include "program.h"
#include "sys/clock.h"

#include <stdio.h>
#include <string.h>

#define ROUNDS    20u // rounds of products
#define PAIRS_MAX 99
#define WAYS      2

typedef struct {
  int64_t gpu, pairs, product, pace, block_bytes;
} settings_t;

static const bl_option_t rows[] = {
    BL_BENCH_INT(settings_t, gpu, "gpu", "0", 0, 1023, "Which of the GPUs that this process sees."),
    BL_BENCH_BYTES(settings_t, block_bytes, "block", "64 MiB", 1, 1ll << 34, "Size of a block."),
    BL_BENCH_INT(settings_t, product, "product", "4096", 64, 1 << 16, "Products of two matrices [N, N]."),
    BL_BENCH_INT(settings_t, pace, "pace", "4600", 1, 1 << 24,
                 "Floating-point operations for each byte that is moved, as of `ballast-bench path`."),
    BL_BENCH_PAIRS(settings_t, pairs, "15", PAIRS_MAX, "products alone and beside copies"),
};

static const bl_flags_t flags = {
    .program = "ballast-bench copies",
    .usage = "[options]",
    .about = "Times copies between a GPU and pinned memory of the host, and the matrix products "
             "that go on beside them.",
    .table = {rows, sizeof rows / sizeof rows[0], "command line"}};

// Copies out of the GPU and into it, each with its own stream and memory.
typedef struct {
  bl_device_t *device;
  bl_device_stream_t *streams[WAYS];
  bl_device_event_t *over[WAYS];
  bl_arena_t there[WAYS], here[WAYS]; // on the GPU, in pinned memory
  uint64_t bytes;
} bench_t;

static bl_status_t open_bench(bench_t *bench, bl_error_t *err) {
  bl_status_t status = BL_OK;
  for (int way = 0; way < WAYS && status == BL_OK; way++) {
    status = bl_device_stream_create(bench->device, BL_STREAM_COPY, &bench->streams[way], err);
    status = status == BL_OK ? bl_device_event_create(bench->device, false, &bench->over[way], err) : status;
    if (status == BL_OK) {
      status = bl_arena_create(bench->device, NULL, BL_MEMORY_SLOTS, BL_ARENA_PRIVATE, bench->bytes, &bench->there[way],
                               err);
    }
    if (status == BL_OK) {
      status = bl_arena_create(bench->device, NULL, BL_MEMORY_STAGING, BL_ARENA_STAGING, bench->bytes,
                               &bench->here[way], err);
    }
    if (status == BL_OK) { // untouched pages could all be the same page
      memset(bench->here[way].base, 0x5a, bench->bytes);
      status = bl_device_fill(bench->device, NULL, bench->there[way].base, 0x5a, bench->bytes, err);
    }
  }
  return status;
}

static void close_bench(bench_t *bench) {
  for (int way = 0; way < WAYS; way++) {
    bl_device_event_destroy(bench->device, bench->over[way]);
    bl_device_stream_destroy(bench->device, bench->streams[way]);
    bl_arena_destroy(&bench->there[way]);
    bl_arena_destroy(&bench->here[way]);
  }
}

// Starts the copies of the directions first to last and waits for them.
static bl_status_t copy(bench_t *bench, int first, int last, bl_error_t *err) {
  bl_status_t status = BL_OK;
  for (int way = first; way <= last && status == BL_OK; way++) {
    void *to = way == 0 ? bench->here[way].base : bench->there[way].base;
    const void *from = way == 0 ? bench->there[way].base : bench->here[way].base;
    status = bl_device_copy(bench->device, bench->streams[way], to, from, bench->bytes, err);
    status =
        status == BL_OK ? bl_device_event_record(bench->device, bench->over[way], bench->streams[way], err) : status;
  }
  for (int way = first; way <= last && status == BL_OK; way++) {
    status = bl_device_event_wait(bench->device, bench->over[way], UINT64_MAX, err);
  }
  return status;
}

static bl_status_t move_both(void *context, bl_error_t *err) {
  return copy(context, 0, WAYS - 1, err);
}

static bl_status_t rate(bench_t *bench, const settings_t *settings, const char *name, int first, int last,
                        bl_error_t *err) {
  double best = 0; // the direction's best rate, with nothing else running
  bl_status_t status = copy(bench, first, last, err);
  for (int64_t i = 0; i < settings->pairs && status == BL_OK; i++) {
    const uint64_t start_ns = bl_clock_now_ns();
    status = copy(bench, first, last, err);
    const double gb_s = (double)(last - first + 1) * (double)bench->bytes / (double)(bl_clock_now_ns() - start_ns);
    best = gb_s > best ? gb_s : best;
  }
  if (status == BL_OK) {
    printf("copies %s block_bytes=%llu gb_s=%.2f\n", name, (unsigned long long)bench->bytes, best);
  }
  return status;
}

static bl_status_t overlap(bench_t *bench, const settings_t *settings, bl_products_t *products, double pace,
                           bl_error_t *err) {
  const double wanted = pace * WAYS * (double)bench->bytes / bl_products_flops(products);
  const bl_overlap_t asked = {.products = products,
                              .each = wanted > 1 ? (unsigned)(wanted + 0.5) : 1,
                              .rounds = ROUNDS,
                              .pairs = (unsigned)settings->pairs,
                              .paced = pace > 0,
                              .move = move_both,
                              .context = bench};
  bl_overlap_result_t result;
  bl_status_t status = bl_overlap_measure(&asked, &result, err);
  if (status == BL_OK) {
    printf("copies overlap block_bytes=%llu flop_per_byte=%.0f moved=%.0f rounds=%u products_tflop_s=%.1f "
           "slowdown=%.4f pairs=%u\n",
           (unsigned long long)bench->bytes, pace, result.moves, asked.rounds, result.flops_per_second * 1e-12,
           result.slowdown, asked.pairs);
    fflush(stdout);
  }
  return status;
}

static bl_status_t measure(bench_t *bench, const settings_t *settings, bl_error_t *err) {
  bl_products_t *products = NULL;
  bl_status_t status = open_bench(bench, err);
  status = status == BL_OK ? rate(bench, settings, "out", 0, 0, err) : status;
  status = status == BL_OK ? rate(bench, settings, "back", 1, 1, err) : status;
  status = status == BL_OK ? rate(bench, settings, "both", 0, 1, err) : status;
  status = status == BL_OK ? bl_products_open(bench->device, (uint64_t)settings->product, &products, err) : status;
  status = status == BL_OK ? overlap(bench, settings, products, (double)settings->pace, err) : status;
  status = status == BL_OK ? overlap(bench, settings, products, 0, err) : status;
  bl_products_close(products);
  close_bench(bench);
  return status;
}

static bl_status_t run(const void *values, bl_error_t *err) {
  const settings_t *settings = values;
  bench_t bench = {.bytes = (uint64_t)settings->block_bytes};
  bl_status_t status = bl_device_open(BL_DEVICE_CUDA, (uint32_t)settings->gpu, &bench.device, err);
  if (status == BL_OK) {
    status = measure(&bench, settings, err);
  }
  bl_device_close(bench.device);
  return status;
}

int bl_bench_copies(int argc, char **argv) {
  settings_t settings;
  return bl_bench_program(&flags, &settings, run, argc, argv);
}
