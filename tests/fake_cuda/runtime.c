// SPDX-License-Identifier: Apache-2.0
// The runtime library's functions that the modules call, over memory.c, work.c and kernels.c; devices, errors, the end.
#include "fake_cuda/core.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define VERSION 13000

fake_cuda_figures_t fake_figures;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static uint64_t *expected;
static __thread int current = -1; // a thread that has made none current
static __thread cudaError_t last;

void fake_lock(void) {
  pthread_mutex_lock(&mutex);
}

void fake_unlock(void) {
  pthread_mutex_unlock(&mutex);
}

CUresult fake_broken(const char *format, ...) {
  if (expected != NULL) {
    ++*expected;
    return CUDA_ERROR_INVALID_VALUE;
  }
  va_list arguments;
  va_start(arguments, format);
  fputs("fake CUDA: ", stderr);
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  va_end(arguments);
  fake_figures.broken++;
  return CUDA_ERROR_INVALID_VALUE;
}

FAKE_EXPORT void fake_cuda_expect(uint64_t *count) {
  fake_lock();
  expected = count;
  fake_unlock();
}

static void count_live(void) {
  fake_memory_leaks();
  fake_work_leaks();
}

FAKE_EXPORT void fake_cuda_figures(fake_cuda_figures_t *figures) {
  fake_lock();
  count_live();
  *figures = fake_figures;
  fake_unlock();
}

// What is left when the process ends in order.
static void say_what_is_left(void) {
  const fake_cuda_figures_t *f = &fake_figures;
  count_live();
  const struct {
    const char *what;
    uint64_t count;
  } kinds[] = {{"physical pieces of memory", f->live_handles},
               {"reservations of addresses", f->live_reservations},
               {"maps", f->live_mappings},
               {"allocations", f->live_allocations},
               {"streams", f->live_streams},
               {"events", f->live_events},
               {"pieces of pinned memory", f->live_pinned}};
  for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
    if (kinds[i].count > 0) {
      (void)fake_broken("%llu %s are left", (unsigned long long)kinds[i].count, kinds[i].what);
    }
  }
  fflush(NULL);
  if (f->broken > 0) {
    _exit(99);
  }
}

static void set_up(void) {
  const char *connections = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  fake_figures.connections = connections != NULL ? strtoull(connections, NULL, 10) : 8;
  const char *loading = getenv("CUDA_MODULE_LOADING");
  fake_figures.loads_early = loading != NULL && strcmp(loading, "EAGER") == 0;
  (void)atexit(say_what_is_left);
}

static int gpu_count(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, set_up); // what the driver reads when it is first used
  const char *text = getenv("FAKE_CUDA_GPUS");
  return text != NULL ? atoi(text) : 1;
}

static cudaError_t done(CUresult result) {
  if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY) {
    last = (cudaError_t)result; // both count the same way
  }
  return (cudaError_t)result;
}

// Every thread makes its device current before anything else: without it the runtime would take the first one.
static CUresult on_device(const char *what) {
  return current >= 0 ? CUDA_SUCCESS : fake_broken("%s: this thread has made no device current", what);
}

#define DO(what, call)                                                                                                 \
  fake_lock();                                                                                                         \
  const CUresult ready = on_device(what);                                                                              \
  fake_unlock();                                                                                                       \
  return done(ready != CUDA_SUCCESS ? ready : (call))

// ---- devices

FAKE_EXPORT cudaError_t cudaRuntimeGetVersion(int *version) {
  *version = VERSION;
  return cudaSuccess;
}

FAKE_EXPORT cudaError_t cudaDriverGetVersion(int *version) {
  *version = VERSION;
  return cudaSuccess;
}

FAKE_EXPORT cudaError_t cudaGetDeviceCount(int *count) {
  *count = gpu_count();
  return *count > 0 ? cudaSuccess : done(CUDA_ERROR_NO_DEVICE);
}

FAKE_EXPORT cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= gpu_count()) {
    return done(CUDA_ERROR_INVALID_DEVICE);
  }
  current = device;
  return cudaSuccess;
}

FAKE_EXPORT cudaError_t cudaGetDevice(int *device) {
  *device = current < 0 ? 0 : current;
  return cudaSuccess;
}

FAKE_EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal) {
  if (ordinal < 0 || ordinal >= gpu_count()) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  *device = ordinal;
  return CUDA_SUCCESS;
}

// Those of an H100.
FAKE_EXPORT CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute which, CUdevice device) {
  static const struct {
    CUdevice_attribute which;
    int value;
  } values[] = {
      {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
      {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
      {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 132},
      {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 232448},
      {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
      {CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, 1},
      {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 233472},
      {CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, 1024},
  };
  if (device < 0 || device >= gpu_count()) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  *value = 0;
  if (which == CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) {
    *value = getenv("FAKE_CUDA_NO_DESCRIPTORS") == NULL;
  }
  for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
    if (values[i].which == which) {
      *value = values[i].value;
    }
  }
  return CUDA_SUCCESS;
}

FAKE_EXPORT cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr which, int device) {
  return done(cuDeviceGetAttribute(value, (CUdevice_attribute)which, device)); // both count the same way
}

FAKE_EXPORT cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device) {
  if (device < 0 || device >= gpu_count()) {
    return done(CUDA_ERROR_INVALID_DEVICE);
  }
  *prop = (struct cudaDeviceProp){.name = "a GPU that is none",
                                  .totalGlobalMem = FAKE_MEMORY,
                                  .major = 9,
                                  .multiProcessorCount = 132,
                                  .sharedMemPerBlockOptin = 232448,
                                  .l2CacheSize = 52428800,
                                  .pciBusID = 0x18 + device};
  memset(&prop->uuid, 0xfa, sizeof prop->uuid);
  prop->uuid.bytes[15] = (char)device;
  return cudaSuccess;
}

FAKE_EXPORT cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
  *can = device != peer;
  return cudaSuccess;
}

FAKE_EXPORT cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

// ---- functions of the driver, by name: the newest of a name

FAKE_EXPORT cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                                         unsigned long long flags,
                                                         enum cudaDriverEntryPointQueryResult *found) {
  char full[96];
  Dl_info info;
  (void)version;
  (void)flags;
  (void)dladdr(&fake_figures, &info);
  void *self = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  *function = NULL;
  for (int suffix = 2; suffix >= 1 && *function == NULL && self != NULL; suffix--) {
    snprintf(full, sizeof full, "%s%s", name, suffix == 2 ? "_v2" : "");
    *function = dlsym(self, full);
  }
  *found = *function != NULL ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

// ---- errors

FAKE_EXPORT CUresult cuGetErrorString(CUresult error, const char **text) {
  *text = error == CUDA_SUCCESS               ? "no error"
          : error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory"
          : error == CUDA_ERROR_INVALID_VALUE ? "invalid argument"
                                              : "an error of a GPU that is none";
  return CUDA_SUCCESS;
}

FAKE_EXPORT const char *cudaGetErrorString(cudaError_t error) {
  const char *text;
  (void)cuGetErrorString((CUresult)error, &text);
  return text;
}

FAKE_EXPORT cudaError_t cudaGetLastError(void) {
  const cudaError_t error = last;
  last = cudaSuccess;
  return error;
}

FAKE_EXPORT cudaError_t cudaPeekAtLastError(void) {
  return last;
}

// ---- memory

FAKE_EXPORT cudaError_t cudaMalloc(void **base, size_t bytes) {
  DO("cudaMalloc", cuMemAlloc_v2((CUdeviceptr *)(void *)base, bytes));
}
FAKE_EXPORT cudaError_t cudaFree(void *base) {
  DO("cudaFree", cuMemFree_v2((CUdeviceptr)(uintptr_t)base));
}
FAKE_EXPORT cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
  DO("cudaMemGetInfo", cuMemGetInfo_v2(available, total));
}
FAKE_EXPORT cudaError_t cudaHostAlloc(void **base, size_t bytes, unsigned flags) {
  DO("cudaHostAlloc", cuMemHostAlloc(base, bytes, flags));
}
FAKE_EXPORT cudaError_t cudaFreeHost(void *base) {
  DO("cudaFreeHost", cuMemFreeHost(base));
}
FAKE_EXPORT cudaError_t cudaHostRegister(void *base, size_t bytes, unsigned flags) {
  DO("cudaHostRegister", cuMemHostRegister_v2(base, bytes, flags));
}
FAKE_EXPORT cudaError_t cudaHostUnregister(void *base) {
  DO("cudaHostUnregister", cuMemHostUnregister(base));
}
FAKE_EXPORT cudaError_t cudaHostGetDevicePointer(void **there, void *base, unsigned flags) {
  DO("cudaHostGetDevicePointer", cuMemHostGetDevicePointer_v2((CUdeviceptr *)(void *)there, base, flags));
}
FAKE_EXPORT cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                                        cudaStream_t stream) {
  DO("cudaMemcpyAsync", kind != cudaMemcpyDefault ? fake_broken("cudaMemcpyAsync: a kind that this runtime has not")
                                                  : fake_work_copy((uint64_t)to, (uint64_t)from, bytes, stream));
}
FAKE_EXPORT cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
  DO("cudaMemsetAsync", fake_work_fill((uint64_t)to, (uint8_t)value, bytes, stream));
}

// ---- streams and events

FAKE_EXPORT cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
  (void)priority;
  DO("cudaStreamCreateWithPriority", fake_work_stream_create(stream, flags));
}
FAKE_EXPORT cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  DO("cudaStreamDestroy", fake_work_stream_destroy(stream));
}
FAKE_EXPORT cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  DO("cudaStreamSynchronize", fake_work_stream_synchronize(stream));
}
FAKE_EXPORT cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  DO("cudaStreamWaitEvent", fake_work_stream_wait(stream, event, flags));
}
FAKE_EXPORT cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
  DO("cudaEventCreateWithFlags", fake_work_event_create(event, flags));
}
FAKE_EXPORT cudaError_t cudaEventDestroy(cudaEvent_t event) {
  DO("cudaEventDestroy", fake_work_event_destroy(event));
}
FAKE_EXPORT cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  DO("cudaEventRecord", fake_work_event_record(event, stream));
}
FAKE_EXPORT cudaError_t cudaEventQuery(cudaEvent_t event) {
  DO("cudaEventQuery", fake_work_event_query(event));
}
FAKE_EXPORT cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to) {
  DO("cudaEventElapsedTime", fake_work_event_elapsed(ms, from, to));
}

cudaError_t fake_launched(CUresult result) {
  return done(result);
}
