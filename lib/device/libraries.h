// SPDX-License-Identifier: Apache-2.0
// Names and versions of the device maker's libraries on this machine, for reports.
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
  char version[BL_DEVICE_LIBRARY_VERSION_BYTES]; // "none": not installed, or the module that uses it is not
} bl_device_library_t;

// The table of a module (its interface "libraries"). Returns false if the module does not use that library, or the
// library is not installed.
typedef struct bl_device_versions {
  bool (*version)(const char *library, char text[BL_DEVICE_LIBRARY_VERSION_BYTES]);
} bl_device_versions_t;

// Loads the modules of the kind if they are installed. Never fails. For the host all versions are "none".
void bl_device_libraries(bl_device_kind_t kind, bl_device_library_t libraries[BL_DEVICE_LIBRARIES]);

// Prints the libraries that are installed, one a line, as `--version` does (sys/version.h).
void bl_device_libraries_print(bl_device_kind_t kind, FILE *stream);

// Prints the devices of a kind and the libraries, one a line, as `stage-service --list-devices` does. Failures as
// bl_device_list; the libraries are printed even then.
bl_status_t bl_device_print(bl_device_kind_t kind, FILE *stream, bl_error_t *err) BL_MUST_USE;

#endif
