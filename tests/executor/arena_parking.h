// SPDX-License-Identifier: Apache-2.0
// A parking in memory of the test: one thread that copies blocks into store slots of its own arena, in the order of the
// begin calls, as late, as lossy and as wrong as its options say. Every draw is a function of (seed, attempt, block),
// so that a run can be repeated whatever the timing of its threads.
//
// It also checks the executor's side of executor/parking.h: `torn` counts sources that changed under an eviction,
// `overflow` evictions for which the plan's order left no store slot.
#ifndef TESTS_EXECUTOR_ARENA_PARKING_H
#define TESTS_EXECUTOR_ARENA_PARKING_H

#include "executor/parking.h"

typedef struct arena_parking_options {
  uint64_t seed;
  uint32_t store_slots;
  uint64_t store_slot_bytes;
  uint32_t virtual_stages, micro_batches; // at most
  uint64_t timeout_ns;
  uint64_t delay_ns; // of one transfer, at most
  // Probabilities: that an eviction is refused, that one under way fails, that a block is lost before its load, and
  // that one of its bits flips while it is parked.
  double refuse, fail, lose, flip;
  uint64_t flip_attempt; // the one in which bits flip; 0: all
  bl_device_t *device;   // that slots lie on, which the CPU cannot reach; NULL: the host
  bool twins;            // with a device: blocks leave from twins of slots in memory of the host
  void (*on_load)(void *user, const bl_parked_block_t *block); // in begin_load, on the compute thread; may be NULL
  void *user;
} arena_parking_options_t;

typedef struct arena_parking_counters {
  uint64_t refused, failed, lost, flipped, found; // found: loads whose checksum was wrong
  uint64_t given_up;                              // waits that reached their deadline
  uint64_t torn, overflow;
} arena_parking_counters_t;

typedef struct arena_parking arena_parking_t;

arena_parking_t *arena_parking_create(const arena_parking_options_t *options); // aborts without memory
void arena_parking_destroy(arena_parking_t *arena);                            // NULL is fine
bl_parking_t *arena_parking_seam(arena_parking_t *arena);
arena_parking_counters_t arena_parking_count(arena_parking_t *arena); // since creation
uint32_t arena_parking_kept(arena_parking_t *arena);                  // store slots in use

#endif
