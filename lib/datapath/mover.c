// SPDX-License-Identifier: Apache-2.0
#include "datapath/mover.h"

#include "datapath/stuck.h"

#include <pthread.h>
#include <stdlib.h>

struct bl_mover {
  bl_device_t *device;
  bl_device_stream_t *stream;
  pthread_mutex_t mutex; // guards the stream and the members below
  pthread_cond_t free;
  bl_device_event_t *events[BL_MOVER_COPIES];
  bool used[BL_MOVER_COPIES];
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
  for (unsigned i = 0; i < BL_MOVER_COPIES && status == BL_OK; i++) {
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
  for (unsigned i = 0; i < BL_MOVER_COPIES; i++) {
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
    for (unsigned i = 0; i < BL_MOVER_COPIES; i++) {
      if (!mover->used[i]) {
        mover->used[i] = true;
        return i;
      }
    }
    pthread_cond_wait(&mover->free, &mover->mutex);
  }
}

static void give_event(bl_mover_t *mover, unsigned ticket) {
  mover->used[ticket] = false;
  pthread_cond_signal(&mover->free);
}

bl_status_t bl_mover_queue(bl_mover_t *mover, void *to, const void *from, uint64_t bytes, unsigned *ticket,
                           bl_error_t *err) {
  pthread_mutex_lock(&mover->mutex);
  const unsigned place = take_event(mover);
  bl_status_t status = bl_device_copy(mover->device, mover->stream, to, from, bytes, err);
  if (status == BL_OK) {
    status = bl_device_event_record(mover->device, mover->events[place], mover->stream, err);
    // The copy runs, but no event will report when its memory is free.
    if (status != BL_OK) {
      bl_stuck_end(NULL, err);
    }
  }
  if (status == BL_OK) {
    *ticket = place;
  } else {
    give_event(mover, place);
  }
  pthread_mutex_unlock(&mover->mutex);
  return status;
}

bl_status_t bl_mover_wait(bl_mover_t *mover, unsigned ticket, uint64_t deadline_ns, bl_error_t *err) {
  bl_status_t status = bl_device_event_wait(mover->device, mover->events[ticket], deadline_ns, err);
  if (status != BL_DEADLINE) {
    pthread_mutex_lock(&mover->mutex);
    give_event(mover, ticket);
    pthread_mutex_unlock(&mover->mutex);
  }
  return status;
}

bl_status_t bl_mover_copy(bl_mover_t *mover, void *to, const void *from, uint64_t bytes, bl_error_t *err) {
  unsigned ticket;
  bl_status_t status = bl_mover_queue(mover, to, from, bytes, &ticket, err);
  // A copy engine always completes, or the device fails.
  return status == BL_OK ? bl_mover_wait(mover, ticket, UINT64_MAX, err) : status;
}
