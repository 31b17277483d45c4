// SPDX-License-Identifier: Apache-2.0
#include "service_core_wire.h"

#include "executor/tensor_group.h"
#include "sys/clock.h"

#include <stdio.h>

#define WAITS        16
#define DEVICE_BYTES 512

// Describes a running stage: progress through its operations, and what it waits for.
static void describe_run(const bl_stage_t *stage, Ballast__V1__StageStatusResponse *output, char cell[BL_OP_TEXT]) {
  const bl_executor_plan_t *plan = bl_stage_running_plan(stage);
  if (plan == NULL) {
    return;
  }
  uint32_t done = atomic_load(&bl_stage_progress(stage)->done);
  output->operations_done = done;
  output->operations_total = (uint32_t)plan->stage.op_count;
  const bl_stage_step_t *step = bl_stage_step(stage);
  if ((step->phase == BL_STAGE_RUNNING || step->ahead == BL_AHEAD_RUNNING) && done < plan->stage.op_count) {
    output->operation = (char *)bl_op_format(plan->stage.ops[done].op, cell);
  }
}

// Describes the wait for a core that other stages of this machine hold. Returns the number of waits, 0 or 1.
static size_t core_wait(const bl_stage_t *stage, const bl_engine_t *engine, bl_transport_wait_t *wait) {
  const bl_run_progress_t *progress = bl_stage_progress(stage);
  const uint64_t since_ns = atomic_load(&progress->core_since_ns);
  if (since_ns == 0 || engine->core_tokens == NULL) {
    return 0;
  }
  const uint32_t holder = bl_core_tokens_holder(engine->core_tokens);
  *wait = (bl_transport_wait_t){
      .since_ns = since_ns, .peer = -1, .micro_batch = (int32_t)atomic_load(&progress->core_micro_batch)};
  if (holder < BL_CORE_TOKENS_MEMBERS) {
    wait->peer = (int32_t)holder;
    char name[BL_GRID_NAME_BYTES];
    snprintf(wait->what, sizeof wait->what, "a core, which %s has", bl_grid_name(&engine->training.grid, holder, name));
  } else {
    snprintf(wait->what, sizeof wait->what, "a core");
  }
  return 1;
}

// Describes the wait for a rank that shares this rank's layers. Returns the number of waits, 0 or 1.
static size_t collective_wait(const bl_stage_t *stage, const bl_engine_t *engine, bl_transport_wait_t *wait) {
  const uint64_t since_ns = atomic_load(&bl_stage_progress(stage)->wait_since_ns);
  if (since_ns == 0 || !bl_tensor_group_wait(engine->tensor_group, wait)) {
    return 0;
  }
  wait->since_ns = since_ns;
  return 1;
}

// `store`: as the plans of this stage number it. Returns the number that it has among all stores of the run.
static int32_t number_in_run(const bl_engine_t *engine, uint32_t store) {
  const bl_training_t *training = &engine->training;
  return store < training->stage_count
             ? (int32_t)bl_engine_rank_of(engine, store)
             : (int32_t)(engine->job.services.stores.count + training->hosts.of_rank[engine->rank]);
}

// Describes the wait for a store. Returns false if the stage waits for none.
static bool describe_store_wait(const bl_stage_t *stage, Ballast__V1__Wait *message, char what[64]) {
  bl_store_parking_wait_t wait;
  if (!bl_stage_store_wait(stage, &wait)) {
    return false;
  }
  const bl_engine_t *engine = bl_stage_engine(stage);
  *message = (Ballast__V1__Wait)BALLAST__V1__WAIT__INIT;
  message->at_store = number_in_run(engine, wait.store);
  message->lease = wait.lease;
  message->chunk = wait.chunk;
  message->micro_batch = (int32_t)wait.micro_batch;
  message->peer = -1;
  message->since_ns = wait.since_ns;
  const int devices = (int)engine->job.services.stores.count;
  const bool of_host = wait.store >= engine->training.stage_count;
  snprintf(what, 64, "%s %sstore %d", wait.load ? "load from" : "eviction to", of_host ? "host " : "",
           of_host ? message->at_store - devices : message->at_store);
  message->what = what;
  return true;
}

void bl__handle_status(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  bl_service_t *self = context;
  uint64_t silent_ms = bl_current_driver_silent_ms(&self->current_driver); // before this call counts
  bl__service_driver_seen(self, ((const Ballast__V1__StageStatusRequest *)input)->driver);
  const bl_stage_step_t *step = bl_stage_step(self->stage);
  const bl_engine_t *engine = bl_stage_engine(self->stage);
  Ballast__V1__StageStatusResponse output = BALLAST__V1__STAGE_STATUS_RESPONSE__INIT;
  bl_state_wire_t state;
  bl_state_to_wire(self->stage, &state);
  state.message.run = self->current_driver.run;
  state.message.driver_address = self->current_driver.address;
  state.message.driver_silent_ms = silent_ms;
  output.state = &state.message;
  bool ahead = step->phase == BL_STAGE_VOTED && step->ahead == BL_AHEAD_RUNNING;
  bl_run_id_t run = ahead ? bl_stage_step_ahead(step) : step->run;
  output.phase = (char *)bl_stage_phase_name(ahead ? BL_STAGE_RUNNING : step->phase);
  output.running_step = run.step;
  output.running_attempt = run.attempt;
  output.now_ns = bl_clock_now_ns();
  output.wall_ns = bl_clock_wall_ns();
  char cell[BL_OP_TEXT];
  bl_memory_wire_t memory;
  bl_paths_wire_t paths;
  bl_transport_wait_t waits[WAITS];
  Ballast__V1__Wait messages[WAITS];
  Ballast__V1__Wait *pointers[WAITS];
  char what[64], device[DEVICE_BYTES];
  bl_vote_wire_t vote;
  if (engine != NULL) {
    snprintf(device, sizeof device, "%s; %s", bl_device_describe(engine->device),
             engine->ops->describe(engine->compute));
    output.device = device;
    describe_run(self->stage, &output, cell);
    bl_memory_to_wire(&engine->account, &memory);
    output.memory = memory.pointers;
    output.n_memory = BL_MEMORY_TAGS;
    bl_paths_to_wire(engine->transport, &paths);
    output.paths = paths.pointers;
    output.n_paths = paths.count;
    // The last three are reserved for other waits.
    size_t count = bl_transport_waits(engine->transport, waits, WAITS - 3);
    output.n_waits = count < WAITS - 3 ? count : WAITS - 3;
    output.n_waits += collective_wait(self->stage, engine, &waits[output.n_waits]);
    output.n_waits += core_wait(self->stage, engine, &waits[output.n_waits]);
    for (size_t i = 0; i < output.n_waits; i++) {
      messages[i] = (Ballast__V1__Wait)BALLAST__V1__WAIT__INIT;
      messages[i].what = waits[i].what;
      messages[i].since_ns = waits[i].since_ns;
      messages[i].peer = waits[i].peer;
      messages[i].micro_batch = waits[i].micro_batch;
      messages[i].at_store = -1;
      pointers[i] = &messages[i];
    }
    if (describe_store_wait(self->stage, &messages[output.n_waits], what)) {
      pointers[output.n_waits] = &messages[output.n_waits];
      output.n_waits++;
    }
    output.waits = pointers;
    bl_vote_to_wire(bl_stage_commit_vote(self->stage), &vote);
    output.counters = &vote.counters;
  }
  bl_rpc_call_reply(call, &output.base);
}
