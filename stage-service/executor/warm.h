// SPDX-License-Identifier: Apache-2.0
// Everything that the chunks of a stage have planned, once, before anybody waits for it: on a GPU the first call of a product, a plan or
// a kernel loads code and makes tables, which must not happen inside a step beside a kernel of NCCL that waits for a peer.
//
// Thread: the compute thread.
#ifndef BALLAST_EXECUTOR_WARM_H
#define BALLAST_EXECUTOR_WARM_H

#include "executor/engine.h"

// F, R, the backward, loss, squares and the update of every chunk, on arenas that are still zero and are zero again
// afterwards: before weights are loaded. Nothing on a device without a stream.
BL_MUST_USE bl_status_t bl__engine_warm(bl_engine_t *engine, bl_error_t *err);

#endif
