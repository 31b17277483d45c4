// SPDX-License-Identifier: Apache-2.0
#include "pool.h"

#include "sys/thread.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

struct bl_pool {
  bl_loop_t *loop;
  pthread_mutex_t mutex;
  pthread_cond_t wake;
  STAILQ_HEAD(, bl_work) queue;
  atomic_uint waiting;
  bool ending;
  unsigned thread_count;
  pthread_t threads[BL_POOL_THREADS_MAX];
};

static bl_work_t *take(bl_pool_t *pool) {
  pthread_mutex_lock(&pool->mutex);
  while (STAILQ_EMPTY(&pool->queue) && !pool->ending) {
    pthread_cond_wait(&pool->wake, &pool->mutex);
  }
  bl_work_t *work = STAILQ_FIRST(&pool->queue);
  if (work != NULL) {
    STAILQ_REMOVE_HEAD(&pool->queue, queued);
    atomic_fetch_sub_explicit(&pool->waiting, 1, memory_order_relaxed);
  }
  pthread_mutex_unlock(&pool->mutex);
  return work;
}

static void *serve(void *argument) {
  bl_pool_t *pool = argument;
  bl_thread_set_name("transfer");
  bl_work_t *work;
  while ((work = take(pool)) != NULL) {
    work->run(work);
    bl_loop_post(pool->loop, &work->done);
  }
  return NULL;
}

bl_status_t bl_pool_create(bl_loop_t *loop, unsigned threads, bl_pool_t **out, bl_error_t *err) {
  if (threads == 0 || threads > BL_POOL_THREADS_MAX) {
    return bl_error_set(err, BL_INVALID, "%u transfer threads: 1 to %d are possible", threads, BL_POOL_THREADS_MAX);
  }
  bl_pool_t *pool = calloc(1, sizeof *pool);
  if (pool == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for transfer threads");
  }
  pool->loop = loop;
  STAILQ_INIT(&pool->queue);
  pthread_mutex_init(&pool->mutex, NULL);
  pthread_cond_init(&pool->wake, NULL);
  while (pool->thread_count < threads && pthread_create(&pool->threads[pool->thread_count], NULL, serve, pool) == 0) {
    pool->thread_count++;
  }
  if (pool->thread_count < threads) {
    bl_pool_destroy(pool);
    return bl_error_set(err, BL_EXHAUSTED, "the system gives no %u transfer threads", threads);
  }
  *out = pool;
  return BL_OK;
}

void bl_pool_destroy(bl_pool_t *pool) {
  if (pool == NULL) {
    return;
  }
  pthread_mutex_lock(&pool->mutex);
  pool->ending = true;
  pthread_cond_broadcast(&pool->wake);
  pthread_mutex_unlock(&pool->mutex);
  for (unsigned i = 0; i < pool->thread_count; i++) {
    pthread_join(pool->threads[i], NULL);
  }
  pthread_cond_destroy(&pool->wake);
  pthread_mutex_destroy(&pool->mutex);
  free(pool);
}

void bl_pool_submit(bl_pool_t *pool, bl_work_t *work) {
  pthread_mutex_lock(&pool->mutex);
  STAILQ_INSERT_TAIL(&pool->queue, work, queued);
  atomic_fetch_add_explicit(&pool->waiting, 1, memory_order_relaxed);
  pthread_cond_signal(&pool->wake);
  pthread_mutex_unlock(&pool->mutex);
}

bool bl_pool_has_waiting(const bl_pool_t *pool) {
  return atomic_load_explicit(&pool->waiting, memory_order_relaxed) > 0;
}
