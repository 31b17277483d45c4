// SPDX-License-Identifier: Apache-2.0
#include "datapath/mover.h"

#include <pthread.h>
#include <stdlib.h>

#define EVENTS 16u // copies that are waited for at a time; more wait for one of them

struct bl_mover {
  bl_device_t *device;
  bl_device_stream_t *stream;
  pthread_mutex_t mutex; // the stream, and what follows
  pthread_cond_t free;
  bl_device_event_t *events[EVENTS];
  bool used[EVENTS];
};

bl_status_t bl_mover_create(bl_device_t *device, bl_mover_t **out, bl_error_t *err) {
  bl_mover_t *mover = calloc(1, sizeof *mover);
  if (mover == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for a mover");
  }
  mover->device = device;
  pthread_mutex_init(&mover->mutex, NULL);
  pthread_cond_init(&mover->free, NULL);
  bl_status_t status = bl_device_stream_create(device, BL_STREAM_COPY, &mover->stream, err);
  for (unsigned i = 0; i < EVENTS && status == BL_OK; i++) {
    status = bl_device_event_create(device, false, &mover->events[i], err);
  }
  if (status != BL_OK) {
    bl_mover_destroy(mover);
    return status;
  }
  *out = mover;
  return BL_OK;
}

void bl_mover_destroy(bl_mover_t *mover) {
  if (mover == NULL) {
    return;
  }
  for (unsigned i = 0; i < EVENTS; i++) {
    bl_device_event_destroy(mover->device, mover->events[i]);
  }
  bl_device_stream_destroy(mover->device, mover->stream);
  pthread_cond_destroy(&mover->free);
  pthread_mutex_destroy(&mover->mutex);
  free(mover);
}

// Mutex held.
static unsigned take_event(bl_mover_t *mover) {
  for (;;) {
    for (unsigned i = 0; i < EVENTS; i++) {
      if (!mover->used[i]) {
        mover->used[i] = true;
        return i;
      }
    }
    pthread_cond_wait(&mover->free, &mover->mutex);
  }
}

bl_status_t bl_mover_copy(bl_mover_t *mover, void *to, const void *from, uint64_t bytes, bl_error_t *err) {
  pthread_mutex_lock(&mover->mutex);
  unsigned place = take_event(mover);
  bl_device_event_t *event = mover->events[place];
  bl_status_t status = bl_device_copy(mover->device, mover->stream, to, from, bytes, err);
  if (status == BL_OK) {
    status = bl_device_event_record(mover->device, event, mover->stream, err);
  }
  pthread_mutex_unlock(&mover->mutex);
  if (status == BL_OK) { // a copy engine always comes to an end, or the device fails
    status = bl_device_event_wait(mover->device, event, UINT64_MAX, err);
  }
  pthread_mutex_lock(&mover->mutex);
  mover->used[place] = false;
  pthread_cond_signal(&mover->free);
  pthread_mutex_unlock(&mover->mutex);
  return status;
}
