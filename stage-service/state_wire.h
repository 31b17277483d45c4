// SPDX-License-Identifier: Apache-2.0
// The state of a stage as messages of stage.proto.
//
// Each object holds one message and everything that it points to. Numbers and names are borrowed from the stage, so the
// object is valid until the stage changes, that is until its handler returns. Thread: the loop's.
#ifndef BALLAST_STAGE_SERVICE_STATE_WIRE_H
#define BALLAST_STAGE_SERVICE_STATE_WIRE_H

#include "stage.h"

#include "ballast/v1/stage.pb-c.h"

typedef struct bl_vote_wire {
  Ballast__V1__Vote message;
  Ballast__V1__StageCounters counters;
} bl_vote_wire_t;
void bl_vote_to_wire(const bl_vote_t *vote, bl_vote_wire_t *wire);

typedef struct bl_state_wire {
  Ballast__V1__StageState message;
  bl_vote_wire_t prepared, committed;
  Ballast__V1__CommitRecord commit;
  Ballast__V1__Offer ahead;
} bl_state_wire_t;
void bl_state_to_wire(const bl_stage_t *stage, bl_state_wire_t *wire);

typedef struct bl_memory_wire {
  Ballast__V1__MemoryTag tags[BL_MEMORY_TAGS];
  Ballast__V1__MemoryTag *pointers[BL_MEMORY_TAGS];
} bl_memory_wire_t;
void bl_memory_to_wire(const bl_memory_account_t *account, bl_memory_wire_t *wire);

// Owns its array. Empty if there is no memory.
typedef struct bl_choices_wire {
  Ballast__V1__Choice *messages;
  Ballast__V1__Choice **pointers;
  size_t count;
} bl_choices_wire_t;
void bl_choices_to_wire(const bl_ops_choice_t *choices, size_t count, bl_choices_wire_t *wire);
void bl_choices_wire_cleanup(bl_choices_wire_t *wire);

typedef struct bl_paths_wire {
  bl_transport_path_t paths[BL_TRANSPORT_MAX_PEERS];
  Ballast__V1__PeerPath messages[BL_TRANSPORT_MAX_PEERS];
  Ballast__V1__PeerPath *pointers[BL_TRANSPORT_MAX_PEERS];
  size_t count;
} bl_paths_wire_t;
void bl_paths_to_wire(bl_transport_t *transport, bl_paths_wire_t *wire);
// Converts what another stage sent about itself; strings are borrowed from the message. BL_INVALID.
BL_MUST_USE bl_status_t bl_peer_from_wire(const Ballast__V1__Peer *message, bl_transport_peer_t *peer, bl_error_t *err);

// The files that were written of a checkpoint. Owns its arrays.
typedef struct bl_saved_wire {
  Ballast__V1__WriteSnapshotResponse message;
  Ballast__V1__SavedFile files[2];
  Ballast__V1__SavedFile *pointers[2];
} bl_saved_wire_t;
bool bl_saved_to_wire(const bl_saver_t *saver, bl_saved_wire_t *wire); // false: no memory, nothing to clean up
void bl_saved_wire_cleanup(bl_saved_wire_t *wire);

#endif
