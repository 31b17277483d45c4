// SPDX-License-Identifier: Apache-2.0
// Blocks that cross between devices, as a model in which everything can happen in any order: stages that follow one random
// schedule, stores that are real lease tables, and between each stage and each store a simulated two-rank communicator
// as NCCL gives it, in which a transfer
//   - blocks until both ends have launched it (rendezvous), and both ends launch in an order of their own,
//   - occupies a slot of its process at each end from its launch to its end; a process has k of them, for all its peers.
//
// The rules under test, by which nothing waits for ever whatever the schedules, the slots and the delays:
//   1. The store decides: it launches its end when the lease table has granted the transfer, and numbers what it launches,
//      per pair.
//   2. It tells the stage the number when its own end has its slot, not before.
//   3. The stage launches its end in the order of the numbers.
// There is no clock: when nothing can happen any more, something waits for ever, exactly.
#ifndef TESTS_LEASE_CROSSING_H
#define TESTS_LEASE_CROSSING_H

#include "schedule/ir/schedule.h"

#define CROSSING_DEVICES 4 // at most

typedef enum crossing_rule {
  CROSSING_RIGHT,
  CROSSING_UNNUMBERED, // rule 3 is broken: the stage launches as messages come
  CROSSING_EARLY,      // rule 2 is broken: the stage is told before the store has a slot
} crossing_rule_t;

typedef struct crossing_outcome {
  bool finished;      // else it waits for ever
  bool both_ways;     // two devices park blocks at each other
  uint32_t transfers; // evictions and loads
  uint32_t refused;   // by the table, for credit; asked again
  uint64_t events;    // that happened
  char waits[512];    // what for, of every stage
} crossing_outcome_t;

// One random world, the same for the same seed.
crossing_outcome_t crossing_run(uint64_t seed, crossing_rule_t rule);

// crossing_order.c: a random schedule in which blocks leave and come back: balanced from one of the generators, or any order
// that is legal at all. `draw` gives a number below its bound.
bl_schedule_t *crossing_schedule(uint64_t (*draw)(void *context, uint64_t bound), void *context);

#endif
