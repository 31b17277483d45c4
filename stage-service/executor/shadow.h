// SPDX-License-Identifier: Apache-2.0
// A copy of weights and moments as they were before an update that is applied ahead of its commit, so that it can be taken
// back to the bit (AdamW has no exact inverse). It lies in engine->shadow, on the device, where the job has
// train.post_validation.
//
//   bl_shadow_keep(engine, err);      // before the update
//   bl_shadow_restore(engine, err);   // when it is given up
//
// Thread: the compute thread.
#ifndef BALLAST_EXECUTOR_SHADOW_H
#define BALLAST_EXECUTOR_SHADOW_H

#include "executor/engine.h"

// The copy, before whatever the device is told next. BL_INTERNAL: the device.
BL_MUST_USE bl_status_t bl_shadow_keep(bl_engine_t *engine, bl_error_t *err);
// Weights, the packed copies that products read, and moments are as they were kept when this returns. BL_INTERNAL.
BL_MUST_USE bl_status_t bl_shadow_restore(bl_engine_t *engine, bl_error_t *err);

#endif
