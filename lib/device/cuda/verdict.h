// SPDX-License-Identifier: Apache-2.0
// What the CUDA runtime reports about this machine, as a status and a sentence: what is missing, why, what to do next.
// Pure, and without a CUDA header, so that it is tested where no GPU is.
//
// Versions are as CUDA counts them: 13000 is 13.0. Thread: any.
#ifndef BALLAST_DEVICE_CUDA_VERDICT_H
#define BALLAST_DEVICE_CUDA_VERDICT_H

#include "base/error.h"

#include <stdint.h>

#define BL_CUDA_MAJOR_MIN 8 // compute capability that kernels are built for

typedef struct bl_cuda_findings {
  int runtime; // version of the runtime that the module was built with
  int driver;  // newest CUDA version that the driver serves; 0: there is no driver
  int result;  // of counting devices: 0, or the runtime's error number
  const char *result_text;
  int count; // of devices
} bl_cuda_findings_t;

// Error numbers of the runtime that are told apart; driver_types.h has the same, which device.c checks at compile time.
#define BL_CUDA_INSUFFICIENT_DRIVER 35
#define BL_CUDA_NO_DEVICE           100

// BL_OK when there are devices; BL_UNIMPLEMENTED: no driver or one that is too old; BL_NOT_FOUND: no device;
// BL_UNAVAILABLE: anything else, with the runtime's words.
bl_status_t bl_cuda_verdict(const bl_cuda_findings_t *findings, bl_error_t *err);
// BL_NOT_FOUND: `ordinal` is not one of them.
bl_status_t bl_cuda_verdict_ordinal(const bl_cuda_findings_t *findings, uint32_t ordinal, bl_error_t *err);
// BL_UNIMPLEMENTED: this GPU is too old.
bl_status_t bl_cuda_verdict_capability(const char *name, int major, int minor, bl_error_t *err);
// BL_UNIMPLEMENTED when a library at run time is of another major version than the headers of the build, or older than
// them; versions are as "major.minor".
bl_status_t bl_cuda_verdict_library(const char *library, int built_major, int built_minor, int found_major,
                                    int found_minor, bl_error_t *err);
// BL_EXHAUSTED: what was wanted and what is there.
bl_status_t bl_cuda_verdict_memory(const char *device, uint64_t wanted_bytes, uint64_t free_bytes, uint64_t total_bytes,
                                   bl_error_t *err);

#endif
