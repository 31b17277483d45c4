// SPDX-License-Identifier: Apache-2.0
// Parts of the program that need libraries which not every machine has (the CUDA back end needs NVIDIA's), loaded when a
// job asks for them: libballast-cuda.so (device and data paths) and libballast-cuda-compute.so (operations). Programs
// never link such a library, so the same binaries run everywhere.
//
//   const bl_module_info_t *module;
//   if (bl_module_open("cuda", &module, err) != BL_OK) ...              // err: what is missing, why, what to do
//   const bl_device_driver_t *driver = bl_module_interface(module, "device", sizeof *driver, err);
//
// A module is looked for in the folder of BALLAST_MODULES alone where that is set, else beside the program and in ../lib
// of its folder. It stays loaded until the process ends. A module exports one object, `bl_module`:
//
//   BL_MODULE_EXPORT const bl_module_info_t bl_module = {.abi = BL_MODULE_ABI, ...};
//
// Thread: any.
#ifndef BALLAST_DEVICE_MODULE_H
#define BALLAST_DEVICE_MODULE_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

// Raised with every change of bl_module_info_t or of a table that is handed out, unless its size changes.
#define BL_MODULE_ABI    1u
#define BL_MODULE_SYMBOL "bl_module"
#define BL_MODULE_EXPORT __attribute__((visibility("default")))

typedef struct bl_module_info {
  uint32_t abi;           // BL_MODULE_ABI of the sources it was built from
  uint32_t info_bytes;    // sizeof (bl_module_info_t)
  const char *name;       // "cuda", "cuda-compute"
  const char *version;    // of Ballast: must be that of the program
  const char *built_with; // "CUDA 13.0"
  // A table by name, or NULL: the module has none of that name and size.
  const void *(*interface)(const char *name, size_t table_bytes);
} bl_module_info_t;

// Loads a module, once per process. BL_UNIMPLEMENTED: there is none, it needs a library that this machine has not (or in
// another major version), or it does not belong to this program; `err` says which, where was looked, and what to do.
BL_MUST_USE bl_status_t bl_module_open(const char *name, const bl_module_info_t **module, bl_error_t *err);
// The same from one folder, without remembering it.
BL_MUST_USE bl_status_t bl_module_load(const char *folder, const char *name, const bl_module_info_t **module,
                                       bl_error_t *err);
// A table of a module; NULL with err->status BL_UNIMPLEMENTED when it has none of that name and size.
const void *bl_module_interface(const bl_module_info_t *module, const char *name, size_t table_bytes, bl_error_t *err);

// Inside, for tests: from dlerror's text to a sentence. `path` is the file that was to be loaded.
bl_status_t bl__module_explain(const char *path, const char *loader_text, bl_error_t *err);

#endif
