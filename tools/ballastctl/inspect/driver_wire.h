// SPDX-License-Identifier: Apache-2.0
// A client of ballast.v1.Driver. The watch reconnects by itself and never delivers an event twice.
//
// Thread: the loop's. Callbacks fire on it; none fires after bl_ctl_driver_destroy.
#ifndef BALLAST_BALLASTCTL_DRIVER_WIRE_H
#define BALLAST_BALLASTCTL_DRIVER_WIRE_H

#include "ballastctl/inspect/events.h"

#include "rpc/rpc.h"

#include <jansson.h>

typedef struct bl_ctl_driver bl_ctl_driver_t;

// How long a driver may be unreachable before a watch ends: longer than a restart, shorter than a reader's patience.
#define BL_CTL_WATCH_TIMEOUT_MS 10000

typedef struct bl_ctl_watcher {
  void (*plan)(const bl_ctl_plan_t *plan, void *context);
  void (*step)(const bl_ctl_step_t *step, void *context);
  void (*validation)(const bl_ctl_validation_t *validation, void *context);
  void (*checkpoint)(const bl_ctl_checkpoint_t *checkpoint, void *context);
  void (*phase)(const bl_ctl_phase_t *phase, void *context);
  // The watch has ended: the driver refused it, or was unreachable for BL_CTL_WATCH_TIMEOUT_MS.
  void (*lost)(const bl_error_t *err, void *context);
  void *context;
  bool keeps_record; // `step` and `validation` write a record: the driver's commits wait for them
} bl_ctl_watcher_t;

BL_MUST_USE bl_status_t bl_ctl_driver_create(bl_rpc_t *rpc, const char *address, bl_ctl_driver_t **driver,
                                             bl_error_t *err);
// Cancels all calls in flight: their `done` callbacks fire with BL_CANCELLED before it returns. NULL is fine.
void bl_ctl_driver_destroy(bl_ctl_driver_t *driver);

// Follows the run from its first event on. Call once per driver. Copies `watcher`.
BL_MUST_USE bl_status_t bl_ctl_driver_watch(bl_ctl_driver_t *driver, const bl_ctl_watcher_t *watcher, bl_error_t *err);

// `err->status` is BL_OK on success.
typedef void (*bl_ctl_done_fn)(const bl_error_t *err, void *context);
typedef void (*bl_ctl_text_fn)(const uint8_t *text, size_t text_bytes, void *context);
typedef void (*bl_ctl_trace_fn)(const bl_ctl_trace_event_t *event, void *context);
typedef void (*bl_ctl_json_fn)(json_t *value, const bl_error_t *err, void *context); // borrowed; NULL on error

// Asks the driver to end the run at the next step boundary.
BL_MUST_USE bl_status_t bl_ctl_driver_stop(bl_ctl_driver_t *driver, uint64_t deadline_ms, bl_ctl_done_fn done,
                                           void *context, bl_error_t *err);
// Samples `tokens` tokens of text from a run that has finished.
BL_MUST_USE bl_status_t bl_ctl_driver_generate(bl_ctl_driver_t *driver, uint32_t tokens, uint64_t seed,
                                               double temperature, uint64_t deadline_ms, bl_ctl_text_fn text,
                                               bl_ctl_done_fn done, void *context, bl_error_t *err);
// Reports all operations of the last step, stage by stage.
BL_MUST_USE bl_status_t bl_ctl_driver_trace(bl_ctl_driver_t *driver, uint64_t deadline_ms, bl_ctl_trace_fn event,
                                            bl_ctl_done_fn done, void *context, bl_error_t *err);
// Gets the state of the driver and its stages as JSON.
BL_MUST_USE bl_status_t bl_ctl_driver_status(bl_ctl_driver_t *driver, uint64_t deadline_ms, bl_ctl_json_fn done,
                                             void *context, bl_error_t *err);

#endif
