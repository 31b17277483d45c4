// SPDX-License-Identifier: Apache-2.0
#include "device/profiler.h"

#include "device/module.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const bl_device_profiler_t *bl_device_profiler_of(const bl_device_t *device, bl_error_t *err) {
  const bl_module_info_t *module;
  if (device == NULL || device->host_memory) {
    (void)bl_error_set(err, BL_UNIMPLEMENTED, "the host has no kernels that it could name");
    return NULL;
  }
  if (bl_module_open(device->ops->name, &module, err) != BL_OK) {
    return NULL;
  }
  return bl_module_interface(module, BL_DEVICE_PROFILER_INTERFACE, sizeof(bl_device_profiler_t), err);
}

static bl_device_kernel_t *find(bl_kernel_sums_t *sums, const char *name) {
  for (size_t i = 0; i < sums->count; i++) {
    if (strncmp(sums->kernels[i].name, name, BL_KERNEL_NAME_BYTES - 1) == 0) {
      return &sums->kernels[i];
    }
  }
  if (sums->count == sums->capacity) {
    const size_t capacity = sums->capacity == 0 ? 64 : 2 * sums->capacity;
    bl_device_kernel_t *grown = realloc(sums->kernels, capacity * sizeof *grown);
    if (grown == NULL) {
      return NULL;
    }
    sums->kernels = grown;
    sums->capacity = capacity;
  }
  bl_device_kernel_t *kernel = &sums->kernels[sums->count++];
  *kernel = (bl_device_kernel_t){.calls = 0};
  snprintf(kernel->name, sizeof kernel->name, "%s", name);
  return kernel;
}

void bl_kernel_sums_add(bl_kernel_sums_t *sums, const char *name, uint64_t ns, uint64_t calls) {
  bl_device_kernel_t *kernel = find(sums, name);
  if (kernel == NULL) {
    sums->lost += calls;
    return;
  }
  kernel->calls += calls;
  kernel->ns += ns;
}

static int longest_first(const void *a, const void *b) {
  const bl_device_kernel_t *x = a, *y = b;
  return x->ns != y->ns ? (x->ns < y->ns ? 1 : -1) : strcmp(x->name, y->name);
}

bl_status_t bl_kernel_sums_take(bl_kernel_sums_t *sums, bl_device_kernel_t *kernels, size_t capacity, size_t *count,
                                uint64_t *total_ns, bl_error_t *err) {
  const uint64_t lost = sums->lost;
  if (sums->count > 0) {
    qsort(sums->kernels, sums->count, sizeof *sums->kernels, longest_first);
  }
  *total_ns = 0;
  for (size_t i = 0; i < sums->count; i++) {
    *total_ns += sums->kernels[i].ns;
  }
  *count = sums->count < capacity ? sums->count : capacity;
  if (*count > 0) {
    memcpy(kernels, sums->kernels, *count * sizeof *kernels);
  }
  free(sums->kernels);
  *sums = (bl_kernel_sums_t){.count = 0};
  return lost == 0
             ? BL_OK
             : bl_error_set(err, BL_EXHAUSTED, "no memory for %llu kernels of a profile", (unsigned long long)lost);
}
