// SPDX-License-Identifier: Apache-2.0
// Discovers the devices of this machine, and has the operations table of a device.
#include "device/cuda/discover.h"
#include "base/bytes.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/driver.h"
#include "device/cuda/memory.h"
#include "device/cuda/stream.h"
#include "device/cuda/verdict.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

_Static_assert(BL_CUDA_INSUFFICIENT_DRIVER == cudaErrorInsufficientDriver, "verdict.h");
_Static_assert(BL_CUDA_NO_DEVICE == cudaErrorNoDevice, "verdict.h");

// Sets defaults of the driver, which reads both when it is first used.
// CUDA_MODULE_LOADING: a kernel that is loaded at its first launch may have to wait until the device is idle. The
// device is not idle while a receiving kernel of NCCL waits for a peer that waits for us. So all kernels are loaded
// with the context, unless the user's environment says otherwise.
// CUDA_DEVICE_MAX_CONNECTIONS: a process has 8 hardware queues by default. If it has more streams, some share a queue,
// and work in one then waits for earlier work of another, which may wait for a peer. A stage has one stream for
// compute, some for copies, and one per communicator.
static void set_environment(void) {
  (void)setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0); // the maximum
}

static bl_cuda_findings_t look(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, set_environment);
  bl_cuda_findings_t findings = {0};
  (void)cudaRuntimeGetVersion(&findings.runtime);
  (void)cudaDriverGetVersion(&findings.driver); // 0 without a driver
  cudaError_t result = cudaGetDeviceCount(&findings.count);
  findings.result = (int)result;
  findings.result_text = cudaGetErrorString(result);
  if (result != cudaSuccess) {
    findings.count = 0;
    (void)cudaGetLastError();
  }
  return findings;
}

const char *bl__cuda_describe_driver(void) {
  static char text[96];
  bl_cuda_findings_t f = look();
  if (f.driver == 0) {
    snprintf(text, sizeof text, "CUDA runtime %d.%d, no driver", f.runtime / 1000, f.runtime % 1000 / 10);
  } else {
    snprintf(text, sizeof text, "CUDA runtime %d.%d, driver of CUDA %d.%d", f.runtime / 1000, f.runtime % 1000 / 10,
             f.driver / 1000, f.driver % 1000 / 10);
  }
  return text;
}

static bl_status_t summarize(uint32_t ordinal, bl_device_summary_t *summary, struct cudaDeviceProp *prop,
                             bl_error_t *err) {
  bl_status_t status = bl_cuda_check(cudaGetDeviceProperties(prop, (int)ordinal), "cudaGetDeviceProperties", err);
  if (status != BL_OK) {
    return status;
  }
  *summary = (bl_device_summary_t){.ordinal = ordinal,
                                   .total_bytes = prop->totalGlobalMem,
                                   .major = (uint32_t)prop->major,
                                   .minor = (uint32_t)prop->minor,
                                   .processors = (uint32_t)prop->multiProcessorCount};
  snprintf(summary->name, sizeof summary->name, "%.*s", (int)sizeof summary->name - 1, prop->name);
  snprintf(summary->address, sizeof summary->address, "%04x:%02x:%02x.0", (unsigned)prop->pciDomainID & 0xffffu,
           (unsigned)prop->pciBusID & 0xffu, (unsigned)prop->pciDeviceID & 0xffu);
  memcpy(summary->uuid, prop->uuid.bytes, sizeof summary->uuid);
  return BL_OK;
}

bl_status_t bl__cuda_list(bl_device_summary_t *summaries, uint32_t capacity, uint32_t *count, bl_error_t *err) {
  bl_cuda_findings_t findings = look();
  *count = 0;
  bl_status_t status = bl_cuda_verdict(&findings, err);
  for (uint32_t i = 0; status == BL_OK && i < (uint32_t)findings.count && i < capacity; i++) {
    struct cudaDeviceProp prop;
    status = summarize(i, &summaries[i], &prop, err);
  }
  if (status == BL_OK) {
    *count = (uint32_t)findings.count;
  }
  return status;
}

static const char *describe(const bl_device_t *device) {
  return bl_cuda_device_const(device)->description;
}

static const bl_device_ops_t ops = {.name = "cuda",
                                    .arena_map = bl__cuda_arena_map,
                                    .arena_unmap = bl__cuda_arena_unmap,
                                    .range_reserve = bl__cuda_range_reserve,
                                    .range_release = bl__cuda_range_release,
                                    .copy = bl__cuda_copy,
                                    .fill = bl__cuda_fill,
                                    .describe = describe,
                                    .memory = bl__cuda_memory,
                                    .stream_create = bl__cuda_stream_create,
                                    .stream_destroy = bl__cuda_stream_destroy,
                                    .stream_wait_event = bl__cuda_stream_wait_event,
                                    .event_create = bl__cuda_event_create,
                                    .event_destroy = bl__cuda_event_destroy,
                                    .event_record = bl__cuda_event_record,
                                    .event_query = bl__cuda_event_query,
                                    .event_elapsed = bl__cuda_event_elapsed};

static bl_status_t attribute(const bl_cuda_driver_t *cu, CUdevice handle, CUdevice_attribute which, const char *what,
                             int *value, bl_error_t *err) {
  (void)what;
  return bl_cuda_driver_check(cu->cuDeviceGetAttribute(value, which, handle), "cuDeviceGetAttribute", err);
}

// Finds the memory features that memory.c relies on.
static bl_status_t learn_memory(const bl_cuda_driver_t *cu, bl_cuda_device_t *cuda, bl_error_t *err) {
  CUdevice handle;
  int virtual_memory = 0, descriptors = 0, rdma = 0;
  bl_status_t status = bl_cuda_driver_check(cu->cuDeviceGet(&handle, cuda->ordinal), "cuDeviceGet", err);
  const struct {
    CUdevice_attribute which;
    int *value;
    const char *what; // NULL: the feature is optional
  } wanted[] = {
      {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, &virtual_memory, "virtual memory management"},
      {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, &descriptors, NULL},
      {CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, &rdma, NULL},
  };
  for (size_t i = 0; status == BL_OK && i < sizeof wanted / sizeof wanted[0]; i++) {
    status = attribute(cu, handle, wanted[i].which, wanted[i].what, wanted[i].value, err);
    if (status == BL_OK && wanted[i].what != NULL && *wanted[i].value == 0) {
      status = bl_error_set(err, BL_UNIMPLEMENTED, "%s: driver or machine do not give %s, which Ballast needs",
                            cuda->summary.name, wanted[i].what);
    }
  }
  cuda->rdma = rdma != 0;
  cuda->legacy_ipc = descriptors == 0 || getenv("BALLAST_CUDA_LEGACY_IPC") != NULL;
  cuda->device.whole_ranges = cuda->legacy_ipc;
  size_t granularity = 0;
  if (status == BL_OK) {
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes = descriptors != 0 ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                                                                         : CU_MEM_HANDLE_TYPE_NONE,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = cuda->ordinal}};
    status = bl_cuda_driver_check(
        cu->cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
        "cuMemGetAllocationGranularity", err);
  }
  cuda->granularity_bytes = granularity;
  cuda->device.place_bytes = granularity;
  return status;
}

static bl_status_t learn(bl_cuda_device_t *cuda, const bl_cuda_findings_t *findings, bl_error_t *err) {
  struct cudaDeviceProp prop;
  bl_status_t status = summarize((uint32_t)cuda->ordinal, &cuda->summary, &prop, err);
  if (status == BL_OK) {
    status = bl_cuda_verdict_capability(cuda->summary.name, prop.major, prop.minor, err);
  }
  if (status != BL_OK) {
    return status;
  }
  cuda->driver = findings->driver;
  cuda->runtime = findings->runtime;
  char bytes[BL_BYTES_TEXT];
  snprintf(cuda->description, sizeof cuda->description,
           "%s, %s, compute capability %d.%d, %s, driver of CUDA %d.%d, runtime %d.%d", cuda->summary.name,
           bl_bytes_format(cuda->summary.total_bytes, bytes), prop.major, prop.minor, cuda->summary.address,
           cuda->driver / 1000, cuda->driver % 1000 / 10, cuda->runtime / 1000, cuda->runtime % 1000 / 10);
  // The first call that needs the device creates its context, which takes a while. Create it now, not in a step.
  status = bl_cuda_make_current(cuda, err);
  if (status == BL_OK) {
    status = bl_cuda_check(cudaFree(NULL), "making the context of the device", err);
  }
  const bl_cuda_driver_t *cu = status == BL_OK ? bl_cuda_driver(err) : NULL;
  if (status == BL_OK) {
    status = cu == NULL ? BL_UNIMPLEMENTED : learn_memory(cu, cuda, err);
  }
  return status;
}

bl_status_t bl__cuda_open(uint32_t ordinal, bl_device_t **device, bl_error_t *err) {
  bl_cuda_findings_t findings = look();
  bl_status_t status = bl_cuda_verdict(&findings, err);
  if (status == BL_OK) {
    status = bl_cuda_verdict_ordinal(&findings, ordinal, err);
  }
  if (status != BL_OK) {
    return status;
  }
  bl_cuda_device_t *made = calloc(1, sizeof *made);
  if (made == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for a device");
  }
  made->device.ops = &ops;
  made->ordinal = (int)ordinal;
  status = learn(made, &findings, err);
  if (status != BL_OK) {
    bl_error_prefix(err, "device %u", ordinal);
    free(made);
    return status;
  }
  *device = &made->device;
  return BL_OK;
}

void bl__cuda_close(bl_device_t *device) {
  free(bl_cuda_device(device)); // the context belongs to the process and ends with it
}
