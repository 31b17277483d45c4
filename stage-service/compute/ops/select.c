// SPDX-License-Identifier: Apache-2.0
#include "compute/ops/select.h"

#include "device/module.h"

static bl_status_t select_host(const bl_ops_t **ops, bl_error_t *err) {
#ifdef BALLAST_HOST_OPERATIONS
  (void)err;
  *ops = bl_ops_host();
  return BL_OK;
#else
  (void)ops;
  return bl_error_set(err, BL_UNIMPLEMENTED, "this build has no operations on the host: oneDNN was not found");
#endif
}

bl_status_t bl_ops_select(bl_device_kind_t kind, const bl_ops_t **ops, bl_error_t *err) {
  if (kind == BL_DEVICE_HOST) {
    return select_host(ops, err);
  }
  const bl_module_info_t *module;
  bl_status_t status = bl_module_open("cuda-compute", &module, err);
  const bl_ops_t *table = status == BL_OK ? bl_module_interface(module, "ops", sizeof *table, err) : NULL;
  if (table == NULL) {
    return BL_UNIMPLEMENTED;
  }
  *ops = table;
  return BL_OK;
}
