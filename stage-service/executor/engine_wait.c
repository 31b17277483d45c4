// SPDX-License-Identifier: Apache-2.0
// The compute thread's waits in a run (engine.h).
#include "executor/engine.h"

#include "sys/clock.h"

// Deadline for all work on a device during a run: queued work may wait for other tensor ranks, which the driver watches.
// An interrupt ends such waits (executor/device_group.h).
#define FINISH_NS      (3600ull * BL_NS_PER_S)
#define POLL_DIRECT_NS UINT64_C(20000)

bl_status_t bl_engine_give(bl_engine_t *engine, bool *pending, bl_error_t *err) {
  *pending = false;
  return engine->meanwhile.give != NULL ? engine->meanwhile.give(engine->meanwhile.context, pending, err) : BL_OK;
}

// When to poll again. What goes to a peer from the device's own memory reaches it within some ten microseconds. Polling
// that often needs a processor, so if the ranks of this machine have few, the longer pause is taken: what is waited for
// needs them more.
static uint64_t next_poll_ns(const bl_engine_t *engine) {
  const bool often = engine->direct_count > 0 && !engine->few_processors;
  return bl_clock_now_ns() + (often ? POLL_DIRECT_NS : BL_ENGINE_POLL_NS);
}

bl_status_t bl_engine_wait_for(bl_engine_t *engine, bl_engine_wait_fn wait, const void *what, uint64_t deadline_ns,
                               bl_error_t *err) {
  for (;;) {
    bool pending;
    bl_status_t status = bl_engine_give(engine, &pending, err);
    if (status != BL_OK) {
      return status;
    }
    const uint64_t poll_ns = next_poll_ns(engine);
    const bool polls = pending && poll_ns < deadline_ns;
    status = wait(engine, what, polls ? poll_ns : deadline_ns, err);
    if (status != BL_DEADLINE || !polls) {
      return status;
    }
    bl_error_clear(err);
  }
}

typedef struct awaited {
  bl_engine_transport_wait_fn wait;
  int32_t peer;
  bl_tensor_key_t key;
} awaited_t;

static bl_status_t wait_for_tensor(bl_engine_t *engine, const void *what, uint64_t deadline_ns, bl_error_t *err) {
  const awaited_t *awaited = what;
  return awaited->wait(engine->transport, awaited->peer, awaited->key, deadline_ns, err);
}

bl_status_t bl_engine_wait_transport(bl_engine_t *engine, bl_engine_transport_wait_fn wait, int32_t peer,
                                     bl_tensor_key_t key, uint64_t deadline_ns, bl_error_t *err) {
  const awaited_t awaited = {.wait = wait, .peer = peer, .key = key};
  return bl_engine_wait_for(engine, wait_for_tensor, &awaited, deadline_ns, err);
}

static bl_status_t wait_for_event(bl_engine_t *engine, const void *what, uint64_t deadline_ns, bl_error_t *err) {
  bl_device_event_t *const *event = what;
  return bl_device_event_wait(engine->device, *event, deadline_ns, err);
}

bl_status_t bl_engine_wait(bl_engine_t *engine, bl_device_event_t *event, uint64_t deadline_ns, bl_error_t *err) {
  return bl_engine_wait_for(engine, wait_for_event, &event, deadline_ns, err);
}

bl_status_t bl_engine_finish(bl_engine_t *engine, bl_error_t *err) {
  engine->drains++;
  bl_status_t status =
      engine->stream == NULL ? BL_OK : bl_device_event_record(engine->device, engine->finished, engine->stream, err);
  if (status == BL_OK && engine->stream != NULL) {
    status = bl_engine_wait(engine, engine->finished, bl_clock_now_ns() + FINISH_NS, err);
  }
  return status == BL_OK ? engine->ops->status(engine->compute, err) : status;
}
