// SPDX-License-Identifier: Apache-2.0
#include "path_device.h"

#include "datapath/nccl/start.h"
#include "device/open.h"
#include "lease/granule.h"
#include "store_bandwidth.h"
#include "store_child.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLOT_BYTES(bytes)                                                                                              \
  (BL_STORE_BANDWIDTH_BLOCKS * ((bytes) + BL_LEASE_GRANULE_BYTES) + (4u << 20)) // per job, in whole pages of a GPU

// Measures one path. If all paths were requested, a path that the machine lacks is reported and is not a failure.
static bl_status_t measure_path(const bl_path_device_options_t *options, bl_store_bandwidth_options_t *bandwidth,
                                const bl_error_t *nccl_err, bl_path_t path, bl_error_t *err) {
  bl_status_t status;
  bandwidth->path = (bl_client_path_t)path;
  bandwidth->verified = path == BL_PATH_SHM || path == BL_PATH_TCP;
  if (path == BL_PATH_NCCL && bandwidth->nccl == NULL) {
    *err = *nccl_err;
    status = err->status;
  } else {
    status = bl_store_bandwidth(bandwidth, err);
  }
  if ((status == BL_PRECONDITION || status == BL_UNIMPLEMENTED) && options->path == BL_PATH_AUTO) {
    printf("store %s: none: %s\n", bl_path_name(path), err->text);
    bl_error_clear(err);
    return BL_OK;
  }
  return status;
}

// Opens the products. If the device has no operations, prints the reason, and nothing is measured during products.
static bl_status_t open_products(const bl_path_device_options_t *options, bl_device_t *device, bl_products_t **products,
                                 bl_error_t *err) {
  bl_status_t status = bl_products_open(device, options->product, products, err);
  if (status == BL_UNIMPLEMENTED || status == BL_NOT_FOUND) {
    printf("store overlap: none: %s\n", err->text);
    bl_error_clear(err);
    return BL_OK;
  }
  return status;
}

bl_status_t bl_path_device_measure(const bl_path_device_options_t *options, bl_error_t *err) {
  static const bl_path_t paths[] = {BL_PATH_CUDA_IPC, BL_PATH_NCCL, BL_PATH_SHM, BL_PATH_TCP};
  const char *store_device = options->store_device != NULL ? options->store_device : options->device;
  const bool shared_gpu = strcmp(store_device, options->device) == 0;
  char *end = NULL;
  unsigned long ordinal = strncmp(options->device, "cuda:", 5) == 0 ? strtoul(options->device + 5, &end, 10) : 0;
  if (end == NULL || end == options->device + 5 || *end != '\0') {
    return bl_error_set(err, BL_INVALID, "--device %s: host or cuda:N", options->device);
  }
  bl_device_t *device = NULL;
  bl_nccl_engine_t *nccl = NULL;
  bl_products_t *products = NULL;
  bl_store_child_t store = {.loop = NULL};
  bl_error_t nccl_err = {0};
  bl_status_t status = bl_device_open(BL_DEVICE_CUDA, (uint32_t)ordinal, &device, err);
  if (status != BL_OK) {
    return bl_error_prefix(err, "--device %s", options->device);
  }
  if (bl_nccl_start(device, shared_gpu, &nccl, &nccl_err) != BL_OK) {
    nccl = NULL;
  }
  (void)setenv("BALLAST_LOG", "warning", 0); // for the store: standard error shows problems only
  status = bl_store_child_start(&store,
                                &(bl_store_child_options_t){.capacity_bytes = 3 * SLOT_BYTES(options->bytes),
                                                            .spill_bytes = 3 * SLOT_BYTES(options->bytes),
                                                            .device = store_device,
                                                            .nccl_shared_gpu = shared_gpu},
                                err);
  bl_store_bandwidth_options_t bandwidth = {.address = store.address,
                                            .bytes = options->bytes,
                                            .pairs = options->pairs,
                                            .device = device,
                                            .nccl = nccl,
                                            .nccl_shared_gpu = shared_gpu,
                                            .flops_per_byte = options->flops_per_byte};
  if (status == BL_OK && options->product > 0) {
    status = open_products(options, device, &products, err);
    bandwidth.products = products;
  }
  for (size_t i = 0; i < sizeof paths / sizeof paths[0] && status == BL_OK; i++) {
    if (options->path == BL_PATH_AUTO || options->path == paths[i]) {
      status = measure_path(options, &bandwidth, &nccl_err, paths[i], err);
    }
  }
  bl_store_child_stop(&store);
  bl_products_close(products);
  bl_nccl_engine_destroy(nccl);
  bl_device_close(device);
  return status;
}
