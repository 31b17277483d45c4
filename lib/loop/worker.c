// SPDX-License-Identifier: Apache-2.0
#include "loop/worker.h"

#include "sys/thread.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct bl_worker {
  bl_loop_t *loop;
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  bl_task_t *first, *last; // under lock
  bool ending;             // under lock
  char name[16];           // of the thread
};

static void deliver(bl_message_t *message) {
  bl_task_t *task = BL_MESSAGE_OWNER(message, bl_task_t, message);
  task->done(task);
}

// The next task, or NULL when the worker ends.
static bl_task_t *take(bl_worker_t *worker) {
  pthread_mutex_lock(&worker->lock);
  while (worker->first == NULL && !worker->ending) {
    pthread_cond_wait(&worker->changed, &worker->lock);
  }
  bl_task_t *task = worker->ending ? NULL : worker->first;
  if (task != NULL) {
    worker->first = task->next;
  }
  pthread_mutex_unlock(&worker->lock);
  return task;
}

static void *work(void *argument) {
  bl_worker_t *worker = argument;
  bl_thread_set_name(worker->name);
  for (bl_task_t *task; (task = take(worker)) != NULL;) {
    task->run(task);
    task->message.handle = deliver;
    bl_loop_post(worker->loop, &task->message);
  }
  return NULL;
}

bl_status_t bl_worker_create(bl_loop_t *loop, const char *name, bl_worker_t **worker, bl_error_t *err) {
  bl_worker_t *made = calloc(1, sizeof *made);
  if (made == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for the %s thread", name);
  }
  snprintf(made->name, sizeof made->name, "%s", name);
  made->loop = loop;
  pthread_mutex_init(&made->lock, NULL);
  pthread_cond_init(&made->changed, NULL);
  int failed = pthread_create(&made->thread, NULL, work, made);
  if (failed != 0) {
    pthread_cond_destroy(&made->changed);
    pthread_mutex_destroy(&made->lock);
    free(made);
    return bl_error_set(err, BL_EXHAUSTED, "cannot start the %s thread: %s", name, strerror(failed));
  }
  *worker = made;
  return BL_OK;
}

void bl_worker_destroy(bl_worker_t *worker) {
  if (worker == NULL) {
    return;
  }
  pthread_mutex_lock(&worker->lock);
  worker->ending = true;
  pthread_cond_signal(&worker->changed);
  pthread_mutex_unlock(&worker->lock);
  pthread_join(worker->thread, NULL);
  pthread_cond_destroy(&worker->changed);
  pthread_mutex_destroy(&worker->lock);
  free(worker);
}

void bl_worker_submit(bl_worker_t *worker, bl_task_t *task) {
  task->next = NULL;
  pthread_mutex_lock(&worker->lock);
  if (worker->first == NULL) {
    worker->first = task;
  } else {
    worker->last->next = task;
  }
  worker->last = task;
  pthread_cond_signal(&worker->changed);
  pthread_mutex_unlock(&worker->lock);
}
