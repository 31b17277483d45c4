// SPDX-License-Identifier: Apache-2.0
// A driver over fake stages in one process and one loop: start it, kill it, start it again, and see what all the
// drivers of a run told together.
#ifndef TESTS_DRIVER_DRIVER_WORLD_H
#define TESTS_DRIVER_DRIVER_WORLD_H

#include "driver.h"
#include "driver/fake_stage_wire.h"

#define WORLD_STAGES   2
#define WORLD_LIMIT_MS 120000 // nothing waits longer: then the test process aborts with a message

// What was told of one step, by whichever driver.
typedef struct told_step {
  unsigned times;
  double loss, grad_norm;
  uint64_t policy; // version
  uint64_t unplanned_recomputes;
} told_step_t;

typedef struct driver_world {
  bl_loop_t *loop;
  bl_rpc_t *rpc;
  bl_timer_t *limit;
  bl_job_t job;
  bl_training_t training;
  fake_stage_t stages[WORLD_STAGES];
  bl_driver_t *driver;
  bool own_stages, linger;
  uint64_t hold_step; // the driver may not decide this step's commit; 0: all
  uint64_t seen;      // revision

  bool ended;
  int exit_code;
  told_step_t steps[FAKE_STEPS_MAX + 1]; // by step
  bl_validation_event_t validations[FAKE_STEPS_MAX];
  unsigned validation_count;
  char phase[BL_PHASE_BYTES]; // the newest
  char error[BL_ERROR_TEXT_BYTES];
  bool contradiction; // two drivers told different things of one step
} driver_world_t;

// Stages, and a job of `steps` steps on them; `extra` is YAML added to the train section, e.g. "validate_every: 2".
void world_open(driver_world_t *world, unsigned steps, const char *extra);
void world_close(driver_world_t *world);

// A new driver process. One at a time.
void world_start_driver(driver_world_t *world);
// Gone, as by SIGKILL: what it was told last may be in nobody's hands.
void world_kill_driver(driver_world_t *world);
// Runs the loop until the run is over.
void world_wait_end(driver_world_t *world);
// Runs the loop until `holds` says so.
void world_wait(driver_world_t *world, bool (*holds)(driver_world_t *world));

// Every step was told, with what the fake stages compute; every stage applied every step once, with the same record.
void world_assert_complete(const driver_world_t *world);

#endif
