// SPDX-License-Identifier: Apache-2.0
// libballast-client: memory of an activation-store for any program that has blocks to park, such as a pipeline stage or
// another trainer.
//
//   bl_client_region_create(4 * bytes, &buffers, err);
//   bl_client_open(&(bl_client_options_t){.size = sizeof(bl_client_options_t), .store = "unix:/run/store",
//                                         .job = "mine", .arena_bytes = 8 * bytes, .regions = &buffers,
//                                         .region_count = 1}, &client, err);
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
// The store's rules (PROTOCOL.md sections 1 and 4) in short: slots are reserved in advance, all or nothing. A reserved
// slot takes a block without a further check for space. A block stays until it is loaded (except by a call that keeps
// it) or released, or until the session ends. No other process writes to memory of this process: on shm the store pulls
// from sealed regions and this library copies out of the store's memory; on tcp each side writes its own memory from
// frames.
//
// The runtime's thread (client/runtime.h) renews the session whatever the caller does meanwhile, moves blocks, and
// computes and verifies checksums. So a start never blocks on memory or on the store. It takes the client's mutex, and
// it waits if all BL_CLIENT_TICKETS are in use.
//
// Lifetime rules
//   1. The source of an evict must not change, and the destination of a load must not be touched, until bl_client_wait
//      has returned the outcome, bl_client_poll has returned true, or bl_client_abandon has returned.
//   2. A ticket ends with one successful bl_client_wait (whatever the outcome of the operation) or with
//      bl_client_abandon.
//   3. One use of a slot at a time: evict, then load or release. Different slots may be used from different threads.
//   4. On shm the source of an evict lies in one region. A region and its descriptor stay as they are until the region
//      is unregistered or the client is closed. On tcp regions are not needed.
//   5. When the session is lost (the store died or ended it), every call fails at once with the cause. The blocks that
//      the store held are lost; a block whose evict had not ended is still at its source. bl_client_reopen begins a new
//      session.
//   6. On tcp the client reconnects after a connection broke, and operations in flight continue until their deadline.
//
//   7. On cuda-ipc the memory is that of a GPU: the store's copy engine pulls evicted blocks, the client's pulls loaded
//      ones. No checksum is computed. The store keeps the checksum of bl_client_evict_known and shows it to operators;
//      the caller compares it with the block after the load. Cancelling does not interrupt a copy.
//   8. On nccl the same holds for checksums. The source of an evict lies in one region, and bl_client_unregister waits
//      for the evict. A pair of communicators lives as long as the data connection. When one fails, or a load is
//      cancelled in the middle, both are aborted and replaced, and operations in flight continue, as in rule 6. A
//      process whose communicator cannot be aborted ends (datapath/nccl/start.h).
//
//   9. A client belongs to the process that opened it. In a forked child every call, also bl_client_close, fails with
//      BL_PRECONDITION, does nothing or finds nothing, and the parent's client is not affected. A child can open its
//      own client only if its parent had opened none before the fork. When a process dies with an open client, the
//      store takes its slots back after the TTL and the grace.
//
// Statuses: BL_EXHAUSTED: no memory or quota (the text says what is free). BL_FENCED: the session is over, or the store
// was restarted. BL_DATA_LOSS: the checksum does not match, or an operator revoked the lease. BL_UNAVAILABLE: the store
// does not answer within the call's deadline, or is gone. BL_IO: the transfer failed. BL_PRECONDITION: the slot is in
// use or empty, or the store drains. BL_NOT_FOUND: no such slot. BL_CANCELLED. BL_INVALID: an argument is wrong, such
// as memory that is NULL; the text names it.
// Thread: open, reopen and close from one thread, with no other call in progress; all other functions from any thread.
// ABI: a structure with a `size` may grow at its end, and `size` says which version the caller was built with. All
// other structures stay as they are. The constants of bl_status_t and other enumerations keep their numbers.
#ifndef BALLAST_CLIENT_CLIENT_H
#define BALLAST_CLIENT_CLIENT_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BL_CLIENT_SLOTS   65536 // of one session at most
#define BL_CLIENT_REGIONS 4096
// Tickets in use at a time; a further start waits until a wait of another thread frees one.
#define BL_CLIENT_TICKETS 256
// Requests in flight at a time, fewer than the store's window; further ones wait in a queue.
#define BL_CLIENT_IN_FLIGHT  48
#define BL_CLIENT_DEADLINE   10000 // ms
#define BL_CLIENT_JOB_LENGTH 63
#define BL_CLIENT_PATH_BYTES 192

typedef struct bl_client bl_client_t;

typedef enum bl_client_path {
  // As choice.h of lib/datapath chooses: cuda-ipc or shm within a machine, nccl or tcp between machines.
  BL_CLIENT_PATH_AUTO,
  BL_CLIENT_PATH_SHM,
  BL_CLIENT_PATH_TCP,
  BL_CLIENT_PATH_CUDA_IPC, // from GPU to GPU within a machine, by copy engines
  BL_CLIENT_PATH_NCCL,     // from GPU to GPU, also between machines
} bl_client_path_t;

typedef struct bl_client_ticket { // an operation in flight
  uint32_t index, serial;
} bl_client_ticket_t;

typedef struct bl_client_demand {
  uint64_t bytes;
  uint32_t count;
} bl_client_demand_t;

// Memory from which blocks are evicted.
typedef struct bl_client_region {
  void *base; // the client only reads it
  uint64_t bytes;
  int fd; // a memfd of at least `bytes`, sealed against shrinking (bl_client_region_create); may be -1 on tcp
} bl_client_region_t;

typedef struct bl_client_options {
  // sizeof(bl_client_options_t). BL_INVALID: too small, or a field is used that this library does not know.
  size_t size;
  const char *store;    // its control address: "unix:/path" or "host:port"
  const char *job;      // sessions of one job share memory and quota at the store
  uint64_t plan;        // selects one of the job's arenas, each of which has the whole quota; 0: the job has only one
  uint32_t stage;       // distinguishes the holders of a job: a newer session with this number ends the older one
  uint64_t arena_bytes; // of the job at this store, for all its stages together; 0: the size that it has already
  uint64_t ttl_ms;      // 0: the store's default; at least 2 s and at most an hour, or that default if it is longer
  const bl_client_region_t *regions; // registered as by bl_client_register; copied
  size_t region_count;               // may be 0
  // The device of the regions and destinations (device/device.h); outlives the client. NULL: the host. BL_UNIMPLEMENTED
  // if blocks can reach the store only through host memory: open the client for the host instead.
  struct bl_device *device;
  struct bl_nccl_engine *nccl; // datapath/nccl/start.h: engine for the path nccl, outlives the client; NULL: no nccl
  bool nccl_shared_gpu;        // the value with which `nccl` was started
  uint64_t unit_bytes;         // of the job's largest block; 0: unknown
  uint64_t deadline_ms;        // of every call; 0: BL_CLIENT_DEADLINE
  uint64_t open_ms;            // of opening; 0: deadline_ms
  bl_client_path_t path;
  bool unverified; // no checksums: for measurements only
  // TLS files as for --tls-ca, --tls-certificate and --tls-key: all or none. They are read again when they change
  // (docs/security.md), and the certificate's role is stage. Without them the connection is plaintext, which off the
  // loopback interface requires `plaintext`. If none of these fields is set, the client uses the identity of the
  // process, if it has one (bl_rpc_secure_process).
  const char *tls_ca, *tls_certificate, *tls_key;
  bool plaintext;
  // Does the client's work (client/runtime.h), outlives the client; NULL: the client creates its own.
  struct bl_client_runtime *runtime;
  // Called on the runtime's thread when the operation of a ticket has ended: bl_client_wait then returns at once. It
  // may call every function that does not wait. NULL: not called.
  void (*on_end)(void *context, bl_client_t *client, bl_client_ticket_t ticket);
  void *context;
} bl_client_options_t;

BL_MUST_USE bl_status_t bl_client_open(const bl_client_options_t *options, bl_client_t **client, bl_error_t *err);

// Opens a client without waiting and makes a first reservation under options->plan (no demands: none). Requires
// options->runtime. `opened` is called once, on the runtime's thread. BL_OK: the slots are reserved. Otherwise the
// client has failed and must be closed. `opened` is not called if a close begins first, or if this function itself
// fails.
typedef void (*bl_client_opened_fn)(void *context, bl_client_t *client, const bl_error_t *err);
BL_MUST_USE bl_status_t bl_client_open_start(const bl_client_options_t *options, const bl_client_demand_t *demands,
                                             size_t demand_count, bl_client_opened_fn opened, bl_client_t **client,
                                             bl_error_t *err);
// Begins to close the client. Operations in flight end with BL_CANCELLED (on_end is still called for them), and the
// store is notified. `closed` is called on the runtime's thread, with options->context, as the last call of all, when
// the client has been freed. Until then only bl_client_wait may still be called, for tickets that on_end has reported.
// `closed` may be NULL.
void bl_client_close_start(bl_client_t *client, void (*closed)(void *context));
// Begins a new session with the same regions after the old one was lost; if the old one still lives, it is closed.
// Slots must be reserved again. All tickets must have ended. On failure the client stays lost, and reopen may be called
// again.
BL_MUST_USE bl_status_t bl_client_reopen(bl_client_t *client, bl_error_t *err);
// Closes the client and waits until it is freed. NULL is fine.
void bl_client_close(bl_client_t *client);

// ---- memory from which blocks are evicted

// Creates host memory that can be registered with stores: zeroed, resident, of a fixed size. A process that receives
// its descriptor can only read it. BL_INVALID: 0 bytes. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_client_region_create(uint64_t bytes, bl_client_region_t *region, bl_error_t *err);
// Frees memory of bl_client_region_create. Every client must have unregistered it or be closed. A second call does
// nothing. NULL is fine.
void bl_client_region_destroy(bl_client_region_t *region);

// Registers a region with the store. Regions may be registered and unregistered while blocks of other regions move.
// BL_INVALID, BL_DENIED (not sealed), BL_EXHAUSTED, BL_UNAVAILABLE.
BL_MUST_USE bl_status_t bl_client_register(bl_client_t *client, const bl_client_region_t *region, uint32_t *number,
                                           bl_error_t *err);
// The same without waiting: the ticket ends when the store has mapped the region.
BL_MUST_USE bl_status_t bl_client_register_start(bl_client_t *client, const bl_client_region_t *region,
                                                 uint32_t *number, bl_client_ticket_t *ticket, bl_error_t *err);
// Unregisters a region. Afterwards its memory may be unmapped, changed and sealed differently. Waits for evicts in
// flight from it.
BL_MUST_USE bl_status_t bl_client_unregister(bl_client_t *client, uint32_t number, bl_error_t *err);

// ---- slots

// Reserves slots for a plan (from 1), all or nothing. Plans follow each other: for each size the session holds the
// maximum that any one of its plans asks for. Unreserve the old plan when it no longer runs. Reserving a plan again
// changes nothing, but resolves slots whose last evict or release got no answer.
BL_MUST_USE bl_status_t bl_client_reserve(bl_client_t *client, uint64_t plan, const bl_client_demand_t *demands,
                                          size_t demand_count, bl_error_t *err);
BL_MUST_USE bl_status_t bl_client_unreserve(bl_client_t *client, uint64_t plan, bl_error_t *err);
// Copies the ids of the session's slots to `slots`, up to `capacity`. Returns how many there are.
size_t bl_client_slots(bl_client_t *client, uint64_t *slots, size_t capacity);

// ---- blocks

typedef struct bl_client_label { // shown to operators of the store
  uint64_t step;
  uint32_t chunk, micro_batch;
} bl_client_label_t;

// Starts to move a block into an empty slot. `label` may be NULL.
BL_MUST_USE bl_status_t bl_client_evict_start(bl_client_t *client, uint64_t slot, const void *source, uint64_t bytes,
                                              const bl_client_label_t *label, bl_client_ticket_t *ticket,
                                              bl_error_t *err);
// Starts to copy the block of a slot to `destination`. Once the copy is verified, the slot is empty. `bytes` must be
// the block's. After BL_DATA_LOSS the destination is zero and the block is gone. After other failures the destination
// is undefined, and the block still exists if the store does.
BL_MUST_USE bl_status_t bl_client_load_start(bl_client_t *client, uint64_t slot, void *destination, uint64_t bytes,
                                             bl_client_ticket_t *ticket, bl_error_t *err);
// The same, but the block stays in its slot, to be loaded again or released.
BL_MUST_USE bl_status_t bl_client_load_start_kept(bl_client_t *client, uint64_t slot, void *destination, uint64_t bytes,
                                                  bl_client_ticket_t *ticket, bl_error_t *err);
// Starts to copy `bytes` of the block of a slot, from its byte `offset` on, to `destination`. The block stays in its
// slot, for further loads. The whole block is read and verified, but only these bytes are written. BL_INVALID: they do
// not all lie in the block. BL_UNIMPLEMENTED: the client has a device.
BL_MUST_USE bl_status_t bl_client_load_part_start(bl_client_t *client, uint64_t slot, uint64_t offset,
                                                  void *destination, uint64_t bytes, bl_client_ticket_t *ticket,
                                                  bl_error_t *err);
// Starts to drop the block of a slot. The slot is empty when this has ended.
BL_MUST_USE bl_status_t bl_client_release_start(bl_client_t *client, uint64_t slot, bl_client_ticket_t *ticket,
                                                bl_error_t *err);

// Waits for the end of an operation and returns its outcome: an evicted block is complete and verified at the store, a
// loaded block at its destination, or the cause of the failure. BL_DEADLINE: `deadline_ns` (on bl_clock_now_ns;
// UINT64_MAX: only the client's applies) passed first; the ticket stays valid.
BL_MUST_USE bl_status_t bl_client_wait(bl_client_t *client, bl_client_ticket_t ticket, uint64_t deadline_ns,
                                       bl_error_t *err);
// Returns whether a wait would return at once.
bool bl_client_poll(bl_client_t *client, bl_client_ticket_t ticket);
// Requests cancellation. A wait is still due and returns BL_CANCELLED unless the operation ended first. A cancelled
// evict leaves the slot empty, a cancelled load leaves the block in the store.
void bl_client_cancel(bl_client_t *client, bl_client_ticket_t ticket);
// Cancels the operation and ends the ticket: when this returns, the memory belongs to the caller again. The client
// resolves the slot in the background. The slot can be used again when bl_client_slot_state is no longer
// BL_CLIENT_SLOT_UNKNOWN.
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

// As bl_client_evict_start, for a caller that knows the checksum of the block (bl_block_checksum of lib/datapath). On
// shm it is not computed again, on tcp it is compared with the bytes that were sent. On cuda-ipc it may be any number
// that the caller understands.
BL_MUST_USE bl_status_t bl_client_evict_start_known(bl_client_t *client, uint64_t slot, const void *source,
                                                    uint64_t bytes, uint64_t checksum, const bl_client_label_t *label,
                                                    bl_client_ticket_t *ticket, bl_error_t *err);

// Start and wait in one call.
BL_MUST_USE bl_status_t bl_client_evict(bl_client_t *client, uint64_t slot, const void *source, uint64_t bytes,
                                        const bl_client_label_t *label, bl_error_t *err);
BL_MUST_USE bl_status_t bl_client_load(bl_client_t *client, uint64_t slot, void *destination, uint64_t bytes,
                                       bl_error_t *err);
BL_MUST_USE bl_status_t bl_client_load_kept(bl_client_t *client, uint64_t slot, void *destination, uint64_t bytes,
                                            bl_error_t *err);
BL_MUST_USE bl_status_t bl_client_load_part(bl_client_t *client, uint64_t slot, uint64_t offset, void *destination,
                                            uint64_t bytes, bl_error_t *err);
BL_MUST_USE bl_status_t bl_client_release(bl_client_t *client, uint64_t slot, bl_error_t *err);

// As bl_client_evict, for a caller that knows the checksum of the block (bl_client_evict_start_known).
BL_MUST_USE bl_status_t bl_client_evict_known(bl_client_t *client, uint64_t slot, const void *source, uint64_t bytes,
                                              uint64_t checksum, const bl_client_label_t *label, bl_error_t *err);
// ---- queries

// Returns BL_OK while the session lives, otherwise the cause of its end.
bl_status_t bl_client_state(bl_client_t *client, bl_error_t *err);
bool bl_client_is_draining(bl_client_t *client); // the store asks its holders to leave
// Returns the path in use, and its reason in `text`: "shm: same machine".
bl_client_path_t bl_client_path(bl_client_t *client, char text[BL_CLIENT_PATH_BYTES]);
// Returns whether the store is on another machine (datapath/machine.h). The client must be open.
bool bl_client_crosses(const bl_client_t *client);

typedef struct bl_client_counters {   // may grow at its end
  uint64_t evicted, loaded, released; // blocks
  uint64_t evicted_bytes, loaded_bytes;
  uint64_t bytes_copied; // by this process: on shm and cuda-ipc equals loaded_bytes, else 0
  uint64_t retries;      // requests that were resent
  uint64_t renewals;
  uint64_t reconnects; // of the data connection, including its communicators
  uint64_t checksum_failures;
} bl_client_counters_t;
// Fills the first `size` bytes of *counters, the caller's sizeof(bl_client_counters_t). Counters that the library does
// not have are 0.
void bl_client_counters_fill(bl_client_t *client, bl_client_counters_t *counters, size_t size);
static inline bl_client_counters_t bl_client_counters(bl_client_t *client) {
  bl_client_counters_t counters;
  bl_client_counters_fill(client, &counters, sizeof counters);
  return counters;
}

#endif
