// SPDX-License-Identifier: Apache-2.0
// The communicators of one process over one table of NCCL functions (api.h): made, used, watched and aborted here.
//
//   bl_nccl_engine_create(&(bl_nccl_engine_options_t){.api = api}, &engine, err);
//   bl_nccl_channel_open(engine, &(bl_nccl_channel_options_t){.name = "stage 1 to stage 2", .id = id, .rank = 0}, &channel, err);
//   bl_nccl_channel_wait(channel, deadline_ns, err);               // both ranks are there
//   transfer = (bl_nccl_transfer_t){.buffer = y, .bytes = n, .over = sent};
//   bl_nccl_channel_post(channel, &transfer, err);                 // launched in the order of the posts, which the peer shares
//   ... sent(&transfer) is called, transfer.status says how it went ...
//   bl_nccl_channel_close(channel);
//
// A channel is one direction between two processes: one communicator of two ranks, of which 0 sends and 1 receives. What is
// lost with it is that pair's; the others go on. Post only what the peer posts too: a transfer that the peer never begins
// occupies the device until its deadline.
//
// Threads inside: one launches and polls for all channels, so that a process gives work to NCCL in one order; one watches
// deadlines; an abort has a thread of its own, because it may never return.
//
// Lifetime rules
//   1. The buffer of a transfer belongs to the channel from post until its `over`.
//   2. A channel that fails ends all its transfers, in order, once its abort has returned: with BL_UNAVAILABLE (the peer),
//      BL_DEADLINE, BL_IO (this side) or what close and abort were given. Nothing touches their buffers then.
//   3. When an abort does not return in time, the channel is stuck: its transfers never end, `on_stuck` is called, and the
//      process has to end itself, for NCCL may touch its memory for ever.
//   4. `over` and `on_change` run on a thread of the engine, must not block and must not close channels; they may post.
//
// Thread: any; close and destroy not from callbacks.
#ifndef BALLAST_DATAPATH_NCCL_ENGINE_H
#define BALLAST_DATAPATH_NCCL_ENGINE_H

#include "base/error.h"
#include "datapath/nccl/api.h"
#include "datapath/nccl/life.h"

#include <stddef.h>
#include <sys/queue.h>

#define BL_NCCL_NAME_BYTES 96
#define BL_NCCL_MAX_CTAS   4u // default: a few of more than a hundred multiprocessors
// What one communicator is expected to take of the device's memory, with so few; what it does take, only a GPU can say.
#define BL_NCCL_CHANNEL_BYTES (UINT64_C(64) << 20)

typedef struct bl_nccl_engine bl_nccl_engine_t;
typedef struct bl_nccl_channel bl_nccl_channel_t;

typedef struct bl_nccl_engine_options {
  const bl_nccl_api_t *api;
  bl_nccl_deadlines_t deadlines; // zeros: life.h's
  uint32_t max_ctas;             // 0: BL_NCCL_MAX_CTAS
  void (*on_stuck)(void *context, const bl_error_t *err);
  void *context;
} bl_nccl_engine_options_t;

BL_MUST_USE bl_status_t bl_nccl_engine_create(const bl_nccl_engine_options_t *options, bl_nccl_engine_t **engine,
                                              bl_error_t *err);
// All channels are closed before. NULL is fine.
void bl_nccl_engine_destroy(bl_nccl_engine_t *engine);
const bl_nccl_api_t *bl_nccl_engine_api(const bl_nccl_engine_t *engine);
// An id for one channel, to be told to both of its ends. BL_IO.
BL_MUST_USE bl_status_t bl_nccl_engine_new_id(bl_nccl_engine_t *engine, uint8_t id[BL_NCCL_ID_BYTES], bl_error_t *err);

typedef struct bl_nccl_channel_options {
  const char *name; // which way it is, for messages: "stage 1 to the store at unix:/run/s"
  uint8_t id[BL_NCCL_ID_BYTES];
  int rank;                                                     // 0 sends, 1 receives
  bl_nccl_deadlines_t deadlines;                                // zeros: the engine's
  void (*on_change)(void *context, bl_nccl_channel_t *channel); // it is ready, or dead. May be NULL
  void *context;
} bl_nccl_channel_options_t;

// Begins to make it. BL_EXHAUSTED, BL_INVALID.
BL_MUST_USE bl_status_t bl_nccl_channel_open(bl_nccl_engine_t *engine, const bl_nccl_channel_options_t *options,
                                             bl_nccl_channel_t **channel, bl_error_t *err);
// Until it is ready. BL_DEADLINE: not yet; anything else: it failed, with the cause.
BL_MUST_USE bl_status_t bl_nccl_channel_wait(bl_nccl_channel_t *channel, uint64_t deadline_ns, bl_error_t *err);

typedef struct bl_nccl_transfer bl_nccl_transfer_t;
struct bl_nccl_transfer {
  void *buffer; // of the device; a receive writes it
  uint64_t bytes;
  void (*over)(bl_nccl_transfer_t *transfer);
  bl_status_t status;                    // when over
  STAILQ_ENTRY(bl_nccl_transfer) queued; // the channel's
};
// Behind all that were posted before; also before the channel is ready. Fails with the cause when the channel has failed;
// `over` is not called then.
BL_MUST_USE bl_status_t bl_nccl_channel_post(bl_nccl_channel_t *channel, bl_nccl_transfer_t *transfer, bl_error_t *err);

// Gives it up: everything ends with `cause` once nothing touches memory any more. Returns at once.
void bl_nccl_channel_abort(bl_nccl_channel_t *channel, bl_status_t cause, const char *why);
// The same with BL_CANCELLED, waits for that, and frees it. One that is stuck is left as it is.
void bl_nccl_channel_close(bl_nccl_channel_t *channel); // NULL is fine

// The state; `err` (may be NULL) gets the cause when it failed.
bl_nccl_state_t bl_nccl_channel_state(bl_nccl_channel_t *channel, bl_error_t *err);

typedef struct bl_nccl_counters {
  uint64_t opened, failed, stuck; // channels
  uint64_t transfers, bytes;      // that ended well
} bl_nccl_counters_t;
bl_nccl_counters_t bl_nccl_engine_counters(bl_nccl_engine_t *engine);

#endif
