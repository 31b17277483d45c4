// SPDX-License-Identifier: Apache-2.0
// Asks stages to test the paths that a plan will use (Stage.Probe): to the stores at which they park, and to the stages
// with which they exchange tensors. Also asks which of each other's GPUs they can reach. There are three rounds, each
// of all stages at once: stores and places, rendezvous, closing.
//
//   bl_ctl_explorer_t stages[] = {{.address = "a:7700", .stores = &one, .store_count = 1, .peers = &b, ...}, ...};
//   bl_ctl_paths_explore(&(bl_ctl_exploration_t){.job = "a", .data_path = "auto", .stages = stages, .count = 2}, err);
//   ... stages[0].paths[i] ...
//   bl_ctl_explorer_cleanup(&stages[0]);
//
// Thread: any one; has a loop of its own.
#ifndef BALLAST_BALLASTCTL_PATHS_WIRE_H
#define BALLAST_BALLASTCTL_PATHS_WIRE_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct bl_ctl_path {
  bool store;      // false: to a stage
  uint32_t number; // of the store or the stage
  bl_error_t err;  // BL_OK: bytes were sent there and back
  char data_path[16], reason[320];
  uint64_t round_ns; // time of a block there and back
} bl_ctl_path_t;

typedef struct bl_ctl_place { // where a stage listens for peers
  char *unix_address, *tcp_address, *machine;
  uint8_t token[16];
  size_t token_bytes;
} bl_ctl_place_t;

typedef struct bl_ctl_reach { // whether a stage's GPU can read memory of another stage's
  char gpu[40];
  bool reached;
  char reason[160]; // why not
} bl_ctl_reach_t;

typedef struct bl_ctl_explorer {
  // Inputs, borrowed
  const char *address;    // NULL: the stage did not answer before, and no stage connects to it
  const uint32_t *stores; // numbers
  size_t store_count;
  const uint32_t *peers; // stages, ascending
  size_t peer_count;
  // Answers
  bl_error_t err; // BL_OK: it answered
  uint64_t shared_memory_bytes;
  int32_t pod;
  char device_text[512];
  char gpu[40];            // that it would compute on; the text is the same in every process of its machine; "": none
  char gpu_closed[120];    // why other processes cannot get its memory; "": they can
  char nccl[24];           // version; "": none
  char no_nccl[200];       // why there is none
  bl_ctl_reach_t *reaches; // GPUs of other stages on its machine
  size_t reach_count;
  bl_ctl_path_t *paths;
  size_t path_count;
  bl_ctl_place_t place;
} bl_ctl_explorer_t;

typedef struct bl_ctl_exploration {
  const char *job, *data_path, *device;
  const char *const *stores; // addresses, by number
  uint64_t block_bytes;
  bl_ctl_explorer_t *stages;
  size_t count;
} bl_ctl_exploration_t;

// Fills in the answers. Fails only for causes in this process.
BL_MUST_USE bl_status_t bl_ctl_paths_explore(const bl_ctl_exploration_t *exploration, bl_error_t *err);
void bl_ctl_explorer_cleanup(bl_ctl_explorer_t *explorer);
// Compares machines as services name them. NULL, "" and names with a "?" equal no other.
bool bl_ctl_machines_are_same(const char *machine, const char *other);
// Returns whether two stages that answered are on one machine.
bool bl_ctl_explorers_are_near(const bl_ctl_explorer_t *a, const bl_ctl_explorer_t *b);

#endif
