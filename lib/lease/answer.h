// SPDX-License-Identifier: Apache-2.0
// Result of a request to the lease table: granted with a slot, or refused with a reason and the space that is free.
// Thread: plain values.
#ifndef BALLAST_LEASE_ANSWER_H
#define BALLAST_LEASE_ANSWER_H

#include "base/error.h"
#include "lease/reason.h"

#include <stdint.h>

typedef struct bl_lease_answer {
  bl_lease_reason_t reason;
  uint32_t retry_after_ms; // refused with BL_EXHAUSTED or as SUSPECT: when a retry may succeed; a guess
  // The lease after the request (evict, load, release); 0 for requests that concern no lease.
  uint64_t id, generation;
  uint64_t offset_bytes; // of its slot in the arena of the job
  uint64_t bytes;        // of the block; of the slot if it holds none; of the arena that open asked for
  uint64_t checksum;     // recorded by evict
  // Refused for lack of space: bytes that could still be reserved, and the longest run among them.
  uint64_t free_bytes, largest_free_bytes;
  // Refused by a quota: its size, and what the job or the stage would hold with the request.
  uint64_t quota_bytes, needed_bytes;
  uint64_t arena_bytes; // refused because something does not fit the arena of the job: its size
} bl_lease_answer_t;

// Sets the reason's status and a text that names lease, numbers and what to do. `what` is the request: "evict".
bl_status_t bl_lease_answer_to_error(const bl_lease_answer_t *answer, const char *what, bl_error_t *err);

#endif
