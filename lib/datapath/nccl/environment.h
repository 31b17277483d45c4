// SPDX-License-Identifier: Apache-2.0
// What NCCL reads from the environment, once, when it is loaded: what the NCCL path sets for it. What the user has set stays,
// but for the order of launches; what another process of Ballast has set and handed down does not.
//
// A non-blocking communicator launches from a thread of its own. Under NCCL_LAUNCH_ORDER_IMPLICIT all communicators of a
// process share one order of launches: two that overlap are refused as host threads that race, and a launch waits for the
// earlier ones to have started, so that two ends with different orders wait for each other. The path needs no such order:
// GO pairs the halves of a transfer, and each communicator has a stream of its own (api.h).
//
// Thread: before any that asks for an environment variable.
#ifndef BALLAST_DATAPATH_NCCL_ENVIRONMENT_H
#define BALLAST_DATAPATH_NCCL_ENVIRONMENT_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BL_NCCL_HOST_PREFIX "ballast-shared-gpu-" // of host ids that are set here

// `shared_gpu`: other ranks of the job run on the same GPU, which NCCL refuses unless each says that it is a host of its own.
static inline void bl_nccl_set_environment(bool shared_gpu) {
  (void)setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "0", 1); // a nccl.conf of the machine may ask for it, too
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
