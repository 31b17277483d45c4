// SPDX-License-Identifier: Apache-2.0
#include "device/ticket.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct { // written and read by processes of one machine and one version
  char magic[16];
  bl_memory_ticket_t ticket;
} file_t;

static const char magic[16] = "ballast-ticket1";

bl_status_t bl_memory_ticket_write(const bl_memory_ticket_t *ticket, int *fd, bl_error_t *err) {
  file_t file = {.ticket = *ticket};
  memcpy(file.magic, magic, sizeof magic);
  // Without MFD_ALLOW_SEALING the file only has F_SEAL_SEAL, so it cannot be mistaken for memory of the host.
  int made = memfd_create("ballast-ticket", MFD_CLOEXEC);
  if (made < 0 || pwrite(made, &file, sizeof file, 0) != (ssize_t)sizeof file) {
    bl_status_t status = bl_error_set(err, BL_EXHAUSTED, "a file for the name of device memory: %s", strerror(errno));
    if (made >= 0) {
      close(made);
    }
    return status;
  }
  *fd = made;
  return BL_OK;
}

bool bl_memory_ticket_read(int fd, bl_memory_ticket_t *ticket) {
  struct stat info;
  file_t file;
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size != (off_t)sizeof file ||
      pread(fd, &file, sizeof file, 0) != (ssize_t)sizeof file || memcmp(file.magic, magic, sizeof magic) != 0) {
    return false;
  }
  *ticket = file.ticket;
  return true;
}
