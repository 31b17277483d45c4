// SPDX-License-Identifier: Apache-2.0
#include "saver.h"

#include "sys/file.h"
#include "sys/log.h"

#include <stdlib.h>
#include <string.h>

#define SHARDS 2

struct bl_saver {
  bl_saver_observer_t observer;
  bl_loop_t *loop;
  bl_worker_t *compute, *disk;
  bl_snapshot_t *snapshot; // source of the copy; the engine's
  bl_error_t copy_err;     // why there is no copy, after one that failed
  uint64_t step;           // of the copy, 0: no copy
  bool copying, writing, written;
  bl_task_t copy, write;
  // The files that are being written or were written.
  char folder[PATH_MAX];
  char names[SHARDS][NAME_MAX + 1];
  bl_shard_checksums_t checksums[SHARDS];
  bl_error_t err;
};

static void copy_work(bl_task_t *task) {
  bl_saver_t *saver = BL_TASK_OWNER(task, bl_saver_t, copy);
  bl_error_clear(&saver->copy_err);
  saver->copy_err.status = bl_snapshot_take(saver->snapshot, &saver->copy_err);
}

static void copy_done(bl_task_t *task) {
  bl_saver_t *saver = BL_TASK_OWNER(task, bl_saver_t, copy);
  saver->copying = false;
  if (saver->copy_err.status != BL_OK) {
    bl_log(BL_LOG_ERROR, "copy of step %lu for a checkpoint: %s", (unsigned long)saver->step, saver->copy_err.text);
    saver->step = 0;
  }
  if (saver->observer.copied != NULL) {
    saver->observer.copied(saver->observer.context);
  }
}

static void write_work(bl_task_t *task) {
  bl_saver_t *saver = BL_TASK_OWNER(task, bl_saver_t, write);
  bl_error_clear(&saver->err);
  bl_status_t status = BL_OK;
  for (int i = 0; i < SHARDS && status == BL_OK; i++) {
    char path[PATH_MAX];
    if (bl_path_join(path, sizeof path, saver->folder, saver->names[i]) != BL_OK) {
      status = bl_error_set(&saver->err, BL_INVALID, "%.200s...: the path is too long", saver->folder);
    } else {
      const bl_shard_image_t *image = bl_snapshot_image(saver->snapshot, (bl_checkpoint_shard_kind_t)i);
      status = bl_shard_write(image, path, &saver->checksums[i], &saver->err);
    }
  }
  saver->err.status = status;
}

static void write_done(bl_task_t *task) {
  bl_saver_t *saver = BL_TASK_OWNER(task, bl_saver_t, write);
  saver->writing = false;
  saver->written = saver->err.status == BL_OK;
  if (!saver->written) {
    bl_log(BL_LOG_ERROR, "checkpoint of step %lu: %s", (unsigned long)saver->step, saver->err.text);
  }
  if (saver->observer.written != NULL) {
    saver->observer.written(saver->observer.context, &saver->err);
  }
}

bl_status_t bl_saver_create(bl_loop_t *loop, bl_worker_t *compute, const bl_saver_observer_t *observer,
                            bl_saver_t **saver, bl_error_t *err) {
  bl_saver_t *made = calloc(1, sizeof *made);
  if (made == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for checkpoints");
  }
  *made = (bl_saver_t){.observer = *observer, .loop = loop, .compute = compute};
  bl_task_init(&made->copy, copy_work, copy_done);
  bl_task_init(&made->write, write_work, write_done);
  bl_status_t status = bl_worker_create_resting(loop, "checkpoint", &made->disk, err);
  if (status != BL_OK) {
    free(made);
    return status;
  }
  *saver = made;
  return BL_OK;
}

static void drop_checksums(bl_saver_t *saver) {
  for (int i = 0; i < SHARDS; i++) {
    free(saver->checksums[i].tensors);
    saver->checksums[i] = (bl_shard_checksums_t){0};
  }
}

void bl_saver_destroy(bl_saver_t *saver) {
  if (saver == NULL) {
    return;
  }
  saver->observer = (bl_saver_observer_t){0};
  bl_worker_destroy(saver->disk);
  bl_loop_drain(saver->loop);
  drop_checksums(saver);
  free(saver);
}

bool bl_saver_is_busy(const bl_saver_t *saver) {
  return saver->copying || saver->writing;
}

void bl_saver_forget(bl_saver_t *saver) {
  drop_checksums(saver);
  bl_error_clear(&saver->copy_err);
  saver->step = 0;
  saver->snapshot = NULL;
  saver->written = false;
}

static bl_stage_decision_t refuse(bl_error_t *err, bl_status_t status, const char *text) {
  (void)bl_error_set(err, status, "%s", text);
  return BL_STAGE_REFUSE;
}

bl_stage_decision_t bl_saver_copy(bl_saver_t *saver, bl_snapshot_t *snapshot, uint64_t step, bl_error_t *err) {
  if (saver->step == step && step != 0) {
    saver->written = false; // a driver whose checkpoint failed on another stage has deleted the files of all
    return saver->copying ? BL_STAGE_WAIT : BL_STAGE_ANSWER;
  }
  if (bl_saver_is_busy(saver)) {
    return refuse(err, BL_EXHAUSTED, "the checkpoint before is still being written: ask again");
  }
  bl_saver_forget(saver);
  saver->snapshot = snapshot;
  saver->step = step;
  saver->copying = true;
  bl_worker_submit(saver->compute, &saver->copy);
  return BL_STAGE_BEGIN;
}

static bool is_plain(const char *name) {
  return name[0] != '\0' && name[0] != '.' && strlen(name) <= NAME_MAX && strchr(name, '/') == NULL;
}

static bl_stage_decision_t begin(bl_saver_t *saver, const bl_saver_request_t *request, bl_error_t *err) {
  saver->written = false;
  drop_checksums(saver);
  for (int i = 0; i < SHARDS; i++) {
    size_t count = bl_snapshot_image(saver->snapshot, (bl_checkpoint_shard_kind_t)i)->tensor_count;
    saver->checksums[i].tensors = calloc(count + 1, sizeof *saver->checksums[i].tensors);
    if (saver->checksums[i].tensors == NULL) {
      return refuse(err, BL_INTERNAL, "no memory for the checksums of a checkpoint");
    }
    memcpy(saver->names[i], request->names[i], strlen(request->names[i]) + 1);
  }
  memcpy(saver->folder, request->folder, strlen(request->folder) + 1);
  saver->writing = true;
  bl_worker_submit(saver->disk, &saver->write);
  return BL_STAGE_BEGIN;
}

bl_stage_decision_t bl_saver_write(bl_saver_t *saver, const bl_saver_request_t *request, bl_error_t *err) {
  if (!is_plain(request->names[0]) || !is_plain(request->names[1]) || request->folder[0] != '/' ||
      strlen(request->folder) >= sizeof saver->folder) {
    return refuse(err, BL_INVALID, "a checkpoint needs an absolute folder and two plain names of files");
  }
  if (saver->step == 0 && saver->copy_err.status != BL_OK) {
    return refuse(err, BL_PRECONDITION, saver->copy_err.text);
  }
  if (request->step == 0 || saver->step != request->step || saver->copying) {
    return refuse(err, BL_PRECONDITION, "there is no copy of that step here: ask for Snapshot first");
  }
  bool same = strcmp(saver->folder, request->folder) == 0;
  if (saver->writing) {
    return same ? BL_STAGE_WAIT : refuse(err, BL_UNAVAILABLE, "the copy is still being written to another folder");
  }
  return saver->written && same ? BL_STAGE_ANSWER : begin(saver, request, err);
}

bl_saver_file_t bl_saver_file(const bl_saver_t *saver, bl_checkpoint_shard_kind_t kind) {
  return (bl_saver_file_t){.name = saver->names[kind],
                           .image = bl_snapshot_image(saver->snapshot, kind),
                           .checksums = &saver->checksums[kind]};
}
