// SPDX-License-Identifier: Apache-2.0
// A client of ballast.v1.Driver that watches a run, checks what every watcher may rely on, and makes calls.
#ifndef TESTS_DRIVER_WATCHER_WIRE_H
#define TESTS_DRIVER_WATCHER_WIRE_H

#include "rpc/channel.h"

typedef struct watcher {
  bl_rpc_channel_t *channel;
  // What the stream said.
  uint64_t revision, steps, last_step_revision;
  bool plan, ended;
  char phase[32];
  int32_t exit_code;
  // What the last call said.
  bool answered;
  char run[32], waiting_for[160]; // of a Status
  size_t stage_count;
} watcher_t;

// Follows the run; `record` as in WatchRequest.
void watcher_follow(watcher_t *watcher, uint64_t record);
// Each makes one call; `answered` becomes true when it is answered well.
void watcher_ask_status(watcher_t *watcher);
void watcher_acknowledge(watcher_t *watcher, uint64_t record);
void watcher_stop_run(watcher_t *watcher);
void watcher_pause(watcher_t *watcher);

#endif
