// SPDX-License-Identifier: Apache-2.0
#include "sys/file.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LINKS_MAX 40 // symbolic links in a row, as the kernel's limit

static bl_status_t fail(bl_error_t *err, const char *verb, const char *path) {
  int cause = errno;
  return bl_error_set(err, bl_status_from_errno(cause), "%s: cannot %s: %s", path, verb, strerror(cause));
}

bl_status_t bl_file_open(const char *path, int *fd, size_t *size_bytes, bl_error_t *err) {
  int opened = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // without it the open of a named pipe waits for a writer
  if (opened < 0) {
    return fail(err, "open", path);
  }
  struct stat info;
  if (fstat(opened, &info) != 0) {
    bl_status_t status = fail(err, "stat", path);
    close(opened);
    return status;
  }
  if (!S_ISREG(info.st_mode)) {
    close(opened);
    return bl_error_set(err, BL_INVALID, "%s: not a regular file%s", path,
                        S_ISFIFO(info.st_mode) ? " but a named pipe, which cannot be mapped; write it to a file" : "");
  }
  (void)fcntl(opened, F_SETFL, 0); // reads block again
  *fd = opened;
  *size_bytes = (size_t)info.st_size;
  return BL_OK;
}

static bl_status_t read_fully(int fd, char *buffer, size_t size_bytes, const char *path, bl_error_t *err) {
  for (size_t done = 0; done < size_bytes;) {
    ssize_t count = read(fd, buffer + done, size_bytes - done);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      return fail(err, "read", path);
    }
    if (count == 0) {
      return bl_error_set(err, BL_IO, "%s: ended after %zu of %zu bytes (changed while being read)", path, done,
                          size_bytes);
    }
    done += (size_t)count;
  }
  return BL_OK;
}

bl_status_t bl_file_read(const char *path, size_t limit_bytes, char **bytes, size_t *size_bytes, bl_error_t *err) {
  int fd;
  size_t size;
  bl_status_t status = bl_file_open(path, &fd, &size, err);
  if (status != BL_OK) {
    return status;
  }
  char *buffer = NULL;
  if (size > limit_bytes) {
    status = bl_error_set(err, BL_EXHAUSTED, "%s: %zu bytes, the limit is %zu", path, size, limit_bytes);
    goto close_file;
  }
  buffer = malloc(size + 1);
  if (buffer == NULL) {
    status = bl_error_set(err, BL_EXHAUSTED, "%s: no memory for %zu bytes", path, size);
    goto close_file;
  }
  status = read_fully(fd, buffer, size, path, err);
  if (status != BL_OK) {
    goto close_file;
  }
  buffer[size] = '\0';
  *bytes = buffer;
  *size_bytes = size;
  buffer = NULL;
close_file:
  free(buffer);
  close(fd);
  return status;
}

static bl_status_t write_fully(int fd, const char *bytes, size_t size_bytes, const char *path, bl_error_t *err) {
  for (size_t done = 0; done < size_bytes;) {
    ssize_t count = write(fd, bytes + done, size_bytes - done);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      return fail(err, "write", path);
    }
    done += (size_t)count;
  }
  return BL_OK;
}

static bl_status_t sync_folder_of(const char *path, bl_error_t *err) {
  char folder[PATH_MAX];
  const char *slash = strrchr(path, '/');
  snprintf(folder, sizeof folder, "%.*s",
           slash == NULL   ? 1
           : slash == path ? 1
                           : (int)(slash - path),
           slash == NULL ? "." : path);
  int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) {
    return fail(err, "open", folder);
  }
  bl_status_t status = fsync(fd) == 0 ? BL_OK : fail(err, "sync", folder);
  close(fd);
  return status;
}

// Returns whether `info` is the file that standard output goes to, as /dev/stdout is.
static bool is_stdout(const struct stat *info) {
  struct stat out;
  return fstat(STDOUT_FILENO, &out) == 0 && out.st_dev == info->st_dev && out.st_ino == info->st_ino;
}

// Writes to a device or a pipe, which keeps its place, or to standard output.
static bl_status_t write_in_place(const char *path, bool to_stdout, const void *bytes, size_t size_bytes,
                                  bl_error_t *err) {
  int fd = to_stdout ? fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0) : open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
  if (fd < 0) {
    return fail(err, "open", path);
  }
  bl_status_t status = write_fully(fd, bytes, size_bytes, path, err);
  if (close(fd) != 0 && status == BL_OK) {
    status = fail(err, "close", path);
  }
  return status;
}

// Follows symbolic links, also to a file that does not exist yet. Other obstacles are left to who opens the file.
static bl_status_t follow_links(const char *path, char target[PATH_MAX], bl_error_t *err) {
  if (snprintf(target, PATH_MAX, "%s", path) >= PATH_MAX) {
    return bl_error_set(err, BL_INVALID, "%s: path too long", path);
  }
  char link[PATH_MAX], folder[PATH_MAX];
  ssize_t length;
  for (int i = 0; (length = readlink(target, link, sizeof link - 1)) >= 0; i++) {
    link[length] = '\0';
    const char *slash = strrchr(target, '/');
    snprintf(folder, sizeof folder, "%.*s", slash == NULL ? 1 : (int)(slash - target) + 1,
             slash == NULL ? "." : target);
    if (i == LINKS_MAX || bl_path_join(target, PATH_MAX, folder, link) != BL_OK) {
      return bl_error_set(err, BL_INVALID, "%s: too many or too long symbolic links", path);
    }
  }
  return BL_OK;
}

bl_status_t bl_file_replace(const char *path, const void *bytes, size_t size_bytes, bl_error_t *err) {
  char target[PATH_MAX], temporary[PATH_MAX];
  struct stat info;
  if (stat(path, &info) == 0 && (!S_ISREG(info.st_mode) || is_stdout(&info))) {
    return write_in_place(path, is_stdout(&info), bytes, size_bytes, err);
  }
  bl_status_t status = follow_links(path, target, err);
  if (status != BL_OK) {
    return status;
  }
  if (snprintf(temporary, sizeof temporary, "%s.tmp-%ld", target, (long)getpid()) >= (int)sizeof temporary) {
    return bl_error_set(err, BL_INVALID, "%s: path too long", path);
  }
  int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) {
    return fail(err, "create", path);
  }
  status = write_fully(fd, bytes, size_bytes, path, err);
  if (status == BL_OK && fsync(fd) != 0) {
    status = fail(err, "sync", path);
  }
  if (close(fd) != 0 && status == BL_OK) {
    status = fail(err, "close", path);
  }
  if (status == BL_OK && rename(temporary, target) != 0) {
    status = fail(err, "rename into place", path);
  }
  if (status != BL_OK) {
    unlink(temporary);
    return status;
  }
  return sync_folder_of(target, err);
}

// As mkdir, but creates nothing.
static int try_mkdir(const char *path) {
  char parent[PATH_MAX];
  struct stat info;
  if (lstat(path, &info) == 0) {
    errno = EEXIST;
    return -1;
  }
  if (errno != ENOENT) {
    return -1;
  }
  snprintf(parent, sizeof parent, "%s", path);
  return faccessat(AT_FDCWD, dirname(parent), W_OK | X_OK, AT_EACCESS);
}

static bl_status_t make_folders(const char *path, bool only_check, unsigned mode, bl_error_t *err) {
  char partial[PATH_MAX];
  size_t length = strlen(path);
  if (length == 0 || length >= sizeof partial) {
    return bl_error_set(err, BL_INVALID, "'%s': not a usable folder name", path);
  }
  memcpy(partial, path, length + 1);
  for (size_t i = 1; i <= length; i++) {
    if (partial[i] != '/' && partial[i] != '\0') {
      continue;
    }
    char saved = partial[i];
    partial[i] = '\0';
    const int made = only_check ? try_mkdir(partial) : mkdir(partial, mode);
    if (made != 0 && errno != EEXIST) {
      return fail(err, "create folder", partial);
    }
    if (made == 0 && only_check) { // nothing below it exists
      return BL_OK;
    }
    partial[i] = saved;
  }
  struct stat info;
  if (stat(path, &info) != 0) {
    return fail(err, "stat", path);
  }
  return S_ISDIR(info.st_mode) ? BL_OK : bl_error_set(err, BL_INVALID, "%s: exists and is not a folder", path);
}

bl_status_t bl_folder_create(const char *path, unsigned mode, bl_error_t *err) {
  return make_folders(path, false, mode, err);
}

bl_status_t bl_folder_check(const char *path, bl_error_t *err) {
  return make_folders(path, true, 0, err);
}

bl_status_t bl_path_join(char *path, size_t path_bytes, const char *folder, const char *name) {
  int length;
  if (name[0] == '/' || folder[0] == '\0') {
    length = snprintf(path, path_bytes, "%s", name);
  } else {
    size_t folder_length = strlen(folder);
    length = snprintf(path, path_bytes, "%s%s%s", folder, folder[folder_length - 1] == '/' ? "" : "/", name);
  }
  return length < 0 || (size_t)length >= path_bytes ? BL_INVALID : BL_OK;
}
