// SPDX-License-Identifier: Apache-2.0
#include "job/companions.h"

#include "base/bytes.h"
#include "sys/file.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CONFIG "config.json"

static const char *const names[] = {
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "spiece.model",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tekken.json",
    "chat_template.json",
    "chat_template.jinja",
    "generation_config.json",
};
#define NAMES (sizeof names / sizeof names[0])
_Static_assert(NAMES <= BL_COMPANIONS_MOST, "BL_COMPANIONS_MOST counts the names");

// Finds the folder and the key that names it. Returns false if the job has none, or keeps no checkpoints.
static bool folder_of(const bl_job_t *job, const char **key, char folder[PATH_MAX]) {
  const char *config = job->model.config;
  *key = job->model.init != NULL ? "model.init" : "model.config";
  if (job->checkpoint.folder == NULL || (job->model.init == NULL && config == NULL)) {
    return false;
  }
  const char *slash = job->model.init == NULL ? strrchr(config, '/') : NULL;
  const char *text = job->model.init != NULL ? job->model.init : slash != NULL ? config : ".";
  const size_t length = slash != NULL ? (size_t)(slash - config) + (slash == config) : strlen(text);
  if (length >= PATH_MAX) {
    return false; // cannot happen: files were already read from there
  }
  memcpy(folder, text, length);
  folder[length] = '\0';
  return true;
}

static bl_status_t fail(const char *key, const char *path, const char *what, bl_error_t *err) {
  return bl_error_set(err, BL_INVALID,
                      "%s: %s: %s; checkpoints get a copy of it: repair it, or remove it to continue without", key,
                      path, what);
}

// Sets *size_bytes, to 0 if there is no such file.
static bl_status_t look(const char *key, const char *path, uint64_t *size_bytes, bl_error_t *err) {
  struct stat info;
  *size_bytes = 0;
  if (stat(path, &info) != 0) {
    const int cause = errno;
    if (cause != ENOENT) {
      return fail(key, path, strerror(cause), err);
    }
    return lstat(path, &info) == 0 ? fail(key, path, "is a link to a file that is not there", err) : BL_OK;
  }
  if (!S_ISREG(info.st_mode)) {
    return fail(key, path, "is no regular file", err);
  }
  if (access(path, R_OK) != 0) {
    return fail(key, path, strerror(errno), err);
  }
  *size_bytes = (uint64_t)info.st_size;
  return BL_OK;
}

static bl_status_t read_one(const char *path, bl_companion_t *file, bl_error_t *err) {
  return bl_file_read(path, BL_COMPANIONS_BYTES, &file->bytes, &file->size_bytes, err);
}

// `companions` NULL: only checks.
static bl_status_t visit(bl_companions_t *companions, const bl_job_t *job, bl_error_t *err) {
  const char *key;
  char folder[PATH_MAX], path[PATH_MAX], text[BL_BYTES_TEXT], what[64];
  uint64_t total = 0, size = 0;
  bl_status_t status = BL_OK;
  if (!folder_of(job, &key, folder)) {
    return BL_OK;
  }
  for (size_t i = 0; i < NAMES && status == BL_OK; i++) {
    status = bl_path_join(path, sizeof path, folder, names[i]) == BL_OK
                 ? look(key, path, &size, err)
                 : bl_error_set(err, BL_INVALID, "%s: %s/%s: the path is too long", key, folder, names[i]);
    if (status != BL_OK || size == 0) {
      continue;
    }
    total += size;
    if (total > BL_COMPANIONS_BYTES) {
      snprintf(what, sizeof what, "has %s, all together at most 256 MiB are copied", bl_bytes_format(size, text));
      return fail(key, path, what, err);
    }
    if (companions != NULL) {
      bl_companion_t *file = &companions->files[companions->count++];
      file->name = names[i];
      status = read_one(path, file, err);
    }
  }
  if (status == BL_OK && companions != NULL && bl_path_join(path, sizeof path, folder, CONFIG) == BL_OK) {
    const char *config = job->model.config != NULL && job->model.init == NULL ? job->model.config : path;
    bl_companion_t file = {0};
    status = access(config, F_OK) == 0 ? read_one(config, &file, err) : BL_OK;
    companions->config = file.bytes;
    companions->config_bytes = file.size_bytes;
  }
  return status;
}

bl_status_t bl_companions_check(const bl_job_t *job, bl_error_t *err) {
  return visit(NULL, job, err);
}

bl_status_t bl_companions_read(bl_companions_t *companions, const bl_job_t *job, bl_error_t *err) {
  bl_companions_t read = {0};
  bl_status_t status = visit(&read, job, err);
  if (status != BL_OK) {
    bl_companions_cleanup(&read);
    return status;
  }
  *companions = read;
  return BL_OK;
}

void bl_companions_cleanup(bl_companions_t *companions) {
  for (size_t i = 0; i < companions->count; i++) {
    free(companions->files[i].bytes);
  }
  free(companions->config);
  *companions = (bl_companions_t){0};
}
