// SPDX-License-Identifier: Apache-2.0
#include "sys/lock_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <unistd.h>

bl_status_t bl_lock_try(int fd) {
  struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
  if (fcntl(fd, F_OFD_SETLK, &whole) == 0) {
    return BL_OK;
  }
  switch (errno) {
  case EAGAIN:
  case EACCES:
    return BL_PRECONDITION;
  case ENOLCK:
  case ENOSYS:
  case EOPNOTSUPP:
  case EINVAL:
    return BL_UNIMPLEMENTED;
  default:
    return bl_status_from_errno(errno);
  }
}

// The last holder may have removed the file between open and lock. Then this lock guards nothing.
static bool is_named(int fd, const char *path) {
  struct stat held, named;
  return fstat(fd, &held) == 0 && stat(path, &named) == 0 && held.st_ino == named.st_ino && held.st_dev == named.st_dev;
}

bl_status_t bl_lock_file_open(const char *path, unsigned mode, int *fd) {
  for (;;) {
    int opened = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, mode);
    if (opened < 0) {
      return bl_status_from_errno(errno);
    }
    bl_status_t status = bl_lock_try(opened);
    if (status == BL_OK && is_named(opened, path)) {
      *fd = opened;
      return BL_OK;
    }
    int cause = errno;
    close(opened);
    if (status != BL_OK) {
      errno = cause;
      return status;
    }
  }
}

void bl_lock_file_close(const char *path, int fd) {
  unlink(path); // while it is locked: a process that opens the old file sees that the name is another file and retries
  close(fd);
}
