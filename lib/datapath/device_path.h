// SPDX-License-Identifier: Apache-2.0
// How the memory of a device gets from process to process without passing through the host: the table "datapath" of a
// device's module (device/module.h). The host needs none: its arenas are memfds (shared_map.h).
//
//   const bl_device_path_t *path = bl_device_path_of(device, err);            // NULL: this device has no such paths
//   path->import(device, fd, bytes, &memory, err);                            // a descriptor that came from a peer
//   bl_device_copy(device, stream, slot, memory.base + offset, n, err);       // we pull: the owner of a destination writes it
//   path->release(device, &memory);
//
// Thread: any, as the device; imported memory belongs to one thread at a time.
#ifndef BALLAST_DATAPATH_DEVICE_PATH_H
#define BALLAST_DATAPATH_DEVICE_PATH_H

#include "datapath/nccl/api.h"
#include "device/device.h"

#define BL_DEVICE_PATH_INTERFACE "datapath"
#define BL_GPU_BYTES             40 // of the text that names a GPU

typedef struct bl_device_memory { // of a peer, in the address space of this process
  const uint8_t *base;
  uint64_t bytes;
  uint64_t mapped_bytes, handle; // of the back end
  bool writable;                 // the driver gives no read-only maps: what we do not write stays our own promise
} bl_device_memory_t;

typedef struct bl_device_path {
  // Names the GPU: the same text in every process and container of the machine.
  void (*gpu)(bl_device_t *device, char text[BL_GPU_BYTES]);
  // Whether memory of this device can be handed to other processes. BL_UNIMPLEMENTED with the reason.
  bl_status_t (*exports)(bl_device_t *device, bl_error_t *err);
  // Whether copies of this device can read memory of the GPU of that name. BL_UNIMPLEMENTED: this process does not see it,
  // or there is no way between the two; `err` says which.
  bl_status_t (*reaches)(bl_device_t *device, const char *gpu, bl_error_t *err);
  // Whether it is handed out by name (device/ticket.h) because the driver gives no descriptors. Optional: no.
  bool (*legacy_ipc)(bl_device_t *device);
  // Memory behind a descriptor that a peer exported (bl_arena_t.fd), mapped for reading. The caller keeps the descriptor
  // and may close it. BL_DENIED, BL_INVALID: it is none; BL_UNIMPLEMENTED: of a GPU that this process does not see.
  bl_status_t (*import)(bl_device_t *device, int fd, uint64_t bytes, bl_device_memory_t *memory, bl_error_t *err);
  void (*release)(bl_device_t *device, bl_device_memory_t *memory);
  // Memory of the host that the device shall copy from at full speed, such as a peer's memfd, mapped read-only. A device
  // that cannot pin read-only memory copies from it all the same, slowly: BL_UNIMPLEMENTED.
  bl_status_t (*pin)(bl_device_t *device, const void *base, uint64_t bytes, bl_error_t *err);
  void (*unpin)(bl_device_t *device, const void *base);
  // The library, loaded once per process, with communicators on this device. `shared_gpu`: other ranks of the job run on
  // the same GPU, which NCCL only does over sockets; it holds for the process. BL_UNIMPLEMENTED: it is not there, or not
  // one that fits.
  bl_status_t (*nccl)(bl_device_t *device, bool shared_gpu, const bl_nccl_api_t **api, bl_error_t *err);
  // The version of that library, as NCCL counts; sets nothing up. Failures as `nccl`.
  bl_status_t (*nccl_version)(int *version, bl_error_t *err);
} bl_device_path_t;

// Of the device's module. NULL: the device has none (*err says why; the host's memory needs none).
const bl_device_path_t *bl_device_path_of(const bl_device_t *device, bl_error_t *err);

#endif
