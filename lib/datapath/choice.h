// SPDX-License-Identifier: Apache-2.0
// Which path two processes take, and why: from what each says about itself, what was asked for, and what has been tried in
// vain. Tensors and blocks on GPUs go by cuda-ipc inside of a machine and by nccl across, and through pinned memory of the host by shm
// or tcp where neither can be; memory of the host goes by shm inside of a machine and by tcp across.
//
//   unsigned failed = 0;
//   while (bl_path_choose(&own, &peer, asked, failed, why, &choice, err) == BL_OK && !connect_by(choice.path, &why))
//     failed |= 1u << choice.path;
//
// What is asked for (but BL_PATH_AUTO) is taken or refused, never replaced.
// Pure. Thread: any.
#ifndef BALLAST_DATAPATH_CHOICE_H
#define BALLAST_DATAPATH_CHOICE_H

#include "datapath/path.h"

#include "base/error.h"

#include <stdbool.h>

#define BL_PATH_REASON_BYTES 192

typedef struct bl_path_end {
  const char *name;    // in messages: "peer", "the store"
  const char *machine; // bl_machine_text (machine.h); with a "?" or "" it is like no other
  const char *gpu;     // device_path.h's name of the GPU that its blocks lie on; "": they lie in memory of the host
  const char *closed;  // why memory of the GPU cannot be handed to other processes; "": it can
  bool legacy_ipc;     // it is handed out by name, as older CUDA did
  int nccl;            // version of the library; 0: none
  bool shared_gpu;     // NCCL is set up for several processes per GPU
  bool unix_address;   // it listens on, or may connect to, a unix socket
  bool tcp_address;
} bl_path_end_t;

typedef struct bl_path_choice {
  bl_path_t path;
  bool staged;                       // through pinned memory of the host at the ends that have a GPU
  char reason[BL_PATH_REASON_BYTES]; // "cuda-ipc: same machine", "nccl: peer is on another machine"
} bl_path_choice_t;

// `failed` has a bit 1 << path for each that did not work out, the last for the reason `failure`. BL_UNAVAILABLE: nothing
// is left, or there is no address for what was asked for; BL_PRECONDITION: that cannot be; `err` says why.
BL_MUST_USE bl_status_t bl_path_choose(const bl_path_end_t *own, const bl_path_end_t *peer, bl_path_t asked,
                                       unsigned failed, const char *failure, bl_path_choice_t *choice, bl_error_t *err);

// What keeps the two from taking a path, wherever they are; false: nothing does, and `why` is untouched.
bool bl_path_obstacle(const bl_path_end_t *own, const bl_path_end_t *peer, bl_path_t path,
                      char why[BL_PATH_REASON_BYTES]);

#endif
