// SPDX-License-Identifier: Apache-2.0
// libballast-client: room in an activation-store, for anything that has blocks to park: a pipeline stage, another
// trainer.
//
//   bl_client_region_create(4 * bytes, &buffers, err);
//   bl_client_open(&(bl_client_options_t){.size = sizeof(bl_client_options_t), .store = "unix:/run/store", .job = "mine",
//                                         .arena_bytes = 8 * bytes, .regions = &buffers, .region_count = 1}, &client, err);
//   bl_client_reserve(client, 1, &(bl_client_demand_t){.bytes = bytes, .count = 8}, 1, err);
//   uint64_t slots[8];
//   bl_client_slots(client, slots, 8);
//   bl_client_evict_start(client, slots[0], buffers.base, bytes, NULL, &ticket, err);
//   ... compute ...
//   bl_client_wait(client, ticket, UINT64_MAX, err);              // the store has the block, verified
//   ... buffers.base is free for something else ...
//   bl_client_load(client, slots[0], buffers.base, bytes, err);     // it is back, verified; the slot is free again
//   bl_client_close(client);
//   bl_client_region_destroy(&buffers);
//
// A complete program is examples/client/park.c.
//
// The store's rules (PROTOCOL.md sections 1 and 4) in short: slots are reserved ahead, all or nothing; a reserved slot
// takes a block without a further check for space; a block stays until it is loaded (but by one of the calls that keep
// it), released, or the session ends. Nothing is written into memory of this process by anybody else: on shm the store
// pulls from sealed regions and this library copies out of the store's memory; on tcp each side writes its own memory
// from frames.
//
// Threads inside: that of the runtime (client/runtime.h) renews the session, whatever the caller does meanwhile, moves
// blocks, computes and verifies checksums. So a start never blocks on memory or on the store, only on the mutex of the
// client.
//
// Lifetime rules
//   1. The source of an evict must not change, and the destination of a load must not be touched, until its wait says so,
//      a poll says it is over, or abandon has returned.
//   2. A ticket ends with one successful bl_client_wait (whatever the outcome of what it waited for) or bl_client_abandon.
//   3. One use of a slot at a time: evict, then load or release. Different slots may be used from different threads.
//   4. On shm the source of an evict lies in one region. A region and its descriptor stay as they are until it is
//      withdrawn or the client is closed. On tcp regions are not needed.
//   5. When the session is lost (the store died, or gave it up) everything fails at once with the cause; what the store
//      held is lost, blocks whose evict had not ended are still at their source. bl_client_reopen begins a new session.
//   6. On tcp a broken connection is made again and what was under way goes on, until its deadline.
//
//   7. On cuda-ipc memory is that of a GPU: the store's copy engine pulls what is evicted, ours what is loaded. No checksum is
//      computed: that of bl_client_evict_known is kept by the store and is told to people; the caller
//      compares it with the block after the load. Cancelling does not interrupt a copy.
//   8. On nccl the same holds for checksums, and the source of an evict lies in one region, which withdrawing waits for. A
//      pair of communicators lives as long as the data connection: when one fails, or a load is given up in the middle, both
//      are aborted, others are made, and what was under way goes on, as in rule 6. A process whose communicator cannot be
//      aborted ends (datapath/nccl/start.h).
//
//   9. A client belongs to the process that opened it. In a forked child every call fails with BL_PRECONDITION, does nothing
//      or finds nothing, also bl_client_close; the parent's client does not notice. A child can open a client of its own
//      only if its parent had opened none before it was forked. The store sees the end of a parent that dies while a
//      child has copies of its connections only when the TTL has passed.
//
// Statuses: BL_EXHAUSTED no room or quota (the text says what is free); BL_FENCED the session or store is not the
// one it was; BL_DATA_LOSS the checksum does not match, or an operator revoked the lease; BL_UNAVAILABLE the store does
// not answer within the deadline of the call, or is gone; BL_IO the transfer failed; BL_PRECONDITION the slot is in
// use, or empty, or the store drains; BL_CANCELLED; BL_INVALID; BL_NOT_FOUND no such slot.
// Thread: open, reopen and close from one thread, nothing else in progress; all others from any.
// ABI: structures with a `size` may grow at their end, and size says which one the caller was built with; all others
// stay as they are. What a status or another enumeration is called keeps its number.
#ifndef BALLAST_CLIENT_CLIENT_H
#define BALLAST_CLIENT_CLIENT_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BL_CLIENT_SLOTS      65536 // of one session at most
#define BL_CLIENT_REGIONS    4096
#define BL_CLIENT_TICKETS    256   // not yet waited for; a start beyond them waits for another thread's wait
#define BL_CLIENT_IN_FLIGHT  48    // requests under way at a time; more wait for their turn. Below the store's window
#define BL_CLIENT_DEADLINE   10000 // ms
#define BL_CLIENT_JOB_LENGTH 63
#define BL_CLIENT_PATH_BYTES 192

typedef struct bl_client bl_client_t;

typedef enum bl_client_path {
  BL_CLIENT_PATH_AUTO, // what choice.h of lib/datapath says: inside of a machine cuda-ipc or shm, across nccl or tcp
  BL_CLIENT_PATH_SHM,
  BL_CLIENT_PATH_TCP,
  BL_CLIENT_PATH_CUDA_IPC, // from GPU to GPU inside of a machine, by copy engines
  BL_CLIENT_PATH_NCCL,     // from GPU to GPU, also of other machines
} bl_client_path_t;

typedef struct bl_client_ticket { // something under way
  uint32_t index, serial;
} bl_client_ticket_t;

typedef struct bl_client_demand {
  uint64_t bytes;
  uint32_t count;
} bl_client_demand_t;

// Memory that blocks leave from.
typedef struct bl_client_region {
  void *base; // the client only reads it
  uint64_t bytes;
  int fd; // a memfd of at least `bytes`, sealed against shrinking (bl_client_region_create); -1 on tcp is fine
} bl_client_region_t;

typedef struct bl_client_options {
  size_t size;          // of this structure: sizeof(bl_client_options_t). BL_INVALID: none that this library knows
  const char *store;    // its control address: "unix:/path" or "host:port"
  const char *job;      // sessions of one job share memory and quota at the store
  uint64_t plan;        // which of the job's arenas, each of which has the whole quota; 0: it has only one
  uint32_t stage;       // tells the holders of a job apart: a newer one with this number ends the older
  uint64_t arena_bytes; // of the job at this store, all its stages together; 0: as it is there
  uint64_t ttl_ms;      // 0: the store's
  const bl_client_region_t *regions; // as by bl_client_register; copied
  size_t region_count;               // may be 0
  // device/device.h: that regions and destinations lie on, outlives the client; NULL: the host. BL_UNIMPLEMENTED when
  // blocks can reach the store only through memory of the host: open it for that instead.
  struct bl_device *device;
  struct bl_nccl_engine *nccl; // datapath/nccl/start.h: for the path nccl, outlives the client; NULL: without it
  bool nccl_shared_gpu;        // as it was started with
  uint64_t unit_bytes;         // of the job's largest block; 0: not known
  uint64_t deadline_ms;        // of every call; 0: BL_CLIENT_DEADLINE
  uint64_t open_ms;            // of opening; 0: as every call
  bl_client_path_t path;
  bool unverified; // no checksums: for measurements only
  // How the store is met: files as of --tls-ca, --tls-certificate and --tls-key, all or none, read again when they
  // change (docs/security.md); the certificate's role is stage. None: plaintext, which off the loopback interface needs
  // `plaintext`. When nothing of this is set and the program of this tree has an identity (bl_rpc_secure_process), that
  // one.
  const char *tls_ca, *tls_certificate, *tls_key;
  bool plaintext;
  struct bl_client_runtime *runtime; // that does its work (client/runtime.h), outlives the client; NULL: one of its own
  // Called on the runtime's thread when what a ticket stands for has ended: bl_client_wait does not wait any more. It
  // may call everything that does not wait. NULL: nobody is told.
  void (*on_end)(void *context, bl_client_t *client, bl_client_ticket_t ticket);
  void *context;
} bl_client_options_t;

BL_MUST_USE bl_status_t bl_client_open(const bl_client_options_t *options, bl_client_t **client, bl_error_t *err);

// The same without a wait, together with a first reservation under options->plan (no demands: none). `opened` is called
// once, on the runtime's thread: BL_OK, the slots are there; else the client has failed and is to be closed. It is not
// called any more when a close was begun first. If this function itself fails, `opened` is not called.
typedef void (*bl_client_opened_fn)(void *context, bl_client_t *client, const bl_error_t *err);
BL_MUST_USE bl_status_t bl_client_open_start(const bl_client_options_t *options, const bl_client_demand_t *demands,
                                             size_t demand_count, bl_client_opened_fn opened, bl_client_t **client,
                                             bl_error_t *err);
// Begins to close: what is under way ends with BL_CANCELLED (on_end is still called for it), the store is told, and the
// client is gone when `closed` is called on the runtime's thread, with options->context, as the last call of all. Only
// bl_client_wait for tickets that are told of may still be called meanwhile. `closed` may be NULL.
void bl_client_close_start(bl_client_t *client, void (*closed)(void *context));
// Begins a new session, of the same regions, after the old one was lost (or not: it is given up then). Slots are
// reserved anew; tickets must all have ended. On failure the client is as lost as before, and it may be tried again.
BL_MUST_USE bl_status_t bl_client_reopen(bl_client_t *client, bl_error_t *err);
// Gives everything back. NULL is fine.
void bl_client_close(bl_client_t *client);

// ---- memory that blocks leave from

// Memory of the host that can be shown to stores: zero, resident, of a fixed size; whoever gets its descriptor can only
// read it. BL_INVALID: 0 bytes. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_client_region_create(uint64_t bytes, bl_client_region_t *region, bl_error_t *err);
// Of bl_client_region_create, withdrawn from all clients or after their close. A second call does nothing.
void bl_client_region_destroy(bl_client_region_t *region);

// Shows a region to the store. Regions may be added and withdrawn while blocks of others move. BL_INVALID, BL_DENIED
// (not sealed), BL_EXHAUSTED, BL_UNAVAILABLE.
BL_MUST_USE bl_status_t bl_client_register(bl_client_t *client, const bl_client_region_t *region, uint32_t *number,
                                           bl_error_t *err);
// The same without a wait: the ticket ends when the store has mapped it.
BL_MUST_USE bl_status_t bl_client_register_start(bl_client_t *client, const bl_client_region_t *region,
                                                 uint32_t *number, bl_client_ticket_t *ticket, bl_error_t *err);
// The store has let go of the region: its memory may be unmapped, changed and sealed otherwise. Waits for evicts from
// it that are under way.
BL_MUST_USE bl_status_t bl_client_unregister(bl_client_t *client, uint32_t number, bl_error_t *err);

// ---- slots

// Slots for a plan (from 1), all or nothing. Plans follow each other: the session holds, per size, the most that one of
// its plans asks for; unreserve the old one once it runs no more. Reserving a plan again changes nothing, but finds out
// about slots whose last evict or release got no answer.
BL_MUST_USE bl_status_t bl_client_reserve(bl_client_t *client, uint64_t plan, const bl_client_demand_t *demands,
                                          size_t demand_count, bl_error_t *err);
BL_MUST_USE bl_status_t bl_client_unreserve(bl_client_t *client, uint64_t plan, bl_error_t *err);
// The slots of the session; fills up to `capacity`, returns how many there are.
size_t bl_client_slots(bl_client_t *client, uint64_t *slots, size_t capacity);

// ---- blocks

typedef struct bl_client_label { // for people who look at the store
  uint64_t step;
  uint32_t chunk, micro_batch;
} bl_client_label_t;

// Begins to move a block into an empty slot. `label` may be NULL.
BL_MUST_USE bl_status_t bl_client_evict_start(bl_client_t *client, uint64_t slot, const void *source, uint64_t bytes,
                                              const bl_client_label_t *label, bl_client_ticket_t *ticket,
                                              bl_error_t *err);
// Begins to copy the block of a slot to `destination`; once that is verified, the slot is empty. `bytes` must be the
// block's. After BL_DATA_LOSS the destination is zero and the block gone; after other failures the destination is
// undefined and the block still there, if the store is.
BL_MUST_USE bl_status_t bl_client_load_start(bl_client_t *client, uint64_t slot, void *destination, uint64_t bytes,
                                             bl_client_ticket_t *ticket, bl_error_t *err);
// The same, but the block stays in its slot, to be loaded again or released: for who needs it twice.
BL_MUST_USE bl_status_t bl_client_load_start_kept(bl_client_t *client, uint64_t slot, void *destination, uint64_t bytes,
                                                  bl_client_ticket_t *ticket, bl_error_t *err);
// Begins to copy `bytes` of the block of a slot, from its byte `offset` on, to `destination`; the block stays, and may
// be loaded so again. All of it is read and verified, these bytes alone are written. BL_INVALID: they are not all in
// the block. BL_UNIMPLEMENTED: of a client with a device.
BL_MUST_USE bl_status_t bl_client_load_part_start(bl_client_t *client, uint64_t slot, uint64_t offset,
                                                  void *destination, uint64_t bytes, bl_client_ticket_t *ticket,
                                                  bl_error_t *err);
// Begins to drop the block of a slot, which is empty when that has ended.
BL_MUST_USE bl_status_t bl_client_release_start(bl_client_t *client, uint64_t slot, bl_client_ticket_t *ticket,
                                                bl_error_t *err);

// Waits for the end and gives the outcome: an evict is complete and verified at the store, a load here, or why not.
// BL_DEADLINE: `deadline_ns` (of bl_clock_now_ns; UINT64_MAX: none but the client's) came first; the ticket lives on.
BL_MUST_USE bl_status_t bl_client_wait(bl_client_t *client, bl_client_ticket_t ticket, uint64_t deadline_ns,
                                       bl_error_t *err);
// Whether a wait would return at once.
bool bl_client_poll(bl_client_t *client, bl_client_ticket_t ticket);
// Asks to stop: the wait, which is still due, gives BL_CANCELLED unless the end came first. A cancelled evict leaves
// the slot empty, a cancelled load leaves the block in the store.
void bl_client_cancel(bl_client_t *client, bl_client_ticket_t ticket);
// Cancels and ends the ticket: the memory is the caller's again when this returns. What becomes of the slot is found
// out in the background; it can be used again once bl_client_slot_state tells.
void bl_client_abandon(bl_client_t *client, bl_client_ticket_t ticket);

typedef enum bl_client_slot_state {
  BL_CLIENT_SLOT_NONE, // no such slot
  BL_CLIENT_SLOT_EMPTY,
  BL_CLIENT_SLOT_EVICTING,
  BL_CLIENT_SLOT_FULL,
  BL_CLIENT_SLOT_LOADING, // or being released
  BL_CLIENT_SLOT_UNKNOWN, // the store did not answer in time
} bl_client_slot_state_t;
bl_client_slot_state_t bl_client_slot_state(bl_client_t *client, uint64_t slot);

// The same with the checksum of the block (bl_block_checksum of lib/datapath), which is then not computed again. On
// cuda-ipc any number that the caller understands.
BL_MUST_USE bl_status_t bl_client_evict_start_known(bl_client_t *client, uint64_t slot, const void *source,
                                                    uint64_t bytes, uint64_t checksum, const bl_client_label_t *label,
                                                    bl_client_ticket_t *ticket, bl_error_t *err);

// Start and wait in one.
BL_MUST_USE bl_status_t bl_client_evict(bl_client_t *client, uint64_t slot, const void *source, uint64_t bytes,
                                        const bl_client_label_t *label, bl_error_t *err);
BL_MUST_USE bl_status_t bl_client_load(bl_client_t *client, uint64_t slot, void *destination, uint64_t bytes,
                                       bl_error_t *err);
BL_MUST_USE bl_status_t bl_client_load_kept(bl_client_t *client, uint64_t slot, void *destination, uint64_t bytes,
                                            bl_error_t *err);
BL_MUST_USE bl_status_t bl_client_load_part(bl_client_t *client, uint64_t slot, uint64_t offset, void *destination,
                                            uint64_t bytes, bl_error_t *err);
BL_MUST_USE bl_status_t bl_client_release(bl_client_t *client, uint64_t slot, bl_error_t *err);

// As bl_client_evict, for a caller that knows the checksum of the block already (bl_block_checksum of lib/datapath).
BL_MUST_USE bl_status_t bl_client_evict_known(bl_client_t *client, uint64_t slot, const void *source, uint64_t bytes,
                                              uint64_t checksum, const bl_client_label_t *label, bl_error_t *err);
// ---- looking

// BL_OK while the session lives; else why it does not.
bl_status_t bl_client_state(bl_client_t *client, bl_error_t *err);
bool bl_client_is_draining(bl_client_t *client); // the store wants us to leave
// The path in use, and why: "shm: same machine".
bl_client_path_t bl_client_path(bl_client_t *client, char text[BL_CLIENT_PATH_BYTES]);
bool bl_client_crosses(
    const bl_client_t *client); // the store is on another machine (datapath/machine.h); once it is open

typedef struct bl_client_counters {   // may grow at its end
  uint64_t evicted, loaded, released; // blocks
  uint64_t evicted_bytes, loaded_bytes;
  uint64_t bytes_copied; // by this process: on shm and cuda-ipc equals loaded_bytes, else 0
  uint64_t retries;      // requests that were sent again
  uint64_t renewals;
  uint64_t reconnects; // of the data connection, with its communicators
  uint64_t checksum_failures;
} bl_client_counters_t;
// Fills the first `size` bytes of *counters: sizeof(bl_client_counters_t) of the caller; what the library does not
// count is 0.
void bl_client_counters_fill(bl_client_t *client, bl_client_counters_t *counters, size_t size);
static inline bl_client_counters_t bl_client_counters(bl_client_t *client) {
  bl_client_counters_t counters;
  bl_client_counters_fill(client, &counters, sizeof counters);
  return counters;
}

#endif
