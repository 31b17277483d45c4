// SPDX-License-Identifier: Apache-2.0
// The table of NCCL functions that the NCCL path needs. The CUDA module fills it with the library's own. Tests fill it
// with functions that never complete, fail or die on request. No NCCL type is visible outside the module.
//
// A communicator is that of a channel or of a group. A channel has two ranks: 0 sends, 1 receives, on a stream that the
// implementation owns, with events that mark the end of its transfers. A group has any number of ranks, whose
// collectives run on a stream of the caller.
//
// Communicators are non-blocking: every call returns at once. If the call is not over, it returns BL_NCCL_IN_PROGRESS,
// and `poll` returns its result later. What is put on the stream of a collective next, is put there once the call is
// over.
//
// Thread: calls on one communicator come from one thread at a time, except `abort`. It comes from a thread of its own
// while no other call on that communicator is in progress, or when such a call has not returned for too long.
#ifndef BALLAST_DATAPATH_NCCL_API_H
#define BALLAST_DATAPATH_NCCL_API_H

#include "device/device.h"

#include <stdbool.h>
#include <stdint.h>

#define BL_NCCL_ID_BYTES   128 // of a unique id
#define BL_NCCL_TEXT_BYTES 256 // of the cause of a failure
#define BL_NCCL_IN_FLIGHT  16u // transfers per communicator that are launched and not over
// Size of a communicator's first transfer, between buffers of the implementation: with it NCCL connects two ranks.
#define BL_NCCL_GREETING_BYTES 16u
#define BL_NCCL_GROUP_RANKS    64u // of a group, at most

typedef struct bl_nccl_comm bl_nccl_comm_t; // defined by the implementation

typedef enum bl_nccl_result {
  BL_NCCL_DONE,
  BL_NCCL_IN_PROGRESS,
  BL_NCCL_PEER_FAILED, // the other rank, or the connection to it, failed
  BL_NCCL_BROKEN,      // this side failed
} bl_nccl_result_t;

typedef struct bl_nccl_config {
  uint32_t group_ranks;        // of a group; 0: a channel
  uint32_t min_ctas, max_ctas; // blocks of threads that a transfer occupies; 0: the library decides
  const char *name;            // of the communicator, in the library's own messages
} bl_nccl_config_t;

// What a rank of a group sends to, or receives from, another one.
typedef struct bl_nccl_piece {
  void *buffer; // of the device
  uint64_t bytes;
  uint32_t rank;
  bool sends;
} bl_nccl_piece_t;

typedef struct bl_nccl_api {
  int version; // as NCCL counts: 22809 is 2.28.9
  // Creates a unique id. All functions write the cause of a failure to `text`, of BL_NCCL_TEXT_BYTES.
  bl_nccl_result_t (*new_id)(const struct bl_nccl_api *api, uint8_t id[BL_NCCL_ID_BYTES], char *text);
  // Starts to create a communicator. On failure *comm is NULL, or a communicator that must be aborted.
  bl_nccl_result_t (*create)(const struct bl_nccl_api *api, const uint8_t id[BL_NCCL_ID_BYTES], int rank,
                             const bl_nccl_config_t *config, bl_nccl_comm_t **comm, char *text);
  // Returns the result of the last call that was in progress, or an asynchronous error since then.
  bl_nccl_result_t (*poll)(const struct bl_nccl_api *api, bl_nccl_comm_t *comm, char *text);
  // Starts to send or receive, by rank, `bytes` of device memory. `ticket` is below BL_NCCL_IN_FLIGHT and not in use.
  // `buffer` NULL: BL_NCCL_GREETING_BYTES of the implementation's own buffer. A group launches only this: every rank
  // sends to and receives from every other one.
  bl_nccl_result_t (*launch)(const struct bl_nccl_api *api, bl_nccl_comm_t *comm, void *buffer, uint64_t bytes,
                             uint32_t ticket, char *text);
  // Returns whether a transfer is over, once its launch is: nothing touches its buffer any more, and a receiver's bytes
  // have arrived.
  bl_nccl_result_t (*over)(const struct bl_nccl_api *api, bl_nccl_comm_t *comm, uint32_t ticket, char *text);
  // Of a group: puts a collective on `stream`, which all ranks call in the same order. gather: afterwards the window has
  // the blocks of all ranks in their order; the own block is in its place before. exchange: what one rank sends to
  // another meets what that rank receives from it, in the order of the pieces. Windows and pieces are read and written
  // after the work that was put on the stream before, and before what is put there next.
  bl_nccl_result_t (*gather)(const struct bl_nccl_api *api, bl_nccl_comm_t *comm, bl_device_stream_t *stream,
                             void *window, uint64_t block_bytes, char *text);
  bl_nccl_result_t (*exchange)(const struct bl_nccl_api *api, bl_nccl_comm_t *comm, bl_device_stream_t *stream,
                               const bl_nccl_piece_t *pieces, uint32_t count, char *text);
  // Aborts everything on the communicator and frees it. Collectives that a stream waits in end. Afterwards nothing touches any of its buffers. May take long.
  void (*abort)(const struct bl_nccl_api *api, bl_nccl_comm_t *comm);
  void *context; // of the implementation
} bl_nccl_api_t;

#endif
