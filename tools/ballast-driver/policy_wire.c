// SPDX-License-Identifier: Apache-2.0
#include "service_core_wire.h"

#include "policy_records_wire.h"

#include <stdlib.h>

// What a plan needs of the devices, as messages.
typedef struct shares {
  Ballast__V1__DeviceShare *messages;
  Ballast__V1__DeviceShare **pointers; // [count]
  size_t count;
} shares_t;

static void free_shares(shares_t *shares) {
  free(shares->messages);
  free(shares->pointers);
}

// Without memory the result is empty.
static shares_t make_shares(const bl_device_slots_t *device_slots, const char (*reasons)[BL_AUTOMATIC_REASON]) {
  size_t count = device_slots != NULL ? device_slots->devices : 0;
  shares_t shares = {.messages = calloc(count + 1, sizeof *shares.messages),
                     .pointers = calloc(count + 1, sizeof(Ballast__V1__DeviceShare *))};
  for (size_t i = 0; shares.messages != NULL && shares.pointers != NULL && i < count; i++) {
    Ballast__V1__DeviceShare *share = &shares.messages[i];
    *share = (Ballast__V1__DeviceShare)BALLAST__V1__DEVICE_SHARE__INIT;
    share->device = (int32_t)i;
    share->own_slots = device_slots->own[i];
    share->lent_slots = device_slots->lent[i];
    share->evictions = device_slots->evicted[i];
    share->dropped = device_slots->dropped[i];
    if (reasons != NULL) {
      share->reason = (char *)reasons[i];
    }
    shares.pointers[i] = share;
    shares.count = i + 1;
  }
  return shares;
}

// The same for host stores.
typedef struct host_shares {
  Ballast__V1__HostShare *messages;
  Ballast__V1__HostShare **pointers; // [count]
  size_t count;
} host_shares_t;

static void free_host_shares(host_shares_t *shares) {
  free(shares->messages);
  free(shares->pointers);
}

// Without memory the result is empty.
static host_shares_t make_host_shares(const bl_driver_t *driver, const bl_device_slots_t *device_slots) {
  const bl_job_t *job = bl_driver_job(driver);
  const size_t devices = job->services.stores.count, count = bl_job_store_count(job) - devices;
  host_shares_t shares = {.messages = calloc(count + 1, sizeof *shares.messages),
                          .pointers = calloc(count + 1, sizeof(Ballast__V1__HostShare *))};
  for (size_t i = 0; device_slots != NULL && shares.messages != NULL && shares.pointers != NULL && i < count; i++) {
    Ballast__V1__HostShare *share = &shares.messages[i];
    *share = (Ballast__V1__HostShare)BALLAST__V1__HOST_SHARE__INIT;
    share->host = (uint32_t)i;
    share->lent_slots = bl_driver_lent(driver, device_slots, devices + i);
    shares.pointers[i] = share;
    shares.count = i + 1;
  }
  return shares;
}

// A change in progress, and the call that requested it.
typedef struct asked {
  bl_rpc_call_t *call;
  const bl_driver_t *driver;
} asked_t;

// As with a pause: the change is made even if its client cancels the call, and the answer is dropped.
static void was_set(const bl_policy_answer_t *answer, const bl_error_t *err, void *context) {
  asked_t *asked = context;
  bl_rpc_call_t *call = asked->call;
  const bl_driver_t *driver = asked->driver;
  free(asked);
  if (err->status != BL_OK) {
    bl_rpc_call_fail(call, err);
    return;
  }
  Ballast__V1__SetPolicyResponse output = BALLAST__V1__SET_POLICY_RESPONSE__INIT;
  bl_policy_wire_t policy;
  bl_policy_to_wire(answer->record, &policy);
  shares_t shares = make_shares(answer->device_slots, NULL);
  host_shares_t hosts = make_host_shares(driver, answer->device_slots);
  output.policy = &policy.message;
  output.unchanged = answer->unchanged;
  output.devices = shares.pointers;
  output.n_devices = shares.count;
  output.hosts = hosts.pointers;
  output.n_hosts = hosts.count;
  if (answer->order != NULL) {
    output.order = (char *)answer->order;
  }
  bl_rpc_call_reply(call, &output.base);
  free_shares(&shares);
  free_host_shares(&hosts);
}

static bl_status_t read_request(const Ballast__V1__SetPolicyRequest *message, const bl_job_t *job,
                                bl_policy_request_t *request, bl_error_t *err) {
  *request = (bl_policy_request_t){.request = message->request,
                                   .rollback = message->rollback,
                                   .to_version = message->to_version,
                                   .dry_run = message->dry_run};
  if (message->rollback) {
    return BL_OK;
  }
  bl_status_t status =
      bl_policy_read(message->name, message->cap, message->mode, bl_policy_of_job(job).mode, &request->policy, err);
  for (size_t i = 0; i < message->n_devices && status == BL_OK; i++) {
    status = bl_policy_add_device(&request->policy, message->devices[i], err);
  }
  return status;
}

void bl__handle_set_policy(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  bl_driver_t *driver = bl_driver_service_wait(context, call, input, bl__handle_set_policy);
  if (driver == NULL) {
    return;
  }
  bl_policy_request_t request;
  bl_error_t err;
  if (read_request((const Ballast__V1__SetPolicyRequest *)input, bl_driver_job(driver), &request, &err) != BL_OK) {
    bl_rpc_call_fail(call, &err);
    return;
  }
  asked_t *asked = malloc(sizeof *asked);
  if (asked == NULL) {
    bl_rpc_call_finish(call, BL_EXHAUSTED, "no memory for a change of policy");
    return;
  }
  *asked = (asked_t){.call = call, .driver = driver};
  bl_driver_set_policy(driver, &request, was_set, asked);
}

void bl__handle_get_policy(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  (void)input;
  const bl_driver_t *driver = bl_driver_service_enter(context, call);
  if (driver == NULL) {
    return;
  }
  bl_policies_view_t view = bl_driver_policies(driver);
  const bl_policy_record_t *current = bl_policy_history_current(view.history);
  if (current == NULL) {
    bl_rpc_call_finish(call, BL_PRECONDITION, "the run is being set up: no policy is in force yet");
    return;
  }
  Ballast__V1__GetPolicyResponse output = BALLAST__V1__GET_POLICY_RESPONSE__INIT;
  bl_policy_wire_t policy;
  bl_policy_to_wire(current, &policy);
  shares_t shares = make_shares(view.device_slots, view.reasons);
  host_shares_t hosts = make_host_shares(driver, view.device_slots);
  uint32_t budget = bl_driver_training(driver)->budget;
  output.policy = &policy.message;
  output.plan_version = view.plan_version;
  output.devices = shares.pointers;
  output.n_devices = shares.count;
  output.hosts = hosts.pointers;
  output.n_hosts = hosts.count;
  output.waiting = (uint32_t)view.waiting;
  output.decision = (char *)view.decision;
  if (view.order != NULL) {
    output.order = (char *)view.order;
  }
  output.budget = budget == UINT32_MAX ? 0 : budget;
  bl_rpc_call_reply(call, &output.base);
  free_shares(&shares);
  free_host_shares(&hosts);
}

void bl__handle_policy_history(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  (void)input;
  const bl_driver_t *driver = bl_driver_service_enter(context, call);
  if (driver == NULL) {
    return;
  }
  bl_policy_history_wire_t *history = malloc(sizeof *history);
  if (history == NULL) {
    bl_rpc_call_finish(call, BL_EXHAUSTED, "no memory for the history");
    return;
  }
  bl_policy_history_to_wire(bl_driver_policies(driver).history, history);
  Ballast__V1__PolicyRecord *newest_first[BL_POLICY_HISTORY_MAX];
  for (size_t i = 0; i < history->count; i++) {
    newest_first[i] = history->pointers[history->count - 1 - i];
  }
  Ballast__V1__PolicyHistoryResponse output = BALLAST__V1__POLICY_HISTORY_RESPONSE__INIT;
  output.policies = newest_first;
  output.n_policies = history->count;
  bl_rpc_call_reply(call, &output.base);
  free(history);
}
