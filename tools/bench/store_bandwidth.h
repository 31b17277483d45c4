// SPDX-License-Identifier: Apache-2.0
// Evictions and loads of large blocks, two in flight, over one path to a store. They are compared with a reference in
// the same run: a copy of the same bytes by the CPU or by the copy engine of the device, or a bare socket.
//
// Blocks on a device reach their store directly (cuda-ipc, nccl), or through host memory (shm, tcp), as a stage's do.
// The time then includes the copies between host memory and the device.
//
// With `products`, the slowdown of a computing device is measured as well: products alone, and the same products while
// blocks are evicted and loaded, at the pace of a stage (one of each per so many floating-point operations) and without
// a pause.
#ifndef BALLAST_BENCH_STORE_BANDWIDTH_H
#define BALLAST_BENCH_STORE_BANDWIDTH_H

#include "client/client.h"
#include "products.h"

#define BL_STORE_BANDWIDTH_BLOCKS 8u // per sample
#define BL_STORE_BANDWIDTH_PAIRS  99

typedef struct bl_store_bandwidth_options {
  const char *address; // of a store with space for BL_STORE_BANDWIDTH_BLOCKS of `bytes`
  uint64_t bytes;
  unsigned pairs;
  bl_client_path_t path; // not AUTO
  bool verified;         // checksums by the client; blocks that a device moves have no checksums
  bl_device_t *device;   // the device of the blocks; NULL: the host
  struct bl_nccl_engine *nccl;
  bool nccl_shared_gpu;
  bl_products_t *products; // on the device; NULL: none
  double flops_per_byte;   // that a stage computes per byte that it moves
} bl_store_bandwidth_options_t;

// Prints one line per direction, and with products one line per pace. Failures are those of the client; BL_PRECONDITION
// and BL_UNIMPLEMENTED mean that this path is unavailable.
BL_MUST_USE bl_status_t bl_store_bandwidth(const bl_store_bandwidth_options_t *options, bl_error_t *err);

#endif
