// SPDX-License-Identifier: Apache-2.0
// The profiler of a CUDA device (device/profiler.h): CUPTI's activity records. libcupti comes with the toolkit, or with
// its own package, and is loaded when somebody starts a recording: nothing links it.
//
// It is looked for under the name in BALLAST_CUPTI where that is set, else as libcupti.so of the major version that the
// module was built with, as the loader finds it.
#ifndef BALLAST_DEVICE_CUDA_PROFILER_H
#define BALLAST_DEVICE_CUDA_PROFILER_H

#include "device/profiler.h"

extern const bl_device_profiler_t bl__cuda_profiler;
// "CUPTI 13.0.1", or "CUPTI none". Static text.
const char *bl__cuda_describe_profiler(void);

#endif
