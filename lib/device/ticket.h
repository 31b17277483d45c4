// SPDX-License-Identifier: Apache-2.0
// Memory of a device that its driver hands out by a name instead of a descriptor (CUDA's older IPC: 64 bytes that another
// process gives to its own driver): the name in a small file, so that it travels as a descriptor, as all other memory does.
//
//   bl_memory_ticket_write(&(bl_memory_ticket_t){.bytes = n, .offset_bytes = at}, &fd, err);      // with a name
//   if (bl_memory_ticket_read(fd, &ticket)) the memory is called so; else the descriptor is the memory itself
//
// Pure but for the file. Thread: any.
#ifndef BALLAST_DEVICE_TICKET_H
#define BALLAST_DEVICE_TICKET_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

#define BL_MEMORY_NAME_BYTES 64

typedef struct bl_memory_ticket {
  uint8_t name[BL_MEMORY_NAME_BYTES]; // of an allocation
  uint64_t offset_bytes, bytes;       // of the memory in it
} bl_memory_ticket_t;

// Makes the file; *fd is the caller's. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_memory_ticket_write(const bl_memory_ticket_t *ticket, int *fd, bl_error_t *err);
// False: it is none.
BL_MUST_USE bool bl_memory_ticket_read(int fd, bl_memory_ticket_t *ticket);

#endif
