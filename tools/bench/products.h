// SPDX-License-Identifier: Apache-2.0
// A computing device: equal matrix products in bf16 on their own stream, queued ahead, as a stage queues its
// operations. Measures how much transfers at the same time slow them down.
//
//   status = bl_products_open(device, 4096, &products, err);
//   status = bl_overlap_measure(&(bl_overlap_t){.products = products, .each = 4, .rounds = 20, .pairs = 15,
//                                               .move = move, .context = me}, &result, err);
//   bl_products_close(products);
//
// Thread: one.
#ifndef BALLAST_BENCH_PRODUCTS_H
#define BALLAST_BENCH_PRODUCTS_H

#include "device/device.h"

#define BL_OVERLAP_ROUNDS 64
#define BL_OVERLAP_PAIRS  99

typedef struct bl_products bl_products_t;

// Creates products of two matrices [size, size]. BL_UNIMPLEMENTED and others: this device has no operations; err has
// the reason.
BL_MUST_USE bl_status_t bl_products_open(bl_device_t *device, uint64_t size, bl_products_t **products, bl_error_t *err);
void bl_products_close(bl_products_t *products);         // NULL is fine
double bl_products_flops(const bl_products_t *products); // of one product

typedef struct bl_overlap {
  bl_products_t *products;
  unsigned each;   // products per round
  unsigned rounds; // per sample, up to BL_OVERLAP_ROUNDS
  unsigned pairs;  // of samples: alone, and during moves
  bool paced;      // one move per round, started with it; otherwise moves follow each other until the products end
  bl_status_t (*move)(void *context, bl_error_t *err); // returns when the move is complete
  void *context;
} bl_overlap_t;

typedef struct bl_overlap_result {
  double flops_per_second; // of the products without moves
  double slowdown;         // 0.03: the products take 3 % longer. Median of the pairs
  double moves;            // during the products of one sample. Median
} bl_overlap_result_t;

BL_MUST_USE bl_status_t bl_overlap_measure(const bl_overlap_t *overlap, bl_overlap_result_t *result, bl_error_t *err);

#endif
