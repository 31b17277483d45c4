// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/profiler.h"

#include <cupti.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BUFFER_BYTES ((size_t)4 << 20)
#define PLACE_BYTES  ((size_t)64) // alignment of a buffer; CUPTI requires 8
#define MAJOR        (CUPTI_API_VERSION / 10000)

#define CUPTI_FUNCTIONS(X)                                                                                             \
  X(cuptiGetVersion)                                                                                                   \
  X(cuptiGetResultString)                                                                                              \
  X(cuptiActivityRegisterCallbacks)                                                                                    \
  X(cuptiActivityEnable)                                                                                               \
  X(cuptiActivityDisable)                                                                                              \
  X(cuptiActivityFlushAll)                                                                                             \
  X(cuptiActivityGetNextRecord)

static struct {
#define X(function) __typeof__(&function) function;
  CUPTI_FUNCTIONS(X)
#undef X
  uint32_t version;
  bl_error_t failure; // why the library is not available
} cupti;

static const CUpti_ActivityKind kinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                                           CUPTI_ACTIVITY_KIND_MEMSET};
#define KINDS (sizeof kinds / sizeof kinds[0])

static struct {
  pthread_mutex_t mutex; // a thread of CUPTI's delivers records
  bl_kernel_sums_t sums;
  uint64_t damaged; // number of damaged buffers
} recorded = {.mutex = PTHREAD_MUTEX_INITIALIZER};

// ---- the library

static bool look_up(void *library, const char *name, void *place) {
  void *function = dlsym(library, name);
  memcpy(place, &function, sizeof function); // ISO C has no cast from object to function pointer
  return function != NULL;
}

static void load(void) {
  char name[64];
  const char *given = getenv("BALLAST_CUPTI");
  snprintf(name, sizeof name, "libcupti.so.%d", MAJOR);
  void *library = dlopen(given != NULL && given[0] != '\0' ? given : name, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    (void)bl_error_set(&cupti.failure, BL_UNIMPLEMENTED,
                       "no names of kernels: %s; install CUPTI of the CUDA toolkit %d, or name its file in "
                       "BALLAST_CUPTI",
                       dlerror(), MAJOR);
    return;
  }
  bool whole = true;
#define X(function) whole = look_up(library, #function, &cupti.function) && whole;
  CUPTI_FUNCTIONS(X)
#undef X
  if (!whole || cupti.cuptiGetVersion(&cupti.version) != CUPTI_SUCCESS || cupti.version / 10000 != MAJOR) {
    (void)bl_error_set(&cupti.failure, BL_UNIMPLEMENTED,
                       "no names of kernels: CUPTI %u.%u is loaded, %d is needed: install that of the CUDA toolkit %d",
                       cupti.version / 10000, cupti.version / 100 % 100, MAJOR, MAJOR);
    cupti.version = 0;
    dlclose(library);
  }
}

static bl_status_t have(bl_error_t *err) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, load);
  return cupti.failure.status == BL_OK ? BL_OK : bl_error_set(err, cupti.failure.status, "%s", cupti.failure.text);
}

const char *bl__cuda_describe_profiler(void) {
  static char text[48];
  bl_error_t err = {0};
  if (have(&err) == BL_OK) {
    snprintf(text, sizeof text, "CUPTI %u.%u.%u", cupti.version / 10000, cupti.version / 100 % 100,
             cupti.version % 100);
  } else {
    snprintf(text, sizeof text, "CUPTI none");
  }
  return text;
}

static bl_status_t check(CUptiResult result, const char *call, bl_error_t *err) {
  const char *text = "unknown";
  if (result == CUPTI_SUCCESS) {
    return BL_OK;
  }
  (void)cupti.cuptiGetResultString(result, &text);
  return bl_error_set(err, BL_UNAVAILABLE, "%s: %s (%d)", call, text, (int)result);
}

// ---- records

static void CUPTIAPI give_buffer(uint8_t **buffer, size_t *bytes, size_t *records_max) {
  *buffer = aligned_alloc(PLACE_BYTES, BUFFER_BYTES);
  *bytes = *buffer == NULL ? 0 : BUFFER_BYTES;
  *records_max = 0; // as many as fit
}

static const char *copy_name(uint8_t kind) {
  switch (kind) {
  case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD:
    return "copy host to device";
  case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH:
    return "copy device to host";
  case CUPTI_ACTIVITY_MEMCPY_KIND_DTOD:
    return "copy device to device";
  default:
    return "copy";
  }
}

static void add(const CUpti_Activity *record) {
  switch (record->kind) {
  case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
    const CUpti_ActivityKernel10 *kernel = (const CUpti_ActivityKernel10 *)(const void *)record;
    bl_kernel_sums_add(&recorded.sums, kernel->name != NULL ? kernel->name : "without a name",
                       kernel->end - kernel->start, 1);
    break;
  }
  case CUPTI_ACTIVITY_KIND_MEMCPY: {
    const CUpti_ActivityMemcpy6 *copy = (const CUpti_ActivityMemcpy6 *)(const void *)record;
    bl_kernel_sums_add(&recorded.sums, copy_name(copy->copyKind), copy->end - copy->start, 1);
    break;
  }
  case CUPTI_ACTIVITY_KIND_MEMSET: {
    const CUpti_ActivityMemset4 *fill = (const CUpti_ActivityMemset4 *)(const void *)record;
    bl_kernel_sums_add(&recorded.sums, "fill", fill->end - fill->start, 1);
    break;
  }
  default:
    break;
  }
}

static void CUPTIAPI take_buffer(CUcontext context, uint32_t stream, uint8_t *buffer, size_t bytes, size_t valid) {
  (void)context;
  (void)stream;
  (void)bytes;
  CUpti_Activity *record = NULL;
  CUptiResult result = CUPTI_SUCCESS;
  pthread_mutex_lock(&recorded.mutex);
  while (valid > 0 && (result = cupti.cuptiActivityGetNextRecord(buffer, valid, &record)) == CUPTI_SUCCESS) {
    add(record);
  }
  recorded.damaged += result != CUPTI_SUCCESS && result != CUPTI_ERROR_MAX_LIMIT_REACHED;
  pthread_mutex_unlock(&recorded.mutex);
  free(buffer);
}

// ---- the table

static bl_status_t start(bl_device_t *device, bl_error_t *err) {
  (void)device;
  bl_status_t status = have(err);
  if (status == BL_OK) {
    status =
        check(cupti.cuptiActivityRegisterCallbacks(give_buffer, take_buffer), "cuptiActivityRegisterCallbacks", err);
  }
  for (size_t i = 0; i < KINDS && status == BL_OK; i++) {
    status = check(cupti.cuptiActivityEnable(kinds[i]), "cuptiActivityEnable", err);
  }
  return status;
}

static bl_status_t stop(bl_device_kernel_t *kernels, size_t capacity, size_t *count, uint64_t *total_ns,
                        bl_error_t *err) {
  // Work is over. A forced flush delivers buffers that are not full too, before the call returns.
  bl_status_t status =
      check(cupti.cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "cuptiActivityFlushAll", err);
  for (size_t i = 0; i < KINDS; i++) {
    bl_status_t one = check(cupti.cuptiActivityDisable(kinds[i]), "cuptiActivityDisable", err);
    status = status == BL_OK ? one : status;
  }
  pthread_mutex_lock(&recorded.mutex);
  const uint64_t damaged = recorded.damaged;
  recorded.damaged = 0;
  bl_status_t taken = bl_kernel_sums_take(&recorded.sums, kernels, capacity, count, total_ns, err);
  pthread_mutex_unlock(&recorded.mutex);
  if (status == BL_OK && damaged > 0) {
    return bl_error_set(err, BL_INTERNAL, "CUPTI: %llu buffers of records cannot be read", (unsigned long long)damaged);
  }
  return status == BL_OK ? taken : status;
}

const bl_device_profiler_t bl__cuda_profiler = {.start = start, .stop = stop};
