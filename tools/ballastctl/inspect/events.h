// SPDX-License-Identifier: Apache-2.0
// Events that a driver sends to a watcher, independent of the wire format. Everything is borrowed for the duration of a
// callback.
#ifndef BALLAST_BALLASTCTL_EVENTS_H
#define BALLAST_BALLASTCTL_EVENTS_H

#include "job/balance.h"
#include "model/grid.h"
#include "policy/history.h"
#include "step/stage_counters.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct bl_ctl_stage_step {
  int stage;
  unsigned tensor, data; // tensor rank, replica
  int64_t process;
  bl_stage_counters_t counters;
} bl_ctl_stage_step_t;

typedef struct bl_ctl_store_step {
  unsigned store, device; // of a host store: its number among the host stores
  bool of_host;
  unsigned tensor, data; // of its device
  int64_t process;       // 0: not known
  uint32_t lent_slots, peak_leased;
} bl_ctl_store_step_t;

// One committed step.
typedef struct bl_ctl_step {
  uint64_t step; // from 1
  double loss, grad_norm;
  uint64_t tokens;
  double seconds;
  bl_policy_record_t ran_under;      // the policy, with what auto resolved to; version 0: the driver does not say
  const bl_ctl_stage_step_t *stages; // [stage_count], in the order of ranks
  size_t stage_count;
  const bl_ctl_store_step_t *stores; // [store_count], in the order of ranks
  size_t store_count;
} bl_ctl_step_t;

typedef struct bl_ctl_validation {
  uint64_t step;
  double loss; // nats per token
  uint64_t tokens;
} bl_ctl_validation_t;

// A checkpoint that was committed, or that failed.
typedef struct bl_ctl_checkpoint {
  uint64_t step;
  const char *folder; // of the checkpoint; if it failed, where it would have been written
  uint64_t bytes;
  const char *error; // "": committed
} bl_ctl_checkpoint_t;

typedef struct bl_ctl_phase {
  const char *phase; // starting, connecting, configuring, running, paused, finished, failed
  const char *error; // when failed
  int exit_code;     // when finished or failed
} bl_ctl_phase_t;

typedef struct bl_ctl_memory {
  const char *name;
  uint64_t planned_bytes;
} bl_ctl_memory_t;

typedef struct bl_ctl_layers {
  int first, count;
} bl_ctl_layers_t;

typedef struct bl_ctl_stage_plan {
  int stage;
  unsigned tensor, data; // tensor rank, replica
  uint64_t parameters;
  uint32_t own_slots;
  uint64_t slot_bytes;
  const bl_ctl_layers_t *layers; // [layers_count], one per chunk
  size_t layers_count;
  const bl_ctl_memory_t *memory; // [memory_count]
  size_t memory_count;
  const char *data_path; // to its neighbours: "shm", "tcp", "shm, tcp"; "": it has none
} bl_ctl_stage_plan_t;

typedef struct bl_ctl_plan {
  const char *schedule;
  uint64_t parameters, train_tokens, validation_tokens, step_tokens, steps;
  unsigned tensor_ranks, replicas;   // at least 1
  const char *set_aside;             // where checkpoints of an earlier run were moved; "": there were none
  const bl_ctl_stage_plan_t *stages; // [stage_count], in the order of ranks
  size_t stage_count;
} bl_ctl_plan_t;

// One operation or wait of a stage in the last step.
typedef struct bl_ctl_trace_event {
  int stage;        // the number of its rank
  const char *name; // a schedule cell, or the cause of a wait
  bool wait;
  uint64_t start_ns, end_ns; // the machine's monotonic clock
  int micro_batch;
  uint32_t slots_in_use;
  uint64_t waited_ns; // of an operation: time in it that waited for other tensor ranks
  bool copy;          // an operation that runs during others: an eviction or a load in a simulation
  bl_grid_t grid;     // of all ranks, without parts; no stages: not known, every rank is a stage
  // A transfer to a store or back, requested at start_ns and over at end_ns. It changes no slots: the operation that
  // began it does.
  bool transfer;
  uint64_t bytes;      // that it moved; 0: not known
  uint64_t turn_ns;    // when its turn on the link began, in a simulation; 0: not known
  uint32_t host, link; // of its stage: number of the host store, and of the link to it
} bl_ctl_trace_event_t;

#endif
