// SPDX-License-Identifier: Apache-2.0
// Finds the kernels that took the stage's time with the device's profiler. Without a profiler, finds the operations
// instead.
#include "device/profiler.h"
#include "shard.h"
#include "timed_ops.h"

#include <stdio.h>

static bl_status_t by_operation(bl_shard_t *bench, bl_shard_kernels_t *found, bl_error_t *err) {
  size_t count;
  bl_kernel_sums_t sums = {.count = 0};
  bl_timed_pause(false);
  bl_timed_use_events(bench->device, bench->stream);
  bl_timed_reset();
  bl_status_t status = bl_shard_run(bench, err);
  status = status == BL_OK ? bl_timed_collect(err) : status;
  const bl_timed_kind_t *kinds = bl_timed_kinds(&count);
  for (size_t i = 0; i < count && status == BL_OK; i++) {
    if (kinds[i].calls > 0) {
      bl_kernel_sums_add(&sums, kinds[i].name, kinds[i].ns, kinds[i].calls);
    }
  }
  bl_timed_use_clock();
  bl_timed_pause(true);
  bl_status_t taken = bl_kernel_sums_take(&sums, found->top, BL_SHARD_KERNELS, &found->count, &found->total_ns, err);
  found->by = "operation";
  return status == BL_OK ? taken : status;
}

bl_status_t bl_shard_find_kernels(bl_shard_t *bench, bl_shard_kernels_t *found, bl_error_t *err) {
  *found = (bl_shard_kernels_t){.by = "kernel"};
  const bl_device_profiler_t *profiler = bl_device_profiler_of(bench->device, &found->why);
  if (profiler == NULL || profiler->start(bench->device, &found->why) != BL_OK) {
    return by_operation(bench, found, err);
  }
  bl_status_t status = bl_shard_run(bench, err);
  bl_status_t stopped = profiler->stop(found->top, BL_SHARD_KERNELS, &found->count, &found->total_ns, err);
  return status == BL_OK ? stopped : status;
}

void bl_shard_print_kernels(const bl_shard_kernels_t *found, double stage_seconds) {
  if (found->why.status != BL_OK) {
    printf("      %s; by operation:\n", found->why.text);
  } else { // the rest of the time the device waits for its next kernel
    printf("      kernels take %.1f %% of that time; the ten longest:\n",
           1e-7 * (double)found->total_ns / stage_seconds);
  }
  for (size_t i = 0; i < found->count; i++) {
    const bl_device_kernel_t *kernel = &found->top[i];
    printf("      %5.1f %%  %9.3f ms  %4llu calls  %s\n", 100 * (double)kernel->ns / (double)found->total_ns,
           1e-6 * (double)kernel->ns, (unsigned long long)kernel->calls, kernel->name);
  }
}

// Kernel names consist of letters, digits and signs; characters that are special in JSON are replaced by '_'.
static void plain(const char *name, char text[BL_KERNEL_NAME_BYTES]) {
  snprintf(text, BL_KERNEL_NAME_BYTES, "%s", name);
  for (char *c = text; *c != '\0'; c++) {
    *c = (unsigned char)*c < 0x20 || *c == '"' || *c == '\\' || (unsigned char)*c > 0x7e ? '_' : *c;
  }
}

void bl_shard_kernels_json(const bl_shard_kernels_t *found, FILE *file) {
  fprintf(file, "\"kernels_by\":\"%s\",\"kernels_seconds\":%.9g,\"kernels\":[", found->by,
          1e-9 * (double)found->total_ns);
  for (size_t i = 0; i < found->count; i++) {
    char name[BL_KERNEL_NAME_BYTES];
    plain(found->top[i].name, name);
    fprintf(file, "%s{\"name\":\"%s\",\"calls\":%llu,\"seconds\":%.9g,\"share\":%.6g}", i == 0 ? "" : ",", name,
            (unsigned long long)found->top[i].calls, 1e-9 * (double)found->top[i].ns,
            (double)found->top[i].ns / (double)found->total_ns);
  }
  fputc(']', file);
}
