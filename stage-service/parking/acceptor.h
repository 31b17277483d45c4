// SPDX-License-Identifier: Apache-2.0
// One store as a stage uses it under one plan: a session, the rooms that the plan reserves there, and a thread that moves
// blocks one after the other in the order in which it is told (executor/parking.h, rule 2).
//
//   READY    takes blocks
//   OPENING  the thread opens the session and reserves; what is queued meanwhile moves then, or is lost with it
//   RESTING  nobody runs anything: the session is closed, its rooms are free; the next run opens it again
//   FAILED   the store is gone, silent, or refused: everything it had is lost; bl__acceptor_reopen tries again
//
// A call that fails in a way that leaves doubt about the store ends the whole session: what the store then still does for
// it is fenced by the session that follows. Nothing waits for a store longer than BL_ACCEPTOR_CALL_MS.
//
// Thread: the fields marked [m] under the mutex that all acceptors of a parking share; functions with that mutex held,
// but for create and destroy.
#ifndef BALLAST_PARKING_ACCEPTOR_H
#define BALLAST_PARKING_ACCEPTOR_H

#include "client/client.h"
#include "executor/parking.h"
#include "parking/throttle.h"

#include <pthread.h>

#define BL_ACCEPTOR_CALL_MS  5000  // of one transfer: silence that long is failure
#define BL_ACCEPTOR_OPEN_MS  4000  // of opening the session when a plan is prepared
#define BL_ACCEPTOR_JOIN_MS  30000 // the same where communicators of NCCL may have to be made
#define BL_ACCEPTOR_AGAIN_MS 1000  // between two tries to open a session that failed
#define BL_ACCEPTOR_TRY_MS   2000  // of each such try

typedef enum { BL_TRANSFER_IDLE, BL_TRANSFER_QUEUED, BL_TRANSFER_MOVING, BL_TRANSFER_OVER } bl_transfer_state_t;

// What is known of one block of the plan: its transfer, and where it is.
typedef struct bl_transfer {
  struct bl_transfer *next; // [m] in the queue
  bl_parked_block_t block;
  uint8_t *memory; // the slot
  bool load;
  bl_transfer_state_t state;    // [m]
  bl_parking_outcome_t outcome; // [m] when over
  uint64_t session;             // [m] that parked the block, 0: none
  uint64_t room;                // [m] its lease at the store; 0: not taken yet
  bl_client_landing_t landing;
} bl_transfer_t;

typedef enum { BL_ACCEPTOR_OPENING, BL_ACCEPTOR_READY, BL_ACCEPTOR_RESTING, BL_ACCEPTOR_FAILED } bl_acceptor_state_t;

typedef struct bl_acceptor_options {
  char address[256]; // of the store
  uint16_t device;   // whose memory it lends
  char job[BL_CLIENT_JOB_LENGTH + 1];
  uint64_t plan;
  uint32_t stage;
  const bl_arena_t *sources; // borrowed while the acceptor lives
  size_t source_count;       // [m] more may come: bl__acceptor_extend
  uint32_t rooms;
  uint64_t room_bytes, arena_bytes;
  uint64_t bytes_per_second; // 0: as fast as it goes
  bl_client_path_t path;
  bl_device_t *source_device;  // that the sources lie on; NULL: the host
  struct bl_nccl_engine *nccl; // of it; NULL: none
  bool nccl_shared_gpu;
  uint64_t unit_bytes; // of the largest block of all stages
} bl_acceptor_options_t;

typedef struct bl_acceptor {
  bl_acceptor_options_t options;
  pthread_mutex_t *mutex; // shared
  pthread_cond_t *over;   // shared: something ended
  pthread_cond_t work;    // there is something to do, or to stop doing
  pthread_t thread;
  bl_acceptor_state_t state;          // [m]
  bl_error_t err;                     // [m] why it failed
  uint64_t opened_ns;                 // [m] when it was last tried
  uint64_t session;                   // [m] counts sessions
  bl_transfer_t *first, *last;        // [m] queue
  bl_transfer_t *moving;              // [m]
  uint32_t held, held_peak;           // [m] rooms with a block in them or on its way
  bool reopen, hurried, rest, ending; // [m]
  uint64_t step;                      // [m] for the labels of leases
  uint64_t moved_bytes, moved_ns;     // [m] of this attempt
  bl_client_path_t path;              // [m] of the session that is READY

  bl_client_ticket_t evicting; // [m] the eviction that `moving` waits for
  bool evicts;                 // [m] there is one
  bool gives_up;               // [m] `moving` is to end soon

  bl_client_t *client; // the thread's, but for a cancel of `evicting`
  size_t shown;        // the thread's: sources that the session knows
  bl_throttle_t throttle;
  uint64_t *rooms; // [options.rooms] empty ones
  uint32_t room_count;
} bl_acceptor_t;

// Begins to open the session. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__acceptor_create(const bl_acceptor_options_t *options, pthread_mutex_t *mutex,
                                            pthread_cond_t *over, bl_acceptor_t **acceptor, bl_error_t *err);
// The thread ends with the call under way, and closes the session. No wait.
void bl__acceptor_end(bl_acceptor_t *acceptor);
// Ends it, and waits for that; everything that it had at the store is free. Not under the mutex. NULL is fine.
void bl__acceptor_destroy(bl_acceptor_t *acceptor);
// Blocks may leave from the first `source_count` of options.sources, which must be there by now.
void bl__acceptor_extend(bl_acceptor_t *acceptor, size_t source_count);

void bl__acceptor_queue(bl_acceptor_t *acceptor, bl_transfer_t *transfer);
// Ends what waits in the queue, and soon the one under way, which touches its slot no more: a load when this returns, an
// eviction when it is over.
void bl__acceptor_flush(bl_acceptor_t *acceptor);
// Sees whether a session that rests has been lost meanwhile.
void bl__acceptor_check(bl_acceptor_t *acceptor);
// Closes the session of one that is READY; it is RESTING then.
void bl__acceptor_rest(bl_acceptor_t *acceptor);
// Ends the session and opens another one.
void bl__acceptor_reopen(bl_acceptor_t *acceptor);

#endif
