// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/job_file.h"

#include "ballastctl/input_file.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Returns the folder of a file as an absolute path without links. The file must exist.
static bl_status_t folder_of(const char *path, char folder[PATH_MAX], bl_error_t *err) {
  char resolved[PATH_MAX];
  if (realpath(path, resolved) == NULL) {
    return bl_error_set(err, BL_NOT_FOUND, "%s: cannot be resolved to an absolute path", path);
  }
  char *slash = strrchr(resolved, '/');
  slash[slash == resolved] = '\0';
  memcpy(folder, resolved, strlen(resolved) + 1);
  return BL_OK;
}

static bl_status_t parse(const bl_option_source_t *file, const bl_text_list_t *given, const char *last, bl_job_t *job,
                         bl_error_t *err) {
  char current[PATH_MAX];
  const char **sets = calloc(given->count + 1, sizeof *sets);
  if (sets == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for %zu times --set", given->count);
  }
  if (getcwd(current, sizeof current) == NULL) {
    const int cause = errno;
    free(sets);
    return bl_error_set(err, bl_status_from_errno(cause), "the current folder cannot be named: %s; change to another",
                        strerror(cause));
  }
  size_t count = 0;
  for (; count < given->count; count++) {
    sets[count] = given->items[count];
  }
  if (last != NULL) {
    sets[count++] = last;
  }
  bl_job_source_t source = {.file = *file, .sets = sets, .set_count = count, .sets_folder = current};
  bl_status_t status = bl_job_parse(job, &source, err);
  free(sets);
  return status;
}

bl_status_t bl_ctl_job_read(const char *path, const bl_text_list_t *sets, const char *last, bl_job_t *job,
                            bl_error_t *err) {
  char *bytes, folder[PATH_MAX];
  size_t size_bytes;
  bl_status_t status = bl_ctl_input_file_read(NULL, path, BL_OPTIONS_FILE_BYTES, &bytes, &size_bytes, err);
  if (status != BL_OK) {
    return status;
  }
  status = folder_of(path, folder, err);
  if (status == BL_OK) {
    bl_option_source_t file = {path, bytes, size_bytes, folder};
    status = parse(&file, sets, last, job, err);
  }
  free(bytes);
  return status;
}

static bl_status_t resolve(const bl_job_t *job, bool all, bl_training_t *training, bl_error_t *err) {
  bl_status_t status = bl_training_init_with(training, job, &(bl_training_orders_t){.all = all}, err);
  if (status == BL_NOT_FOUND || status == BL_DENIED || status == BL_DATA_LOSS || status == BL_IO) {
    return bl_error_set(err, BL_INVALID, "%s", err->text);
  }
  return status;
}

bl_status_t bl_ctl_job_resolve(const bl_job_t *job, bl_training_t *training, bl_error_t *err) {
  return resolve(job, false, training, err);
}

bl_status_t bl_ctl_job_resolve_run(const bl_job_t *job, bl_training_t *training, bl_error_t *err) {
  return resolve(job, true, training, err);
}
