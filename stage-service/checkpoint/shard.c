// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/shard.h"

#include "base/hash.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

// What is handed to the kernel at a time; its way to the disk is started at once, so that the sync at the end has little
// left to do.
#define PIECE_BYTES (8u << 20)

static bl_status_t fail(bl_error_t *err, const char *verb, const char *path) {
  int cause = errno;
  // A limit on the size of files is met like a full disk: make room, or raise it.
  bl_status_t status = cause == EFBIG ? BL_EXHAUSTED : bl_status_from_errno(cause);
  return bl_error_set(err, status, "%s: cannot %s: %s", path, verb, strerror(cause));
}

// Claims the room before anything is written: a disk that is too full is found out at once. Where the file system cannot
// do that, writing will find out.
static bl_status_t claim(int fd, uint64_t size_bytes, const char *path, bl_error_t *err) {
  if (fallocate(fd, 0, 0, (off_t)size_bytes) == 0 || errno == EOPNOTSUPP || errno == ENOSYS || errno == EINTR) {
    return BL_OK;
  }
  return fail(err, "make room", path);
}

static bl_status_t write_pieces(int fd, const bl_shard_image_t *image, const char *path, bl_error_t *err) {
  for (uint64_t done = 0; done < image->size_bytes;) {
    uint64_t left = image->size_bytes - done;
    ssize_t written = write(fd, image->bytes + done, left < PIECE_BYTES ? left : PIECE_BYTES);
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written < 0) {
      return fail(err, "write", path);
    }
    (void)sync_file_range(fd, (off_t)done, written, SYNC_FILE_RANGE_WRITE); // a hint: fsync decides
    done += (uint64_t)written;
  }
  return BL_OK;
}

bl_status_t bl_shard_write(const bl_shard_image_t *image, const char *path, bl_shard_checksums_t *checksums,
                           bl_error_t *err) {
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) {
    return fail(err, "create", path);
  }
  bl_status_t status = claim(fd, image->size_bytes, path, err);
  if (status == BL_OK) {
    status = write_pieces(fd, image, path, err);
  }
  if (status == BL_OK) { // while the disk works
    checksums->head = bl_hash64(image->bytes, image->head_bytes, 0);
    for (size_t i = 0; i < image->tensor_count; i++) {
      const bl_tensor_entry_t *tensor = &image->tensors[i];
      checksums->tensors[i] = bl_hash64(image->bytes + tensor->offset_bytes, tensor->size_bytes, 0);
    }
  }
  if (status == BL_OK && fsync(fd) != 0) {
    status = fail(err, "sync", path);
  }
  if (close(fd) != 0 && status == BL_OK) {
    status = fail(err, "close", path);
  }
  if (status != BL_OK) {
    (void)unlink(path);
  }
  return status;
}
