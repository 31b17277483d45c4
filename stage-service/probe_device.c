// SPDX-License-Identifier: Apache-2.0
#include "probe_device.h"

#include <stdio.h>

static void look_for_nccl(bl_probed_device_t *probed) {
  bl_error_t err = {0};
  int version = 0;
  const bl_device_path_t *path = bl_device_path_of(probed->device, &err);
  if (path != NULL && path->nccl_version(&version, &err) == BL_OK) {
    (void)bl_nccl_version_format(version, probed->nccl);
  } else {
    snprintf(probed->no_nccl, sizeof probed->no_nccl, "%.199s", err.text);
  }
}

void bl_probed_device_open(bl_device_kind_t kind, uint32_t number, int32_t wanted, bl_probed_device_t *probed) {
  bl_error_t err = {0};
  uint32_t ordinal = 0;
  *probed = (bl_probed_device_t){0};
  bl_device_survey(kind, probed->text, sizeof probed->text);
  if (bl_device_list(kind, NULL, 0, &probed->count, &err) != BL_OK) {
    probed->count = 0; // the survey states the reason
    return;
  }
  bl_status_t status = bl_device_choose(kind, wanted, number, &ordinal, &err);
  if (status == BL_OK) {
    status = bl_device_open(kind, ordinal, &probed->device, &err);
  }
  if (status != BL_OK) {
    probed->device = NULL;
    snprintf(probed->text, sizeof probed->text, "%.500s", err.text);
    return;
  }
  bl_block_memory_describe(probed->device, NULL, false, &probed->block_memory);
  look_for_nccl(probed);
}

void bl_probed_device_close(bl_probed_device_t *probed) {
  bl_device_close(probed->device);
  probed->device = NULL;
}

bl_status_t bl_probed_device_reaches(const bl_probed_device_t *probed, const char *gpu, bl_error_t *err) {
  if (probed->device == NULL) {
    return bl_error_set(err, BL_UNIMPLEMENTED, "%s", probed->text);
  }
  const bl_device_path_t *path = bl_device_path_of(probed->device, err);
  return path == NULL ? BL_UNIMPLEMENTED : path->reaches(probed->device, gpu, err);
}
