// SPDX-License-Identifier: Apache-2.0
// What stages share and where they differ, beyond the costs of their operations: cores, boundaries between particular
// devices, paths to particular stores. All of it is optional; a zeroed machine is that of the reference definitions.
//
// Cores are tokens: an operation asks for one when all it waits for is there, gets it in the order of asking, and gives
// it back at its end (EXECUTION.md 16). One that somebody waits for is with them `handover` later. A store that several
// stages use serves them in the same way.
//
// Nodes of a cluster reach each other through network cards. A tensor that crosses a boundary holds the card of its sender
// on the way out and then that of its receiver on the way in, each for the time on the wire; those that ask for one
// direction of one card pass it one after the other, in the order of asking, and half as fast beside a copy. A copy to or
// from a store holds both cards, after every copy and tensor that asked before it. The latency of a message holds none.
//
// Thread: values; arrays are borrowed.
#ifndef BALLAST_SIMULATE_MACHINE_H
#define BALLAST_SIMULATE_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

// Stages of one node reach each other without a card, as fast as the rest of the machine says.
typedef struct bl_network {
  const uint32_t *nodes;   // [stages]
  const uint32_t *cards;   // [stages] what a stage reaches other nodes through; numbers below the count of stages
  const double *far_paths; // [stages] of one evict or load, with the store on another node
  double latency;          // of a message, included in boundaries and far_paths
} bl_network_t;

typedef struct bl_machine {
  uint32_t cores;           // that all stages share; 0: every stage has its own
  double handover;          // of a core, from the end of an operation to the start of the one that waited for it
  bool early_gradient;      // a fused B releases the stage before it when its I has ended, as the executor does
  const double *boundaries; // [virtual stages] latency between one and the next; NULL: costs->boundary
  const double *paths;      // [stages] of one evict or load; NULL: costs->path
  const double *copies;     // [stages * stages] of one evict or load between a stage and the store of a device, in
                            // place of both; NULL: a stage's take the same to all
  const double
      *host_paths;    // [stages] of one evict or load at a host store, alone on the host's link; NULL: as at others
  bool shared_stores; // copies to and from one store run one at a time, whoever's they are, in the order of asking; of
                      // a host store that is the link of a machine's devices to its memory
  const uint32_t
      *host_links; // [stages] with shared_stores: through which link, below `stages`, a stage reaches its host;
                   // copies wait for those of the same link. NULL: a host store has one
  const bl_network_t *network; // NULL: no boundary and no path waits for another one
  // Of one of several replicas, which all do the same at the same time; NULL: there is one. A stage gets the weights of its
  // chunks one after the other from the start on, each before the first operation of its chunk, and brings their gradients
  // to those that add them up one after the other, each after the chunk's last operation.
  const double *gathers;      // [virtual stages]
  const double *reductions;   // [virtual stages]
  const double *const *times; // [stages][operations] recorded durations in place of costs; NULL: costs. Of B, the
                              // share of I is that of the costs
} bl_machine_t;

// Returns bl_machine_t.cores of one plane out of `planes` on a machine with `cores` for all of them: 0 if every stage has a
// core of its own, or if cores is 0 (not known, or several machines).
uint32_t bl_machine_shared_cores(uint32_t cores, uint32_t stages, uint32_t planes);

// Why a stage stood still. A wait has one cause, what came last, and then, where it had to wait for a core, that one.
// X(identifier, name)
#define BL_STALL_TABLE(X)                                                                                              \
  X(BL_STALL_ACTIVATION, "activation") /* from the virtual stage before; the wait for the first one is the ramp */     \
  X(BL_STALL_GRADIENT, "gradient")     /* from the virtual stage after */                                              \
  X(BL_STALL_LOAD, "load")             /* of a block that was parked */                                                \
  X(BL_STALL_SLOT, "slot")             /* that an evicted block still holds */                                         \
  X(BL_STALL_CARD, "card")             /* that what it waits for had to wait for: others used it */                    \
  X(BL_STALL_CORE, "core")             /* another stage runs on it */                                                  \
  X(BL_STALL_GATHER, "gather")         /* of weights that other copies update */                                       \
  X(BL_STALL_REDUCTION, "reduction")   /* of gradients over copies, when all its own is done */                        \
  X(BL_STALL_END, "end")               /* all its own is done, others are not */

typedef enum bl_stall_cause {
#define X(identifier, name) identifier,
  BL_STALL_TABLE(X)
#undef X
      BL_STALL_CAUSES
} bl_stall_cause_t;

// Whether it is a cause only where there are copies of the model: replicas, or two pipes.
static inline bool bl_stall_cause_is_of_replicas(bl_stall_cause_t cause) {
  return cause == BL_STALL_GATHER || cause == BL_STALL_REDUCTION;
}

const char *bl_stall_cause_name(bl_stall_cause_t cause);
// The cause of a wait that a stage tells of ("activation from stage 1", "eviction"); BL_STALL_CAUSES: one that is not
// predicted.
bl_stall_cause_t bl_stall_cause_of(const char *wait);

#endif
