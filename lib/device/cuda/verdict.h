// SPDX-License-Identifier: Apache-2.0
// Turns what the CUDA runtime reports about this machine into a status and a sentence: what is missing, why, what to do
// next. Pure, and without CUDA headers, so that it can be tested without a GPU.
//
// Versions are as CUDA counts them: 13000 is 13.0. Thread: any.
#ifndef BALLAST_DEVICE_CUDA_VERDICT_H
#define BALLAST_DEVICE_CUDA_VERDICT_H

#include "base/error.h"

#include <stdint.h>

#define BL_CUDA_MAJOR_MIN 8 // compute capability that kernels are built for

typedef struct bl_cuda_findings {
  int runtime; // version of the runtime that the module was built with
  int driver;  // newest CUDA version that the driver supports; 0: no driver
  int result;  // of the call that counts devices: 0, or the runtime's error number
  const char *result_text;
  int count; // of devices
} bl_cuda_findings_t;

// Error numbers of the runtime that are distinguished. discover.c checks at compile time that driver_types.h has the
// same.
#define BL_CUDA_INSUFFICIENT_DRIVER 35
#define BL_CUDA_NO_DEVICE           100

// BL_OK if there are devices; BL_UNIMPLEMENTED: no driver or it is too old; BL_NOT_FOUND: no device; BL_UNAVAILABLE:
// any other error, with the runtime's message.
bl_status_t bl_cuda_verdict(const bl_cuda_findings_t *findings, bl_error_t *err);
// BL_NOT_FOUND: no device has the number `ordinal`.
bl_status_t bl_cuda_verdict_ordinal(const bl_cuda_findings_t *findings, uint32_t ordinal, bl_error_t *err);
// BL_UNIMPLEMENTED: this GPU is too old.
bl_status_t bl_cuda_verdict_capability(const char *name, int major, int minor, bl_error_t *err);
// BL_UNIMPLEMENTED if a library at run time has another major version than the headers of the build, or is older than
// them. Versions are "major.minor".
bl_status_t bl_cuda_verdict_library(const char *library, int built_major, int built_minor, int found_major,
                                    int found_minor, bl_error_t *err);
// Returns BL_EXHAUSTED with the wanted and the available bytes in `err`.
bl_status_t bl_cuda_verdict_memory(const char *device, uint64_t wanted_bytes, uint64_t free_bytes, uint64_t total_bytes,
                                   bl_error_t *err);

#endif
