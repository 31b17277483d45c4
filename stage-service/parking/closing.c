// SPDX-License-Identifier: Apache-2.0
#include "parking/closing.h"

#include "sys/thread.h"

#include <pthread.h>
#include <stdlib.h>

struct bl_closing {
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  pthread_t thread;
  bl_store_parking_t **parkings; // [m] [capacity] the first `count` wait
  size_t count, capacity;        // [m]
  bool busy, ending;             // [m]
};

static void *serve(void *argument) {
  bl_closing_t *self = argument;
  bl_thread_set_name("closing");
  bl_thread_unpin();
  pthread_mutex_lock(&self->mutex);
  while (self->count > 0 || !self->ending) {
    if (self->count == 0) {
      pthread_cond_wait(&self->changed, &self->mutex);
      continue;
    }
    bl_store_parking_t *parking = self->parkings[0];
    self->count--;
    for (size_t i = 0; i < self->count; i++) {
      self->parkings[i] = self->parkings[i + 1];
    }
    self->busy = true;
    pthread_mutex_unlock(&self->mutex);
    bl_store_parking_destroy(parking);
    pthread_mutex_lock(&self->mutex);
    self->busy = false;
    pthread_cond_broadcast(&self->changed);
  }
  pthread_mutex_unlock(&self->mutex);
  return NULL;
}

bl_status_t bl_closing_create(bl_closing_t **closing, bl_error_t *err) {
  bl_closing_t *made = calloc(1, sizeof *made);
  if (made == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory to close sessions with stores");
  }
  pthread_mutex_init(&made->mutex, NULL);
  pthread_cond_init(&made->changed, NULL);
  if (pthread_create(&made->thread, NULL, serve, made) != 0) {
    pthread_cond_destroy(&made->changed);
    pthread_mutex_destroy(&made->mutex);
    free(made);
    return bl_error_set(err, BL_EXHAUSTED, "the system gives no thread to close sessions with stores");
  }
  *closing = made;
  return BL_OK;
}

void bl_closing_destroy(bl_closing_t *closing) {
  if (closing == NULL) {
    return;
  }
  pthread_mutex_lock(&closing->mutex);
  closing->ending = true;
  pthread_cond_broadcast(&closing->changed);
  pthread_mutex_unlock(&closing->mutex);
  pthread_join(closing->thread, NULL);
  pthread_cond_destroy(&closing->changed);
  pthread_mutex_destroy(&closing->mutex);
  free(closing->parkings);
  free(closing);
}

// [m]
static bool has_room(bl_closing_t *closing) {
  if (closing->count < closing->capacity) {
    return true;
  }
  const size_t capacity = 2 * closing->capacity + 4;
  bl_store_parking_t **parkings = realloc(closing->parkings, capacity * sizeof(bl_store_parking_t *));
  if (parkings != NULL) {
    closing->parkings = parkings;
    closing->capacity = capacity;
  }
  return parkings != NULL;
}

void bl_closing_take(bl_closing_t *closing, bl_store_parking_t *parking) {
  if (parking == NULL) {
    return;
  }
  bl_store_parking_leave(parking);
  pthread_mutex_lock(&closing->mutex);
  const bool room = has_room(closing);
  if (room) {
    closing->parkings[closing->count++] = parking;
    pthread_cond_broadcast(&closing->changed);
  }
  pthread_mutex_unlock(&closing->mutex);
  if (!room) { // then it takes as long as it takes
    bl_store_parking_destroy(parking);
  }
}

void bl_closing_wait(bl_closing_t *closing) {
  pthread_mutex_lock(&closing->mutex);
  while (closing->count > 0 || closing->busy) {
    pthread_cond_wait(&closing->changed, &closing->mutex);
  }
  pthread_mutex_unlock(&closing->mutex);
}
