// SPDX-License-Identifier: Apache-2.0
#include "announce_wire.h"

#include "loop/timer.h"
#include "rpc/channel.h"

#include "ballast/v1/store.pb-c.h"

#include <stdlib.h>

#define EVERY_MS 3000 // stores forget a driver that is silent for ten times as long

struct bl_announcer {
  const char *run, *address;
  bl_timer_t *timer;
  bl_rpc_channel_t **stores;
  size_t count;
};

static void answered(const ProtobufCMessage *output, const bl_error_t *err, void *context) {
  (void)output;
  (void)err; // repeated soon
  (void)context;
}

static void announce(bl_timer_t *timer, void *context) {
  (void)timer;
  bl_announcer_t *self = context;
  Ballast__V1__AnnounceRequest request = BALLAST__V1__ANNOUNCE_REQUEST__INIT;
  request.run = (char *)self->run;
  request.driver = (char *)self->address;
  bl_error_t err;
  for (size_t i = 0; i < self->count; i++) {
    (void)!bl_rpc_channel_call(self->stores[i], &ballast__v1__store__descriptor, "Announce", &request.base, EVERY_MS,
                               answered, self, &err);
  }
}

bl_status_t bl_announcer_create(bl_rpc_t *rpc, const bl_job_t *job, const char *run, bl_announcer_t **announcer,
                                bl_error_t *err) {
  bl_announcer_t *made = calloc(1, sizeof *made);
  const size_t count = bl_job_store_count(job);
  if (made != NULL) {
    made->stores = calloc(count + 1, sizeof(bl_rpc_channel_t *));
  }
  if (made == NULL || made->stores == NULL) {
    free(made);
    return bl_error_set(err, BL_EXHAUSTED, "no memory for the stores' addresses");
  }
  made->run = run;
  bl_status_t status = bl_timer_create(bl_rpc_loop(rpc), announce, made, &made->timer, err);
  for (size_t i = 0; i < count && status == BL_OK; i++) {
    status = bl_rpc_channel_create(rpc, bl_job_store(job, i), NULL, &made->stores[i], err);
    made->count = i + (status == BL_OK);
  }
  if (status != BL_OK) {
    bl_announcer_destroy(made);
    return status;
  }
  *announcer = made;
  return BL_OK;
}

void bl_announcer_destroy(bl_announcer_t *announcer) {
  if (announcer == NULL) {
    return;
  }
  bl_timer_destroy(announcer->timer);
  for (size_t i = 0; i < announcer->count; i++) {
    bl_rpc_channel_destroy(announcer->stores[i]);
  }
  free(announcer->stores);
  free(announcer);
}

void bl_announcer_start(bl_announcer_t *announcer, const char *address) {
  announcer->address = address;
  bl_timer_start(announcer->timer, 0, EVERY_MS);
}
