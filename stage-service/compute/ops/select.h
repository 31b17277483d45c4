// SPDX-License-Identifier: Apache-2.0
// Finds the operation table for a device, in this program or in a module.
//
//   const bl_ops_t *ops;
//   bl_ops_select(BL_DEVICE_CUDA, &ops, err);   // loads libballast-cuda-compute.so
//
// Thread: any.
#ifndef BALLAST_COMPUTE_OPS_SELECT_H
#define BALLAST_COMPUTE_OPS_SELECT_H

#include "compute/ops/ops.h"
#include "device/open.h"

// BL_UNIMPLEMENTED: this build or this machine has no operations for such a device. `err` names what is missing.
BL_MUST_USE bl_status_t bl_ops_select(bl_device_kind_t kind, const bl_ops_t **ops, bl_error_t *err);

#endif
