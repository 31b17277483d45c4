// SPDX-License-Identifier: Apache-2.0
// Versions of the driver, the runtime, NCCL and CUPTI on this machine, as the table of device/libraries.h.
#ifndef BALLAST_DEVICE_CUDA_VERSIONS_H
#define BALLAST_DEVICE_CUDA_VERSIONS_H

#include "device/libraries.h"

extern const bl_device_versions_t bl__cuda_versions;

#endif
