// SPDX-License-Identifier: Apache-2.0
// What stages share and how they differ, beyond the costs of their operations: cores, boundaries between particular
// devices, paths to particular stores. All of it is optional; a zeroed machine is that of the reference definitions.
//
// Cores are tokens. An operation requests one when all its other inputs are available, gets it in the order of
// requests, and returns it at its end, or after the evicts that follow (EXECUTION.md 16). An operation that waited for a
// core starts `handover` later. Operations get a store that several stages use in the same order.
//
// Nodes of a cluster reach each other through network cards (NICs). A tensor that crosses a boundary holds the NIC of
// its sender on the way out, and then that of its receiver on the way in, each for the time on the wire. Tensors that
// request one direction of one NIC pass it one after the other, in the order of requests, and at half speed during a
// copy. A copy to or from a store holds both NICs, after every copy and tensor that requested them before. The latency
// of a message holds none.
//
// Thread: values; arrays are borrowed.
#ifndef BALLAST_SIMULATE_MACHINE_H
#define BALLAST_SIMULATE_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

// A cluster's network. Stages of one node need no NIC to reach each other; the rest of the machine applies to them.
typedef struct bl_network {
  const uint32_t *nodes;   // [stages]
  const uint32_t *nics;    // [stages] NIC by which a stage reaches other nodes; below the number of stages
  const double *far_paths; // [stages] duration of one evict or load, if the store is on another node
  double latency;          // of a message, included in boundaries and far_paths
} bl_network_t;

typedef struct bl_machine {
  uint32_t cores;           // shared by all stages; 0: every stage has its own
  double handover;          // of a core, from its release to the start of the operation that waited for it
  bool early_gradient;      // a fused B releases the stage before it when its I has ended, as the executor does
  const double *boundaries; // [virtual stages] latency between one and the next; NULL: costs->boundary
  const double *paths;      // [stages] duration of one evict or load; NULL: costs->path
  // [stages * stages] duration of one evict or load between a stage and the store of a device, in place of both above.
  // NULL: a stage takes the same time to every store.
  const double *copies;
  // [stages] duration of one evict or load at a host store, alone on the host's link. NULL: as at other stores.
  const double *host_paths;
  // [stages] after an evict or load at a host store has had its turn on the link, the time until its block has arrived,
  // while the link moves the next one: of links that are slowed down (balance.rate). NULL: none.
  const double *host_tails;
  // [stages] time of the compute thread for one evict, before the copy: the checksum of its block. It counts as busy,
  // and directly after a computing operation the stage keeps its core for it. NULL: none.
  const double *evict_calls;
  // Copies of all stages to and from one store run one at a time, in the order of requests. A host store stands for the
  // link of a machine's devices to its memory.
  bool shared_stores;
  // [stages] with shared_stores: number of the link, below `stages`, through which a stage reaches its host. Copies
  // wait for those of the same link. NULL: a host store has one link.
  const uint32_t *host_links;
  const bl_network_t *network; // NULL: no boundary and no path waits for another one
  // The replica of this simulation is one of several, which all do the same at the same time; NULL: there is one
  // replica. A stage gathers the weights of its chunks one after the other from the start on, each before the first
  // operation of its chunk. It reduces their gradients one after the other, each after the chunk's last operation.
  const double *gathers;    // [virtual stages]
  const double *reductions; // [virtual stages]
  // [stages][operations] recorded durations in place of costs; NULL: costs. The share of I in a B is that of the costs.
  const double *const *times;
} bl_machine_t;

// Returns bl_machine_t.cores of one plane out of `planes` on a machine with `cores` for all of them: 0 if every stage has
// a core of its own, or if cores is 0 (not known, or several machines).
uint32_t bl_machine_shared_cores(uint32_t cores, uint32_t stages, uint32_t planes);

// Why a stage waited. An operation waits for one thing after the other, in the order in which a stage does: for slots,
// its block, its tensor, its weights, a core. What is there by then is not waited for.
// X(identifier, name)
#define BL_STALL_TABLE(X)                                                                                              \
  X(BL_STALL_ACTIVATION, "activation") /* from the virtual stage before; the wait for the first one is the ramp */     \
  X(BL_STALL_GRADIENT, "gradient")     /* from the virtual stage after */                                              \
  X(BL_STALL_LOAD, "load")             /* of a block that was parked */                                                \
  X(BL_STALL_SLOT, "slot")             /* still held by an evicted block */                                            \
  X(BL_STALL_NIC, "card")              /* that delayed its input, because other tensors or copies used it */           \
  X(BL_STALL_CORE, "core")             /* in use by another stage */                                                   \
  X(BL_STALL_GATHER, "gather")         /* of weights that other replicas or pipes update */                            \
  X(BL_STALL_REDUCTION, "reduction")   /* of gradients over replicas or pipes, after its last operation */             \
  X(BL_STALL_END, "end")               /* it is done, other stages are not */

typedef enum bl_stall_cause {
#define X(identifier, name) identifier,
  BL_STALL_TABLE(X)
#undef X
      BL_STALL_CAUSES
} bl_stall_cause_t;

// Returns whether the cause exists only with several copies of the model: replicas, or two pipes.
static inline bool bl_stall_cause_is_of_replicas(bl_stall_cause_t cause) {
  return cause == BL_STALL_GATHER || cause == BL_STALL_REDUCTION;
}

const char *bl_stall_cause_name(bl_stall_cause_t cause);
// Returns the cause of a wait that a stage reports ("activation from stage 1", "eviction"). BL_STALL_CAUSES: a wait
// that simulations do not predict.
bl_stall_cause_t bl_stall_cause_of(const char *wait);

#endif
