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

// Checks the folder of a file that does not exist yet.
static bl_status_t check_folder(const char *flag, const char *path, bl_error_t *err) {
  char folder[PATH_MAX];
  const char *slash = strrchr(path, '/');
  const size_t length = slash == NULL ? 0 : slash == path ? 1 : (size_t)(slash - path);
  if (length >= sizeof folder) {
    return cannot(flag, path, EINVAL, "the name is too long", err);
  }
  (void)snprintf(folder, sizeof folder, "%.*s", slash == NULL ? 1 : (int)length, slash == NULL ? "." : path);
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
