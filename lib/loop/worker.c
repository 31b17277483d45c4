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
  STAILQ_HEAD(, bl_task) tasks; // under lock
  bool ending;                  // under lock
  bool rests;                   // no thread while there are no tasks
  bool working;                 // under lock: the thread will take another task
  bool to_join;                 // a thread was started and not joined
  char name[16];                // of the thread
};

static void deliver(bl_message_t *message) {
  bl_task_t *task = BL_MESSAGE_OWNER(message, bl_task_t, message);
  task->done(task);
}

// Returns the next task, or NULL if the thread should end.
static bl_task_t *take(bl_worker_t *worker) {
  pthread_mutex_lock(&worker->lock);
  while (STAILQ_EMPTY(&worker->tasks) && !worker->ending && !worker->rests) {
    pthread_cond_wait(&worker->changed, &worker->lock);
  }
  bl_task_t *task = worker->ending ? NULL : STAILQ_FIRST(&worker->tasks);
  if (task != NULL) {
    STAILQ_REMOVE_HEAD(&worker->tasks, queued);
  }
  worker->working = task != NULL;
  pthread_mutex_unlock(&worker->lock);
  return task;
}

static void run_all(bl_worker_t *worker) {
  for (bl_task_t *task; (task = take(worker)) != NULL;) {
    task->run(task);
    task->message.handle = deliver;
    bl_loop_post(worker->loop, &task->message);
  }
}

static void *work(void *argument) {
  bl_worker_t *worker = argument;
  bl_thread_set_name(worker->name);
  run_all(worker);
  return NULL;
}

// Returns 0 or the errno value.
static int start(bl_worker_t *worker) {
  if (worker->to_join) {
    pthread_join(worker->thread, NULL); // its tasks are done
  }
  worker->working = true;
  int failed = pthread_create(&worker->thread, NULL, work, worker);
  worker->to_join = failed == 0;
  return failed;
}

bl_status_t bl_worker_create_resting(bl_loop_t *loop, const char *name, bl_worker_t **worker, bl_error_t *err) {
  bl_worker_t *made = calloc(1, sizeof *made);
  if (made == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for the %s thread", name);
  }
  snprintf(made->name, sizeof made->name, "%s", name);
  made->loop = loop;
  made->rests = true;
  STAILQ_INIT(&made->tasks);
  pthread_mutex_init(&made->lock, NULL);
  pthread_cond_init(&made->changed, NULL);
  *worker = made;
  return BL_OK;
}

bl_status_t bl_worker_create(bl_loop_t *loop, const char *name, bl_worker_t **worker, bl_error_t *err) {
  bl_worker_t *made;
  bl_status_t status = bl_worker_create_resting(loop, name, &made, err);
  if (status != BL_OK) {
    return status;
  }
  made->rests = false;
  int failed = start(made);
  if (failed != 0) {
    bl_worker_destroy(made);
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
  if (worker->to_join) {
    pthread_join(worker->thread, NULL);
  }
  pthread_cond_destroy(&worker->changed);
  pthread_mutex_destroy(&worker->lock);
  free(worker);
}

void bl_worker_submit(bl_worker_t *worker, bl_task_t *task) {
  pthread_mutex_lock(&worker->lock);
  STAILQ_INSERT_TAIL(&worker->tasks, task, queued);
  const bool rested = !worker->working;
  pthread_cond_signal(&worker->changed);
  pthread_mutex_unlock(&worker->lock);
  if (rested && start(worker) != 0) {
    run_all(worker);
  }
}
