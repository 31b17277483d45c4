// SPDX-License-Identifier: Apache-2.0
// Greetings: the body of GREET and WELCOME (frame.h), which open a data connection between stages, or between a client
// and its store.
//
//   connector                                   acceptor
//   GREET its memory, the acceptor's token  ->
//                                           <-  WELCOME its memory       or BYE: status and why not
//   READY (stages)                          ->
//
// The token identifies the process that is meant. For a stage it is also the right to connect: it is random and
// distributed by the driver. A client proves its identity with the key of its session. On unix sockets the descriptors
// of the memory are sent along, in order.
//
// Thread: pure functions, any thread.
#ifndef BALLAST_DATAPATH_GREETING_H
#define BALLAST_DATAPATH_GREETING_H

#include "datapath/frame.h"
#include "datapath/path.h"

#define BL_GREETING_REASON_BYTES 192u
#define BL_GREETING_GPU_BYTES    40u

typedef struct bl_greeting {
  int32_t stage, peer;                 // of the sender, and of the process it means; both 0 with a store
  uint64_t session;                    // of a client; 0 between stages
  uint8_t token[BL_FRAME_TOKEN_BYTES]; // of the acceptor's process
  // Of the sender, to distinguish it from its successor; of a client: the key of its session.
  uint8_t own_token[BL_FRAME_TOKEN_BYTES];
  bl_path_t path;                            // of the connection, or one over it; not BL_PATH_AUTO
  uint32_t arena_count;                      // number of arenas that are shared: 0 on TCP
  uint64_t arena_bytes[BL_FRAME_MAX_ARENAS]; // the descriptors follow in the same order
  char reason[BL_GREETING_REASON_BYTES];     // why this path
  char gpu[BL_GREETING_GPU_BYTES];           // that holds the tensors (block_memory.h); "": memory of the host
  int32_t nccl;                              // version; 0: none
  bool shared_gpu;                           // NCCL is set up for several processes per GPU
  bool wants_nccl;                           // of the connector: tensors shall move by NCCL if they can
  bool notes_only;                           // of the connector: no tensors
  bool unverified;                           // of the connector: no checksums, for measurements
} bl_greeting_t;

void bl_greeting_encode(const bl_greeting_t *greeting, uint8_t body[BL_FRAME_GREETING_BYTES]);
// Checks the range of every field, and that texts are terminated and printable. BL_INVALID sets *reason to a fixed text
// for the log.
BL_MUST_USE bl_status_t bl_greeting_decode(const uint8_t body[BL_FRAME_GREETING_BYTES], bl_greeting_t *greeting,
                                           const char **reason);

// Compares in constant time.
bool bl_token_equal(const uint8_t a[BL_FRAME_TOKEN_BYTES], const uint8_t b[BL_FRAME_TOKEN_BYTES]);

#endif
