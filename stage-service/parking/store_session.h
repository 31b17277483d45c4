// SPDX-License-Identifier: Apache-2.0
// The session of a stage with one store under one plan: the store slots that the plan reserves there, and the transfers
// with it. It may be opened several times; to the store each is a session of its own. Transfers begin in the order in
// which they are queued (executor/parking.h, rule 2), several at a time.
//
//   OPENING  it is being opened, once the previous client is closed; queued blocks move then, or are lost with it
//   READY    takes blocks
//   RESTING  nothing runs: it is closed, its store slots are free; the next run opens it again
//   FAILED   the store is gone, unresponsive, or refused: all its blocks are lost; bl__store_session_reopen tries again
//
//              reopen      rest        opened     refused    it fails             end
//   OPENING    -           -           READY      FAILED     -                    RESTING *
//   READY      OPENING *   RESTING *   -          -          FAILED *             RESTING *
//   RESTING    OPENING     -           -          -          -                    -
//   FAILED     OPENING     -           -          FAILED *   -                    RESTING
//
//   *  closes it: queued transfers are lost at once, transfers in flight when the closing client has ended them,
//      and the blocks in the store with their slots. After `end` it is not opened any more.
//
// There is one client at a time, so that a store learns of the end of a session before the next one begins. A call that
// fails in a way that leaves the state of the store in doubt ends the whole session: what the store then still does for
// it is fenced by the next session. A transfer waits for a store no longer than BL_STORE_SESSION_CALL_MS; opening a
// session has the limits below.
//
// Nothing here waits, and there is no thread: the calls below begin work, and the client's callbacks, on the thread of
// its runtime, continue it. A transfer whose memory is needed is cancelled, and the caller then waits for `over`: its
// client ends it without the store.
//
// Thread: any, holding the mutex that all sessions of a parking share, except for bl__store_sessions_release and
// bl__store_session_destroy. Lock order: this mutex, then the client's. Callbacks take this mutex, so no thread may
// wait for the client while it holds it.
#ifndef BALLAST_PARKING_STORE_SESSION_H
#define BALLAST_PARKING_STORE_SESSION_H

#include "client/client.h"
#include "device/device.h"
#include "executor/parking.h"
#include "parking/throttle.h"
#include "schedule/ir/schedule.h"

#include <pthread.h>
#include <sys/queue.h>

#define BL_STORE_SESSION_CALL_MS   5000  // of one transfer: after that time without an answer it has failed
#define BL_STORE_SESSION_OPEN_MS   4000  // to open the session when a plan is prepared
#define BL_STORE_SESSION_JOIN_MS   30000 // the same if communicators of NCCL may have to be created
#define BL_STORE_SESSION_PIN_MS    20000 // at most so much longer if host memory is allocated for a device, at 1 GB/s
#define BL_STORE_SESSION_AGAIN_MS  1000  // between two attempts to open a session that failed
#define BL_STORE_SESSION_TRY_MS    2000  // for each such attempt
#define BL_STORE_SESSION_IN_FLIGHT 8     // maximum number of transfers in flight
// Further transfers begin in parallel only if the last one took less than this. On a slower path several would only
// slow each other down, until all of them count as failed.
#define BL_STORE_SESSION_BRISK_MS (BL_STORE_SESSION_CALL_MS / (2 * BL_STORE_SESSION_IN_FLIGHT))

typedef enum { BL_TRANSFER_IDLE, BL_TRANSFER_QUEUED, BL_TRANSFER_MOVING, BL_TRANSFER_OVER } bl_transfer_state_t;

// One block of the plan: its transfer, and where it is. All [m].
typedef struct bl_transfer {
  STAILQ_ENTRY(bl_transfer) queued;
  bl_parked_block_t block;
  uint8_t *memory; // the slot: it belongs to its owner again when this is over
  bool load;
  bool ready;    // the device has reached the point where it may begin, and the checksum of its block is known
  bool unhashed; // the device has, but the checksum is not: the parking computes it
  bl_transfer_state_t state;
  bl_parking_outcome_t outcome; // when over
  uint64_t epoch;               // of the session when the block was parked; 0: none
  uint64_t store_slot;          // its lease at the store; 0: none yet
  bl_client_ticket_t ticket;    // while it moves
  uint64_t asked_ns;            // when it was queued and ready
  uint64_t ended_ns;            // when over
  uint64_t begun_ns, over_ns;   // with a throttle, a transfer that is over counts as over from over_ns on
} bl_transfer_t;

typedef enum {
  BL_STORE_SESSION_OPENING,
  BL_STORE_SESSION_READY,
  BL_STORE_SESSION_RESTING,
  BL_STORE_SESSION_FAILED
} bl_store_session_state_t;

// What the sessions of a parking share. It exists until the last reference is released.
typedef struct bl_store_sessions {
  pthread_mutex_t mutex;
  pthread_cond_t over;            // a transfer has ended, or opening a session has ended
  uint32_t references;            // [m] the owner's, and one for each client that is not closed yet
  void (*destroy)(void *context); // called when the last one is released, on any thread
  void *context;
} bl_store_sessions_t;

typedef struct bl_store_session_options {
  char address[256]; // of the store
  char name[BL_STORE_TEXT];
  bool of_host; // a host store
  char job[BL_CLIENT_JOB_LENGTH + 1];
  uint64_t plan;
  uint32_t stage;                    // as the store knows it
  const bl_client_region_t *regions; // borrowed while the session lives
  size_t region_count;               // [m] more may follow: bl__store_session_extend
  uint32_t store_slots;
  uint64_t slot_bytes, arena_bytes;
  uint64_t bytes_per_second; // 0: unlimited
  bl_client_path_t path;
  bl_device_t *device;         // that computes the blocks, asynchronously; NULL: the host
  bool device_memory;          // the regions lie on it
  struct bl_nccl_engine *nccl; // of that device; NULL: none
  bool nccl_shared_gpu;
  uint64_t unit_bytes; // of the largest block of all stages
  struct bl_client_runtime *runtime;
} bl_store_session_options_t;

// All [m] except options and shared.
typedef struct bl_store_session {
  bl_store_session_options_t options;
  bl_store_sessions_t *shared;
  bl_store_session_state_t state;
  bl_error_t err;      // why it failed
  uint64_t opened_ns;  // when opening last ended
  uint64_t epoch;      // number of times it was opened
  bl_client_t *client; // NULL: the last one is closed
  bool closing;        // `client` is being closed
  bool hurried;        // it is opened for the first time, or had not failed before
  bool ending;         // it will not be opened again
  STAILQ_HEAD(, bl_transfer) queue;
  bl_transfer_t *moving[BL_STORE_SESSION_IN_FLIGHT]; // of `client`
  uint32_t moving_count;
  bool brisk;                     // the last transfer of this session took less than BL_STORE_SESSION_BRISK_MS
  uint32_t held, held_peak;       // store slots that hold a block or receive one
  uint64_t step;                  // for the labels of leases
  uint64_t moved_bytes, moved_ns; // of this attempt: ns in which at least one was in flight
  uint64_t moving_since_ns, counted_until_ns; // for moved_ns
  double quickest;                            // of this attempt: minimum ns per byte of a transfer; 0: none moved
  uint64_t cross_machine_bytes;               // of moved_bytes: to and from another machine
  bl_client_path_t path;                      // of the session that is READY
  bool crosses;                               // the store of that session is on another machine
  size_t shown;                               // regions that are registered in the session
  bool showing;                               // the next one is being registered
  bl_client_ticket_t show;                    // with this ticket
  bl_throttle_t throttle;
  uint64_t *store_slots; // [options.store_slots] empty ones
  uint32_t store_slot_count;
} bl_store_session_t;

// Initializes them with one reference, the caller's.
void bl__store_sessions_init(bl_store_sessions_t *shared, void (*destroy)(void *context), void *context);
// Releases a reference. Call it without the mutex.
void bl__store_sessions_release(bl_store_sessions_t *shared);
// Called by `destroy`.
void bl__store_sessions_cleanup(bl_store_sessions_t *shared);

// Creates a session and begins to open it. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__store_session_create(const bl_store_session_options_t *options, bl_store_sessions_t *shared,
                                                 bl_store_session_t **session, bl_error_t *err);
// Closes the session for good. Everything that it had at the store is free soon.
void bl__store_session_end(bl_store_session_t *session);
// Frees a session that has no client any more. Called by `destroy` of bl_store_sessions_t. NULL is fine.
void bl__store_session_destroy(bl_store_session_t *session);
// Allows blocks to be evicted from the first `region_count` of options.regions, which must exist by now.
void bl__store_session_extend(bl_store_session_t *session, size_t region_count);

// Queues a transfer. It is lost at once if the session is neither open nor being opened.
void bl__store_session_queue(bl_store_session_t *session, bl_transfer_t *transfer);
// Begins the queued transfers that are ready. True: some are not yet.
bool bl__store_session_look(bl_store_session_t *session);
// Returns a queued transfer whose checksum is to be computed, NULL: none. bl__transfer_ready says that this was done.
bl_transfer_t *bl__store_session_unhashed(const bl_store_session_t *session);
void bl__transfer_ready(bl_transfer_t *transfer);
// Ends the queued transfers, and soon those in flight.
void bl__store_session_flush(bl_store_session_t *session);
// The same for one transfer.
void bl__store_session_cancel(bl_store_session_t *session, bl_transfer_t *transfer);
// Detects whether a READY session without transfers has been lost.
void bl__store_session_check(bl_store_session_t *session);
// Closes the session if it is READY.
void bl__store_session_rest(bl_store_session_t *session);
// Closes the session and opens it again. Does nothing if it is being opened already.
void bl__store_session_reopen(bl_store_session_t *session);

#endif
