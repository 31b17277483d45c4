// SPDX-License-Identifier: Apache-2.0
// A client of ballast.v1.Store's calls for operators, with answers as JSON, independent of the wire format.
//
// Thread: the loop's. Callbacks fire on it, exactly once per call that returned BL_OK, at bl_ctl_store_destroy at the
// latest.
#ifndef BALLAST_BALLASTCTL_STORE_WIRE_H
#define BALLAST_BALLASTCTL_STORE_WIRE_H

#include "rpc/rpc.h"

#include <jansson.h>

typedef struct bl_ctl_store bl_ctl_store_t;
typedef void (*bl_ctl_store_fn)(json_t *value, const bl_error_t *err, void *context); // borrowed; NULL on error

BL_MUST_USE bl_status_t bl_ctl_store_create(bl_rpc_t *rpc, const char *address, bl_ctl_store_t **store,
                                            bl_error_t *err);
void bl_ctl_store_destroy(bl_ctl_store_t *store); // NULL is fine

// Control calls to a store, and their answers.
typedef enum bl_ctl_store_kind {
  // {"incarnation", "state", "revision", "capacity_bytes", ..., "leases": {state: n}, "refusals": {reason: n},
  // "counters": {name: n}, "sessions": [...]}
  BL_CTL_STORE_STATUS,
  // Leases of `job` in `state`; NULL: any. {"revision", "leases": [...]}: all of them, fetched page by page, so not a
  // snapshot of one instant. A lease: {"id", "generation", "state", "job", "plan", "stage", "session", "room_bytes",
  // "block_bytes", "checksum", "step", "chunk", "micro_batch", "offset_bytes", "age_seconds"}. The members that
  // describe a block are absent if there is none.
  BL_CTL_STORE_LIST,
  BL_CTL_STORE_GET,    // the lease `id`. BL_NOT_FOUND
  BL_CTL_STORE_REVOKE, // ends the lease (`generation` 0: any) or, if `session` is not 0, all leases of that session. {}
  BL_CTL_STORE_DRAIN,  // {"drained"}
  BL_CTL_STORE_QUOTA,  // limits what `job`, or its `stage`, may reserve to `bytes`. {}
} bl_ctl_store_kind_t;

typedef struct bl_ctl_store_question {
  bl_ctl_store_kind_t kind;
  uint64_t id, generation, session;
  const char *job, *state;
  int64_t stage; // -1: all stages together
  uint64_t bytes;
  bool unlimited; // `bytes` is ignored
  bool undrain;   // accept new sessions
} bl_ctl_store_question_t;

// `question` is borrowed until `done`.
BL_MUST_USE bl_status_t bl_ctl_store_call(bl_ctl_store_t *store, const bl_ctl_store_question_t *question,
                                          uint64_t deadline_ms, bl_ctl_store_fn done, void *context, bl_error_t *err);

// One change: {"type": ADDED | MODIFIED | DELETED, "revision", "kind", "id", "generation", "from", "to", "stage",
// "room_bytes"}; kind is lease, session or store.
typedef void (*bl_ctl_store_event_fn)(json_t *event, void *context); // borrowed
// Reports changes from a revision on (0: from now on) until the stream ends. `done` with BL_OK and {"compacted": R}:
// the store's history begins at R, which is later than the requested revision.
BL_MUST_USE bl_status_t bl_ctl_store_watch(bl_ctl_store_t *store, uint64_t from_revision, bl_ctl_store_event_fn event,
                                           bl_ctl_store_fn done, void *context, bl_error_t *err);

#endif
