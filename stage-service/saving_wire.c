// SPDX-License-Identifier: Apache-2.0
#include "service_core_wire.h"

void bl__service_copied(void *context) {
  bl_service_t *self = context;
  Ballast__V1__SnapshotResponse output = BALLAST__V1__SNAPSHOT_RESPONSE__INIT;
  bl_waiters_reply(&self->copying, &output.base);
}

void bl__handle_snapshot(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  bl_service_t *self = context;
  const Ballast__V1__SnapshotRequest *request = (const Ballast__V1__SnapshotRequest *)input;
  bl_error_t err = {0};
  switch (bl_stage_snapshot(self->stage, bl__service_identity(request->driver), request->step, &err)) {
  case BL_STAGE_REFUSE:
    bl_rpc_call_fail(call, &err);
    break;
  case BL_STAGE_ANSWER: {
    Ballast__V1__SnapshotResponse output = BALLAST__V1__SNAPSHOT_RESPONSE__INIT;
    bl_rpc_call_reply(call, &output.base);
    break;
  }
  case BL_STAGE_WAIT:
  case BL_STAGE_BEGIN:
    bl_waiters_add(&self->copying, call);
    break;
  }
}

static void reply_written(bl_service_t *self, bl_rpc_call_t *call, bl_waiters_t *waiters) {
  bl_saved_wire_t wire;
  if (!bl_saved_to_wire(bl_stage_saver(self->stage), &wire)) {
    bl_error_t err;
    (void)bl_error_set(&err, BL_INTERNAL, "no memory to say what was written");
    if (call != NULL) {
      bl_rpc_call_fail(call, &err);
    } else {
      bl_waiters_fail(waiters, &err);
    }
    return;
  }
  if (call != NULL) {
    bl_rpc_call_reply(call, &wire.message.base);
  } else {
    bl_waiters_reply(waiters, &wire.message.base);
  }
  bl_saved_wire_cleanup(&wire);
}

void bl__service_written(void *context, const bl_error_t *err) {
  bl_service_t *self = context;
  if (err->status != BL_OK) {
    bl_waiters_fail(&self->writing, err);
  } else {
    reply_written(self, NULL, &self->writing);
  }
}

void bl__handle_write_snapshot(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  bl_service_t *self = context;
  const Ballast__V1__WriteSnapshotRequest *request = (const Ballast__V1__WriteSnapshotRequest *)input;
  bl_saver_request_t save = {
      .step = request->step,
      .folder = request->folder,
      .names = {
          [BL_CHECKPOINT_SHARD_WEIGHTS] = request->weights, [BL_CHECKPOINT_SHARD_OPTIMIZER] = request->optimizer}};
  bl_error_t err = {0};
  switch (bl_stage_write(self->stage, bl__service_identity(request->driver), &save, &err)) {
  case BL_STAGE_REFUSE:
    bl_rpc_call_fail(call, &err);
    break;
  case BL_STAGE_ANSWER:
    reply_written(self, call, NULL);
    break;
  case BL_STAGE_WAIT:
  case BL_STAGE_BEGIN:
    bl_waiters_add(&self->writing, call);
    break;
  }
}
