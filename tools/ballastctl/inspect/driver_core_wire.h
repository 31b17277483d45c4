// SPDX-License-Identifier: Apache-2.0
// Shared by the files of the driver's client.
//
//   driver_wire.c         create, destroy and calls
//   driver_watch_wire.c   the watch: events of the run, each once, and how far its record is written
//   driver_status_wire.c  the driver's status as JSON
//
// Thread: the loop's.
#ifndef BALLAST_BALLASTCTL_DRIVER_CORE_WIRE_H
#define BALLAST_BALLASTCTL_DRIVER_CORE_WIRE_H

#include "ballastctl/inspect/driver_wire.h"

#include "loop/timer.h"
#include "model/grid.h"
#include "rpc/channel.h"

#include "ballast/v1/driver.pb-c.h"

struct bl_ctl_driver {
  bl_rpc_t *rpc;
  bl_rpc_channel_t *channel;
  bl_ctl_watcher_t watcher;
  bl_timer_t *retry;      // of the watch
  uint64_t away_since_ms; // 0 while the watch is connected
  uint64_t last_step, last_validation;
  uint64_t record;       // our id as the process that keeps the run's record; 0: we keep none
  uint64_t written;      // revision up to which the record is written, as this driver counts revisions
  uint64_t acknowledged; // the revision that the driver was last notified of
  bool acknowledging, closing;
};

// Connects the watch after a failure; the timer's callback, with the driver as context.
void bl__driver_watch_retry(bl_timer_t *timer, void *context);
// Returns the response of Status as JSON, a new reference. NULL: it holds text that is not UTF-8 or ranks that no run
// has, or there is no memory.
json_t *bl__driver_status_json(const Ballast__V1__DriverStatusResponse *response);
// Reads the ranks of a message of Trace; no stages: each rank is one. False: no run has such ranks.
bool bl__driver_trace_grid(const Ballast__V1__DriverTraceResponse *response, bl_grid_t *grid);

#endif
