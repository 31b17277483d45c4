// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/inspect/policy_wire.h"

#include "ballastctl/calls.h"
#include "rpc/channel.h"

#include "ballast/v1/driver.pb-c.h"

#include <sys/random.h>

typedef json_t *(*read_fn)(const ProtobufCMessage *output);

typedef struct question {
  bl_ctl_calls_t calls;
  read_fn read;
  json_t *answer;
  bl_error_t *err;
} question_t;

static void answered(const ProtobufCMessage *output, const bl_error_t *err, void *context) {
  question_t *question = context;
  *question->err = *err;
  if (output != NULL) {
    question->answer = question->read(output);
    if (question->answer == NULL) {
      (void)bl_error_set(question->err, BL_INTERNAL, "the driver's answer holds text that is not UTF-8");
    }
  }
  bl_ctl_calls_ended(&question->calls);
}

static bl_status_t ask(const char *address, uint64_t timeout_ms, const char *method, const ProtobufCMessage *request,
                       read_fn read, json_t **answer, bl_error_t *err) {
  question_t question = {.read = read, .err = err};
  bl_rpc_channel_t *channel = NULL;
  bl_status_t status = bl_ctl_calls_init(&question.calls, err);
  if (status == BL_OK) {
    status = bl_rpc_channel_create(question.calls.rpc, address, NULL, &channel, err);
  }
  if (status == BL_OK) {
    status = bl_rpc_channel_call(channel, &ballast__v1__driver__descriptor, method, request, timeout_ms, answered,
                                 &question, err);
  }
  if (status == BL_OK) {
    question.calls.open = 1;
    bl_ctl_calls_wait(&question.calls);
    status = err->status;
    *answer = question.answer;
  }
  bl_rpc_channel_destroy(channel);
  bl_ctl_calls_cleanup(&question.calls);
  return status;
}

// ---- answers as JSON ------------------------------------------------------------------------------------------------

// Sets the number; 0 becomes null.
static void set_number(json_t *json, const char *key, uint64_t value) {
  json_object_set_new(json, key, value != 0 ? json_integer((json_int_t)value) : json_null());
}

static json_t *policy_json(const Ballast__V1__PolicyRecord *policy) {
  json_t *json = json_pack("{s:s, s:s}", "policy", policy->name, "mode", policy->mode);
  json_t *lenders = json_array();
  for (size_t i = 0; i < policy->n_devices; i++) {
    json_array_append_new(lenders, json_integer(policy->devices[i]));
  }
  if (json == NULL) { // text that is not UTF-8
    json_decref(lenders);
    return NULL;
  }
  set_number(json, "cap", policy->cap);
  if (policy->chosen[0] != '\0') {
    json_object_set_new(json, "chosen", json_string(policy->chosen));
  }
  set_number(json, "version", policy->version); // null for a dry run
  set_number(json, "from_step", policy->from_step);
  set_number(json, "restores", policy->restores);
  json_object_set_new(json, "lenders", lenders); // []: all
  return json;
}

static void add_shares(json_t *json, Ballast__V1__DeviceShare *const *shares, size_t count) {
  json_t *devices = json_array();
  for (size_t i = 0; i < count; i++) {
    json_array_append_new(
        devices, json_pack("{s:i, s:I, s:I, s:I, s:I}", "device", shares[i]->device, "own_slots",
                           (json_int_t)shares[i]->own_slots, "lent_slots", (json_int_t)shares[i]->lent_slots,
                           "evictions", (json_int_t)shares[i]->evictions, "dropped", (json_int_t)shares[i]->dropped));
    if (shares[i]->reason[0] != '\0') {
      json_object_set_new(json_array_get(devices, i), "reason", json_string(shares[i]->reason));
    }
  }
  json_object_set_new(json, "devices", devices);
}

static void add_hosts(json_t *json, Ballast__V1__HostShare *const *shares, size_t count) {
  json_t *hosts = json_array();
  for (size_t i = 0; i < count; i++) {
    json_array_append_new(hosts, json_pack("{s:I, s:I}", "host", (json_int_t)shares[i]->host, "lent_slots",
                                           (json_int_t)shares[i]->lent_slots));
  }
  json_object_set_new(json, "hosts", hosts);
}

static void add_order(json_t *json, const char *order) {
  if (order[0] != '\0') {
    json_object_set_new(json, "order", json_string(order));
  }
}

static json_t *read_set(const ProtobufCMessage *output) {
  const Ballast__V1__SetPolicyResponse *response = (const Ballast__V1__SetPolicyResponse *)output;
  json_t *json = response->policy != NULL ? policy_json(response->policy) : NULL;
  if (json != NULL) {
    json_object_set_new(json, "unchanged", json_boolean(response->unchanged));
    add_shares(json, response->devices, response->n_devices);
    add_hosts(json, response->hosts, response->n_hosts);
    add_order(json, response->order);
  }
  return json;
}

static json_t *read_get(const ProtobufCMessage *output) {
  const Ballast__V1__GetPolicyResponse *response = (const Ballast__V1__GetPolicyResponse *)output;
  json_t *json = response->policy != NULL ? policy_json(response->policy) : NULL;
  if (json != NULL) {
    json_object_set_new(json, "plan_version", json_integer((json_int_t)response->plan_version));
    json_object_set_new(json, "waiting", json_integer(response->waiting));
    set_number(json, "budget", response->budget);
    if (response->decision[0] != '\0') {
      json_object_set_new(json, "decision", json_string(response->decision));
    }
    add_shares(json, response->devices, response->n_devices);
    add_hosts(json, response->hosts, response->n_hosts);
    add_order(json, response->order);
  }
  return json;
}

static json_t *read_history(const ProtobufCMessage *output) {
  const Ballast__V1__PolicyHistoryResponse *response = (const Ballast__V1__PolicyHistoryResponse *)output;
  json_t *rows = json_array();
  for (size_t i = 0; i < response->n_policies; i++) {
    if (json_array_append_new(rows, policy_json(response->policies[i])) != 0) {
      json_decref(rows);
      return NULL;
    }
  }
  return rows;
}

// ---- calls ----------------------------------------------------------------------------------------------------------

bl_status_t bl_ctl_policy_set(const char *address, uint64_t timeout_ms, const bl_ctl_policy_change_t *change,
                              json_t **answer, bl_error_t *err) {
  Ballast__V1__SetPolicyRequest request = BALLAST__V1__SET_POLICY_REQUEST__INIT;
  (void)!getrandom(&request.request, sizeof request.request, 0); // 0 if it fails: this call is made once
  request.name = (char *)(change->name != NULL ? change->name : "");
  request.cap = change->cap;
  request.mode = (char *)(change->mode != NULL ? change->mode : "");
  request.devices = change->devices;
  request.n_devices = change->device_count;
  request.rollback = change->name == NULL;
  request.to_version = change->to_version;
  request.dry_run = change->dry_run;
  return ask(address, timeout_ms, "SetPolicy", &request.base, read_set, answer, err);
}

bl_status_t bl_ctl_policy_get(const char *address, uint64_t timeout_ms, json_t **answer, bl_error_t *err) {
  Ballast__V1__GetPolicyRequest request = BALLAST__V1__GET_POLICY_REQUEST__INIT;
  return ask(address, timeout_ms, "GetPolicy", &request.base, read_get, answer, err);
}

bl_status_t bl_ctl_policy_history(const char *address, uint64_t timeout_ms, json_t **answer, bl_error_t *err) {
  Ballast__V1__PolicyHistoryRequest request = BALLAST__V1__POLICY_HISTORY_REQUEST__INIT;
  return ask(address, timeout_ms, "PolicyHistory", &request.base, read_history, answer, err);
}
