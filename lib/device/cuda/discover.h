// SPDX-License-Identifier: Apache-2.0
// The members of bl_device_driver_t (device/open.h).
#ifndef BALLAST_DEVICE_CUDA_DISCOVER_H
#define BALLAST_DEVICE_CUDA_DISCOVER_H

#include "device/open.h"

const char *bl__cuda_describe_driver(void);
bl_status_t bl__cuda_list(bl_device_summary_t *summaries, uint32_t capacity, uint32_t *count, bl_error_t *err);
bl_status_t bl__cuda_open(uint32_t ordinal, bl_device_t **device, bl_error_t *err);
void bl__cuda_close(bl_device_t *device);

#endif
