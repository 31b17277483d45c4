// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/cluster/pod_files.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static size_t file_count(const bl_job_t *job) {
  return job->data.train.count + job->data.validation.files.count + 2;
}

// Returns file or folder `i` of the job and sets its key; NULL: the job has none there.
static const char *file_at(const bl_job_t *job, size_t i, const char **key) {
  const bl_text_list_t *train = &job->data.train, *held_out = &job->data.validation.files;
  if (i < train->count) {
    *key = "data.train";
    return train->items[i];
  }
  i -= train->count;
  if (i < held_out->count) {
    *key = "data.validation";
    return held_out->items[i];
  }
  *key = i == held_out->count ? "model.config" : "model.init";
  return i == held_out->count ? job->model.config : job->model.init;
}

static bool stays(const char *path) {
  return strncmp(path, "/usr/", 5) == 0;
}

// Returns the last part of the path, without slashes after it.
static const char *last_part(const char *path, size_t *length) {
  size_t end = strlen(path);
  while (end > 0 && path[end - 1] == '/') {
    end--;
  }
  size_t begin = end;
  while (begin > 0 && path[begin - 1] != '/') {
    begin--;
  }
  *length = end - begin;
  return path + begin;
}

bl_status_t bl_ctl_pod_file_place(const char *path, const char *folder, char target[PATH_MAX]) {
  size_t length;
  const char *name = last_part(path, &length);
  int size = stays(path) ? snprintf(target, PATH_MAX, "%s", path)
                         : snprintf(target, PATH_MAX, "%s/%.*s", folder, (int)length, name);
  return size < PATH_MAX ? BL_OK : BL_EXHAUSTED;
}

static bool same_file(const char *a, const char *b) {
  struct stat one, other;
  return strcmp(a, b) == 0 ||
         (stat(a, &one) == 0 && stat(b, &other) == 0 && one.st_dev == other.st_dev && one.st_ino == other.st_ino);
}

// Checks file `i`: it has a name, and no other file before it is the same to pods.
static bl_status_t check_file(const bl_job_t *job, const char *folder, size_t i, bl_error_t *err) {
  char target[PATH_MAX], taken[PATH_MAX];
  const char *key, *other_key, *path = file_at(job, i, &key);
  size_t length, other_length;
  if (path == NULL) {
    return BL_OK;
  }
  const char *name = last_part(path, &length);
  if (length == 0 || (length <= 2 && strncmp(name, "..", length) == 0)) {
    return bl_job_fail(job, err, key, "'%.500s' does not end with a name, by which pods find it in %s", path, folder);
  }
  if (bl_ctl_pod_file_place(path, folder, target) != BL_OK) {
    return bl_job_fail(job, err, key, "'%.500s': the path is too long", path);
  }
  for (size_t k = 0; k < i; k++) {
    const char *other = file_at(job, k, &other_key);
    const char *other_name = other == NULL ? NULL : last_part(other, &other_length);
    if (other_name != NULL && other_length == length && strncmp(name, other_name, length) == 0 &&
        bl_ctl_pod_file_place(other, folder, taken) == BL_OK && strcmp(target, taken) == 0 && !same_file(path, other)) {
      return bl_job_fail(job, err, key, "'%.300s' and '%.300s' (%s) would both be %.300s for the pods; rename one",
                         path, other, other_key, target);
    }
  }
  return BL_OK;
}

bl_status_t bl_ctl_pod_files_check(const bl_job_t *job, const char *folder, bl_error_t *err) {
  bl_status_t status = BL_OK;
  for (size_t i = 0; i < file_count(job) && status == BL_OK; i++) {
    status = check_file(job, folder, i, err);
  }
  return status;
}

bool bl_ctl_pod_files_need_volumes(const bl_job_t *job) {
  bool any = job->checkpoint.folder != NULL;
  for (size_t i = 0; i < file_count(job); i++) {
    const char *key, *path = file_at(job, i, &key);
    any = any || (path != NULL && !stays(path));
  }
  return any;
}
