// SPDX-License-Identifier: Apache-2.0
// Imports memory of other processes: GPU memory from a descriptor that arrived over a unix socket. Also pins memory of
// the host.
//
// An importer keeps the physical memory alive until it releases it, whatever happens to the owner. With the driver's
// virtual memory management nothing faults when the owner dies. Names of allocations (legacy IPC, used if the driver
// gives no descriptors) do not guarantee that.
#include "base/bytes.h"
#include "datapath/cuda/paths.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/driver.h"
#include "device/ticket.h"

#include <string.h>

bl_status_t bl__cuda_exports(bl_device_t *device, bl_error_t *err) {
  (void)device; // any device exports, by descriptor or by name
  return bl_cuda_driver(err) == NULL ? BL_UNIMPLEMENTED : BL_OK;
}

bool bl__cuda_legacy_ipc(bl_device_t *device) {
  return bl_cuda_device(device)->legacy_ipc;
}

// Imports memory by its name. The driver counts how often an allocation is opened, so that each map is closed
// separately.
static bl_status_t import_named(const bl_cuda_device_t *cuda, const bl_cuda_driver_t *cu,
                                const bl_memory_ticket_t *ticket, uint64_t bytes, bl_device_memory_t *memory,
                                bl_error_t *err) {
  if (ticket->bytes < bytes) {
    return bl_error_set(err, BL_INVALID, "memory of the peer has %llu bytes, %llu announced",
                        (unsigned long long)ticket->bytes, (unsigned long long)bytes);
  }
  CUipcMemHandle handle;
  CUdeviceptr allocation = 0;
  memcpy(&handle, ticket->name, sizeof handle);
  bl_status_t status = bl_cuda_driver_check(
      cu->cuIpcOpenMemHandle(&allocation, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), "cuIpcOpenMemHandle", err);
  if (status != BL_OK) {
    return bl_error_prefix(err,
                           "memory of the peer cannot be used by %s; does this process see the GPU that it is on, and "
                           "are both in one IPC namespace?",
                           cuda->summary.name);
  }
  *memory = (bl_device_memory_t){.base = (const uint8_t *)(uintptr_t)(allocation + ticket->offset_bytes),
                                 .handle = allocation, // mapped_bytes 0 marks an import by name
                                 .writable = true};
  return BL_OK;
}

// Read-only if the driver supports that.
static bl_status_t give_access(const bl_cuda_driver_t *cu, const bl_cuda_device_t *cuda, CUdeviceptr base,
                               bl_device_memory_t *memory, bl_error_t *err) {
  CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = cuda->ordinal},
                            .flags = CU_MEM_ACCESS_FLAGS_PROT_READ};
  memory->writable = cu->cuMemSetAccess(base, memory->mapped_bytes, &access, 1) != CUDA_SUCCESS;
  if (!memory->writable) {
    return BL_OK;
  }
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return bl_cuda_driver_check(cu->cuMemSetAccess(base, memory->mapped_bytes, &access, 1), "cuMemSetAccess", err);
}

bl_status_t bl__cuda_import(bl_device_t *device, int fd, uint64_t bytes, bl_device_memory_t *memory, bl_error_t *err) {
  const bl_cuda_device_t *cuda = bl_cuda_device(device);
  const bl_cuda_driver_t *cu = bl_cuda_driver(err);
  bl_status_t status = cu == NULL ? BL_UNIMPLEMENTED : bl_cuda_make_current(cuda, err);
  if (status != BL_OK) {
    return status;
  }
  bl_memory_ticket_t ticket;
  if (bl_memory_ticket_read(fd, &ticket)) {
    return import_named(cuda, cu, &ticket, bytes, memory, err);
  }
  bl_device_memory_t made = {.mapped_bytes = bl_align_up(bytes, cuda->granularity_bytes)};
  CUmemGenericAllocationHandle handle;
  CUdeviceptr base = 0;
  status = bl_cuda_driver_check(
      cu->cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
      "cuMemImportFromShareableHandle", err);
  if (status != BL_OK) {
    bl_error_prefix(err, "memory of the peer cannot be used by %s; does this process see the GPU that it is on?",
                    cuda->summary.name);
    return status;
  }
  status = bl_cuda_driver_check(cu->cuMemAddressReserve(&base, made.mapped_bytes, cuda->granularity_bytes, 0, 0),
                                "cuMemAddressReserve", err);
  if (status != BL_OK) {
    goto release;
  }
  // Fails if the peer's memory is smaller than announced.
  status = bl_cuda_driver_check(cu->cuMemMap(base, made.mapped_bytes, 0, handle, 0), "cuMemMap", err);
  if (status != BL_OK) {
    goto free_address;
  }
  status = give_access(cu, cuda, base, &made, err);
  if (status != BL_OK) {
    goto unmap;
  }
  made.base = (const uint8_t *)(uintptr_t)base;
  made.handle = handle;
  *memory = made;
  return BL_OK;
unmap:
  (void)cu->cuMemUnmap(base, made.mapped_bytes);
free_address:
  (void)cu->cuMemAddressFree(base, made.mapped_bytes);
release:
  (void)cu->cuMemRelease(handle);
  return status;
}

void bl__cuda_release(bl_device_t *device, bl_device_memory_t *memory) {
  if (memory->base == NULL) {
    return;
  }
  const bl_cuda_driver_t *cu = bl_cuda_driver(NULL);
  CUdeviceptr base = (CUdeviceptr)(uintptr_t)memory->base;
  (void)bl_cuda_make_current(bl_cuda_device(device), NULL);
  if (memory->mapped_bytes == 0) {
    (void)cu->cuIpcCloseMemHandle(memory->handle);
    *memory = (bl_device_memory_t){0};
    return;
  }
  (void)cu->cuMemUnmap(base, memory->mapped_bytes);
  (void)cu->cuMemRelease(memory->handle);
  (void)cu->cuMemAddressFree(base, memory->mapped_bytes);
  *memory = (bl_device_memory_t){0};
}

bl_status_t bl__cuda_pin(bl_device_t *device, const void *base, uint64_t bytes, bl_error_t *err) {
  const bl_cuda_device_t *cuda = bl_cuda_device(device);
  bl_status_t status = bl_cuda_make_current(cuda, err);
  int can = 0;
  if (status == BL_OK) {
    status = bl_cuda_check(cudaDeviceGetAttribute(&can, cudaDevAttrHostRegisterReadOnlySupported, cuda->ordinal),
                           "cudaDeviceGetAttribute", err);
  }
  if (status == BL_OK && !can) {
    return bl_error_set(err, BL_UNIMPLEMENTED, "%s pins no read-only memory", cuda->summary.name);
  }
  return status != BL_OK ? status
                         : bl_cuda_check(cudaHostRegister((void *)(uintptr_t)base, bytes,
                                                          cudaHostRegisterPortable | cudaHostRegisterReadOnly),
                                         "cudaHostRegister", err);
}

void bl__cuda_unpin(bl_device_t *device, const void *base) {
  (void)bl_cuda_make_current(bl_cuda_device(device), NULL);
  (void)cudaHostUnregister((void *)(uintptr_t)base);
}
