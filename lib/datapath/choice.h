// SPDX-License-Identifier: Apache-2.0
// Chooses the path between two processes, and says why. Input is what each end says about itself, the requested path,
// and the paths that were tried and failed. Memory of GPUs moves by cuda-ipc within a machine and by nccl between
// machines. If neither is possible, it moves through pinned memory of the host by shm or tcp. Memory of the host moves
// by shm within a machine and by tcp between machines.
//
//   unsigned failed = 0;
//   while (bl_path_choose(&own, &peer, asked, failed, why, &choice, err) == BL_OK && !connect_by(choice.path, &why))
//     failed |= 1u << choice.path;
//
// A requested path (other than BL_PATH_AUTO) is taken or refused, never replaced.
// Pure. Thread: any.
#ifndef BALLAST_DATAPATH_CHOICE_H
#define BALLAST_DATAPATH_CHOICE_H

#include "datapath/path.h"

#include "base/error.h"

#include <stdbool.h>

#define BL_PATH_REASON_BYTES 192

typedef struct bl_path_end {
  const char *name;    // in messages: "peer", "the store"
  const char *machine; // bl_machine_text (machine.h); a text with "?", or "", equals no other
  const char *gpu;     // name of the GPU that holds its blocks (device_path.h); "": memory of the host
  const char *closed;  // why GPU memory cannot be shared with other processes; "": it can
  bool legacy_ipc;     // memory is shared by name, as older CUDA did
  int nccl;            // version of the library; 0: none
  bool shared_gpu;     // NCCL is set up for several processes per GPU
  bool unix_address;   // it listens on, or may connect to, a unix socket
  bool tcp_address;
} bl_path_end_t;

typedef struct bl_path_choice {
  bl_path_t path;
  bool staged;                       // through pinned memory of the host at ends that have a GPU
  char reason[BL_PATH_REASON_BYTES]; // "cuda-ipc: same machine", "nccl: peer is on another machine"
} bl_path_choice_t;

// `failed` has bit 1 << path set for each path that failed; `failure` is the reason of the last failure.
// BL_UNAVAILABLE: no path is left, or an end has no address for the requested path; BL_PRECONDITION: the requested path
// is not possible. `err` says why.
BL_MUST_USE bl_status_t bl_path_choose(const bl_path_end_t *own, const bl_path_end_t *peer, bl_path_t asked,
                                       unsigned failed, const char *failure, bl_path_choice_t *choice, bl_error_t *err);

// Returns true and sets `why` if something prevents the path between the two ends, on whatever machines they are.
// False: nothing does, and `why` is untouched.
bool bl_path_obstacle(const bl_path_end_t *own, const bl_path_end_t *peer, bl_path_t path,
                      char why[BL_PATH_REASON_BYTES]);

#endif
