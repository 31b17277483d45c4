// SPDX-License-Identifier: Apache-2.0
// Environment variables that the NCCL path sets for NCCL, which reads them once, when it is loaded. A user's values
// stay, except for the launch order. Values that another Ballast process set and passed on are replaced.
//
// A non-blocking communicator launches from a thread of its own. Under NCCL_LAUNCH_ORDER_IMPLICIT all communicators of
// a process share one launch order. NCCL then refuses two overlapping ones as racing host threads. A launch also waits
// until the earlier ones have started, so that two ends with different orders wait for each other. The path needs no
// such order: GO pairs the halves of a transfer, and each communicator has a stream of its own (api.h).
//
// Thread: call it before any thread reads an environment variable.
#ifndef BALLAST_DATAPATH_NCCL_ENVIRONMENT_H
#define BALLAST_DATAPATH_NCCL_ENVIRONMENT_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BL_NCCL_HOST_PREFIX "ballast-shared-gpu-" // of host ids that are set here

// `shared_gpu`: other ranks of the job run on the same GPU. NCCL refuses that unless each claims to be a host of its
// own.
static inline void bl_nccl_set_environment(bool shared_gpu) {
  (void)setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "0", 1); // a nccl.conf of the machine may set it too
  if (shared_gpu) {
    const char *found = getenv("NCCL_HOSTID");
    char host[96] = "", identity[160];
    (void)gethostname(host, sizeof host - 1);
    snprintf(identity, sizeof identity, BL_NCCL_HOST_PREFIX "%s-%ld", host, (long)getpid());
    const bool ours = found != NULL && strncmp(found, BL_NCCL_HOST_PREFIX, strlen(BL_NCCL_HOST_PREFIX)) == 0;
    (void)setenv("NCCL_HOSTID", identity, ours);
    (void)setenv("NCCL_NET", "Socket", 0);
  }
}

#endif
