// SPDX-License-Identifier: Apache-2.0
// Arenas of a CUDA device: the members of bl_device_ops_t for memory.
//
// Device memory is allocated with the driver's virtual memory management. Any piece can be placed at a chosen address
// and shared with another process as a descriptor. If the driver exports no descriptors (bl_cuda_device_t.legacy_ipc),
// shared memory comes from cudaMalloc, its name is sent as a ticket, and a reserved range has all of its memory from
// the start. Staging is memory of the host back end that is registered with the device.
#ifndef BALLAST_DEVICE_CUDA_MEMORY_H
#define BALLAST_DEVICE_CUDA_MEMORY_H

#include "device/device.h"

bl_status_t bl__cuda_arena_map(bl_device_t *device, bl_arena_t *arena, bl_error_t *err);
void bl__cuda_arena_unmap(bl_device_t *device, bl_arena_t *arena);
bl_status_t bl__cuda_range_reserve(bl_device_t *device, uint64_t bytes, uint8_t **base, bl_error_t *err);
void bl__cuda_range_release(bl_device_t *device, uint8_t *base, uint64_t bytes);
bl_status_t bl__cuda_memory(bl_device_t *device, uint64_t *free_bytes, uint64_t *total_bytes, bl_error_t *err);
bl_status_t bl__cuda_copy(bl_device_t *device, bl_device_stream_t *stream, void *to, const void *from, uint64_t bytes,
                          bl_error_t *err);
bl_status_t bl__cuda_fill(bl_device_t *device, bl_device_stream_t *stream, void *to, uint8_t value, uint64_t bytes,
                          bl_error_t *err);

#endif
