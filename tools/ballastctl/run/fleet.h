// SPDX-License-Identifier: Apache-2.0
// The processes of a run that this command starts: stage services, one activation store for the device of each, one for
// memory of the host where the job has it, and the step driver, tied to it by lifelines. Their programs lie beside this one. What they print goes to files in the run's
// folder. A store that dies is started again at its address; the stages notice both.
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

// How long a process may take to say that it is ready.
#define BL_CTL_READY_MS 30000

#define BL_CTL_DRIVER         (-1) // in place of a stage's number
#define BL_CTL_STORE(device_) (-2 - (device_))

typedef struct bl_ctl_fleet_options {
  const bl_ctl_run_folder_t *folder;
  bool verbose; // children print to our standard error
  // All stages and stores serve; addresses are borrowed until the fleet is destroyed.
  void (*stages_ready)(const char *const *addresses, size_t count, const char *const *stores, size_t store_count,
                       void *context);
  void (*driver_ready)(const char *address, void *context);
  // A process ended, or did not become ready. `cause`: "stage 2 (pid 71) was ended by signal 9 (Killed)". `exit_code`
  // is what it exited with, -1 for a signal.
  void (*gone)(int stage, const char *cause, int exit_code, void *context);
  // After bl_ctl_fleet_end: nothing runs any more.
  void (*ended)(void *context);
  void *context;
  const char *store_device; // whose memory the stores lend, as their --device; NULL: the host's
  bl_grid_t grid;           // of the ranks, which processes are named by
  uint64_t host_bytes;      // that the last store lends, of the host; 0: there is none but those of devices
  uint64_t host_rate;       // bytes per second of the link to that; 0: as fast as it goes
  bool store_tcp;           // stores are reached over tcp too: the job asks for it, or NCCL is agreed on there
  bool nccl_shared_gpu;     // stages and stores share GPUs
} bl_ctl_fleet_options_t;

BL_MUST_USE bl_status_t bl_ctl_fleet_create(bl_loop_t *loop, const bl_ctl_fleet_options_t *options, size_t stage_count,
                                            size_t store_count, bl_ctl_fleet_t **fleet, bl_error_t *err);
// Only when nothing runs. NULL is fine.
void bl_ctl_fleet_destroy(bl_ctl_fleet_t *fleet);

// Starts the stages and stores (stages_ready follows, for none at once on the loop) and, later, the driver.
BL_MUST_USE bl_status_t bl_ctl_fleet_start_stages(bl_ctl_fleet_t *fleet, bl_error_t *err);
// `orders`: one file or two, for ballast-driver --order.
BL_MUST_USE bl_status_t bl_ctl_fleet_start_driver(bl_ctl_fleet_t *fleet, const char *job_path,
                                                  const char *const orders[2], bool own_stages, bool resume,
                                                  bl_error_t *err);
typedef enum bl_ctl_end {
  BL_CTL_END_WAIT, // they were asked to end and do so by themselves
  BL_CTL_END_ASK,  // their lifelines are cut
  BL_CTL_END_KILL, // at once
} bl_ctl_end_t;

// Everything ends; what still runs after `grace_ms` is killed. `gone` no longer fires; `ended` does, once, never
// before this returns. May be called again to be less patient.
void bl_ctl_fleet_end(bl_ctl_fleet_t *fleet, bl_ctl_end_t how, uint64_t grace_ms);

// The process number of a stage, of BL_CTL_DRIVER or of a BL_CTL_STORE; 0 when it was never started.
int64_t bl_ctl_fleet_pid(const bl_ctl_fleet_t *fleet, int stage);
// The last lines that a process printed, "" when none; valid until the next call.
const char *bl_ctl_fleet_last_words(bl_ctl_fleet_t *fleet, int stage);

#endif
