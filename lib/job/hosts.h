// SPDX-License-Identifier: Apache-2.0
// The host stores of a run (balance.host): which ranks park blocks at which of them, and how many.
//
// A rank uses the store of its own machine. The job's text alone must distinguish machines, since ballastctl, the
// driver and every stage make the same plans from it. If the host name in each rank's address is that of exactly one
// host store (in Kubernetes, a pod's), the names decide. Otherwise the order does: each of H stores serves the same
// number of consecutive ranks.
//
// All planes of a run have the same plan, so stages that share a host store in one plane must share one in every other.
// Thread: pure functions, any thread; read-only after init.
#ifndef BALLAST_JOB_HOSTS_H
#define BALLAST_JOB_HOSTS_H

#include "base/bytes.h"
#include "config/job.h"

typedef struct bl_hosts {
  uint32_t count;    // host stores of one plane's plans; 0: none
  uint16_t *of;      // [stages] the plan's host store of a stage
  uint32_t *of_rank; // [ranks] host store of a rank, as an index in services.host_stores (0 in a local run)
  uint32_t planes;   // maximum number of planes that share one store and its memory
  uint32_t slots;    // blocks that a plane may have at each store; 0: balance.host is too small for one of every plane
  uint64_t slot_bytes; // of each of these blocks
} bl_hosts_t;

// `block_bytes`: of the largest block that is parked. BL_INVALID names services.host_stores if machines cannot be
// distinguished or planes differ. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_hosts_init(bl_hosts_t *hosts, const bl_job_t *job, uint64_t block_bytes, bl_error_t *err);
void bl_hosts_cleanup(bl_hosts_t *hosts); // a zeroed one is fine

// Writes a size of balance.host that is enough for so many blocks of a plane at one store, at least one, as people write
// it: rounded up to "576 KiB", "13 MiB". Returns `text`.
const char *bl_hosts_size(const bl_hosts_t *hosts, uint64_t blocks, char text[BL_BYTES_TEXT]);

#define BL_HOSTS_WARNING 160
// Returns true if the policy is offload, and no limit of a device makes it park anything. Then `text` says so.
bool bl_hosts_warning(const bl_job_t *job, char text[BL_HOSTS_WARNING]);

#endif
