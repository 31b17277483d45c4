// SPDX-License-Identifier: Apache-2.0
// What the NCCL path needs of NCCL, as a table of functions: the CUDA module fills it with the library's own, tests with
// one that never completes, fails or dies on request. No NCCL type is seen outside of the module.
//
// A communicator has two ranks: 0 sends, 1 receives. It is non-blocking: every call returns at once, and what is not over
// yet is BL_NCCL_IN_PROGRESS, to be asked for by `poll`. The implementation owns the stream of a communicator and what
// tells the end of its transfers.
//
// Thread: calls on one communicator come from one thread at a time, but for `abort`, which comes from a thread of its own
// while no other call on that communicator is under way, or when such a call has not returned for too long.
#ifndef BALLAST_DATAPATH_NCCL_API_H
#define BALLAST_DATAPATH_NCCL_API_H

#include <stdbool.h>
#include <stdint.h>

#define BL_NCCL_ID_BYTES   128 // of a unique id
#define BL_NCCL_TEXT_BYTES 256 // of the cause of a failure
#define BL_NCCL_IN_FLIGHT  16u // transfers launched and not over, per communicator
// Of the first transfer of a communicator, from and to memory of the implementation: NCCL connects two ranks with it.
#define BL_NCCL_GREETING_BYTES 16u

typedef struct bl_nccl_comm bl_nccl_comm_t; // of the implementation

typedef enum bl_nccl_result {
  BL_NCCL_DONE,
  BL_NCCL_IN_PROGRESS,
  BL_NCCL_PEER_FAILED, // the other rank, or the way to it
  BL_NCCL_BROKEN,      // this side
} bl_nccl_result_t;

typedef struct bl_nccl_config {
  uint32_t min_ctas, max_ctas; // blocks of threads that a transfer takes away from computing
  const char *name;            // of the communicator, in the library's own messages
} bl_nccl_config_t;

typedef struct bl_nccl_api {
  const char *name; // "NCCL"
  int version;      // as NCCL counts: 22809 is 2.28.9
  // Failures write their cause to `text`, of BL_NCCL_TEXT_BYTES.
  bl_nccl_result_t (*new_id)(const struct bl_nccl_api *api, uint8_t id[BL_NCCL_ID_BYTES], char *text);
  // Begins to make a communicator. On failure *comm is NULL, or something that must be aborted.
  bl_nccl_result_t (*create)(const struct bl_nccl_api *api, const uint8_t id[BL_NCCL_ID_BYTES], int rank,
                             const bl_nccl_config_t *config, bl_nccl_comm_t **comm, char *text);
  // What became of the last call that was in progress, and whether anything has gone wrong since (asynchronous errors).
  bl_nccl_result_t (*poll)(const struct bl_nccl_api *api, bl_nccl_comm_t *comm, char *text);
  // Begins to send or receive `bytes` of device memory, by rank; `ticket` is below BL_NCCL_IN_FLIGHT and not in use. NULL:
  // BL_NCCL_GREETING_BYTES of the implementation's own.
  bl_nccl_result_t (*launch)(const struct bl_nccl_api *api, bl_nccl_comm_t *comm, void *buffer, uint64_t bytes,
                             uint32_t ticket, char *text);
  // Whether a transfer is over whose launch is: nothing touches its buffer any more, and a receiver's bytes are there.
  bl_nccl_result_t (*over)(const struct bl_nccl_api *api, bl_nccl_comm_t *comm, uint32_t ticket, char *text);
  // Ends everything of the communicator and frees it; nothing touches any buffer of it afterwards. May take long.
  void (*abort)(const struct bl_nccl_api *api, bl_nccl_comm_t *comm);
  void *context; // of the implementation
} bl_nccl_api_t;

#endif
