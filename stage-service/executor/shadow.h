// SPDX-License-Identifier: Apache-2.0
// A copy of weights and moments before an update that is applied ahead of its commit, so that the update can be undone
// to the bit (AdamW has no exact inverse). It lies in engine->shadow, on the device, if the job has
// train.post_validation.
//
//   bl_shadow_keep(engine, err);      // before the update
//   bl_shadow_restore(engine, err);   // when the update is aborted
//
// Thread: the compute thread.
#ifndef BALLAST_EXECUTOR_SHADOW_H
#define BALLAST_EXECUTOR_SHADOW_H

#include "executor/engine.h"

// Makes the copy, ordered before any work queued on the device later. BL_INTERNAL: the device.
BL_MUST_USE bl_status_t bl_shadow_keep(bl_engine_t *engine, bl_error_t *err);
// Restores weights, the packed copies that products read, and moments before it returns. If copies share out the
// masters, products' weights are restored by the next run, as by every run. BL_INTERNAL.
BL_MUST_USE bl_status_t bl_shadow_restore(bl_engine_t *engine, bl_error_t *err);

#endif
