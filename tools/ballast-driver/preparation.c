// SPDX-License-Identifier: Apache-2.0
#include "preparation.h"

#include "sys/file.h"
#include "sys/log.h"

#include <stdlib.h>

#define ORDER_LIMIT_BYTES (15u << 20) // a message carries it to the stages (BL_RPC_MESSAGE_LIMIT_BYTES)

static bl_status_t read_order(const char *path, char **order, bl_error_t *err) {
  size_t size;
  bl_status_t status = bl_file_read(path, ORDER_LIMIT_BYTES, order, &size, err);
  return status == BL_OK ? status : bl_error_prefix(err, "--order");
}

// Resolves the job, with the orders that were given.
static bl_status_t resolve_job(bl_preparation_t *self, bl_error_t *err) {
  const bl_text_list_t *paths = self->order_paths;
  char *orders[2] = {NULL, NULL};
  bl_status_t status = BL_OK;
  if (paths->count > 2) {
    return bl_error_set(err, BL_INVALID, "--order: %zu of them; a job has one order or two", paths->count);
  }
  for (size_t i = 0; i < paths->count && status == BL_OK; i++) {
    status = read_order(paths->items[i], &orders[i], err);
  }
  if (status == BL_OK) {
    const bl_training_orders_t brought = {.own = orders[0], .other = orders[1], .all = true};
    status = bl_training_init_with(&self->training, self->job, &brought, err);
  }
  free(orders[0]);
  free(orders[1]);
  return status;
}

// Claims the folder before anything in it is read.
static bl_status_t claim_folder(bl_preparation_t *self, bl_error_t *err) {
  if (bl_checkpoint_claim_take(&self->claim, self->job, err) != BL_OK) {
    return bl_error_prefix(err, "checkpoint.folder");
  }
  if (self->claim.note[0] != '\0') {
    bl_log(BL_LOG_WARNING, "checkpoint.folder: %s: %s", self->job->checkpoint.folder, self->claim.note);
  }
  return BL_OK;
}

static void prepare(bl_task_t *task) {
  bl_preparation_t *self = BL_TASK_OWNER(task, bl_preparation_t, task);
  bl_error_t *err = &self->err;
  if (self->resumes && bl_resume_replace_init(self->job, self->given_init)) {
    bl_log(BL_LOG_WARNING, "the folder of model.init is gone; the model and its other files are those of %s",
           self->job->model.init);
  }
  bl_status_t status = resolve_job(self, err);
  if (status == BL_OK) {
    status = claim_folder(self, err);
  }
  if (status == BL_OK && self->resumes && self->job->checkpoint.folder != NULL) {
    status = bl_resume_find(&self->resume, self->job, &self->training.model, false, err);
    status = status == BL_NOT_FOUND ? BL_OK : status;
  }
  char warning[BL_RESUME_WARNING];
  if (status == BL_OK && bl_resume_warning(&self->resume, self->job, warning)) {
    bl_log(BL_LOG_WARNING, "%s", warning);
  }
  if (status == BL_OK && bl_resume_changes_warning(&self->resume, warning)) {
    bl_log(BL_LOG_WARNING, "%s", warning);
  }
  err->status = status;
}

static void prepared(bl_task_t *task) {
  bl_preparation_t *self = BL_TASK_OWNER(task, bl_preparation_t, task);
  self->running = false;
  if (!self->ended) {
    self->done(self->context);
  }
}

bl_status_t bl_preparation_init(bl_preparation_t *preparation, bl_loop_t *loop, void (*done)(void *context),
                                void *context, bl_error_t *err) {
  preparation->loop = loop;
  preparation->done = done;
  preparation->context = context;
  bl_task_init(&preparation->task, prepare, prepared);
  return bl_worker_create(loop, "order", &preparation->worker, err);
}

void bl_preparation_start(bl_preparation_t *preparation) {
  preparation->running = true;
  bl_worker_submit(preparation->worker, &preparation->task);
}

void bl_preparation_cleanup(bl_preparation_t *preparation) {
  preparation->ended = true;
  if (preparation->worker != NULL) {
    bl_worker_destroy(preparation->worker);
    bl_loop_drain(preparation->loop);
  }
  bl_checkpoint_claim_release(&preparation->claim);
  bl_training_cleanup(&preparation->training);
}
