// SPDX-License-Identifier: Apache-2.0
#include "kernel_time.h"

#include "device/profiler.h"

#include <string.h>

#define KERNELS 64 // maximum per operation

bl_status_t bl_kernel_time(bl_device_t *device, bl_stopwatch_t *watch, const bl_kernel_case_t *one, double *seconds,
                           bl_error_t *err) {
  bl_device_kernel_t kernels[KERNELS];
  size_t count = 0;
  uint64_t total_ns = 0, ns = 0;
  double unused = 0;
  const bl_device_profiler_t *profiler = bl_device_profiler_of(device, err);
  bl_status_t status = profiler == NULL ? BL_UNIMPLEMENTED : profiler->start(device, err);
  if (status != BL_OK) {
    return status;
  }
  status = bl_stopwatch_start(watch, err);
  if (status == BL_OK) {
    one->run(one->context);
    status = bl_stopwatch_stop(watch, &unused, err);
  }
  bl_status_t stopped = profiler->stop(kernels, KERNELS, &count, &total_ns, status == BL_OK ? err : NULL);
  for (size_t i = 0; i < count; i++) {
    ns += strstr(kernels[i].name, one->kernel) != NULL ? kernels[i].ns : 0;
  }
  status = status == BL_OK ? stopped : status;
  if (status == BL_OK && ns == 0) {
    status = bl_error_set(err, BL_UNIMPLEMENTED, "no kernel of this device is called %s", one->kernel);
  }
  *seconds = (double)ns * 1e-9;
  return status;
}
