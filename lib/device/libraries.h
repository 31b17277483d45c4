// SPDX-License-Identifier: Apache-2.0
// Which libraries of a device's maker this machine has, and in which versions: for reports.
//
//   bl_device_library_t libraries[BL_DEVICE_LIBRARIES];
//   bl_device_libraries(BL_DEVICE_CUDA, libraries);   // {"driver", "13.0"}, {"cuda", "13.0"}, {"cudnn", "none"}, ...
//
// Thread: any.
#ifndef BALLAST_DEVICE_LIBRARIES_H
#define BALLAST_DEVICE_LIBRARIES_H

#include "device/open.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#define BL_DEVICE_LIBRARIES             6
#define BL_DEVICE_LIBRARIES_INTERFACE   "libraries"
#define BL_DEVICE_LIBRARY_VERSION_BYTES 32

typedef struct bl_device_library {
  const char *name; // "driver" (the CUDA that it serves), "cuda" (the runtime), "cublaslt", "cudnn", "nccl", "cupti"
  char version[BL_DEVICE_LIBRARY_VERSION_BYTES]; // "none": not here, or the module that would use it is not
} bl_device_library_t;

// The table of a module (its interface "libraries"): false where it does not use that library, or has none of it.
typedef struct bl_device_versions {
  bool (*version)(const char *library, char text[BL_DEVICE_LIBRARY_VERSION_BYTES]);
} bl_device_versions_t;

// Loads the modules of the kind, where they are here. Never fails; all are "none" for the host.
void bl_device_libraries(bl_device_kind_t kind, bl_device_library_t libraries[BL_DEVICE_LIBRARIES]);

// Those of them that are here, a line each, as `--version` prints them (sys/version.h).
void bl_device_libraries_print(bl_device_kind_t kind, FILE *stream);

// Lists devices of a kind and the libraries, a line each, as `stage-service --list-devices` does. Failures as
// bl_device_list; the libraries are printed all the same.
bl_status_t bl_device_print(bl_device_kind_t kind, FILE *stream, bl_error_t *err) BL_MUST_USE;

#endif
