// SPDX-License-Identifier: Apache-2.0
#include "datapath/puller.h"

#include "datapath/mover.h"
#include "datapath/stuck.h"
#include "sys/clock.h"
#include "sys/thread.h"

#include <pthread.h>
#include <stdlib.h>

// Between two checks for newly posted copies, which are queued after the oldest.
#define LOOK_NS (UINT64_C(100) * 1000)
#define PULL_NS (UINT64_C(5) * BL_NS_PER_S)
#define BYTE_NS UINT64_C(20)
// Most time that one wait counts. A longer wait means that this process did not run.
#define COUNTED_NS (UINT64_C(500) * BL_NS_PER_MS)

struct bl_puller {
  bl_mover_t *mover;
  pthread_t thread;
  STAILQ_HEAD(, bl_pull) running; // oldest first; used by the thread only
  unsigned count;
  pthread_mutex_t mutex; // guards the members below
  pthread_cond_t work;
  STAILQ_HEAD(, bl_pull) waiting;
  bool ending;
};

// Returns the next posted copy; NULL: none now. If no copy is running it waits for one, and NULL means the end.
static bl_pull_t *take(bl_puller_t *puller) {
  pthread_mutex_lock(&puller->mutex);
  while (puller->count == 0 && STAILQ_EMPTY(&puller->waiting) && !puller->ending) {
    pthread_cond_wait(&puller->work, &puller->mutex);
  }
  bl_pull_t *pull = STAILQ_FIRST(&puller->waiting);
  if (pull != NULL) {
    STAILQ_REMOVE_HEAD(&puller->waiting, queued);
  }
  pthread_mutex_unlock(&puller->mutex);
  return pull;
}

static void queue(bl_puller_t *puller, bl_pull_t *pull) {
  bl_error_t err = {0};
  if (bl_mover_queue(puller->mover, pull->to, pull->from, pull->bytes, &pull->ticket, &err) != BL_OK) {
    pull->over(pull, &err);
    return;
  }
  pull->left_ns = PULL_NS + pull->bytes * BYTE_NS;
  STAILQ_INSERT_TAIL(&puller->running, pull, queued);
  puller->count++;
}

// Waits a while for the oldest copy. Only that copy's time limit runs.
static void look(bl_puller_t *puller) {
  bl_pull_t *pull = STAILQ_FIRST(&puller->running);
  bl_error_t err = {0};
  const uint64_t start_ns = bl_clock_now_ns();
  if (bl_mover_wait(puller->mover, pull->ticket, start_ns + LOOK_NS, &err) != BL_DEADLINE) {
    STAILQ_REMOVE_HEAD(&puller->running, queued);
    puller->count--;
    pull->over(pull, &err);
    return;
  }
  const uint64_t took_ns = bl_clock_now_ns() - start_ns, counted_ns = took_ns < COUNTED_NS ? took_ns : COUNTED_NS;
  if (counted_ns >= pull->left_ns) {
    (void)bl_error_set(&err, BL_DEADLINE,
                       "cuda-ipc: a copy of %llu bytes from memory of another stage does not end: this process has to",
                       (unsigned long long)pull->bytes);
    bl_stuck_end(NULL, &err);
  }
  pull->left_ns -= counted_ns;
}

static void *work(void *argument) {
  bl_puller_t *puller = argument;
  bl_thread_set_name("bl-pull");
  bl_thread_unpin();
  for (;;) {
    bl_pull_t *pull = puller->count < BL_MOVER_COPIES ? take(puller) : NULL;
    if (pull != NULL) {
      queue(puller, pull);
    } else if (puller->count > 0) {
      look(puller);
    } else {
      return NULL;
    }
  }
}

bl_status_t bl_puller_create(bl_device_t *device, bl_puller_t **out, bl_error_t *err) {
  bl_puller_t *puller = calloc(1, sizeof *puller);
  if (puller == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for copies by cuda-ipc");
  }
  STAILQ_INIT(&puller->running);
  STAILQ_INIT(&puller->waiting);
  pthread_mutex_init(&puller->mutex, NULL);
  pthread_cond_init(&puller->work, NULL);
  bl_status_t status = bl_mover_create(device, &puller->mover, err);
  if (status == BL_OK && pthread_create(&puller->thread, NULL, work, puller) != 0) {
    bl_mover_destroy(puller->mover);
    status = bl_error_set(err, BL_EXHAUSTED, "the system gives no thread for copies by cuda-ipc");
  }
  if (status != BL_OK) {
    pthread_cond_destroy(&puller->work);
    pthread_mutex_destroy(&puller->mutex);
    free(puller);
    return status;
  }
  *out = puller;
  return BL_OK;
}

void bl_puller_destroy(bl_puller_t *puller) {
  if (puller == NULL) {
    return;
  }
  pthread_mutex_lock(&puller->mutex);
  puller->ending = true;
  pthread_cond_signal(&puller->work);
  pthread_mutex_unlock(&puller->mutex);
  pthread_join(puller->thread, NULL);
  bl_mover_destroy(puller->mover);
  pthread_cond_destroy(&puller->work);
  pthread_mutex_destroy(&puller->mutex);
  free(puller);
}

void bl_puller_post(bl_puller_t *puller, bl_pull_t *pull) {
  pthread_mutex_lock(&puller->mutex);
  STAILQ_INSERT_TAIL(&puller->waiting, pull, queued);
  pthread_cond_signal(&puller->work);
  pthread_mutex_unlock(&puller->mutex);
}
