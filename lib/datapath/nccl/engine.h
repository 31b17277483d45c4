// SPDX-License-Identifier: Apache-2.0
// The NCCL engine: it creates, uses, watches and aborts the communicators of one process, over one table of NCCL
// functions (api.h).
//
//   bl_nccl_engine_create(&(bl_nccl_engine_options_t){.api = api}, &engine, err);
//   bl_nccl_channel_options_t options = {.name = "stage 1 to stage 2", .id = id, .rank = 0};
//   bl_nccl_channel_open(engine, &options, &channel, err);
//   bl_nccl_channel_wait(channel, deadline_ns, err);               // both ranks exist
//   transfer = (bl_nccl_transfer_t){.buffer = y, .bytes = n, .over = sent};
//   bl_nccl_channel_post(channel, &transfer, err);                 // launched in post order, which the peer shares
//   ... sent(&transfer) is called, transfer.status is the outcome ...
//   bl_nccl_channel_close(channel);
//
// A channel is one direction between two processes: one communicator of two ranks, of which 0 sends and 1 receives. Or
// it is a group: the communicator of several processes, whose collectives the owner puts on a stream of its own
// (bl_nccl_channel_gather, bl_nccl_channel_exchange). A collective has no deadline, because it waits for what its peers
// compute before it; if one is lost, the owner aborts the group, and the streams continue with undefined contents.
//
// A failure affects only that pair or group; other channels continue. Post only what the peer posts too: a transfer that the peer
// never starts occupies the device until its deadline.
//
// Threads inside: one launches and polls for all channels, so that a process passes their transfers to NCCL in one order
// (collectives of a group are passed by its owner's thread). One watches deadlines. Each abort has a thread of its own, because it may never return.
//
// Lifetime rules
//   1. The buffer of a transfer belongs to the channel from post until its `over`.
//   2. A failed channel ends all its transfers, in order, once its abort has returned: with BL_UNAVAILABLE (the peer),
//      BL_DEADLINE, BL_IO (this side) or the cause passed to close or abort. Then nothing touches their buffers.
//   3. If an abort does not return in time, the channel is stuck. Its transfers do not end and `on_stuck` is called.
//      The process then has to end, because NCCL may touch its memory without end.
//   4. `over` and `on_change` run on a thread of the engine. They must not block and must not close channels; they may
//      post.
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
#define BL_NCCL_MAX_CTAS   4u // default: a small part of more than a hundred multiprocessors
// Device memory that one communicator is expected to use with that many CTAs. Only a GPU shows how much it really uses.
#define BL_NCCL_CHANNEL_BYTES (UINT64_C(64) << 20)
#define BL_NCCL_GROUP_BYTES   (UINT64_C(512) << 20) // the same for the communicator of a group

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
// All channels must be closed before. NULL is allowed.
void bl_nccl_engine_destroy(bl_nccl_engine_t *engine);
// Called before channels are opened if work on the device may wait for peers (collectives of a group): calls that wait
// for the device, as those that end a communicator, may take as long, within BL_NCCL_WAITING_ABORT_NS.
void bl_nccl_engine_expect_waits(bl_nccl_engine_t *engine);
const bl_nccl_api_t *bl_nccl_engine_api(const bl_nccl_engine_t *engine);
// Draws an id for one channel, which both of its ends need. BL_IO.
BL_MUST_USE bl_status_t bl_nccl_engine_new_id(bl_nccl_engine_t *engine, uint8_t id[BL_NCCL_ID_BYTES], bl_error_t *err);

typedef struct bl_nccl_channel_options {
  const char *name; // its direction, for messages: "stage 1 to the store at unix:/run/s"
  uint8_t id[BL_NCCL_ID_BYTES];
  int rank;                      // 0 sends, 1 receives; of a group: below group_ranks
  uint32_t group_ranks;          // at least 2; 0: a channel
  bl_nccl_deadlines_t deadlines; // zeros: the engine's
  // The channel is ready or dead. May be NULL.
  void (*on_change)(void *context, bl_nccl_channel_t *channel);
  void *context;
} bl_nccl_channel_options_t;

// Starts to create a channel. BL_EXHAUSTED, BL_INVALID.
BL_MUST_USE bl_status_t bl_nccl_channel_open(bl_nccl_engine_t *engine, const bl_nccl_channel_options_t *options,
                                             bl_nccl_channel_t **channel, bl_error_t *err);
// Waits until the channel is ready. BL_DEADLINE: not yet; any other status: it failed, with the cause.
BL_MUST_USE bl_status_t bl_nccl_channel_wait(bl_nccl_channel_t *channel, uint64_t deadline_ns, bl_error_t *err);

typedef struct bl_nccl_transfer bl_nccl_transfer_t;
struct bl_nccl_transfer {
  void *buffer; // of the device; a receive writes it
  uint64_t bytes;
  void (*over)(bl_nccl_transfer_t *transfer);
  // Set before `over` is called.
  bl_status_t status;
  STAILQ_ENTRY(bl_nccl_transfer) queued; // private to the channel
};
// Queues a transfer after all that were posted before, even before the channel is ready. Fails with the cause if the
// channel has failed; `over` is then not called.
BL_MUST_USE bl_status_t bl_nccl_channel_post(bl_nccl_channel_t *channel, bl_nccl_transfer_t *transfer, bl_error_t *err);

// Of a group that is ready, from one thread at a time: puts a collective on the stream (api.h) and returns once it is
// there. Fails with the cause if the group has failed. That a collective has been put there says nothing of its peers.
BL_MUST_USE bl_status_t bl_nccl_channel_gather(bl_nccl_channel_t *group, bl_device_stream_t *stream, void *window,
                                               uint64_t block_bytes, bl_error_t *err);
BL_MUST_USE bl_status_t bl_nccl_channel_exchange(bl_nccl_channel_t *group, bl_device_stream_t *stream,
                                                 const bl_nccl_piece_t *pieces, uint32_t count, bl_error_t *err);
// Of a group: asks NCCL, and returns why the group has failed, or BL_OK.
BL_MUST_USE bl_status_t bl_nccl_channel_check(bl_nccl_channel_t *group, bl_error_t *err);

// Aborts the channel: everything on it ends with `cause` once nothing touches memory any more. Returns at once.
void bl_nccl_channel_abort(bl_nccl_channel_t *channel, bl_status_t cause, const char *why);
// Aborts the channel with BL_CANCELLED, waits for the end, and frees it. A stuck channel is not freed.
void bl_nccl_channel_close(bl_nccl_channel_t *channel); // NULL is allowed

// Returns the state. `err` (may be NULL) gets the cause if the channel failed.
bl_nccl_state_t bl_nccl_channel_state(bl_nccl_channel_t *channel, bl_error_t *err);

typedef struct bl_nccl_counters {
  uint64_t opened, failed, stuck; // channels
  // Of transfers that succeeded.
  uint64_t transfers, bytes;
} bl_nccl_counters_t;
bl_nccl_counters_t bl_nccl_engine_counters(bl_nccl_engine_t *engine);

#endif
