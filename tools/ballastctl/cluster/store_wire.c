// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/cluster/store_wire.h"

#include "loop/loop.h"
#include "rpc/channel.h"

#include "ballast/v1/store.pb-c.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct bl_ctl_store {
  bl_rpc_channel_t *channel;
};

static const ProtobufCServiceDescriptor *const service = &ballast__v1__store__descriptor;

typedef struct call call_t;
struct call {
  bl_ctl_store_t *store;
  bl_ctl_store_fn done;
  void *context;
  json_t *(*to_json)(const ProtobufCMessage *output);
  bl_ctl_store_event_fn event;
  uint64_t compacted;
  const bl_ctl_store_question_t *question;
  // Of a list, which is fetched page by page.
  uint64_t deadline_at_ms;
  json_t *leases;
};

bl_status_t bl_ctl_store_create(bl_rpc_t *rpc, const char *address, bl_ctl_store_t **result, bl_error_t *err) {
  bl_ctl_store_t *store = calloc(1, sizeof *store);
  if (store == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory");
  }
  bl_status_t status = bl_rpc_channel_create(rpc, address, NULL, &store->channel, err);
  if (status != BL_OK) {
    free(store);
    return status;
  }
  *result = store;
  return BL_OK;
}

void bl_ctl_store_destroy(bl_ctl_store_t *store) {
  if (store != NULL) {
    bl_rpc_channel_destroy(store->channel);
    free(store);
  }
}

// ---- calls ----------------------------------------------------------------------------------------------------------

static void finish(call_t *call, json_t *value, const bl_error_t *err) {
  bl_error_t failure = *err;
  if (err->status == BL_OK && value == NULL) {
    (void)bl_error_set(&failure, BL_INTERNAL, "%s: its answer holds text that is not UTF-8",
                       bl_rpc_channel_address(call->store->channel));
  }
  call->done(value, &failure, call->context);
  json_decref(value);
  json_decref(call->leases);
  free(call);
}

static void answered(const ProtobufCMessage *output, const bl_error_t *err, void *context) {
  call_t *call = context;
  finish(call, output != NULL ? call->to_json(output) : NULL, err);
}

// ---- leases ---------------------------------------------------------------------------------------------------------

static json_t *hex(uint64_t value) {
  char text[20];
  snprintf(text, sizeof text, "%016" PRIx64, value);
  return json_string(text);
}

static json_t *lease_json(const Ballast__V1__Lease *lease) {
  json_t *object = json_pack("{s:I, s:I, s:s, s:s, s:I, s:I, s:o, s:I}", "id", (json_int_t)lease->id, "generation",
                             (json_int_t)lease->generation, "state", lease->state, "job", lease->job, "plan",
                             (json_int_t)lease->plan, "stage", (json_int_t)lease->stage, "session", hex(lease->session),
                             "room_bytes", (json_int_t)lease->slot_bytes);
  if (object != NULL && lease->block_bytes != 0) {
    json_object_set_new(object, "block_bytes", json_integer((json_int_t)lease->block_bytes));
    json_object_set_new(object, "checksum", hex(lease->checksum));
  }
  if (object != NULL && lease->label != NULL) {
    json_object_set_new(object, "step", json_integer((json_int_t)lease->label->step));
    json_object_set_new(object, "chunk", json_integer((json_int_t)lease->label->chunk));
    json_object_set_new(object, "micro_batch", json_integer((json_int_t)lease->label->micro_batch));
  }
  if (object != NULL) {
    json_object_set_new(object, "offset_bytes", json_integer((json_int_t)lease->offset_bytes));
    json_object_set_new(object, "tier", json_string(lease->tier == 0 ? "device" : "host"));
    json_object_set_new(object, "age_seconds", json_real((double)lease->age_ms * 1e-3));
  }
  return object;
}

static bl_status_t ask_page(call_t *call, uint64_t after, bl_error_t *err);

static void page_came(const ProtobufCMessage *output, const bl_error_t *err, void *context) {
  call_t *call = context;
  if (output == NULL) {
    finish(call, NULL, err);
    return;
  }
  const Ballast__V1__ListLeasesResponse *response = (const Ballast__V1__ListLeasesResponse *)output;
  for (size_t i = 0; i < response->n_leases; i++) {
    json_array_append_new(call->leases, lease_json(response->leases[i]));
  }
  bl_error_t fault;
  if (response->next == 0) {
    finish(call, json_pack("{s:I, s:O}", "revision", (json_int_t)response->revision, "leases", call->leases), err);
  } else if (ask_page(call, response->next, &fault) != BL_OK) {
    finish(call, NULL, &fault);
  }
}

// The deadline is for all pages together.
static bl_status_t ask_page(call_t *call, uint64_t after, bl_error_t *err) {
  uint64_t now_ms = bl_loop_now_ms(bl_rpc_channel_loop(call->store->channel));
  if (now_ms >= call->deadline_at_ms) {
    return bl_error_set(err, BL_DEADLINE, "%s: the list is longer than the time for it; --timeout gives more",
                        bl_rpc_channel_address(call->store->channel));
  }
  Ballast__V1__ListLeasesRequest request = BALLAST__V1__LIST_LEASES_REQUEST__INIT;
  request.after = after;
  request.job = (char *)(call->question->job != NULL ? call->question->job : "");
  request.state = (char *)(call->question->state != NULL ? call->question->state : "");
  return bl_rpc_channel_call(call->store->channel, service, "ListLeases", &request.base, call->deadline_at_ms - now_ms,
                             page_came, call, err);
}

static json_t *get_json(const ProtobufCMessage *output) {
  return lease_json((const Ballast__V1__Lease *)output);
}

static json_t *empty_json(const ProtobufCMessage *output) {
  (void)output;
  return json_object();
}

// ---- the store ------------------------------------------------------------------------------------------------------

static json_t *drain_json(const ProtobufCMessage *output) {
  return json_pack("{s:b}", "drained", ((const Ballast__V1__StoreDrainResponse *)output)->drained);
}

static json_t *counts_json(Ballast__V1__StoreCount *const *counts, size_t count) {
  json_t *object = json_object();
  for (size_t i = 0; i < count; i++) {
    json_object_set_new(object, counts[i]->name, json_integer((json_int_t)counts[i]->count));
  }
  return object;
}

static json_t *sessions_json(const Ballast__V1__StoreStatusResponse *response) {
  json_t *sessions = json_array();
  for (size_t i = 0; i < response->n_sessions; i++) {
    const Ballast__V1__StoreSession *session = response->sessions[i];
    json_array_append_new(sessions,
                          json_pack("{s:o, s:s, s:I, s:I, s:s, s:I, s:I, s:I, s:s}", "session", hex(session->session),
                                    "job", session->job, "plan", (json_int_t)session->plan, "stage",
                                    (json_int_t)session->stage, "state", session->state, "slots",
                                    (json_int_t)session->slots, "held_bytes", (json_int_t)session->held_bytes,
                                    "in_flight_bytes", (json_int_t)session->in_flight_bytes, "path", session->path));
  }
  return sessions;
}

static json_t *tiers_json(const Ballast__V1__StoreStatusResponse *response) {
  json_t *tiers = json_object();
  for (size_t i = 0; i < response->n_tiers; i++) {
    const Ballast__V1__StoreTier *tier = response->tiers[i];
    json_object_set_new(tiers, tier->name,
                        json_pack("{s:I, s:I, s:I}", "capacity_bytes", (json_int_t)tier->capacity_bytes, "arena_bytes",
                                  (json_int_t)tier->arena_bytes, "held_bytes", (json_int_t)tier->held_bytes));
  }
  return tiers;
}

static json_t *status_json(const ProtobufCMessage *output) {
  const Ballast__V1__StoreStatusResponse *response = (const Ballast__V1__StoreStatusResponse *)output;
  char incarnation[33] = "";
  for (size_t i = 0; i < response->incarnation.len && i < 16; i++) {
    snprintf(incarnation + 2 * i, 3, "%02x", response->incarnation.data[i]);
  }
  return json_pack("{s:s, s:s, s:o, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:o}", "incarnation",
                   incarnation, "device", response->device, "tiers", tiers_json(response), "state",
                   response->draining ? "draining" : "serving", "revision", (json_int_t)response->revision,
                   "capacity_bytes", (json_int_t)response->capacity_bytes, "arena_bytes",
                   (json_int_t)response->arena_bytes, "held_bytes", (json_int_t)response->held_bytes, "free_bytes",
                   (json_int_t)response->free_bytes, "largest_free_bytes", (json_int_t)response->largest_free_bytes,
                   "quarantined_bytes", (json_int_t)response->quarantined_bytes, "in_flight_bytes",
                   (json_int_t)response->in_flight_bytes, "leases", counts_json(response->leases, response->n_leases),
                   "refusals", counts_json(response->refusals, response->n_refusals), "counters",
                   counts_json(response->counters, response->n_counters), "sessions", sessions_json(response));
}

// ---- questions ------------------------------------------------------------------------------------------------------

static bl_status_t send_input(call_t *call, const char *method, const ProtobufCMessage *input,
                              json_t *(*to_json)(const ProtobufCMessage *output), uint64_t deadline_ms,
                              bl_error_t *err) {
  call->to_json = to_json;
  return bl_rpc_channel_call(call->store->channel, service, method, input, deadline_ms, answered, call, err);
}

static bl_status_t send_revoke(call_t *call, uint64_t deadline_ms, bl_error_t *err) {
  Ballast__V1__RevokeRequest request = BALLAST__V1__REVOKE_REQUEST__INIT;
  request.id = call->question->id;
  request.generation = call->question->generation;
  request.session = call->question->session;
  return send_input(call, "Revoke", &request.base, empty_json, deadline_ms, err);
}

static bl_status_t send_quota(call_t *call, uint64_t deadline_ms, bl_error_t *err) {
  Ballast__V1__SetQuotaRequest request = BALLAST__V1__SET_QUOTA_REQUEST__INIT;
  request.job = (char *)call->question->job;
  request.of_stage = call->question->stage >= 0;
  request.stage = request.of_stage ? (uint32_t)call->question->stage : 0;
  request.unlimited = call->question->unlimited;
  request.bytes = call->question->bytes;
  return send_input(call, "SetQuota", &request.base, empty_json, deadline_ms, err);
}

static bl_status_t send_question(call_t *call, uint64_t deadline_ms, bl_error_t *err) {
  Ballast__V1__StoreStatusRequest status = BALLAST__V1__STORE_STATUS_REQUEST__INIT;
  Ballast__V1__GetLeaseRequest get = BALLAST__V1__GET_LEASE_REQUEST__INIT;
  Ballast__V1__StoreDrainRequest drain = BALLAST__V1__STORE_DRAIN_REQUEST__INIT;
  switch (call->question->kind) {
  case BL_CTL_STORE_STATUS:
    return send_input(call, "Status", &status.base, status_json, deadline_ms, err);
  case BL_CTL_STORE_LIST:
    call->deadline_at_ms = bl_loop_now_ms(bl_rpc_channel_loop(call->store->channel)) + deadline_ms;
    call->leases = json_array();
    return call->leases == NULL ? bl_error_set(err, BL_EXHAUSTED, "no memory") : ask_page(call, 0, err);
  case BL_CTL_STORE_GET:
    get.id = call->question->id;
    return send_input(call, "GetLease", &get.base, get_json, deadline_ms, err);
  case BL_CTL_STORE_REVOKE:
    return send_revoke(call, deadline_ms, err);
  case BL_CTL_STORE_DRAIN:
    drain.undrain = call->question->undrain;
    return send_input(call, "Drain", &drain.base, drain_json, deadline_ms, err);
  case BL_CTL_STORE_QUOTA:
    return send_quota(call, deadline_ms, err);
  }
  return bl_error_set(err, BL_INTERNAL, "no such question");
}

bl_status_t bl_ctl_store_call(bl_ctl_store_t *store, const bl_ctl_store_question_t *question, uint64_t deadline_ms,
                              bl_ctl_store_fn done, void *context, bl_error_t *err) {
  call_t *call = malloc(sizeof *call);
  if (call == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory");
  }
  *call = (call_t){.store = store, .question = question, .done = done, .context = context};
  bl_status_t status = send_question(call, deadline_ms, err);
  if (status != BL_OK) {
    json_decref(call->leases);
    free(call);
  }
  return status;
}

// ---- watch ----------------------------------------------------------------------------------------------------------

// Returns whether the state means that the lease or session did not exist before, or no longer exists.
static bool is_nothing(const char *state) {
  return state[0] == '\0' || strcmp(state, "free") == 0 || strcmp(state, "none") == 0 || strcmp(state, "over") == 0;
}

static json_t *event_json(const Ballast__V1__LeaseEvent *event) {
  const char *type = is_nothing(event->to) ? "DELETED" : is_nothing(event->from) ? "ADDED" : "MODIFIED";
  json_t *object = json_pack("{s:s, s:I, s:s, s:s, s:s}", "type", type, "revision", (json_int_t)event->revision, "kind",
                             event->kind, "from", event->from, "to", event->to);
  const bool lease = strcmp(event->kind, "lease") == 0;
  if (object != NULL && strcmp(event->kind, "store") != 0) {
    json_object_set_new(object, "id", lease ? json_integer((json_int_t)event->id) : hex(event->id));
    json_object_set_new(object, "stage", json_integer((json_int_t)event->stage));
  }
  if (object != NULL && lease) {
    json_object_set_new(object, "generation", json_integer((json_int_t)event->generation));
    json_object_set_new(object, "room_bytes", json_integer((json_int_t)event->slot_bytes));
  }
  return object;
}

static void watched(const ProtobufCMessage *output, void *context) {
  call_t *call = context;
  const Ballast__V1__WatchLeasesResponse *response = (const Ballast__V1__WatchLeasesResponse *)output;
  if (response->compacted != 0) {
    call->compacted = response->compacted;
  }
  for (size_t i = 0; i < response->n_events; i++) {
    json_t *event = event_json(response->events[i]);
    if (event != NULL) {
      call->event(event, call->context);
    }
    json_decref(event);
  }
}

static void watch_ended(const ProtobufCMessage *output, const bl_error_t *err, void *context) {
  (void)output;
  call_t *call = context;
  const bl_error_t none = {.status = BL_OK};
  if (call->compacted != 0) {
    finish(call, json_pack("{s:I}", "compacted", (json_int_t)call->compacted), &none);
  } else {
    finish(call, err->status == BL_OK ? json_object() : NULL, err);
  }
}

bl_status_t bl_ctl_store_watch(bl_ctl_store_t *store, uint64_t from_revision, bl_ctl_store_event_fn event,
                               bl_ctl_store_fn done, void *context, bl_error_t *err) {
  call_t *call = malloc(sizeof *call);
  if (call == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory");
  }
  *call = (call_t){.store = store, .done = done, .context = context, .event = event};
  Ballast__V1__WatchLeasesRequest request = BALLAST__V1__WATCH_LEASES_REQUEST__INIT;
  request.from_revision = from_revision;
  bl_status_t status = bl_rpc_channel_stream(store->channel, service, "WatchLeases", &request.base, BL_RPC_NO_DEADLINE,
                                             watched, watch_ended, call, err);
  if (status != BL_OK) {
    free(call);
  }
  return status;
}
