// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/run/run_folder.h"

#include "sys/runtime.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define RUN_PREFIX "run-"

// flock(2) on a folder. Its declaration is in <sys/file.h>, which lib/sys/file.h hides from this tree.
static int lock_folder(int fd, int operation) {
  return (int)syscall(SYS_flock, fd, operation);
}

static bool fits(int printed, size_t room) {
  return printed >= 0 && (size_t)printed < room;
}

// Finds the base folder for runs of this user: short enough for the names of sockets in it.
static bl_status_t find_base(char base[BL_CTL_RUN_FOLDER_BYTES], bl_error_t *err) {
  return bl_runtime_path(base, BL_CTL_RUN_FOLDER_BYTES - sizeof "/" RUN_PREFIX "XXXXXX", err);
}

// Returns the environment variable that decided the base folder.
static const char *variable_of(const char *base) {
  static const char name[] = "XDG_RUNTIME_DIR";
  const char *runtime = getenv(name);
  return runtime != NULL && runtime[0] == '/' && strncmp(base, runtime, strlen(runtime)) == 0 ? name : "TMPDIR";
}

// Opens the base folder, created if absent, and locks it. It must belong to us alone, because sockets in it control
// runs.
static bl_status_t open_base(const char *base, int *fd, bl_error_t *err) {
  struct stat stat;
  if (mkdir(base, 0700) != 0 && errno != EEXIST) {
    return bl_error_set(err, bl_status_from_errno(errno),
                        "cannot make %s: %s; set %s to a folder that can be written to", base, strerror(errno),
                        variable_of(base));
  }
  int opened = open(base, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (opened < 0 || fstat(opened, &stat) != 0) {
    int cause = errno;
    if (opened >= 0) {
      close(opened);
    }
    return bl_error_set(err, bl_status_from_errno(cause), "cannot open %s: %s", base, strerror(cause));
  }
  if (stat.st_uid != geteuid() || (stat.st_mode & 077) != 0) {
    close(opened);
    return bl_error_set(err, BL_DENIED, "%s must be a folder of user %u with mode 0700; remove it or set %s", base,
                        (unsigned)geteuid(), variable_of(base));
  }
  if (lock_folder(opened, LOCK_EX) != 0) {
    close(opened);
    return bl_error_set(err, BL_IO, "cannot lock %s: %s", base, strerror(errno));
  }
  *fd = opened;
  return BL_OK;
}

// Removes a folder of files; leaves what it cannot remove.
static void remove_folder(int base_fd, const char *name) {
  int fd = openat(base_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  DIR *listing = fd >= 0 ? fdopendir(fd) : NULL;
  if (listing == NULL) {
    if (fd >= 0) {
      close(fd);
    }
    return;
  }
  for (struct dirent *entry; (entry = readdir(listing)) != NULL;) {
    if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
      unlinkat(fd, entry->d_name, 0);
    }
  }
  closedir(listing);
  unlinkat(base_fd, name, AT_REMOVEDIR);
}

// Returns whether the run of this folder has ended: its lock is free.
static bool is_stale(int base_fd, const char *name) {
  int fd = openat(base_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) {
    return false;
  }
  bool stale = lock_folder(fd, LOCK_SH | LOCK_NB) == 0;
  close(fd);
  return stale;
}

static void remove_stale(int base_fd) {
  int fd = dup(base_fd);
  DIR *listing = fd >= 0 ? fdopendir(fd) : NULL;
  if (listing == NULL) {
    if (fd >= 0) {
      close(fd);
    }
    return;
  }
  rewinddir(listing);
  for (struct dirent *entry; (entry = readdir(listing)) != NULL;) {
    if (strncmp(entry->d_name, RUN_PREFIX, strlen(RUN_PREFIX)) == 0 && is_stale(base_fd, entry->d_name)) {
      remove_folder(base_fd, entry->d_name);
    }
  }
  closedir(listing);
}

// Creates and locks the folder while the base is locked, so that no other process takes it for stale.
static bl_status_t make_locked(bl_ctl_run_folder_t *folder, bl_error_t *err) {
  snprintf(folder->path, sizeof folder->path, "%.*s/" RUN_PREFIX "XXXXXX",
           (int)(sizeof folder->path - sizeof "/" RUN_PREFIX "XXXXXX"), folder->base);
  if (mkdtemp(folder->path) == NULL) {
    return bl_error_set(err, bl_status_from_errno(errno), "cannot make a folder in %s: %s", folder->base,
                        strerror(errno));
  }
  folder->lock_fd = open(folder->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder->lock_fd < 0 || lock_folder(folder->lock_fd, LOCK_EX | LOCK_NB) != 0) {
    return bl_error_set(err, BL_IO, "cannot lock %s: %s", folder->path, strerror(errno));
  }
  return BL_OK;
}

bl_status_t bl_ctl_run_folder_create(bl_ctl_run_folder_t *folder, bl_error_t *err) {
  *folder = (bl_ctl_run_folder_t){.lock_fd = -1};
  bl_status_t status = find_base(folder->base, err);
  if (status != BL_OK) {
    return status;
  }
  status = BL_IO;
  // Another run that ends may remove the base after we opened it and before we create a folder in it.
  for (int attempt = 0; status != BL_OK && attempt < 3; attempt++) {
    int base_fd = -1;
    status = open_base(folder->base, &base_fd, err);
    if (status != BL_OK) {
      return status;
    }
    remove_stale(base_fd);
    status = make_locked(folder, err);
    close(base_fd);
  }
  return status;
}

void bl_ctl_run_folder_remove(bl_ctl_run_folder_t *folder) {
  int base_fd = open(folder->base, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (base_fd >= 0) {
    (void)lock_folder(base_fd, LOCK_EX);
    remove_folder(base_fd, strrchr(folder->path, '/') + 1);
    rmdir(folder->base); // succeeds only if this was the last run
    close(base_fd);
  }
  close(folder->lock_fd);
  folder->lock_fd = -1;
}

void bl_ctl_run_folder_path(const bl_ctl_run_folder_t *folder, const char *name, char path[BL_CTL_RUN_PATH_BYTES]) {
  snprintf(path, BL_CTL_RUN_PATH_BYTES, "%s/%.23s", folder->path, name);
}

bl_status_t bl_ctl_run_folder_write(const bl_ctl_run_folder_t *folder, const char *name, const char *text,
                                    bl_error_t *err) {
  char path[BL_CTL_RUN_PATH_BYTES], temporary[BL_CTL_RUN_PATH_BYTES + 4];
  bl_ctl_run_folder_path(folder, name, path);
  snprintf(temporary, sizeof temporary, "%s.new", path);
  FILE *stream = fopen(temporary, "we");
  bool good = stream != NULL && fputs(text, stream) != EOF;
  good = stream != NULL && fclose(stream) == 0 && good;
  if (!good || rename(temporary, path) != 0) {
    return bl_error_set(err, bl_status_from_errno(errno), "cannot write %s: %s", path, strerror(errno));
  }
  return BL_OK;
}

bl_status_t bl_ctl_run_folder_find(const char *name, char path[BL_CTL_RUN_PATH_BYTES], bl_error_t *err) {
  char base[BL_CTL_RUN_FOLDER_BYTES];
  struct timespec newest = {0};
  bool found = false;
  DIR *listing = find_base(base, NULL) == BL_OK ? opendir(base) : NULL;
  for (struct dirent *entry; listing != NULL && (entry = readdir(listing)) != NULL;) {
    char candidate[BL_CTL_RUN_PATH_BYTES];
    struct stat stat;
    if (strncmp(entry->d_name, RUN_PREFIX, strlen(RUN_PREFIX)) != 0 || is_stale(dirfd(listing), entry->d_name) ||
        !fits(snprintf(candidate, sizeof candidate, "%s/%s/%s", base, entry->d_name, name), sizeof candidate) ||
        lstat(candidate, &stat) != 0 || stat.st_uid != geteuid()) {
      continue;
    }
    bool newer = stat.st_mtim.tv_sec > newest.tv_sec ||
                 (stat.st_mtim.tv_sec == newest.tv_sec && stat.st_mtim.tv_nsec > newest.tv_nsec);
    if (!found || newer) {
      newest = stat.st_mtim;
      memcpy(path, candidate, sizeof candidate);
      found = true;
    }
  }
  if (listing != NULL) {
    closedir(listing);
  }
  if (!found) {
    return bl_error_set(err, BL_NOT_FOUND, "no local run is live; start one, or name a driver with --endpoint ADDRESS");
  }
  return BL_OK;
}
