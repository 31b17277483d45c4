// SPDX-License-Identifier: Apache-2.0
#include "datapath/nccl/start.h"

#include "datapath/device_path.h"
#include "datapath/stuck.h"

bl_status_t bl_nccl_start(bl_device_t *device, bool shared_gpu, bl_nccl_engine_t **engine, bl_error_t *err) {
  const bl_nccl_api_t *api;
  const bl_device_path_t *path = bl_device_path_of(device, err);
  if (path == NULL) {
    return BL_UNIMPLEMENTED;
  }
  bl_status_t status = path->nccl(device, shared_gpu, &api, err);
  if (status != BL_OK) {
    return status;
  }
  const bl_nccl_engine_options_t options = {.api = api, .on_stuck = bl_stuck_end};
  return bl_nccl_engine_create(&options, engine, err);
}
