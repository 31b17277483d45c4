// SPDX-License-Identifier: Apache-2.0
// Inside of engine.h, shared by engine.c and channel.c. Everything under the engine's mutex, which is given back around
// every call of the table and every callback.
#ifndef BALLAST_DATAPATH_NCCL_ENGINE_CORE_H
#define BALLAST_DATAPATH_NCCL_ENGINE_CORE_H

#include "datapath/nccl/engine.h"

#include <pthread.h>

struct bl_nccl_channel {
  bl_nccl_engine_t *engine;
  STAILQ_ENTRY(bl_nccl_channel) listed;
  char name[BL_NCCL_NAME_BYTES];
  bl_nccl_channel_options_t options;
  bl_nccl_life_t life;
  bl_nccl_comm_t *comm;
  bl_error_t err; // why it failed
  bool create_due, greeted;
  bool calling;                                     // the launcher is in a call about `comm`
  bool changed;                                     // on_change is due
  bool telling;                                     // a callback runs
  bool ended;                                       // dead, and everything was told
  bool launching;                                   // the last launch is in progress
  bool aborts;                                      // the abort has a thread
  uint64_t looked_ns;                               // when it was last asked about errors
  STAILQ_HEAD(, bl_nccl_transfer) running, waiting; // launched, oldest first; and not
  uint32_t ticket, queued;                          // of the oldest that runs
  pthread_t abort_thread;
};

struct bl_nccl_engine {
  const bl_nccl_api_t *api;
  bl_nccl_deadlines_t deadlines;
  uint32_t max_ctas;
  void (*on_stuck)(void *context, const bl_error_t *err);
  void *context;
  pthread_t launcher, watchdog;
  pthread_mutex_t mutex;
  pthread_cond_t work;    // for the launcher
  pthread_cond_t clock;   // for the watchdog: deadlines are others now
  pthread_cond_t changed; // for those who wait for a channel
  STAILQ_HEAD(, bl_nccl_channel) channels;
  bool ending, woken;
  bl_nccl_counters_t counters;
};

// channel.c. Mutex held on entry and exit.
typedef enum bl__nccl_pace { BL__NCCL_IDLE, BL__NCCL_LISTENS, BL__NCCL_WAITS, BL__NCCL_MOVES } bl__nccl_pace_t;
// Does what is to be done for the channel now, and says how soon to come back.
bl__nccl_pace_t bl__nccl_step(bl_nccl_channel_t *channel);
void bl__nccl_wake(bl_nccl_engine_t *engine); // the launcher looks at all channels again
// A deadline has passed, perhaps.
void bl__nccl_tick(bl_nccl_channel_t *channel, uint64_t now_ns);

#endif
