// SPDX-License-Identifier: Apache-2.0
#include "products.h"

#include "base/sort.h"
#include "compute/ops/select.h"
#include "measure.h"
#include "numbers.h"
#include "stopwatch.h"

#include <stdlib.h>

enum { X, W, Y, PACKED, WORKSPACE, ARENAS };

struct bl_products {
  bl_device_t *device;
  const bl_ops_t *ops;
  bl_compute_t *compute;
  bl_device_stream_t *stream;
  bl_linear_op_t *op;
  bl_stopwatch_t watch;
  bl_device_event_t *round[BL_OVERLAP_ROUNDS];
  bl_arena_t arenas[ARENAS];
  uint64_t size;
};

static bl_status_t make_memory(bl_products_t *p, bl_error_t *err) {
  const uint64_t elements = p->size * p->size;
  const uint64_t bytes[ARENAS] = {2 * elements, 4 * elements, 2 * elements, p->ops->linear_packed_bytes(p->op),
                                  p->ops->workspace_bytes(p->compute)};
  bl_status_t status = BL_OK;
  for (int i = 0; i < ARENAS && status == BL_OK; i++) {
    status = bl_arena_create(p->device, NULL, BL_MEMORY_DATA, BL_ARENA_PRIVATE, bytes[i], &p->arenas[i], err);
  }
  status = status == BL_OK ? bl_bench_spread(p->device, p->arenas[X].base, bytes[X], true, err) : status;
  status = status == BL_OK ? bl_bench_spread(p->device, p->arenas[W].base, bytes[W], false, err) : status;
  if (status == BL_OK) {
    p->ops->use_workspace(p->compute, p->arenas[WORKSPACE].base, bytes[WORKSPACE]);
    if (bytes[PACKED] > 0) {
      p->ops->linear_pack(p->op, (const float *)(const void *)p->arenas[W].base, NULL, p->arenas[PACKED].base);
    }
  }
  return status;
}

bl_status_t bl_products_open(bl_device_t *device, uint64_t size, bl_products_t **products, bl_error_t *err) {
  bl_products_t *made = calloc(1, sizeof *made);
  if (made == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for products");
  }
  *made = (bl_products_t){.device = device, .size = size};
  bl_status_t status = bl_ops_select(BL_DEVICE_CUDA, &made->ops, err);
  if (status == BL_OK) {
    status = made->ops->create(&(bl_compute_options_t){.threads = 1, .device = device}, &made->compute, err);
  }
  if (status == BL_OK) {
    made->ops->attach(made->compute);
    made->stream = made->ops->stream != NULL ? made->ops->stream(made->compute) : NULL;
    status = bl_stopwatch_open(&made->watch, device, made->stream, err);
  }
  for (int i = 0; i < BL_OVERLAP_ROUNDS && status == BL_OK; i++) {
    status = bl_device_event_create(device, false, &made->round[i], err);
  }
  if (status == BL_OK) {
    const bl_linear_shape_t shape = {
        .rows = size, .in = size, .out = size, .uses = BL_LINEAR_FORWARD, .prepack = true, .dtype = BL_COMPUTE_BF16};
    status = made->ops->linear_plan(made->compute, &shape, &made->op, err);
  }
  status = status == BL_OK ? make_memory(made, err) : status;
  if (status != BL_OK) {
    bl_products_close(made);
    return status;
  }
  *products = made;
  return BL_OK;
}

void bl_products_close(bl_products_t *products) {
  if (products == NULL) {
    return;
  }
  if (products->compute != NULL) {
    products->ops->destroy(products->compute); // waits for queued work
  }
  bl_stopwatch_close(&products->watch);
  for (int i = 0; i < BL_OVERLAP_ROUNDS; i++) {
    bl_device_event_destroy(products->device, products->round[i]);
  }
  for (int i = 0; i < ARENAS; i++) {
    bl_arena_destroy(&products->arenas[i]);
  }
  free(products);
}

double bl_products_flops(const bl_products_t *products) {
  const double size = (double)products->size;
  return 2 * size * size * size;
}

// ---- products during transfers

static bl_status_t queue(const bl_overlap_t *overlap, bl_error_t *err) {
  bl_products_t *p = overlap->products;
  bl_status_t status = BL_OK;
  for (unsigned r = 0; r < overlap->rounds && status == BL_OK; r++) {
    for (unsigned i = 0; i < overlap->each; i++) {
      p->ops->linear_forward(p->op, p->arenas[X].base, (const float *)(const void *)p->arenas[W].base,
                             p->arenas[PACKED].base, NULL, NULL, p->arenas[Y].base);
    }
    status = bl_device_event_record(p->device, p->round[r], p->stream, err);
  }
  return status;
}

// Moves blocks while the products run. Sets the number of moves.
static bl_status_t move_beside(const bl_overlap_t *overlap, unsigned *moves, bl_error_t *err) {
  bl_products_t *p = overlap->products;
  bool over = false;
  bl_status_t status = BL_OK;
  *moves = 0;
  while (status == BL_OK && !over && (!overlap->paced || *moves < overlap->rounds)) {
    if (overlap->paced && *moves > 0) { // starts with the next round
      status = bl_device_event_wait(p->device, p->round[*moves - 1], UINT64_MAX, err);
    }
    if (status == BL_OK) {
      status = bl_device_event_query(p->device, p->round[overlap->rounds - 1], &over, err);
    }
    if (status == BL_OK && !over) {
      status = overlap->move(overlap->context, err);
      ++*moves;
    }
  }
  return status;
}

static bl_status_t sample(const bl_overlap_t *overlap, bool beside, double *seconds, unsigned *moves, bl_error_t *err) {
  bl_products_t *p = overlap->products;
  *moves = 0;
  bl_status_t status = bl_stopwatch_start(&p->watch, err);
  status = status == BL_OK ? queue(overlap, err) : status;
  // The end is recorded before anything moves, so it is that of the products alone.
  status = status == BL_OK ? bl_device_event_record(p->device, p->watch.to, p->stream, err) : status;
  status = status == BL_OK && beside ? move_beside(overlap, moves, err) : status;
  status = status == BL_OK ? bl_device_event_wait(p->device, p->watch.to, UINT64_MAX, err) : status;
  uint64_t ns = 0;
  if (status == BL_OK) {
    status = bl_device_event_elapsed(p->device, p->watch.from, p->watch.to, &ns, err);
  }
  *seconds = (double)ns * 1e-9;
  return status == BL_OK ? p->ops->status(p->compute, err) : status;
}

bl_status_t bl_overlap_measure(const bl_overlap_t *overlap, bl_overlap_result_t *result, bl_error_t *err) {
  double alone[BL_OVERLAP_PAIRS], ratios[BL_OVERLAP_PAIRS], moved[BL_OVERLAP_PAIRS], seconds[2] = {0};
  unsigned moves = 0, unused = 0;
  bl_status_t status = sample(overlap, false, &seconds[0], &unused, err); // warms up
  status = status == BL_OK ? sample(overlap, true, &seconds[1], &moves, err) : status;
  for (unsigned i = 0; i < overlap->pairs && status == BL_OK; i++) {
    const int first = (int)(i % 2); // alternates, so that neither always runs second
    for (int turn = 0; turn < 2 && status == BL_OK; turn++) {
      const bool beside = (turn ^ first) != 0;
      status = sample(overlap, beside, &seconds[beside], beside ? &moves : &unused, err);
    }
    alone[i] = seconds[0];
    ratios[i] = seconds[1] / seconds[0];
    moved[i] = moves;
  }
  if (status == BL_OK) {
    const double flops = bl_products_flops(overlap->products) * overlap->each * overlap->rounds;
    *result = (bl_overlap_result_t){.flops_per_second = flops / bl_median(alone, overlap->pairs),
                                    .slowdown = bl_median(ratios, overlap->pairs) - 1,
                                    .moves = bl_median(moved, overlap->pairs)};
  }
  return status;
}
