// SPDX-License-Identifier: Apache-2.0
#include "job/checkpoint_folder.h"

#include "sys/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define STEP_PREFIX    "step-"
#define PARTIAL_MARK   ".partial-"
#define DELETED_SUFFIX ".deleted"
#define EARLIER_PREFIX "earlier-"
#define TRIAL_PREFIX   ".try-"
#define EARLIER_MAX    100000
#define FOLDER_MODE    0777 // minus the user's umask

const char *bl_checkpoint_shard_name(bl_checkpoint_shard_kind_t kind, uint32_t stage, uint32_t stages,
                                     char name[BL_CHECKPOINT_SHARD_BYTES]) {
  snprintf(name, BL_CHECKPOINT_SHARD_BYTES, "%s-%05" PRIu32 "-of-%05" PRIu32 ".safetensors",
           kind == BL_CHECKPOINT_SHARD_WEIGHTS ? "model" : "optimizer", stage + 1, stages);
  return name;
}

static bl_status_t fail(bl_error_t *err, const char *verb, const char *path) {
  int cause = errno;
  return bl_error_set(err, bl_status_from_errno(cause), "%s: cannot %s: %s", path, verb, strerror(cause));
}

static bl_status_t join(char path[PATH_MAX], const char *folder, const char *name, bl_error_t *err) {
  return bl_path_join(path, PATH_MAX, folder, name) == BL_OK
             ? BL_OK
             : bl_error_set(err, BL_INVALID, "%s/%s: the path is too long", folder, name);
}

// ---- entries -------------------------------------------------------------------------------------------------------

typedef enum { OTHER, WHOLE, PARTIAL, DELETED } kind_t;

typedef struct {
  kind_t kind;
  uint64_t step;
  char name[NAME_MAX + 1];
} entry_t;

static kind_t kind_of(const char *name, uint64_t *step) {
  if (strncmp(name, TRIAL_PREFIX, strlen(TRIAL_PREFIX)) == 0) {
    return DELETED; // left by bl_checkpoint_folder_try, whose process may have died before it removed this
  }
  size_t prefix = strlen(STEP_PREFIX);
  if (strncmp(name, STEP_PREFIX, prefix) != 0 || name[prefix] < '0' || name[prefix] > '9') {
    return OTHER;
  }
  char *end;
  errno = 0;
  *step = strtoull(name + prefix, &end, 10);
  if (errno != 0) {
    return OTHER;
  }
  if (strncmp(end, PARTIAL_MARK, strlen(PARTIAL_MARK)) == 0) {
    return PARTIAL;
  }
  return strcmp(end, DELETED_SUFFIX) == 0 ? DELETED : *end == '\0' ? WHOLE : OTHER;
}

static int by_step(const void *a, const void *b) {
  uint64_t left = ((const entry_t *)a)->step, right = ((const entry_t *)b)->step;
  return left < right ? -1 : left > right;
}

static bl_status_t add(entry_t **entries, size_t *count, const char *name, bl_error_t *err) {
  uint64_t step = 0;
  kind_t kind = kind_of(name, &step);
  if (kind == OTHER) {
    return BL_OK;
  }
  entry_t *more = realloc(*entries, (*count + 1) * sizeof **entries);
  if (more == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for a list of checkpoints");
  }
  *entries = more;
  more[*count] = (entry_t){.kind = kind, .step = step};
  snprintf(more[*count].name, sizeof more[*count].name, "%s", name);
  ++*count;
  return BL_OK;
}

// Lists all entries of this format, ascending in step. BL_NOT_FOUND: no folder.
static bl_status_t list(const char *folder, entry_t **entries, size_t *count, bl_error_t *err) {
  *entries = NULL;
  *count = 0;
  DIR *stream = opendir(folder);
  if (stream == NULL) {
    return fail(err, "open the folder", folder);
  }
  bl_status_t status = BL_OK;
  for (;;) {
    errno = 0;
    const struct dirent *item = readdir(stream);
    if (item == NULL) {
      status = errno != 0 ? fail(err, "read the folder", folder) : BL_OK;
      break;
    }
    status = add(entries, count, item->d_name, err);
    if (status != BL_OK) {
      break;
    }
  }
  closedir(stream);
  if (status != BL_OK) {
    free(*entries);
    *entries = NULL;
    *count = 0;
    return status;
  }
  if (*count > 0) {
    qsort(*entries, *count, sizeof **entries, by_step);
  }
  return BL_OK;
}

bl_status_t bl_checkpoint_folder_newest(const char *folder, char path[PATH_MAX], uint64_t *step, bl_error_t *err) {
  entry_t *entries;
  size_t count;
  bl_status_t status = list(folder, &entries, &count, err);
  if (status != BL_OK) {
    return status;
  }
  const entry_t *newest = NULL;
  for (size_t i = 0; i < count; i++) {
    newest = entries[i].kind == WHOLE ? &entries[i] : newest;
  }
  if (newest == NULL) {
    status = bl_error_set(err, BL_NOT_FOUND, "%s: has no checkpoint", folder);
  } else {
    status = join(path, folder, newest->name, err);
    *step = newest->step;
  }
  free(entries);
  return status;
}

bl_status_t bl_checkpoint_folder_before(const char *folder, uint64_t step, uint64_t *before, bl_error_t *err) {
  entry_t *entries;
  size_t count;
  bl_status_t status = list(folder, &entries, &count, err);
  if (status != BL_OK) {
    return status;
  }
  const entry_t *found = NULL;
  for (size_t i = 0; i < count; i++) {
    found = entries[i].kind == WHOLE && entries[i].step < step ? &entries[i] : found;
  }
  if (found == NULL) {
    status = bl_error_set(err, BL_NOT_FOUND, "%s: has no checkpoint before step %" PRIu64, folder, step);
  } else {
    *before = found->step;
  }
  free(entries);
  return status;
}

// ---- syncing, deleting ---------------------------------------------------------------------------------------------

static bl_status_t sync_folder(const char *folder, bl_error_t *err) {
  int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) {
    return fail(err, "open the folder", folder);
  }
  bl_status_t status = fsync(fd) == 0 ? BL_OK : fail(err, "sync the folder", folder);
  close(fd);
  return status;
}

// Deletes a folder of plain files. Of a link to one it deletes the link alone: the files are of somebody else.
static bl_status_t delete_folder(const char *path, bl_error_t *err) {
  struct stat info;
  if (lstat(path, &info) == 0 && S_ISLNK(info.st_mode)) {
    return unlink(path) == 0 ? BL_OK : fail(err, "delete", path);
  }
  DIR *stream = opendir(path);
  if (stream == NULL) {
    return fail(err, "open the folder", path);
  }
  for (const struct dirent *item; (item = readdir(stream)) != NULL;) {
    if (strcmp(item->d_name, ".") != 0 && strcmp(item->d_name, "..") != 0) {
      (void)unlinkat(dirfd(stream), item->d_name, 0); // a file that stays makes rmdir fail
    }
  }
  closedir(stream);
  return rmdir(path) == 0 ? BL_OK : fail(err, "delete", path);
}

// Renames the folder first, so that a process that still writes cannot put anything into a folder that is being
// deleted.
void bl_checkpoint_folder_discard(const char *partial) {
  char doomed[PATH_MAX];
  bool named = (size_t)snprintf(doomed, sizeof doomed, "%s" DELETED_SUFFIX, partial) < sizeof doomed;
  (void)!delete_folder(named && rename(partial, doomed) == 0 ? doomed : partial,
                       NULL); // otherwise the next sweep deletes it
}

// Renames the folder first: a half deleted one must not be taken for a checkpoint.
static bl_status_t delete_checkpoint(const char *folder, const entry_t *entry, bl_error_t *err) {
  char path[PATH_MAX], doomed[PATH_MAX], name[NAME_MAX + sizeof DELETED_SUFFIX];
  snprintf(name, sizeof name, "%s" DELETED_SUFFIX, entry->name);
  bl_status_t status = join(path, folder, entry->name, err);
  if (status == BL_OK) {
    status = join(doomed, folder, name, err);
  }
  if (status == BL_OK && rename(path, doomed) != 0) {
    status = fail(err, "rename for deletion", path);
  }
  if (status == BL_OK) {
    status = sync_folder(folder, err);
  }
  return status == BL_OK ? delete_folder(doomed, err) : status;
}

bl_status_t bl_checkpoint_folder_prune(const char *folder, uint64_t keep, bl_error_t *err) {
  entry_t *entries;
  size_t count;
  bl_status_t status = keep == 0 ? BL_OK : list(folder, &entries, &count, err);
  if (keep == 0 || status != BL_OK) {
    return status;
  }
  uint64_t whole = 0;
  for (size_t i = 0; i < count; i++) {
    whole += entries[i].kind == WHOLE;
  }
  for (size_t i = 0; i < count && whole > keep && status == BL_OK; i++) {
    if (entries[i].kind == WHOLE) {
      status = delete_checkpoint(folder, &entries[i], err);
      whole--;
    }
  }
  free(entries);
  return status;
}

bl_status_t bl_checkpoint_folder_sweep(const char *folder, size_t *count, bl_error_t *err) {
  entry_t *entries;
  size_t entry_count;
  *count = 0;
  bl_status_t status = list(folder, &entries, &entry_count, err);
  if (status == BL_NOT_FOUND) {
    return BL_OK;
  }
  for (size_t i = 0; i < entry_count && status == BL_OK; i++) {
    char path[PATH_MAX];
    if (entries[i].kind == PARTIAL || entries[i].kind == DELETED) {
      status = join(path, folder, entries[i].name, err);
      if (status == BL_OK) {
        status = delete_folder(path, err);
      }
      status = status == BL_NOT_FOUND ? BL_OK : status; // the process that made it was faster
      *count += entries[i].kind == PARTIAL;
    }
  }
  free(entries);
  return status;
}

// Creates a new folder earlier-N.
static bl_status_t make_earlier(const char *folder, char aside[PATH_MAX], bl_error_t *err) {
  for (int i = 1; i < EARLIER_MAX; i++) {
    char name[32];
    snprintf(name, sizeof name, EARLIER_PREFIX "%d", i);
    bl_status_t status = join(aside, folder, name, err);
    if (status != BL_OK) {
      return status;
    }
    if (mkdir(aside, FOLDER_MODE) == 0) {
      return BL_OK;
    }
    if (errno != EEXIST) {
      return fail(err, "create the folder", aside);
    }
  }
  return bl_error_set(err, BL_EXHAUSTED, "%s: has %d folders of earlier runs: tidy up", folder, EARLIER_MAX);
}

// Moves a checkpoint into a folder of its folder. A relative link to anything that stays is made anew, with the same
// target from there.
static bl_status_t move_down(const char *from, const char *to, bl_error_t *err) {
  char target[PATH_MAX], deeper[PATH_MAX + 3];
  uint64_t step;
  const ssize_t length = readlink(from, target, sizeof target - 1);
  target[length < 0 ? 0 : length] = '\0';
  const bool moves = strchr(target, '/') == NULL && kind_of(target, &step) == WHOLE;
  if (length <= 0 || target[0] == '/' || moves) {
    return rename(from, to) == 0 ? BL_OK : fail(err, "set aside", from);
  }
  snprintf(deeper, sizeof deeper, "../%s", target);
  return symlink(deeper, to) == 0 && unlink(from) == 0 ? BL_OK : fail(err, "set aside", from);
}

bl_status_t bl_checkpoint_folder_set_aside(const char *folder, char aside[PATH_MAX], size_t *count, bl_error_t *err) {
  entry_t *entries;
  size_t entry_count;
  *count = 0;
  bl_status_t status = list(folder, &entries, &entry_count, err);
  if (status == BL_NOT_FOUND) {
    return BL_OK;
  }
  for (size_t i = 0; i < entry_count && status == BL_OK; i++) {
    char from[PATH_MAX], to[PATH_MAX];
    if (entries[i].kind != WHOLE) {
      continue;
    }
    status = *count == 0 ? make_earlier(folder, aside, err) : BL_OK;
    if (status == BL_OK) {
      status = join(from, folder, entries[i].name, err);
    }
    if (status == BL_OK) {
      status = join(to, aside, entries[i].name, err);
    }
    if (status == BL_OK) {
      status = move_down(from, to, err);
    }
    ++*count;
  }
  free(entries);
  if (status == BL_OK && *count > 0) {
    status = sync_folder(aside, err);
  }
  return status == BL_OK && *count > 0 ? sync_folder(folder, err) : status;
}

// ---- creating ------------------------------------------------------------------------------------------------------

bl_status_t bl_checkpoint_folder_check(const char *folder, bl_error_t *err) {
  bl_status_t status = bl_folder_check(folder, err);
  return status == BL_OK && access(folder, F_OK) == 0 ? bl_checkpoint_folder_try(folder, err) : status;
}

bl_status_t bl_checkpoint_folder_try(const char *folder, bl_error_t *err) {
  char trial[PATH_MAX];
  bl_status_t status = bl_folder_create(folder, FOLDER_MODE, err);
  if (status != BL_OK) {
    return status;
  }
  status = join(trial, folder, TRIAL_PREFIX "XXXXXX", err);
  if (status == BL_OK && mkdtemp(trial) == NULL) {
    return fail(err, "create anything in the folder", folder);
  }
  if (status == BL_OK) {
    (void)rmdir(trial);
  }
  return status;
}

bl_status_t bl_checkpoint_folder_begin(const char *folder, uint64_t step, uint64_t id, char partial[PATH_MAX],
                                       bl_error_t *err) {
  char name[96];
  bl_status_t status = bl_folder_create(folder, FOLDER_MODE, err);
  if (status != BL_OK) {
    return status;
  }
  snprintf(name, sizeof name, STEP_PREFIX "%06" PRIu64 PARTIAL_MARK "%016" PRIx64, step, id);
  status = join(partial, folder, name, err);
  if (status == BL_OK && mkdir(partial, FOLDER_MODE) != 0) {
    if (errno != EEXIST) {
      return fail(err, "create the folder", partial);
    }
    bl_checkpoint_folder_discard(partial); // left by an attempt of this process that failed
    status = mkdir(partial, FOLDER_MODE) == 0 ? BL_OK : fail(err, "create the folder", partial);
  }
  return status;
}

bl_status_t bl_checkpoint_folder_commit(const char *folder, const char *partial, uint64_t step, char path[PATH_MAX],
                                        bl_error_t *err) {
  char name[64];
  snprintf(name, sizeof name, STEP_PREFIX "%06" PRIu64, step);
  bl_status_t status = join(path, folder, name, err);
  if (status == BL_OK) {
    status = sync_folder(partial, err);
  }
  if (status != BL_OK) {
    return status;
  }
  if (rename(partial, path) != 0) {
    if (errno != ENOTEMPTY && errno != EEXIST) {
      return fail(err, "rename into place", path);
    }
    bl_checkpoint_folder_discard(partial);
    return BL_OK;
  }
  return sync_folder(folder, err);
}
