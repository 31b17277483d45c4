// SPDX-License-Identifier: Apache-2.0
// The profiler of a CUDA device (device/profiler.h), based on CUPTI's activity records. libcupti comes with the toolkit
// or with its own package. Nothing links it; it is loaded when a recording starts.
//
// If BALLAST_CUPTI is set, that name is loaded, otherwise libcupti.so of the major version that the module was built
// with, wherever the loader finds it.
#ifndef BALLAST_DEVICE_CUDA_PROFILER_H
#define BALLAST_DEVICE_CUDA_PROFILER_H

#include "device/profiler.h"

extern const bl_device_profiler_t bl__cuda_profiler;
// Returns "CUPTI 13.0.1" or "CUPTI none". Static text.
const char *bl__cuda_describe_profiler(void);

#endif
