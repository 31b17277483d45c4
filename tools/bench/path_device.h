// SPDX-License-Identifier: Apache-2.0
// Blocks of a GPU to a store on a GPU and back, over every path that there is between the two, each beside a bare copy from
// the GPU to itself in the same run (store_bandwidth.h). A path that is none here prints a line that says why.
#ifndef BALLAST_BENCH_PATH_DEVICE_H
#define BALLAST_BENCH_PATH_DEVICE_H

#include "base/error.h"
#include "datapath/path.h"

#include <stdint.h>

typedef struct bl_path_device_options {
  const char *device, *store_device; // "cuda:N"; the store's NULL: the same
  bl_path_t path;                    // AUTO: all
  uint64_t bytes;                    // of a block
  unsigned pairs;
  uint64_t product;      // size of the products beside which blocks are moved; 0: not measured
  double flops_per_byte; // of a stage, for each byte that it moves
} bl_path_device_options_t;

// BL_INVALID, BL_NOT_FOUND, BL_UNIMPLEMENTED: no such device. With one path asked for, also why it is none.
BL_MUST_USE bl_status_t bl_path_device_measure(const bl_path_device_options_t *options, bl_error_t *err);

#endif
