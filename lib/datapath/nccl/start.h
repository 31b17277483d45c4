// SPDX-License-Identifier: Apache-2.0
// Starts NCCL on a device: loads the library and starts the threads of an engine. Done once per process and device. All
// channels of a device, to other stages and to stores, belong to one engine, so that it passes work to the device in
// one order.
//
//   bl_nccl_engine_t *nccl = NULL;
//   bl_nccl_start(device, shared_gpu, &nccl, err);     // err: no NCCL, too old, another major version: what to install
//   ... channels are opened and closed ...
//   bl_nccl_engine_destroy(nccl);
//
// If NCCL does not complete what it has begun, the process ends itself (datapath/stuck.h).
//
// Thread: any.
#ifndef BALLAST_DATAPATH_NCCL_START_H
#define BALLAST_DATAPATH_NCCL_START_H

#include "datapath/nccl/engine.h"
#include "device/device.h"

// `shared_gpu`: other processes of the job use the same GPU (device_path.h). BL_UNIMPLEMENTED: this device or this
// machine has no NCCL that fits; BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_nccl_start(bl_device_t *device, bool shared_gpu, bl_nccl_engine_t **engine, bl_error_t *err);

#endif
