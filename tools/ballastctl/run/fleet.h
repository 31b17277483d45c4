// SPDX-License-Identifier: Apache-2.0
// The processes that this command starts for a run: stage services, one activation store for the device of each, one
// for host memory if the job has it, and the driver. They are tied to this process by lifelines. Their programs are in
// the folder of this one. Their output is written to files in the run's folder. A store that dies is restarted at its
// address; the stages notice both.
//
// Thread: the loop's.
#ifndef BALLAST_BALLASTCTL_FLEET_H
#define BALLAST_BALLASTCTL_FLEET_H

#include "ballastctl/run/run_folder.h"

#include "loop/loop.h"
#include "model/grid.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct bl_ctl_fleet bl_ctl_fleet_t;

// How long a process may take to report that it is ready.
#define BL_CTL_READY_MS 30000
// How long a process may take to end when asked.
#define BL_CTL_END_MS 5000

#define BL_CTL_DRIVER         (-1) // in place of a stage's number
#define BL_CTL_STORE(device_) (-2 - (device_))

typedef struct bl_ctl_fleet_options {
  const bl_ctl_run_folder_t *folder;
  bool verbose; // child processes print to our standard error
  // All stages and stores are ready. Addresses are borrowed until the fleet is destroyed.
  void (*stages_ready)(const char *const *addresses, size_t count, const char *const *stores, size_t store_count,
                       void *context);
  void (*driver_ready)(const char *address, void *context);
  // A process ended, or did not become ready. `cause`: "stage 2 (pid 71) was ended by signal 9 (Killed)". `exit_code`:
  // its exit status, -1 for a signal.
  void (*gone)(int stage, const char *cause, int exit_code, void *context);
  // After bl_ctl_fleet_end: no process runs any more.
  void (*ended)(void *context);
  void *context;
  const char *store_device; // whose memory the stores lend, as in their --device; NULL: the host's
  bl_grid_t grid;           // of the ranks, for the names of processes
  uint64_t host_bytes;      // host memory that the last store lends; 0: there is no host store
  uint64_t host_rate;       // bytes per second of the link to that store; 0: no limit
  bool store_tcp;       // stores are reached over tcp too, because the job requires it or for the rendezvous of NCCL
  bool nccl_shared_gpu; // stages and stores share GPUs
} bl_ctl_fleet_options_t;

BL_MUST_USE bl_status_t bl_ctl_fleet_create(bl_loop_t *loop, const bl_ctl_fleet_options_t *options, size_t stage_count,
                                            size_t store_count, bl_ctl_fleet_t **fleet, bl_error_t *err);
// Precondition: no process runs. NULL is fine.
void bl_ctl_fleet_destroy(bl_ctl_fleet_t *fleet);

// Start the stages and stores, and later the driver. stages_ready follows; without stages it is called from the loop at
// once.
BL_MUST_USE bl_status_t bl_ctl_fleet_start_stages(bl_ctl_fleet_t *fleet, bl_error_t *err);
// `orders`: one file or two, for ballast-driver --order.
BL_MUST_USE bl_status_t bl_ctl_fleet_start_driver(bl_ctl_fleet_t *fleet, const char *job_path,
                                                  const char *const orders[2], bool own_stages, bool resume,
                                                  bl_error_t *err);
typedef enum bl_ctl_end {
  BL_CTL_END_WAIT, // the driver was asked to end, and ends the stages
  BL_CTL_END_ASK,  // closes their lifelines
  BL_CTL_END_KILL, // kills them at once
} bl_ctl_end_t;

// Ends all processes and kills those that still run after `grace_ms`. When the driver has exited, stages that it left
// are asked to end, then stores; these have BL_CTL_END_MS. `gone` no longer fires. `ended` fires once, never before this
// returns. May be called again with less patience.
void bl_ctl_fleet_end(bl_ctl_fleet_t *fleet, bl_ctl_end_t how, uint64_t grace_ms);

// Returns the pid of a stage, of BL_CTL_DRIVER or of a BL_CTL_STORE; 0: it was never started.
int64_t bl_ctl_fleet_pid(const bl_ctl_fleet_t *fleet, int stage);
// Returns the last lines that a process printed, "" if none; valid until the next call.
const char *bl_ctl_fleet_last_words(bl_ctl_fleet_t *fleet, int stage);

#endif
