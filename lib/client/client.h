// SPDX-License-Identifier: Apache-2.0
// libballast-client: room in an activation-store, for anything that has blocks to park: a pipeline stage, another trainer.
//
//   bl_arena_create(bl_device_host(), NULL, BL_MEMORY_SLOTS, BL_ARENA_SHAREABLE, 4 * bytes, &slots, err);
//   bl_client_open(&(bl_client_options_t){.store = "unix:/run/store", .job = "mine", .arena_bytes = 8 * bytes,
//                                         .sources = &slots, .source_count = 1}, &client, err);
//   bl_client_reserve(client, 1, &(bl_client_demand_t){.bytes = bytes, .count = 8}, 1, err);
//   uint64_t rooms[8];
//   bl_client_rooms(client, rooms, 8);
//   bl_client_evict(client, rooms[0], slots.base, bytes, NULL, err);      // the store has the block, verified
//   ... slots.base is free for something else ...
//   bl_client_load(client, rooms[0], slots.base, bytes, err);             // it is back, verified; the room is free again
//   bl_client_close(client);
//
// A complete program is examples/client/park.c.
//
// The store's rules (PROTOCOL.md sections 1 and 4) in short: rooms are reserved ahead, all or nothing; a reserved room
// takes a block without a further check for space; a block stays until it is loaded, released, or the session ends. A
// thread of the client renews the session, whatever the caller does meanwhile. Nothing is written into memory of this
// process by anybody else: the store pulls from the sealed source arenas, and this library copies out of the store's.
//
// Lifetime rules
//   1. The source of an evict must not change until its wait says so, and lies in one of the arenas of the options,
//      which outlive the client.
//   2. Every evict that was started is waited for once.
//   3. One use of a room at a time: evict, then load or release. Different rooms may be used from different threads.
//   4. When the session is lost (the store died, or gave it up) every call fails at once with the cause; what the store
//      held is lost, blocks whose evict had not ended are still at their source. Close, and open anew.
//
// Statuses: BL_EXHAUSTED no room, quota or flow (the text says what is free); BL_FENCED the session or store is not the
// one it was; BL_DATA_LOSS the checksum does not match, or an operator revoked the lease; BL_UNAVAILABLE, BL_DEADLINE the
// store does not answer; BL_IO the transfer failed; BL_PRECONDITION the room is in use, or empty, or the store drains;
// BL_INVALID; BL_NOT_FOUND no such room.
// Thread: open and close from one thread, nothing else in progress; all others from any.
#ifndef BALLAST_CLIENT_CLIENT_H
#define BALLAST_CLIENT_CLIENT_H

#include "base/error.h"
#include "device/device.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BL_CLIENT_ROOMS      65536 // of one session at most
#define BL_CLIENT_IN_FLIGHT  48    // calls under way at a time; more wait for their turn. Below the store's window
#define BL_CLIENT_DEADLINE   10000 // ms
#define BL_CLIENT_SOURCES    240   // arenas of one session; a slot of a stage is one
#define BL_CLIENT_JOB_LENGTH 63

typedef struct bl_client bl_client_t;

typedef struct bl_client_options {
  const char *store;         // its control address: "unix:/path" or "host:port"
  const char *job;           // sessions of one job share memory and quota at the store
  uint32_t stage;            // tells the holders of a job apart: a newer one with this number ends the older
  uint64_t arena_bytes;      // of the job at this store, all its stages together; 0: as it is there
  uint64_t ttl_ms;           // 0: the store's
  const bl_arena_t *sources; // BL_ARENA_SHAREABLE arenas that blocks leave from; copied
  size_t source_count;       // 1 to BL_CLIENT_SOURCES
  uint64_t deadline_ms;      // of every call; 0: BL_CLIENT_DEADLINE
} bl_client_options_t;

BL_MUST_USE bl_status_t bl_client_open(const bl_client_options_t *options, bl_client_t **client, bl_error_t *err);
// Gives everything back. NULL is fine.
void bl_client_close(bl_client_t *client);

typedef struct bl_client_demand {
  uint64_t bytes;
  uint32_t count;
} bl_client_demand_t;

// Rooms for a plan (from 1), all or nothing. Plans follow each other: the session holds, per size, the most that one of
// its plans asks for; unreserve the old one once it runs no more. Reserving a plan again changes nothing, but finds out
// about rooms whose last evict or release got no answer.
BL_MUST_USE bl_status_t bl_client_reserve(bl_client_t *client, uint64_t plan, const bl_client_demand_t *demands,
                                          size_t demand_count, bl_error_t *err);
BL_MUST_USE bl_status_t bl_client_unreserve(bl_client_t *client, uint64_t plan, bl_error_t *err);
// The rooms of the session; fills up to `capacity`, returns how many there are.
size_t bl_client_rooms(bl_client_t *client, uint64_t *rooms, size_t capacity);

typedef struct bl_client_label { // for people who look at the store
  uint64_t step;
  uint32_t chunk, micro_batch;
} bl_client_label_t;

typedef struct bl_client_ticket { // an evict under way
  uint32_t slot;
} bl_client_ticket_t;

// Begins to move a block into an empty room. The checksum is computed here, before this returns. `label` may be NULL.
BL_MUST_USE bl_status_t bl_client_evict_start(bl_client_t *client, uint64_t room, const void *source, uint64_t bytes,
                                              const bl_client_label_t *label, bl_client_ticket_t *ticket,
                                              bl_error_t *err);
// Waits until the block is complete and verified at the store, or is not: then it is still at its source.
BL_MUST_USE bl_status_t bl_client_evict_wait(bl_client_t *client, bl_client_ticket_t ticket, bl_error_t *err);
// Both, for a caller that knows the checksum of the block already (bl_block_checksum of lib/datapath).
BL_MUST_USE bl_status_t bl_client_evict_known(bl_client_t *client, uint64_t room, const void *source, uint64_t bytes,
                                              uint64_t checksum, const bl_client_label_t *label, bl_error_t *err);
// Both.
BL_MUST_USE bl_status_t bl_client_evict(bl_client_t *client, uint64_t room, const void *source, uint64_t bytes,
                                        const bl_client_label_t *label, bl_error_t *err);
// Copies the block of a room to `destination` and verifies it; the room is empty then. After BL_DATA_LOSS the
// destination is zero and the block gone.
BL_MUST_USE bl_status_t bl_client_load(bl_client_t *client, uint64_t room, void *destination, uint64_t bytes,
                                       bl_error_t *err);
// A load that another thread may give up. All zero at first; one per load.
typedef struct bl_client_landing {
  atomic_bool given_up;
  atomic_bool writing;
} bl_client_landing_t;
// As bl_client_load, but BL_CANCELLED once the landing was given up: the block is then still in its room.
BL_MUST_USE bl_status_t bl_client_load_unless(bl_client_t *client, uint64_t room, void *destination, uint64_t bytes,
                                              bl_client_landing_t *landing, bl_error_t *err);
// When this returns, and from then on, nothing writes the destination of the load. Waits for a copy of this process at
// most, never for the store.
void bl_client_landing_give_up(bl_client_landing_t *landing);
// Drops the block of a room.
BL_MUST_USE bl_status_t bl_client_release(bl_client_t *client, uint64_t room, bl_error_t *err);

// BL_OK while the session lives; else why it does not.
bl_status_t bl_client_state(bl_client_t *client, bl_error_t *err);
bool bl_client_is_draining(bl_client_t *client); // the store wants us to leave

typedef struct bl_client_counters {
  uint64_t evicted, loaded, released; // blocks
  uint64_t evicted_bytes, loaded_bytes;
  uint64_t bytes_copied; // by this process: equals loaded_bytes
  uint64_t retries;      // requests that were sent again
  uint64_t renewals;
} bl_client_counters_t;
bl_client_counters_t bl_client_counters(bl_client_t *client);

#endif
