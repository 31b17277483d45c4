// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/output_path.h"

#include "ballastctl/inspect/step_timeline.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bl_status_t cannot(const char *flag, const char *path, int failure, const char *why, bl_error_t *err) {
  return bl_error_set(err, bl_status_from_errno(failure), "--%s %.400s: cannot be written: %s", flag, path, why);
}

// Writes the folder of a file. Returns false if the name is too long.
static bool folder_of(const char *path, char folder[PATH_MAX]) {
  const char *slash = strrchr(path, '/');
  const size_t length = slash == NULL ? 0 : slash == path ? 1 : (size_t)(slash - path);
  if (length >= PATH_MAX) {
    return false;
  }
  (void)snprintf(folder, PATH_MAX, "%.*s", slash == NULL ? 1 : (int)length, slash == NULL ? "." : path);
  return true;
}

// Checks the folder of a file that does not exist yet.
static bl_status_t check_folder(const char *flag, const char *path, bl_error_t *err) {
  char folder[PATH_MAX];
  if (!folder_of(path, folder)) {
    return cannot(flag, path, EINVAL, "the name is too long", err);
  }
  struct stat found;
  if (stat(folder, &found) != 0 && errno == ENOENT) {
    return cannot(flag, path, ENOENT, "its folder does not exist; create it, or name another", err);
  }
  return access(folder, W_OK | X_OK) == 0 ? BL_OK : cannot(flag, path, errno, strerror(errno), err);
}

bl_status_t bl_ctl_output_path_check(const char *flag, const char *path, bl_error_t *err) {
  struct stat found;
  if (path == NULL) {
    return BL_OK;
  }
  if (stat(path, &found) != 0) {
    return errno == ENOENT ? check_folder(flag, path, err) : cannot(flag, path, errno, strerror(errno), err);
  }
  if (S_ISDIR(found.st_mode)) {
    return cannot(flag, path, EINVAL, "it is a folder; name a file in it", err);
  }
  return access(path, W_OK) == 0 ? BL_OK : cannot(flag, path, errno, strerror(errno), err);
}

bl_status_t bl_ctl_picture_path_check(const char *flag, const char *path, bl_error_t *err) {
  if (path != NULL && !bl_ctl_step_timeline_is_picture(path)) {
    return bl_error_set(err, BL_INVALID, "--%s %.400s: the name must end in .svg or .png", flag, path);
  }
  return bl_ctl_output_path_check(flag, path, err);
}

static bool same_inode(const char *a, const char *b, struct stat *found) {
  struct stat other;
  return stat(a, found) == 0 && stat(b, &other) == 0 && found->st_dev == other.st_dev && found->st_ino == other.st_ino;
}

bool bl_ctl_output_path_same(const char *a, const char *b) {
  char folder_a[PATH_MAX], folder_b[PATH_MAX];
  struct stat found;
  if (a == NULL || b == NULL) {
    return false;
  }
  if (same_inode(a, b, &found)) {
    return S_ISREG(found.st_mode);
  }
  if (stat(a, &found) == 0 || stat(b, &found) == 0 || !folder_of(a, folder_a) || !folder_of(b, folder_b)) {
    return false;
  }
  const char *slash_a = strrchr(a, '/'), *slash_b = strrchr(b, '/');
  return strcmp(slash_a == NULL ? a : slash_a + 1, slash_b == NULL ? b : slash_b + 1) == 0 &&
         same_inode(folder_a, folder_b, &found);
}
