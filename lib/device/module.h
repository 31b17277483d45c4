// SPDX-License-Identifier: Apache-2.0
// Modules: parts of the program that need libraries which not every machine has (the CUDA back end needs NVIDIA's).
// They are loaded when a job needs them: libballast-cuda.so (device and data paths) and libballast-cuda-compute.so
// (operations). The programs never link such a library, so the same binaries run everywhere.
//
//   const bl_module_info_t *module;
//   if (bl_module_open("cuda", &module, err) != BL_OK) ...              // err: what is missing, why, what to do
//   const bl_device_driver_t *driver = bl_module_interface(module, "device", sizeof *driver, err);
//
// If BALLAST_MODULES is set, modules are searched in that folder only, otherwise in the program's folder and in ../lib
// relative to it. A module stays loaded until the process ends. It exports one object, `bl_module`:
//
//   BL_MODULE_EXPORT const bl_module_info_t bl_module = {.abi = BL_MODULE_ABI, ...};
//
// Thread: any.
#ifndef BALLAST_DEVICE_MODULE_H
#define BALLAST_DEVICE_MODULE_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

// Incremented with every change of bl_module_info_t or of an interface table, unless the size of the table changes too.
#define BL_MODULE_ABI    1u
#define BL_MODULE_SYMBOL "bl_module"
#define BL_MODULE_EXPORT __attribute__((visibility("default")))

typedef struct bl_module_info {
  uint32_t abi;           // BL_MODULE_ABI of the sources it was built from
  uint32_t info_bytes;    // sizeof (bl_module_info_t)
  const char *name;       // "cuda", "cuda-compute"
  const char *version;    // of Ballast; must equal that of the program
  const char *built_with; // "CUDA 13.0"
  // Returns a table by name, or NULL if the module has none of that name and size.
  const void *(*interface)(const char *name, size_t table_bytes);
} bl_module_info_t;

// Loads a module, once per process. BL_UNIMPLEMENTED: the module is not installed, it needs a library that this machine
// lacks (or has in another major version), or it does not belong to this program. `err` says which, where the module
// was searched, and what to do.
BL_MUST_USE bl_status_t bl_module_open(const char *name, const bl_module_info_t **module, bl_error_t *err);
// Loads a module from one folder and does not remember it. BL_NOT_FOUND: the folder has no such module.
BL_MUST_USE bl_status_t bl_module_load(const char *folder, const char *name, const bl_module_info_t **module,
                                       bl_error_t *err);
// Returns a table of a module. NULL with err->status BL_UNIMPLEMENTED if the module has none of that name and size.
const void *bl_module_interface(const bl_module_info_t *module, const char *name, size_t table_bytes, bl_error_t *err);

// Private to lib/device and its tests: converts dlerror's text to a sentence. `path` is the file that failed to load.
bl_status_t bl__module_explain(const char *path, const char *loader_text, bl_error_t *err);

#endif
