// SPDX-License-Identifier: Apache-2.0
// One store as a stage uses it under one plan: a session, the store slots that the plan reserves there, and the
// transfers with it, which begin in the order in which they are told (executor/parking.h, rule 2), several at a time.
//
//   OPENING  a session is opened, once the one before is closed; what is queued meanwhile moves then, or is lost with it
//   READY    takes blocks
//   RESTING  nobody runs anything: the session is closed, its store slots are free; the next run opens another
//   FAILED   the store is gone, silent, or refused: everything it had is lost; bl__acceptor_reopen tries again
//
//              reopen      rest        opened     refused    the session fails    end
//   OPENING    -           -           READY      FAILED     -                    RESTING *
//   READY      OPENING *   RESTING *   -          -          FAILED *             RESTING *
//   RESTING    OPENING     -           -          -          -                    -
//   FAILED     OPENING     -           -          FAILED *   -                    RESTING
//
//   *  gives the session up: what is queued is lost at once, what is under way when the client that is being closed has
//      ended it, what the store had goes with its store slots. After `end` nothing is opened any more.
//
// There is one client at a time, so that a store hears of the end of a session before it hears of the next. A call that
// fails in a way that leaves doubt about the store ends the whole session: what the store then still does for it is
// fenced by the session that follows. Nothing waits for a store longer than BL_ACCEPTOR_CALL_MS.
//
// Nothing here waits, and there is no thread: the calls below begin things, and the client's callbacks, on the thread
// of its runtime, go on with them. A transfer whose memory is needed is cancelled, and then waited for at `over`: its
// client ends it without the store.
//
// Thread: any, with the mutex that all acceptors of a parking share held; but for bl__acceptors_release and _destroy.
// The client's mutex comes after it: callbacks take it, so nobody may wait for the client with it held.
#ifndef BALLAST_PARKING_ACCEPTOR_H
#define BALLAST_PARKING_ACCEPTOR_H

#include "client/client.h"
#include "device/device.h"
#include "executor/parking.h"
#include "parking/throttle.h"
#include "schedule/ir/schedule.h"

#include <pthread.h>
#include <sys/queue.h>

#define BL_ACCEPTOR_CALL_MS   5000  // of one transfer: silence that long is failure
#define BL_ACCEPTOR_OPEN_MS   4000  // of opening the session when a plan is prepared
#define BL_ACCEPTOR_JOIN_MS   30000 // the same where communicators of NCCL may have to be made
#define BL_ACCEPTOR_PIN_MS    20000 // more, at most, where memory of the host is made for a device, at 1 GB/s
#define BL_ACCEPTOR_AGAIN_MS  1000  // between two tries to open a session that failed
#define BL_ACCEPTOR_TRY_MS    2000  // of each such try
#define BL_ACCEPTOR_IN_FLIGHT 8     // transfers under way at a time, at most
// Only where a transfer took no longer than this are others begun beside: on a path so slow that it shows, several
// would only slow each other down, up to where all of them count as silent.
#define BL_ACCEPTOR_BRISK_MS (BL_ACCEPTOR_CALL_MS / (2 * BL_ACCEPTOR_IN_FLIGHT))

typedef enum { BL_TRANSFER_IDLE, BL_TRANSFER_QUEUED, BL_TRANSFER_MOVING, BL_TRANSFER_OVER } bl_transfer_state_t;

// What is known of one block of the plan: its transfer, and where it is. All [m].
typedef struct bl_transfer {
  STAILQ_ENTRY(bl_transfer) queued;
  bl_parked_block_t block;
  uint8_t *memory; // the slot: its owner's again when this is over
  bool load;
  bool ready; // the device has come to where it may begin
  bl_transfer_state_t state;
  bl_parking_outcome_t outcome; // when over
  uint64_t session;             // that parked the block, 0: none
  uint64_t store_slot;          // its lease at the store; 0: not taken yet
  bl_client_ticket_t ticket;    // while it moves
  uint64_t begun_ns, over_ns;   // by the throttle, a transfer that is over counts as over from then on
} bl_transfer_t;

typedef enum { BL_ACCEPTOR_OPENING, BL_ACCEPTOR_READY, BL_ACCEPTOR_RESTING, BL_ACCEPTOR_FAILED } bl_acceptor_state_t;

// What the acceptors of a parking share. It lives until nothing refers to it any more.
typedef struct bl_acceptors {
  pthread_mutex_t mutex;
  pthread_cond_t over;            // a transfer has ended, or a session is open, or is not
  uint32_t references;            // [m] the owner's, and one for each client that is not closed yet
  void (*destroy)(void *context); // called when the last one goes, on any thread
  void *context;
} bl_acceptors_t;

typedef struct bl_acceptor_options {
  char address[256]; // of the store
  char name[BL_STORE_TEXT];
  bool of_host; // no device's
  char job[BL_CLIENT_JOB_LENGTH + 1];
  uint64_t plan;
  uint32_t stage;                    // as the store knows it
  const bl_client_region_t *regions; // borrowed while the acceptor lives
  size_t region_count;               // [m] more may come: bl__acceptor_extend
  uint32_t store_slots;
  uint64_t room_bytes, arena_bytes;
  uint64_t bytes_per_second; // 0: as fast as it goes
  bl_client_path_t path;
  bl_device_t *region_device;  // that the regions lie on; NULL: the host
  struct bl_nccl_engine *nccl; // of it; NULL: none
  bool nccl_shared_gpu;
  uint64_t unit_bytes; // of the largest block of all stages
  struct bl_client_runtime *runtime;
} bl_acceptor_options_t;

// All [m] but options and shared.
typedef struct bl_acceptor {
  bl_acceptor_options_t options;
  bl_acceptors_t *shared;
  bl_acceptor_state_t state;
  bl_error_t err;      // why it failed
  uint64_t opened_ns;  // when it was last tried
  uint64_t session;    // counts sessions
  bl_client_t *client; // NULL: the last one is closed
  bool closing;        // `client` is being closed
  bool hurried;        // the session that is opened follows one that was well
  bool ending;         // there will be no other
  STAILQ_HEAD(, bl_transfer) queue;
  bl_transfer_t *moving[BL_ACCEPTOR_IN_FLIGHT]; // of `client`
  uint32_t moving_count;
  bool brisk;                                 // the last transfer was, of this session
  uint32_t held, held_peak;                   // store slots with a block in them or on its way
  uint64_t step;                              // for the labels of leases
  uint64_t moved_bytes, moved_ns;             // of this attempt: ns in which at least one was under way
  uint64_t moving_since_ns, counted_until_ns; // of that
  double quickest;              // of this attempt: the fewest ns a byte that a transfer took; 0: none moved
  uint64_t cross_machine_bytes; // of moved_bytes: to and from another machine
  bl_client_path_t path;        // of the session that is READY
  bool crosses;                 // so is the store of that session
  size_t shown;                 // regions that the session knows
  bool showing;                 // it is being told of the next one
  bl_client_ticket_t show;      // by this
  bl_throttle_t throttle;
  uint64_t *store_slots; // [options.store slots] empty ones
  uint32_t store_slot_count;
} bl_acceptor_t;

// Begins with one reference, the caller's.
void bl__acceptors_init(bl_acceptors_t *shared, void (*destroy)(void *context), void *context);
// Gives a reference back. Without the mutex.
void bl__acceptors_release(bl_acceptors_t *shared);
// By `destroy` of it.
void bl__acceptors_cleanup(bl_acceptors_t *shared);

// Begins to open the session. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__acceptor_create(const bl_acceptor_options_t *options, bl_acceptors_t *shared,
                                            bl_acceptor_t **acceptor, bl_error_t *err);
// Gives the session up for good; everything that it had at the store is free soon.
void bl__acceptor_end(bl_acceptor_t *acceptor);
// Frees it, when it has no client any more: by `destroy` of what it shares. NULL is fine.
void bl__acceptor_destroy(bl_acceptor_t *acceptor);
// Blocks may leave from the first `region_count` of options.regions, which must be there by now.
void bl__acceptor_extend(bl_acceptor_t *acceptor, size_t region_count);

// Lost at once where no session is open or being opened.
void bl__acceptor_queue(bl_acceptor_t *acceptor, bl_transfer_t *transfer);
// Looks what of the queue the device has come to, and begins it. True: it has not come to all of it.
bool bl__acceptor_look(bl_acceptor_t *acceptor);
// Ends what waits in the queue, and soon what is under way.
void bl__acceptor_flush(bl_acceptor_t *acceptor);
// The same for this one alone.
void bl__acceptor_cancel(bl_acceptor_t *acceptor, bl_transfer_t *transfer);
// Sees whether a session that rests has been lost meanwhile.
void bl__acceptor_check(bl_acceptor_t *acceptor);
// Closes the session of one that is READY.
void bl__acceptor_rest(bl_acceptor_t *acceptor);
// Ends the session and opens another one. One that is being opened already goes on.
void bl__acceptor_reopen(bl_acceptor_t *acceptor);

#endif
