// SPDX-License-Identifier: Apache-2.0
// Stage.Probe: one probe at a time, on a thread of its own, so that neither the loop nor a step waits for it.
// Thread: the loop's.
#ifndef BALLAST_STAGE_SERVICE_PROBE_WIRE_H
#define BALLAST_STAGE_SERVICE_PROBE_WIRE_H

#include "loop/loop.h"
#include "rpc/server.h"
#include "stage.h"

typedef struct bl_prober bl_prober_t;

// The prober listens and is secured as `options` say; their strings are borrowed. Tensors move on `transfer`, which
// outlives it.
BL_MUST_USE bl_status_t bl_prober_create(bl_loop_t *loop, const bl_stage_options_t *options, bl_loop_thread_t *transfer,
                                         bl_prober_t **prober, bl_error_t *err);
// Takes over the call.
void bl_prober_handle(bl_prober_t *self, bl_rpc_call_t *call, const ProtobufCMessage *input);
// Call it after the server has stopped. NULL is fine.
void bl_prober_destroy(bl_prober_t *prober);

#endif
