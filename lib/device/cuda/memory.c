// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/memory.h"

#include "base/bytes.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/driver.h"
#include "device/cuda/verdict.h"
#include "device/ticket.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

// Handle of staging that cudaHostAlloc allocated, not the host back end.
#define DRIVERS_STAGING 1

static CUdeviceptr address_of(const void *pointer) {
  return (CUdeviceptr)(uintptr_t)pointer;
}

static CUmemAllocationProp properties(const bl_cuda_device_t *cuda, bool exported) {
  CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                              .requestedHandleTypes =
                                  exported ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE,
                              .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = cuda->ordinal}};
  prop.allocFlags.gpuDirectRDMACapable = cuda->rdma;
  return prop;
}

bl_status_t bl__cuda_memory(bl_device_t *device, uint64_t *free_bytes, uint64_t *total_bytes, bl_error_t *err) {
  size_t available = 0, total = 0;
  bl_status_t status = bl_cuda_make_current(bl_cuda_device(device), err);
  if (status == BL_OK) {
    status = bl_cuda_check(cudaMemGetInfo(&available, &total), "cudaMemGetInfo", err);
  }
  if (status == BL_OK) {
    *free_bytes = available;
    *total_bytes = total;
  }
  return status;
}

// Maps memory at the addresses from `base` on. *handle is its handle.
static bl_status_t back(const bl_cuda_driver_t *cu, const bl_cuda_device_t *cuda, const bl_arena_t *arena,
                        CUdeviceptr base, CUmemGenericAllocationHandle *handle, bl_error_t *err) {
  CUmemAllocationProp prop = properties(cuda, bl_arena_kind_is_shareable(arena->kind));
  bl_status_t status = bl_cuda_driver_check(cu->cuMemCreate(handle, arena->mapped_bytes, &prop, 0), "cuMemCreate", err);
  if (status != BL_OK) {
    return status;
  }
  status = bl_cuda_driver_check(cu->cuMemMap(base, arena->mapped_bytes, 0, *handle, 0), "cuMemMap", err);
  if (status != BL_OK) {
    goto release;
  }
  CUmemAccessDesc access = {.location = prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  status = bl_cuda_driver_check(cu->cuMemSetAccess(base, arena->mapped_bytes, &access, 1), "cuMemSetAccess", err);
  if (status == BL_OK) {
    status = bl__cuda_fill((bl_device_t *)(uintptr_t)&cuda->device, NULL, (void *)(uintptr_t)base, 0,
                           arena->mapped_bytes, err);
  }
  if (status != BL_OK) {
    (void)cu->cuMemUnmap(base, arena->mapped_bytes);
    goto release;
  }
  return BL_OK;
release:
  (void)cu->cuMemRelease(*handle);
  return status;
}

static bl_status_t export(const bl_cuda_driver_t *cu, CUmemGenericAllocationHandle handle, int *fd, bl_error_t *err) {
  bl_status_t status =
      bl_cuda_driver_check(cu->cuMemExportToShareableHandle(fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                           "cuMemExportToShareableHandle", err);
  if (status == BL_OK) {
    (void)fcntl(*fd, F_SETFD, FD_CLOEXEC); // children must not keep the memory alive
  }
  return status;
}

static bl_status_t check_free(bl_cuda_device_t *cuda, uint64_t bytes, bl_error_t *err) {
  uint64_t free_bytes, total_bytes;
  bl_status_t status = bl__cuda_memory(&cuda->device, &free_bytes, &total_bytes, err);
  return status == BL_OK && bytes > free_bytes
             ? bl_cuda_verdict_memory(cuda->summary.name, bytes, free_bytes, total_bytes, err)
             : status;
}

// ---- legacy_ipc: memory is shared by name and cannot be placed, so a reserved range has all of its memory at once

static bool is_whole(const bl_cuda_device_t *cuda, const bl_arena_t *arena) {
  return cuda->legacy_ipc && (arena->place != NULL || bl_arena_kind_is_shareable(arena->kind));
}

static bl_status_t allocate(bl_cuda_device_t *cuda, uint64_t bytes, void **base, bl_error_t *err) {
  bl_status_t status = check_free(cuda, bytes, err);
  return status == BL_OK ? bl_cuda_check(cudaMalloc(base, bytes), "cudaMalloc", err) : status;
}

static bl_status_t name_memory(const bl_cuda_driver_t *cu, bl_arena_t *arena, CUdeviceptr base, bl_error_t *err) {
  CUdeviceptr allocation = 0;
  CUipcMemHandle handle;
  size_t allocated = 0;
  _Static_assert(sizeof handle == BL_MEMORY_NAME_BYTES, "the size of a name of memory");
  bl_status_t status =
      bl_cuda_driver_check(cu->cuMemGetAddressRange(&allocation, &allocated, base), "cuMemGetAddressRange", err);
  if (status == BL_OK) {
    status = bl_cuda_driver_check(cu->cuIpcGetMemHandle(&handle, allocation), "cuIpcGetMemHandle", err);
  }
  if (status != BL_OK) {
    return bl_error_prefix(err, "memory of the GPU is handed out neither by descriptor nor by name");
  }
  bl_memory_ticket_t ticket = {.offset_bytes = base - allocation, .bytes = arena->bytes};
  memcpy(ticket.name, &handle, sizeof handle);
  return bl_memory_ticket_write(&ticket, &arena->fd, err);
}

static bl_status_t map_whole(bl_cuda_device_t *cuda, bl_arena_t *arena, bl_error_t *err) {
  const bl_cuda_driver_t *cu = bl_cuda_driver(err);
  void *base = arena->place;
  arena->mapped_bytes = bl_align_up(arena->bytes, cuda->granularity_bytes);
  bl_status_t status = cu == NULL     ? BL_UNIMPLEMENTED
                       : base == NULL ? allocate(cuda, arena->mapped_bytes, &base, err)
                                      : BL_OK;
  if (status != BL_OK) {
    return status;
  }
  status = bl__cuda_fill(&cuda->device, NULL, base, 0, arena->mapped_bytes, err);
  if (status == BL_OK && bl_arena_kind_is_shareable(arena->kind)) {
    status = name_memory(cu, arena, address_of(base), err);
  }
  if (status != BL_OK && arena->place == NULL) {
    (void)cudaFree(base);
  }
  arena->base = status == BL_OK ? base : NULL;
  return status;
}

// ---- memory is shared by descriptor

static bl_status_t map_device(bl_cuda_device_t *cuda, bl_arena_t *arena, bl_error_t *err) {
  const bl_cuda_driver_t *cu = bl_cuda_driver(err);
  arena->mapped_bytes = bl_align_up(arena->bytes, cuda->granularity_bytes);
  bl_status_t status = cu == NULL ? BL_UNIMPLEMENTED : check_free(cuda, arena->mapped_bytes, err);
  if (status != BL_OK) {
    return status;
  }
  CUdeviceptr base = address_of(arena->place);
  if (arena->place == NULL) {
    status = bl_cuda_driver_check(cu->cuMemAddressReserve(&base, arena->mapped_bytes, cuda->granularity_bytes, 0, 0),
                                  "cuMemAddressReserve", err);
    if (status != BL_OK) {
      return status;
    }
  }
  CUmemGenericAllocationHandle handle;
  status = back(cu, cuda, arena, base, &handle, err);
  if (status != BL_OK) {
    goto free_address;
  }
  if (bl_arena_kind_is_shareable(arena->kind) && (status = export(cu, handle, &arena->fd, err)) != BL_OK) {
    goto unmap;
  }
  arena->base = (uint8_t *)(uintptr_t)base;
  arena->handle = handle;
  return BL_OK;
unmap:
  (void)cu->cuMemUnmap(base, arena->mapped_bytes);
  (void)cu->cuMemRelease(handle);
free_address:
  if (arena->place == NULL) {
    (void)cu->cuMemAddressFree(base, arena->mapped_bytes);
  }
  return status;
}

// Allocates staging if the device sees registered memory at another address than the CPU. Memory that the driver itself
// allocates has one address.
static bl_status_t allocate_staging(bl_cuda_device_t *cuda, bl_arena_t *arena, bl_error_t *err) {
  void *base = NULL;
  if (bl_arena_kind_is_shareable(arena->kind) || arena->place != NULL) {
    return bl_error_set(
        err, BL_UNIMPLEMENTED,
        "%s sees memory of the host under another address than the CPU: staging cannot be shared or placed on this "
        "machine",
        cuda->summary.name);
  }
  arena->mapped_bytes = bl_align_up(arena->bytes, (uint64_t)sysconf(_SC_PAGESIZE));
  bl_status_t status = bl_cuda_check(
      cudaHostAlloc(&base, arena->mapped_bytes, cudaHostAllocPortable | cudaHostAllocMapped), "cudaHostAlloc", err);
  if (status == BL_OK) {
    memset(base, 0, arena->mapped_bytes);
    arena->base = base;
    arena->fd = -1;
    arena->handle = DRIVERS_STAGING;
  }
  return status;
}

// Staging is memory of the host back end, which faults it in and seals shareable arenas.
static bl_status_t map_staging(bl_cuda_device_t *cuda, bl_arena_t *arena, bl_error_t *err) {
  bl_device_t *host = bl_device_host();
  bl_status_t status = host->ops->arena_map(host, arena, err);
  if (status != BL_OK) {
    return status;
  }
  bool elsewhere = false;
  unsigned flags = cudaHostRegisterPortable | cudaHostRegisterMapped;
  status = bl_cuda_check(cudaHostRegister(arena->base, arena->mapped_bytes, flags), "cudaHostRegister", err);
  if (status != BL_OK) {
    goto unmap;
  }
  void *there = NULL;
  status = bl_cuda_check(cudaHostGetDevicePointer(&there, arena->base, 0), "cudaHostGetDevicePointer", err);
  elsewhere = status == BL_OK && there != arena->base;
  if (status == BL_OK && !elsewhere) {
    arena->handle = 0;
    return BL_OK;
  }
  (void)cudaHostUnregister(arena->base);
unmap:
  host->ops->arena_unmap(host, arena);
  arena->base = NULL;
  arena->fd = -1;
  return elsewhere ? allocate_staging(cuda, arena, err) : status;
}

bl_status_t bl__cuda_arena_map(bl_device_t *device, bl_arena_t *arena, bl_error_t *err) {
  bl_cuda_device_t *cuda = bl_cuda_device(device);
  bl_status_t status = bl_cuda_make_current(cuda, err);
  if (status != BL_OK) {
    return status;
  }
  return bl_arena_kind_is_staging(arena->kind) ? map_staging(cuda, arena, err)
         : is_whole(cuda, arena)               ? map_whole(cuda, arena, err)
                                               : map_device(cuda, arena, err);
}

void bl__cuda_arena_unmap(bl_device_t *device, bl_arena_t *arena) {
  (void)bl_cuda_make_current(bl_cuda_device(device), NULL);
  if (bl_arena_kind_is_staging(arena->kind)) {
    bl_device_t *host = bl_device_host();
    if (arena->handle == DRIVERS_STAGING) {
      (void)cudaFreeHost(arena->base);
      return;
    }
    (void)cudaHostUnregister(arena->base);
    host->ops->arena_unmap(host, arena);
    return;
  }
  if (arena->fd >= 0) {
    close(arena->fd);
  }
  if (is_whole(bl_cuda_device(device), arena)) {
    if (arena->place == NULL) {
      (void)cudaFree(arena->base);
    }
    return;
  }
  const bl_cuda_driver_t *cu = bl_cuda_driver(NULL);
  (void)cu->cuMemUnmap(address_of(arena->base), arena->mapped_bytes);
  (void)cu->cuMemRelease(arena->handle);
  if (arena->place == NULL) {
    (void)cu->cuMemAddressFree(address_of(arena->base), arena->mapped_bytes);
  }
}

bl_status_t bl__cuda_range_reserve(bl_device_t *device, uint64_t bytes, uint8_t **base, bl_error_t *err) {
  bl_cuda_device_t *cuda = bl_cuda_device(device);
  const bl_cuda_driver_t *cu = bl_cuda_driver(err);
  bl_status_t status = cu == NULL ? BL_UNIMPLEMENTED : bl_cuda_make_current(cuda, err);
  CUdeviceptr address = 0;
  if (status == BL_OK && cuda->legacy_ipc) {
    void *whole = NULL;
    status = allocate(cuda, bl_align_up(bytes, cuda->granularity_bytes), &whole, err);
    *base = status == BL_OK ? whole : *base;
    return status;
  }
  if (status == BL_OK) {
    status = bl_cuda_driver_check(
        cu->cuMemAddressReserve(&address, bl_align_up(bytes, cuda->granularity_bytes), cuda->granularity_bytes, 0, 0),
        "cuMemAddressReserve", err);
  }
  if (status == BL_OK) {
    *base = (uint8_t *)(uintptr_t)address;
  }
  return status;
}

void bl__cuda_range_release(bl_device_t *device, uint8_t *base, uint64_t bytes) {
  const bl_cuda_device_t *cuda = bl_cuda_device(device);
  (void)bl_cuda_make_current(cuda, NULL);
  if (cuda->legacy_ipc) {
    (void)cudaFree(base);
    return;
  }
  (void)bl_cuda_driver(NULL)->cuMemAddressFree(address_of(base), bl_align_up(bytes, cuda->granularity_bytes));
}

// Without a stream, operations use the calling thread's own stream.
static cudaStream_t handle_of(const bl_device_stream_t *stream) {
  return stream == NULL ? cudaStreamPerThread : stream->handle;
}

static bl_status_t finish(const bl_device_stream_t *stream, bl_error_t *err) {
  return stream != NULL ? BL_OK
                        : bl_cuda_check(cudaStreamSynchronize(cudaStreamPerThread), "cudaStreamSynchronize", err);
}

// A copy from a GPU to itself runs on its multiprocessors, unless it prefers overlap with compute. Drivers of CUDA 13.1
// and later then use a copy engine. That is slower, but does not take turns with another process that computes.
static bool copy_beside_compute(const bl_device_stream_t *stream, void *to, const void *from, size_t bytes) {
  const bl_cuda_driver_t *cu = bl_cuda_driver(NULL);
  CUdeviceptr destination = address_of(to), source = address_of(from);
  CUmemcpyAttributes how = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
                            .flags = CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE};
  size_t first = 0;
  return cu != NULL && bytes > 0 &&
         cu->cuMemcpyBatchAsync(&destination, &source, &bytes, 1, &how, &first, 1, stream->handle) == CUDA_SUCCESS;
}

bl_status_t bl__cuda_copy(bl_device_t *device, bl_device_stream_t *stream, void *to, const void *from, uint64_t bytes,
                          bl_error_t *err) {
  bl_status_t status = bl_cuda_make_current(bl_cuda_device(device), err);
  if (status == BL_OK && stream != NULL && stream->copies && copy_beside_compute(stream, to, from, bytes)) {
    return BL_OK;
  }
  if (status == BL_OK) {
    status =
        bl_cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, handle_of(stream)), "cudaMemcpyAsync", err);
  }
  return status == BL_OK ? finish(stream, err) : status;
}

bl_status_t bl__cuda_fill(bl_device_t *device, bl_device_stream_t *stream, void *to, uint8_t value, uint64_t bytes,
                          bl_error_t *err) {
  bl_status_t status = bl_cuda_make_current(bl_cuda_device(device), err);
  if (status == BL_OK) {
    status = bl_cuda_check(cudaMemsetAsync(to, value, bytes, handle_of(stream)), "cudaMemsetAsync", err);
  }
  return status == BL_OK ? finish(stream, err) : status;
}
