// SPDX-License-Identifier: Apache-2.0
// Evicted blocks at activation stores: the executor's interface (executor/parking.h) over sessions with the stores that
// one plan of one stage uses.
//
//   bl_store_parking_create(&options, &parking, err);      // begins to open sessions and to reserve store slots
//   bl_store_parking_await(parking, deadline_ns, err);     // all are reserved, or err names the store that refused
//   engine->parking = bl_store_parking_seam(parking);      // for the runs of this plan
//   bl_store_parking_destroy(parking);                     // closes the sessions: the store slots are free soon
//   bl_client_runtime_wait(runtime);                       // before the device of the slots is destroyed
//
// Only await waits for a store, and only until its deadline: the thread of the runtime opens and closes sessions while
// other work runs. Each session keeps what it needs of the parking until it is closed.
//
// Every plan has its own sessions and its own arena, so that its store slots are reserved while the previous plan still
// runs, and the memory of a plan that has ended is really freed. A store counts only the larger of two plans of a job,
// and commits the memory of the second as that of the first is freed, so space for one is enough.
//
// If a store dies or does not respond in a run, its blocks are lost and further ones are dropped. Between runs it is
// tried again, at most once a second, and a store that is back is used from the next run on.
//
// Thread: create and destroy from one, not the runtime's; queries from any; the interface as parking.h says.
#ifndef BALLAST_PARKING_STORE_PARKING_H
#define BALLAST_PARKING_STORE_PARKING_H

#include "client/client.h"
#include "datapath/path.h"
#include "device/segments.h"
#include "executor/parking.h"
#include "schedule/balance/device_slots.h"

typedef struct bl_store_parking bl_store_parking_t;

typedef struct bl_store_parking_options {
  const char *job;      // its name
  uint64_t plan;        // its version
  uint32_t stage;       // this one
  uint32_t rank;        // rank of this process in the run, by which stores that several planes use know it
  uint32_t host_planes; // planes that share a host store
  const bl_device_slots_t *device_slots; // of the plan
  const char *const *stores;             // [device_slots->stores] addresses of the stores that this stage uses
  const uint64_t *evict_bytes;           // [device_slots->devices] largest block that each stage evicts
  const bl_segments_t *slots;            // of this stage: blocks are evicted from them
  bl_device_t *device;                   // that computes the blocks, asynchronously; NULL: the host
  bool device_memory;                    // the slots lie on it; false: in memory of the host
  uint32_t own_slots;                    // number of them that the plan uses
  uint32_t slots_there;                  // number of those that exist now; bl_store_parking_extend adds the rest
  uint32_t virtual_stages, micro_batches;
  uint64_t bytes_per_second; // of every path to a device; 0: unlimited. A host store limits its own link
  bl_client_path_t path;
  struct bl_nccl_engine *nccl; // of the device; NULL: none
  bool nccl_shared_gpu;
  struct bl_client_runtime *runtime; // outlives the parking's sessions
} bl_store_parking_options_t;

// Does not wait. BL_EXHAUSTED, BL_UNIMPLEMENTED: too many slots.
BL_MUST_USE bl_status_t bl_store_parking_create(const bl_store_parking_options_t *options, bl_store_parking_t **parking,
                                                bl_error_t *err);
// Waits for the stores. Each of them answers or has failed within BL_STORE_SESSION_OPEN_MS, for a host store and slots
// on a device up to BL_STORE_SESSION_PIN_MS later, with NCCL within BL_STORE_SESSION_JOIN_MS. BL_DEADLINE:
// `deadline_ns` (on bl_clock_now_ns) passed first, and opening continues. BL_UNAVAILABLE, BL_EXHAUSTED, ...: a store
// failed; the text has its address and the reason. BL_UNIMPLEMENTED: blocks cannot get from the device to a store
// directly.
BL_MUST_USE bl_status_t bl_store_parking_await(bl_store_parking_t *parking, uint64_t deadline_ns, bl_error_t *err);
// Call it after await, before the first run, when all slots of the plan exist. BL_EXHAUSTED: no descriptors for them.
BL_MUST_USE bl_status_t bl_store_parking_extend(bl_store_parking_t *parking, const bl_segments_t *slots,
                                                bl_error_t *err);
// Call it between runs. Afterwards nothing touches a slot any more. It waits only for this process; the sessions end on
// their own. NULL is fine.
void bl_store_parking_destroy(bl_store_parking_t *parking);
bl_parking_t *bl_store_parking_seam(bl_store_parking_t *parking);

// Call it between runs if perhaps none follows: releases the store slots, without waiting. The next run reserves them
// again, if it can.
void bl_store_parking_rest(bl_store_parking_t *parking);

// Sets the step of the runs that follow, shown to operators of the stores.
void bl_store_parking_set_step(bl_store_parking_t *parking, uint64_t step);

// Returns the maximum number of slots in use at once in the last run at a store of the plan; 0 if the plan uses none.
uint32_t bl_store_parking_peak(bl_store_parking_t *parking, uint32_t store);
// Bytes moved to stores and back in the last attempt, and the time that took: of all stores together, and of host
// stores. For a host store it is the time that all bytes would take at the pace of the quickest transfer, since the
// others include waits for turns on the link (which the code that compares policies simulates).
typedef struct bl_store_parking_moved {
  uint64_t bytes, ns, host_bytes, host_ns;
} bl_store_parking_moved_t;
bl_store_parking_moved_t bl_store_parking_moved(bl_store_parking_t *parking);
// Returns how many of these bytes moved to and from stores on another machine.
uint64_t bl_store_parking_cross_machine_bytes(bl_store_parking_t *parking);

// Counts the stores that take blocks now, by the path to them.
void bl_store_parking_paths(bl_store_parking_t *parking, uint32_t counts[BL_PATHS]);

typedef struct bl_store_parking_wait { // what the compute thread waits for
  bool load;
  uint32_t store; // of the plan
  uint64_t lease; // at that store; 0: the block has none yet
  uint32_t chunk, micro_batch;
  uint64_t since_ns;
} bl_store_parking_wait_t;
// False: the compute thread waits for no store.
bool bl_store_parking_look(bl_store_parking_t *parking, bl_store_parking_wait_t *wait);

#endif
