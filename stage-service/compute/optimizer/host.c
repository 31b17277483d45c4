// SPDX-License-Identifier: Apache-2.0
#include "compute/optimizer/host.h"

#include "compute/ops/select.h"

#include <stdlib.h>

bl_status_t bl_host_optimizer_create(bl_device_t *device, uint32_t threads, bl_host_optimizer_t **made,
                                     bl_error_t *err) {
  bl_host_optimizer_t *optimizer = calloc(1, sizeof *optimizer);
  if (optimizer == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for the optimizer on the host");
  }
  optimizer->device = device;
  bl_status_t status = bl_ops_select(BL_DEVICE_HOST, &optimizer->ops, err);
  if (status == BL_OK) {
    const bl_compute_options_t options = {.threads = threads};
    status = optimizer->ops->create(&options, &optimizer->compute, err);
  }
  if (status == BL_OK) {
    optimizer->ops->attach(optimizer->compute);
    status = bl_device_stream_create(device, BL_STREAM_COPY, &optimizer->copies, err);
  }
  if (status != BL_OK) {
    bl_host_optimizer_destroy(optimizer);
    return status;
  }
  *made = optimizer;
  return BL_OK;
}

void bl_host_optimizer_destroy(bl_host_optimizer_t *optimizer) {
  if (optimizer == NULL) {
    return;
  }
  bl_device_stream_destroy(optimizer->device, optimizer->copies);
  if (optimizer->compute != NULL) {
    optimizer->ops->destroy(optimizer->compute);
  }
  free(optimizer);
}
