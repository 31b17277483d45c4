// SPDX-License-Identifier: Apache-2.0
// Executes once everything that the chunks of a stage have planned, before any peer waits for it. On a GPU the first
// call of a product, a plan or a kernel loads code and builds tables. That must not happen inside a step while a kernel
// of NCCL waits for a peer.
//
// Thread: the compute thread.
#ifndef BALLAST_EXECUTOR_WARM_H
#define BALLAST_EXECUTOR_WARM_H

#include "executor/engine.h"

// Runs F, R, the backward, loss, squares and the update of every chunk, on arenas that are still zero and are zero
// again afterwards. Call it before weights are loaded. Does nothing on a device without a stream.
BL_MUST_USE bl_status_t bl__engine_warm(bl_engine_t *engine, bl_error_t *err);

#endif
