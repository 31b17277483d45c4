// SPDX-License-Identifier: Apache-2.0
#include "datapath/nccl/start.h"

#include "datapath/device_path.h"
#include "sys/log.h"

#include <unistd.h>

static void stuck(void *context, const bl_error_t *err) {
  (void)context;
  bl_log(BL_LOG_ERROR, "%s", err->text);
  _exit(bl_status_exit_code(BL_DEADLINE)); // no handlers: they would wait for what does not end
}

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
  const bl_nccl_engine_options_t options = {.api = api, .on_stuck = stuck};
  return bl_nccl_engine_create(&options, engine, err);
}
