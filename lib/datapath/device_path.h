// SPDX-License-Identifier: Apache-2.0
// Shares the memory of a device between processes without copies through the host: the table "datapath" of a device's
// module (device/module.h). The host needs none: its arenas are memfds (shared_map.h).
//
//   const bl_device_path_t *path = bl_device_path_of(device, err);       // NULL: this device has no such paths
//   path->import(device, fd, bytes, &memory, err);                       // a descriptor received from a peer
//   bl_device_copy(device, stream, slot, memory.base + offset, n, err);  // pulls: only a destination's owner writes it
//   path->release(device, &memory);
//
// Thread: any, as the device; imported memory belongs to one thread at a time.
#ifndef BALLAST_DATAPATH_DEVICE_PATH_H
#define BALLAST_DATAPATH_DEVICE_PATH_H

#include "datapath/nccl/api.h"
#include "device/device.h"

#define BL_DEVICE_PATH_INTERFACE "datapath"
#define BL_GPU_BYTES             40 // of the text that names a GPU

typedef struct bl_device_memory { // memory of a peer, in the address space of this process
  const uint8_t *base;
  uint64_t mapped_bytes, handle; // of the back end
  bool writable; // the driver gives no read-only maps; only this process's own code refrains from writing
} bl_device_memory_t;

typedef struct bl_device_path {
  // Writes the GPU's name, the same text in every process and container of the machine.
  void (*gpu)(bl_device_t *device, char text[BL_GPU_BYTES]);
  // Returns BL_OK if memory of this device can be shared with other processes, else BL_UNIMPLEMENTED with the reason.
  bl_status_t (*exports)(bl_device_t *device, bl_error_t *err);
  // Returns BL_OK if copies of this device can read memory of the GPU of that name. BL_UNIMPLEMENTED: this process does
  // not see that GPU, or there is no path between the two; `err` says which.
  bl_status_t (*reaches)(bl_device_t *device, const char *gpu, bl_error_t *err);
  // Returns whether memory is shared by name (device/ticket.h) because the driver gives no descriptors. NULL: no.
  bool (*legacy_ipc)(bl_device_t *device);
  // Maps memory for reading from a descriptor that a peer exported (bl_arena_t.fd). The caller keeps the descriptor and
  // may close it. BL_DENIED, BL_INVALID: the descriptor is not such memory; BL_UNIMPLEMENTED: it is memory of a GPU
  // that this process does not see.
  bl_status_t (*import)(bl_device_t *device, int fd, uint64_t bytes, bl_device_memory_t *memory, bl_error_t *err);
  void (*release)(bl_device_t *device, bl_device_memory_t *memory);
  // Pins memory of the host, such as a peer's memfd, mapped read-only, so that the device copies from it at full speed.
  // BL_UNIMPLEMENTED: the device cannot pin read-only memory. It can still copy from it, slowly.
  bl_status_t (*pin)(bl_device_t *device, const void *base, uint64_t bytes, bl_error_t *err);
  void (*unpin)(bl_device_t *device, const void *base);
  // Returns the functions of NCCL for communicators on this device. The library is loaded once per process.
  // `shared_gpu`: other ranks of the job run on the same GPU, which NCCL supports only over sockets; it applies to the
  // whole process. BL_UNIMPLEMENTED: NCCL is missing or does not fit.
  bl_status_t (*nccl)(bl_device_t *device, bool shared_gpu, const bl_nccl_api_t **api, bl_error_t *err);
  // Returns the version of NCCL, as NCCL counts, without any set-up. Failures as `nccl`.
  bl_status_t (*nccl_version)(int *version, bl_error_t *err);
} bl_device_path_t;

// Returns the table of the device's module. NULL: the device has none, and *err says why (the host needs none).
const bl_device_path_t *bl_device_path_of(const bl_device_t *device, bl_error_t *err);

#endif
