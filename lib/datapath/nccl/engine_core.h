// SPDX-License-Identifier: Apache-2.0
// Private to lib/datapath/nccl: the structs of engine.h, shared by engine.c and channel.c. The engine's mutex guards
// all members. It is released around every call of the table and every callback.
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
  bool calling;                                     // a thread is in a call on `comm`
  bool changed;                                     // on_change is due
  bool telling;                                     // a callback runs
  bool ended;                                       // dead, and all callbacks were made
  bool launching;                                   // the last launch is in progress
  bool aborts;                                      // an abort thread was started
  uint64_t looked_ns;                               // when it was last polled for errors
  STAILQ_HEAD(, bl_nccl_transfer) running, waiting; // launched, oldest first; not yet launched
  uint32_t ticket;                                  // of the oldest running transfer
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
  pthread_cond_t clock;   // for the watchdog: deadlines have changed
  pthread_cond_t changed; // for threads that wait for a channel
  STAILQ_HEAD(, bl_nccl_channel) channels;
  bool ending, woken;
  bl_nccl_counters_t counters;
};

// channel.c. Mutex held on entry and exit.
typedef enum bl__nccl_pace { BL__NCCL_IDLE, BL__NCCL_LISTENS, BL__NCCL_WAITS, BL__NCCL_MOVES } bl__nccl_pace_t;
// Performs the work that is due for the channel, and returns how soon to call again.
bl__nccl_pace_t bl__nccl_step(bl_nccl_channel_t *channel);
void bl__nccl_wake(bl_nccl_engine_t *engine); // the launcher checks all channels once more
// Called when a deadline may have passed.
void bl__nccl_tick(bl_nccl_channel_t *channel, uint64_t now_ns);

#endif
