// SPDX-License-Identifier: Apache-2.0
// Evictions and loads of large blocks, two in flight, over one path to a store, beside a reference in the same run: a copy
// of the same bytes by the CPU or by the copy engine of the device, or a bare socket.
//
// Blocks on a device reach their store directly (cuda-ipc, nccl), or through memory of the host (shm, tcp), as a stage's do:
// the copies between it and the device are then part of the time.
//
// With `products` also what they cost a device that computes: products alone, and the same products while blocks go out and
// come back, at the pace of a stage (one of each per so many floating-point operations) and without a pause.
#ifndef BALLAST_BENCH_STORE_BANDWIDTH_H
#define BALLAST_BENCH_STORE_BANDWIDTH_H

#include "client/client.h"
#include "products.h"

#define BL_STORE_BANDWIDTH_BLOCKS 8u // per sample
#define BL_STORE_BANDWIDTH_PAIRS  99

typedef struct bl_store_bandwidth_options {
  const char *address; // of a store with room for BL_STORE_BANDWIDTH_BLOCKS of `bytes`
  uint64_t bytes;
  unsigned pairs;
  bl_client_path_t path; // not AUTO
  bool verified;         // checksums by the client; blocks that a device moves have none
  bl_device_t *device;   // that the blocks lie on; NULL: the host
  struct bl_nccl_engine *nccl;
  bool nccl_shared_gpu;
  bl_products_t *products; // of the device; NULL: none
  double flops_per_byte;   // that a stage computes for each byte that it moves
} bl_store_bandwidth_options_t;

// Prints one line per direction, and with products one per pace. Failures as those of the client: BL_PRECONDITION,
// BL_UNIMPLEMENTED: this path is none here.
BL_MUST_USE bl_status_t bl_store_bandwidth(const bl_store_bandwidth_options_t *options, bl_error_t *err);

#endif
