// SPDX-License-Identifier: Apache-2.0
// Evicted blocks at activation stores: the executor's seam (executor/parking.h) over sessions with the stores that one
// plan of one stage uses.
//
//   bl_store_parking_create(&options, &parking, err);      // begins to open the sessions and to reserve all store slots
//   bl_store_parking_await(parking, deadline_ns, err);     // they are there, or who refused
//   engine->parking = bl_store_parking_seam(parking);      // for the runs of this plan
//   bl_store_parking_destroy(parking);                     // closes them: the store slots are free soon
//   bl_client_runtime_wait(runtime);                       // before the device goes that slots lie on
//
// Nothing but await waits for a store, and that no longer than it is told to: sessions are opened and closed by the
// thread of the runtime, while something else runs. Each session keeps what it needs of the parking until it is closed.
//
// Every plan has sessions and an arena of its own, so that its store slots are reserved while the plan before still
// runs, and the memory of a plan that is gone is really given back. A store counts only the larger of two plans of a
// job and takes the memory of the second as that of the first goes, so that room for one is enough.
//
// A store that dies or falls silent in a run: its blocks are lost, further ones are dropped, and between runs it is
// asked again once a second. A store that is back is used from the next run on.
//
// Thread: create and destroy from one, not the runtime's; looks from any; the seam as parking.h says.
#ifndef BALLAST_PARKING_STORE_PARKING_H
#define BALLAST_PARKING_STORE_PARKING_H

#include "client/client.h"
#include "datapath/path.h"
#include "device/segments.h"
#include "executor/parking.h"
#include "schedule/balance/holdings.h"

typedef struct bl_store_parking bl_store_parking_t;

typedef struct bl_store_parking_options {
  const char *job;               // its name
  uint64_t plan;                 // its version
  uint32_t stage;                // this one
  uint32_t rank;                 // of this one in the run: whom a store knows that stages of several planes use
  uint32_t host_planes;          // that share a host store
  const bl_holdings_t *holdings; // of the plan
  const char *const *stores;     // [holdings->stores] addresses of those that this stage uses
  const uint64_t *evict_bytes;   // [holdings->devices] largest block that each stage evicts
  const bl_segments_t *slots;    // of this stage: what blocks leave from
  bl_device_t *device;           // that the slots lie on, if the CPU cannot reach them; NULL: the host
  uint32_t own_slots;            // of them, what the plan uses
  uint32_t slots_there;          // of those, what is there now; the rest is there by bl_store_parking_extend
  uint32_t virtual_stages, micro_batches;
  uint64_t bytes_per_second; // of every path to a device; 0: as fast as it goes. A host store slows its own link down
  bl_client_path_t path;
  struct bl_nccl_engine *nccl; // of the device; NULL: none
  bool nccl_shared_gpu;
  struct bl_client_runtime *runtime; // outlives the parking's sessions
} bl_store_parking_options_t;

// Waits for nothing. BL_EXHAUSTED, BL_UNIMPLEMENTED: too many slots.
BL_MUST_USE bl_status_t bl_store_parking_create(const bl_store_parking_options_t *options, bl_store_parking_t **parking,
                                                bl_error_t *err);
// Waits for the stores, each of which answers or is given up within BL_ACCEPTOR_OPEN_MS, with NCCL BL_ACCEPTOR_JOIN_MS.
// BL_DEADLINE: `deadline_ns` (of bl_clock_now_ns) came first, and it goes on. BL_UNAVAILABLE, BL_EXHAUSTED, ...: a
// store failed, named with its address and the reason. BL_UNIMPLEMENTED: one to which blocks do not get from the device
// by themselves.
BL_MUST_USE bl_status_t bl_store_parking_await(bl_store_parking_t *parking, uint64_t deadline_ns, bl_error_t *err);
// After await, before the first run: all slots of the plan are there. BL_EXHAUSTED: no descriptors for them.
BL_MUST_USE bl_status_t bl_store_parking_extend(bl_store_parking_t *parking, const bl_segments_t *slots,
                                                bl_error_t *err);
// Between runs: nothing touches a slot any more when this returns, which waits for this process alone; the sessions end
// by themselves. NULL is fine.
void bl_store_parking_destroy(bl_store_parking_t *parking);
bl_parking_t *bl_store_parking_seam(bl_store_parking_t *parking);

// Between runs, when no more may come: gives the store slots back, without a wait. The next run takes them again, if it
// can.
void bl_store_parking_rest(bl_store_parking_t *parking);

// For people who look at the stores: the step of the runs that follow.
void bl_store_parking_set_step(bl_store_parking_t *parking, uint64_t step);

// Most store slots of a store of the plan in use at once in the last run; 0 where the plan uses none.
uint32_t bl_store_parking_peak(bl_store_parking_t *parking, uint32_t store);
// Bytes that went to stores and back in the last attempt, and the time that took, of all stores together, and of host
// stores: of these as long as all would take at the pace of the quickest, since others wait for their turns on the link
// (which those who weigh policies simulate).
typedef struct bl_store_parking_moved {
  uint64_t bytes, ns, host_bytes, host_ns;
} bl_store_parking_moved_t;
bl_store_parking_moved_t bl_store_parking_moved(bl_store_parking_t *parking);
// Of these bytes, those to and from stores on another machine.
uint64_t bl_store_parking_cross_machine_bytes(bl_store_parking_t *parking);

// Stores that take blocks now, by the path to them.
void bl_store_parking_paths(bl_store_parking_t *parking, uint32_t counts[BL_PATHS]);

typedef struct bl_store_parking_wait { // what the compute thread waits for
  bool load;
  uint32_t store; // of the plan
  uint64_t lease; // there; 0: the block has none yet
  uint32_t chunk, micro_batch;
  uint64_t since_ns;
} bl_store_parking_wait_t;
// False: it waits for no store.
bool bl_store_parking_look(bl_store_parking_t *parking, bl_store_parking_wait_t *wait);

#endif
