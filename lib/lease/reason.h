// SPDX-License-Identifier: Apache-2.0
// The reasons for which the lease table refuses a request: one table with name (metrics, CLI), status and text. There
// is one counter per reason. No reason has BL_UNAVAILABLE or BL_DEADLINE: those mean that the store was not reached.
// Thread: pure functions, any thread.
#ifndef BALLAST_LEASE_REASON_H
#define BALLAST_LEASE_REASON_H

#include "base/status.h"

// X(identifier, name, status, text)
#define BL_LEASE_REASON_TABLE(X)                                                                                       \
  X(BL_LEASE_GRANTED, "granted", BL_OK, "granted")                                                                     \
  X(BL_LEASE_BAD_REQUEST, "bad_request", BL_INVALID,                                                                   \
    "the request lacks something: a job has a name of 1 to 63 bytes, a reservation a plan from 1 and demands")         \
  X(BL_LEASE_BAD_BYTES, "bytes", BL_INVALID, "a size or a count of zero, or more bytes than the slot has")             \
  X(BL_LEASE_NO_SIZE, "no_size", BL_INVALID,                                                                           \
    "the job has no arena at this store yet: its first session sets the size (arena_bytes)")                           \
  X(BL_LEASE_ARENA, "arena", BL_INVALID,                                                                               \
    "the job has a smaller arena already, which its sessions of one plan share: ask for 0 or at most its size, or "    \
    "open the session for another job or plan, which has its own")                                                     \
  X(BL_LEASE_BEYOND, "beyond", BL_INVALID,                                                                             \
    "the slots do not fit the arena of the job, whose size its first session sets (arena_bytes)")                      \
  X(BL_LEASE_LIMITS, "limits", BL_INVALID,                                                                             \
    "a session has slots of at most 8 sizes, and 4 plans at a time: unreserve those that no longer run")               \
  X(BL_LEASE_NO_SESSION, "no_session", BL_NOT_FOUND, "no session of this store has this number")                       \
  X(BL_LEASE_BAD_KEY, "key", BL_DENIED, "the key is not that of the session")                                          \
  X(BL_LEASE_SESSION_OVER, "session_over", BL_FENCED, "the session is over: open a new one")                           \
  X(BL_LEASE_SUSPECT, "suspect", BL_PRECONDITION, "the session was not renewed in time: send KeepAlive first")         \
  X(BL_LEASE_SEQUENCE, "sequence", BL_PRECONDITION, "the sequence number belongs to another or a finished request")    \
  X(BL_LEASE_WINDOW, "window", BL_EXHAUSTED, "too many requests without acknowledgement")                              \
  X(BL_LEASE_INCARNATION, "incarnation", BL_FENCED, "the store was restarted since: what it held is gone")             \
  X(BL_LEASE_NO_LEASE, "no_lease", BL_NOT_FOUND, "no lease of this store has this number")                             \
  X(BL_LEASE_NOT_YOURS, "not_yours", BL_DENIED, "the lease belongs to another session")                                \
  X(BL_LEASE_GENERATION, "generation", BL_FENCED, "the token is out of date: this use of the slot has ended")          \
  X(BL_LEASE_STATE, "state", BL_PRECONDITION, "not possible in the state the lease is in")                             \
  X(BL_LEASE_GONE, "lost", BL_DATA_LOSS, "the block is lost: it was revoked")                                          \
  X(BL_LEASE_PLAN, "plan", BL_PRECONDITION, "the plan is unknown, or was reserved with other sizes")                   \
  X(BL_LEASE_SPACE, "space", BL_EXHAUSTED, "no contiguous slot of this size is free")                                  \
  X(BL_LEASE_JOB_QUOTA, "job_quota", BL_EXHAUSTED,                                                                     \
    "the quota of the job at this store does not allow it: raise it with ballastctl quota")                            \
  X(BL_LEASE_STAGE_QUOTA, "stage_quota", BL_EXHAUSTED,                                                                 \
    "the quota of the stage at this store does not allow it: raise it with ballastctl quota --stage")                  \
  X(BL_LEASE_CREDIT, "credit", BL_EXHAUSTED, "too many bytes of this session are in flight")                           \
  X(BL_LEASE_CAPACITY, "capacity", BL_EXHAUSTED,                                                                       \
    "the store has too little free memory for this: start it with a larger --capacity, or end jobs that use it; if "   \
    "its memory lies on a GPU that the holder cannot reach, --spill adds the host's")                                  \
  X(BL_LEASE_TABLE_FULL, "table_full", BL_EXHAUSTED, "the store cannot keep that many leases, sessions or jobs")       \
  X(BL_LEASE_DRAINING, "draining", BL_PRECONDITION,                                                                    \
    "the store is being drained and takes nothing new: ballastctl "                                                    \
    "drain --undrain ends that")                                                                                       \
  X(BL_LEASE_NO_ARENA, "no_arena", BL_EXHAUSTED, "the memory of the job is not there yet")                             \
  X(BL_LEASE_CHECKSUM, "checksum", BL_DATA_LOSS, "the bytes do not match their checksum")                              \
  X(BL_LEASE_TRANSFER, "transfer", BL_IO, "the transfer failed")                                                       \
  X(BL_LEASE_CANCELLED, "cancelled", BL_CANCELLED, "closed by its holder")

typedef enum bl_lease_reason {
#define X(identifier, name, status, text) identifier,
  BL_LEASE_REASON_TABLE(X)
#undef X
      BL_LEASE_REASONS
} bl_lease_reason_t;

const char *bl_lease_reason_name(bl_lease_reason_t reason); // "job_quota"; never NULL
const char *bl_lease_reason_text(bl_lease_reason_t reason); // for messages
bl_status_t bl_lease_reason_status(bl_lease_reason_t reason);

#endif
