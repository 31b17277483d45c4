// SPDX-License-Identifier: Apache-2.0
// A stage that computes nothing: ballast.v1.Stage served in this process over the product's own step machine
// (lib/step/stage_step.h), with made-up votes that depend on the step alone, and with faults on request.
#ifndef TESTS_DRIVER_FAKE_STAGE_WIRE_H
#define TESTS_DRIVER_FAKE_STAGE_WIRE_H

#include "job/training.h"
#include "loop/timer.h"
#include "plan_notes_wire.h"
#include "rpc/server.h"
#include "step/stage_step.h"

#include <limits.h>

#define FAKE_STEPS_MAX 16

typedef struct fake_stage fake_stage_t;

// Called before a request is handled and after it was: true drops it there (the caller never gets an answer).
typedef bool (*fake_hook_fn)(fake_stage_t *stage, const char *method, bool handled, void *context);

struct fake_stage {
  bl_rpc_t *rpc;
  bl_rpc_server_t *server;
  const bl_training_t *training;
  uint32_t index;
  char address[BL_RPC_ADDRESS_BYTES];
  bl_stage_step_t step;
  uint64_t incarnation;
  bl_commit_t applied[FAKE_STEPS_MAX]; // what became of step i + 1
  uint64_t applied_policy[FAKE_STEPS_MAX];
  bl_plan_notes_t notes;
  unsigned applied_count;
  unsigned runs, aborts, releases, stops, validations;
  unsigned orders, other_orders; // Configures with the order of `training`, and with another or none
  fake_hook_fn hook;
  void *hook_context;

  // Faults.
  uint64_t run_ms;         // how long a training run takes, 0: it ends at once
  uint64_t nonfinite_step; // 0: none
  int32_t nonfinite_micro_batch;
  unsigned fail_configures; // so many of the next calls are lost
  unsigned fail_statuses;   // the same
  unsigned fail_runs;       // so many of the next runs fail
  bl_status_t fail_status;
  unsigned refuse_plans;     // so many of the next plans for training are refused
  bl_status_t refuse_status; // BL_OK: BL_EXHAUSTED
  bool write_fails;          // its part of a checkpoint, at once
  bl_status_t write_status;  // BL_OK: BL_EXHAUSTED
  bool nonfinite_validation; // the losses of held-out data
  uint64_t write_ms;         // how long writing it takes

  uint32_t recomputed; // blocks in every step of the first plan, as it tells

  // Traces.
  bool holds_traces;      // until fake_stage_send_trace
  bl_rpc_call_t *tracing; // the call that is held
  uint64_t traced_step;

  // Checkpoints.
  unsigned writes;         // that have begun
  unsigned refused_writes; // because another one was not over
  unsigned whole_writes;   // that ended with everything still in the folder
  char folder[PATH_MAX];   // of the last one
  char names[2][64];       // of the files
  const char *wrong_name;  // that it says of the second one; NULL: the right one
  bl_rpc_call_t *writing;

  bl_timer_t *timer, *writer;
  bl_rpc_call_t *running[8], *aborting[8];
  size_t running_count, aborting_count;
  struct {
    uint64_t step, attempt, plan_version;
    bl_run_kind_t kind;
  } vote, last_vote;
};

// Serves at `address` ("127.0.0.1:0", or that of a stage before: a restart).
void fake_stage_start(fake_stage_t *stage, bl_rpc_t *rpc, const bl_training_t *training, uint32_t index,
                      const char *address);
// Ends as a process that is killed: connections break, nothing is answered. Runs the loop until it is so.
void fake_stage_kill(fake_stage_t *stage);
// Sends the trace that is held.
void fake_stage_send_trace(fake_stage_t *stage);
// Ends what it writes now, before `write_ms` are over.
void fake_stage_finish_write(fake_stage_t *stage);

// The mean loss over the micro-batches of a step, which is also that of held-out data after it, and the gradient norm.
double fake_loss(const bl_training_t *training, uint64_t step);
double fake_grad_norm(const bl_training_t *training, uint64_t step);

#endif
