// SPDX-License-Identifier: Apache-2.0
// Blocks of a GPU to a store on a GPU and back, over every path between the two. Each path is compared with a bare copy
// within the GPU in the same run (store_bandwidth.h). For a path that is unavailable, a line with the reason is
// printed.
#ifndef BALLAST_BENCH_PATH_DEVICE_H
#define BALLAST_BENCH_PATH_DEVICE_H

#include "base/error.h"
#include "datapath/path.h"

#include <stdint.h>

typedef struct bl_path_device_options {
  const char *device, *store_device; // "cuda:N"; store_device NULL: the same
  bl_path_t path;                    // AUTO: all paths
  uint64_t bytes;                    // per block
  unsigned pairs;
  uint64_t product;      // size of the products during which blocks are moved; 0: not measured
  double flops_per_byte; // of a stage, per byte that it moves
} bl_path_device_options_t;

// BL_INVALID, BL_NOT_FOUND, BL_UNIMPLEMENTED: no such device. If one path was requested, also: the path is unavailable.
BL_MUST_USE bl_status_t bl_path_device_measure(const bl_path_device_options_t *options, bl_error_t *err);

#endif
