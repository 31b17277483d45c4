// SPDX-License-Identifier: Apache-2.0
#include "device/libraries.h"

#include "base/bytes.h"
#include "device/module.h"
#include "sys/version.h"

#include <inttypes.h>
#include <string.h>

#define DEVICES_MAX 64

void bl_device_libraries(bl_device_kind_t kind, bl_device_library_t libraries[BL_DEVICE_LIBRARIES]) {
  static const char *const names[BL_DEVICE_LIBRARIES] = {"driver", "cuda", "cublaslt", "cudnn", "nccl", "cupti"};
  static const char *const modules[] = {"cuda", "cuda-compute"};
  for (size_t i = 0; i < BL_DEVICE_LIBRARIES; i++) {
    libraries[i] = (bl_device_library_t){.name = names[i], .version = "none"};
  }
  for (size_t m = 0; kind == BL_DEVICE_CUDA && m < sizeof modules / sizeof modules[0]; m++) {
    const bl_module_info_t *module;
    bl_error_t err = {0};
    const bl_device_versions_t *versions =
        bl_module_open(modules[m], &module, &err) == BL_OK
            ? bl_module_interface(module, BL_DEVICE_LIBRARIES_INTERFACE, sizeof *versions, &err)
            : NULL;
    for (size_t i = 0; versions != NULL && i < BL_DEVICE_LIBRARIES; i++) {
      char text[BL_DEVICE_LIBRARY_VERSION_BYTES];
      if (strcmp(libraries[i].version, "none") == 0 && versions->version(names[i], text)) {
        memcpy(libraries[i].version, text, sizeof text);
      }
    }
  }
}

void bl_device_libraries_print(bl_device_kind_t kind, FILE *stream) {
  bl_device_library_t libraries[BL_DEVICE_LIBRARIES];
  bl_device_libraries(kind, libraries);
  for (size_t i = 0; i < BL_DEVICE_LIBRARIES; i++) {
    if (strcmp(libraries[i].version, "none") != 0) {
      bl_version_print_library(libraries[i].name, libraries[i].version, stream);
    }
  }
}

bl_status_t bl_device_print(bl_device_kind_t kind, FILE *stream, bl_error_t *err) {
  bl_device_summary_t summaries[DEVICES_MAX];
  bl_device_library_t libraries[BL_DEVICE_LIBRARIES];
  uint32_t count;
  bl_status_t status = bl_device_list(kind, summaries, DEVICES_MAX, &count, err);
  for (uint32_t i = 0; status == BL_OK && i < count && i < DEVICES_MAX; i++) {
    char bytes[BL_BYTES_TEXT];
    fprintf(stream,
            "%s:%" PRIu32 " %s, %s, compute capability %" PRIu32 ".%" PRIu32 ", %" PRIu32 " multiprocessors, %s\n",
            bl_device_kind_name(kind), summaries[i].ordinal, summaries[i].name,
            bl_bytes_format(summaries[i].total_bytes, bytes), summaries[i].major, summaries[i].minor,
            summaries[i].processors, summaries[i].address);
  }
  bl_device_libraries(kind, libraries);
  for (size_t i = 0; i < BL_DEVICE_LIBRARIES; i++) {
    fprintf(stream, "%s%s %s", i == 0 ? "libraries: " : ", ", libraries[i].name, libraries[i].version);
  }
  fputc('\n', stream);
  return status;
}
