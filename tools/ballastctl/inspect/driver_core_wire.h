// SPDX-License-Identifier: Apache-2.0
// What the files of the driver's client share.
//
//   driver_wire.c         life, and calls
//   driver_watch_wire.c   the watch: events of the run, once each, and how far its record is written
//   driver_status_wire.c  the driver's status as JSON
//
// Thread: the loop's.
#ifndef BALLAST_BALLASTCTL_DRIVER_CORE_WIRE_H
#define BALLAST_BALLASTCTL_DRIVER_CORE_WIRE_H

#include "ballastctl/inspect/driver_wire.h"

#include "loop/timer.h"
#include "rpc/channel.h"

#include "ballast/v1/driver.pb-c.h"

struct bl_ctl_driver {
  bl_rpc_t *rpc;
  bl_rpc_channel_t *channel;
  bl_ctl_watcher_t watcher;
  bl_timer_t *retry;      // of the watch
  uint64_t away_since_ms; // 0 while the watch is connected
  uint64_t last_step, last_validation;
  uint64_t record;       // our name as the one that keeps the run's record; 0: we keep none
  uint64_t written;      // revision up to which the record is written, as this driver counts
  uint64_t acknowledged; // of that, what the driver has been told
  bool acknowledging, closing;
};

// Watches again; the timer's callback, its context the driver.
void bl__driver_watch_retry(bl_timer_t *timer, void *context);
// The answer of Status. NULL: it holds text that is not UTF-8, or there is no memory. The caller releases it.
json_t *bl__driver_status_json(const Ballast__V1__DriverStatusResponse *response);

#endif
