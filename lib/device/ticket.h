// SPDX-License-Identifier: Apache-2.0
// Tickets: names of device memory in small files. Some drivers share memory by a name instead of a descriptor (CUDA's
// older IPC: 64 bytes that another process passes to its own driver). The name is written to a small file, so that it
// is sent as a descriptor, as all other memory is.
//
//   bl_memory_ticket_write(&(bl_memory_ticket_t){.bytes = n, .offset_bytes = at}, &fd, err);      // with a name
//   if (bl_memory_ticket_read(fd, &ticket)) ticket.name names the memory; else the descriptor is the memory itself
//
// No side effects except the file. Thread: any.
#ifndef BALLAST_DEVICE_TICKET_H
#define BALLAST_DEVICE_TICKET_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

#define BL_MEMORY_NAME_BYTES 64

typedef struct bl_memory_ticket {
  uint8_t name[BL_MEMORY_NAME_BYTES]; // of an allocation
  uint64_t offset_bytes, bytes;       // of the memory in that allocation
} bl_memory_ticket_t;

// Creates the file; the caller owns *fd. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_memory_ticket_write(const bl_memory_ticket_t *ticket, int *fd, bl_error_t *err);
// Returns false if the descriptor is not a ticket.
BL_MUST_USE bool bl_memory_ticket_read(int fd, bl_memory_ticket_t *ticket);

#endif
