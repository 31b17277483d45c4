// SPDX-License-Identifier: Apache-2.0
// The compute thread's waits for its device (engine.h).
#include "executor/engine.h"

#include "sys/clock.h"

// Deadline for all work on a device during a run: queued work may wait for other tensor ranks, which the driver watches.
// An interrupt ends such waits (executor/device_group.h).
#define FINISH_NS (3600ull * BL_NS_PER_S)

bl_status_t bl_engine_give(bl_engine_t *engine, bool *pending, bl_error_t *err) {
  *pending = false;
  return engine->meanwhile.give != NULL ? engine->meanwhile.give(engine->meanwhile.context, pending, err) : BL_OK;
}

bl_status_t bl_engine_wait(bl_engine_t *engine, bl_device_event_t *event, uint64_t deadline_ns, bl_error_t *err) {
  for (;;) {
    bool pending;
    bl_status_t status = bl_engine_give(engine, &pending, err);
    if (status != BL_OK) {
      return status;
    }
    const uint64_t look_ns = bl_clock_now_ns() + BL_ENGINE_LOOK_NS;
    const bool looks = pending && look_ns < deadline_ns;
    status = bl_device_event_wait(engine->device, event, looks ? look_ns : deadline_ns, err);
    if (status != BL_DEADLINE || !looks) {
      return status;
    }
    bl_error_clear(err);
  }
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
